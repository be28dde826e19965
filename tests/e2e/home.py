"""A separate home directory for the server of a test: it contains only files written by the test."""

import json
from pathlib import Path

import pytest

from holdfast.client.client import Client
from holdfast.domain.ids import WorkspaceId

__all__ = ["Home", "trust", "written"]

_ISOLATED_VARIABLES = (
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "CRUSH_SKILLS_DIR",
    "CLAUDE_CONFIG_DIR",
    "CRUSH_GLOBAL_CONFIG",
)


def written(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


class Home:
    """The user's files."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(path))
        for name in _ISOLATED_VARIABLES:
            monkeypatch.delenv(name, raising=False)

    def settings(self, *lines: str) -> None:
        written(self.path / ".config/holdfast/config.toml", *lines)

    def hooks(self, event: str, *commands: str, matcher: str = "", timeout: int = 0) -> None:
        """In our own format."""
        lines = self.path / ".config/holdfast/config.toml"
        old = lines.read_text() if lines.exists() else ""
        for command in commands:
            old += f"[[hooks.{event}]]\ncommand = {json.dumps(command)}\nmatcher = {json.dumps(matcher)}\n"
            old += f"timeout = {timeout}\n"
        self.settings(old)


async def trust(client: Client, workspace: WorkspaceId) -> None:
    shown = await client.get_trust(workspace)
    assert not shown.trusted
    assert (await client.set_trust(workspace, trusted=True, digest=shown.digest)).trusted
