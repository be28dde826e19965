"""A home directory, a project in it, and their settings files."""

from pathlib import Path

from holdfast.atomic_files import FILES
from holdfast.config.configuration import Configuration
from holdfast.config.locations import SettingsLocations, locate_settings
from holdfast.config.variables import CommandRunner
from holdfast.domain.documents import Documents

__all__ = ["SettingsFiles"]


class SettingsFiles:
    """Real settings files below a temporary directory."""

    def __init__(self, top: Path, documents: Documents = FILES) -> None:
        """`documents` other than files are those of a cluster."""
        self.documents = documents
        self.home = top / "home"
        self.project = top / "project"
        self.data = top / "data"
        self.system = top / "etc" / "config.toml"
        (self.project / ".git").mkdir(parents=True)
        self.home.mkdir()
        self.environment = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}

    @property
    def user_file(self) -> Path:
        return self.home / ".config/holdfast/config.toml"

    @property
    def project_file(self) -> Path:
        return self.project / "holdfast.toml"

    def write(self, path: Path, text: str | bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def write_user(self, text: str) -> Path:
        return self.write(self.user_file, text)

    def write_project(self, text: str) -> Path:
        return self.write(self.project_file, text)

    def locations(self, directory: Path | None = None, workspace: str = "w1") -> SettingsLocations:
        return locate_settings(
            str(directory or self.project),
            self.environment,
            data_dir=str(self.data),
            workspace_id=workspace,
            system=str(self.system),
            is_shared=self.documents is not FILES,
        )

    def open(self, directory: Path | None = None, *, run: CommandRunner | None = None) -> Configuration:
        return Configuration(self.locations(directory), self.environment, run=run, documents=self.documents)

    def trust(self, configuration: Configuration) -> None:
        project = configuration.snapshot().project
        configuration.trust.trust(project.anchor, project.digest, at=1.0)
