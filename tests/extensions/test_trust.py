"""Parts of project files that need trust, and their effect."""

import json
from pathlib import Path

from e2e.home import written
from holdfast.config.configuration import Configuration
from holdfast.config.locations import SettingsLocations, locate_settings
from holdfast.config.trust import TrustStore
from holdfast.extensions.trust import (
    combined_digest,
    find_trustable_files,
    grant_trust,
    revoke_trust,
    untrusted_files,
)

HOOKS = {"hooks": {"PreToolUse": [{"matcher": "", "hooks": [{"type": "command", "command": "make"}]}]}}


class Project:
    """A project with a file of each kind, and the same files for the user."""

    def __init__(self, root: Path) -> None:
        self.home, self.path = root / "home", root / "project"
        for place in (self.home, self.path):
            written(place / ".claude/settings.json", json.dumps(HOOKS))
            written(place / ".claude/commands/plain.md", "only text")
            written(place / ".claude/commands/wide.md", "---", "allowed-tools: Bash", "---", "x")
            written(place / ".claude/agents/critic.md", "---", "description: x", "---", "y")
            written(place / ".claude/skills/pdf/SKILL.md", "---", "name: pdf", "description: x", "---", "y")
        self.environment = {"HOME": str(self.home)}

    @property
    def places(self) -> SettingsLocations:
        return locate_settings(str(self.path), self.environment, data_dir=str(self.path.parent / "data"))

    def files(self) -> dict[str, tuple[tuple[str, int, str], ...]]:
        return {file.path: file.entries for file in find_trustable_files(self.places, self.environment)}


def test_only_project_files_that_widen_permissions_need_trust(tmp_path: Path) -> None:
    project = Project(tmp_path)
    claude = project.path / ".claude"
    assert project.files() == {
        str(claude / "settings.json"): (("hooks.PreToolUse", 1, "make"),),
        str(claude / "commands/wide.md"): (("allowed-tools", 2, "bash"),),
        str(claude / "agents/critic.md"): (("tools", 1, "all"),),
    }
    (claude / "settings.json").write_text('{"disableAllHooks": true}')
    assert project.files()[str(claude / "settings.json")] == (("disableAllHooks", 0, "true"),)
    (claude / "settings.json").write_text('{"permissions": {}}')
    assert str(claude / "settings.json") not in project.files()


def test_changed_file_loses_trust(tmp_path: Path) -> None:
    project = Project(tmp_path)
    written(project.path / "holdfast.toml", "[env]", "A = '1'")
    configuration = Configuration(project.places, project.environment)
    files = find_trustable_files(project.places, project.environment)
    before = combined_digest(configuration.snapshot().project.digest, files)
    assert combined_digest("digest of the settings", ()) == "digest of the settings"
    grant_trust(configuration.trust, configuration.snapshot().project, files, at=1.0)
    assert configuration.snapshot().project.is_trusted
    assert untrusted_files(files, configuration.trust) == ()
    written(project.path / ".claude/commands/wide.md", "---", "allowed-tools: Bash", "---", "other words")
    now = find_trustable_files(project.places, project.environment)
    assert [Path(file.path).name for file in untrusted_files(now, configuration.trust)] == ["wide.md"]
    assert configuration.snapshot().project.is_trusted, "the settings have not changed"
    assert combined_digest(configuration.snapshot().project.digest, now) != before
    assert revoke_trust(configuration.trust, configuration.snapshot().project, now)
    assert len(untrusted_files(now, configuration.trust)) == 3, "the settings and the files, at once"
    assert not revoke_trust(configuration.trust, configuration.snapshot().project, now)
    assert not configuration.snapshot().project.is_trusted


def test_unreadable_trust_store_trusts_no_file(tmp_path: Path) -> None:
    store = TrustStore(str(tmp_path / "trust.json"))
    store.trust_files({"/a": "d"}, at=1.0)
    assert store.is_file_trusted("/a", "d")
    assert not store.is_file_trusted("/a", "e")
    assert not store.is_file_trusted("/b", "d")
    store.trust("/project", "p", at=2.0)
    assert store.is_file_trusted("/a", "d"), "one kind of trust does not undo the other"
    assert store.is_trusted("/project", "p")
    (tmp_path / "trust.json").write_text("{")
    assert not store.is_file_trusted("/a", "d")


def test_older_trust_store_is_read(tmp_path: Path) -> None:
    (tmp_path / "trust.json").write_text('{"projects": {"/p": {"digest": "d", "at": 1.0}}}')
    store = TrustStore(str(tmp_path / "trust.json"))
    assert store.is_trusted("/p", "d")
    assert not store.is_file_trusted("/p", "d")
