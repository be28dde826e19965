"""Commands called in this process, with all they print and send as text that is compared with a recorded file.

`HOLDFAST_RECORD_OUTPUTS=1 pytest FILE` records anew: review the difference, for a user sees each line.
"""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from cli.fake_server import FakeServer, SentRequest
from holdfast.cli import lsp, mcp, runs, server, sessions
from holdfast.cli.click_group import holdfast

__all__ = ["Desk", "Recording"]

NOW = 1_000_000.0
_ESCAPE = str.maketrans({"\x1b": "␛", "\u202e": "⇄"})


class Recording:
    """The expected texts of one test file, by name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text("utf-8") if file.exists() else ""
        sections = (section.partition("\n") for section in text.split("\n=== ")[1:])
        self.expected = {name: body for name, _, body in sections}

    def check(self, name: str, found: str) -> None:
        """Compare a text with the recorded one."""
        if os.environ.get("HOLDFAST_RECORD_OUTPUTS"):
            self.expected[name] = found
            sections = (f"\n=== {name}\n{body}" for name, body in self.expected.items())
            self.file.write_text("What commands print and send; see recorded_outputs.py." + "".join(sections), "utf-8")
        assert found == self.expected.get(name, ""), f"{name} in {self.file.name}"


class Desk:
    """A home, a project, a server without sockets, and a clock that advances only while a command waits."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.work = root / "work"
        self.now = 0.0
        self.server = FakeServer(monkeypatch)
        self.stdin = ""
        self.shows_color = False
        hidden = ("_API_KEY", "_TOKEN")
        named = ("AWS_", "XDG_", "GOOGLE_", "HOLDFAST", "EDITOR", "VISUAL", "NO_COLOR", "DISPLAY", "WAYLAND", "BROWSER")
        self.environment: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(named) or name.endswith(hidden)
        }
        self.environment |= {
            "HOME": str(root),
            "XDG_RUNTIME_DIR": str(root / "r"),
            "HOLDFAST_DATA_DIR": str(root / "d"),
            "HOLDFAST_KEYRING": "0",
            "OLLAMA_HOST": "127.0.0.1:9",
            "EDITOR": "no-editor",
        }
        for directory in (self.work, root / "r", root / "d"):
            directory.mkdir(mode=0o700)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: NOW)
        for module in (mcp, lsp, server, runs, sessions):
            monkeypatch.setattr(module, "time", clock)
        for module in (mcp, lsp, server):
            monkeypatch.setattr(module, "sleep", self._sleep)
        # The length of the temporary directory is not that of the next run.
        monkeypatch.setattr("holdfast.cli.common._terminal_width", lambda: 300)
        monkeypatch.chdir(self.work)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """Write a file of the home."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def call(self, line: str) -> str:
        """Call a command. Returns its exit code, output, requests and the time it waited."""
        done = CliRunner().invoke(
            holdfast,
            shlex.split(line),
            input=self.stdin,
            env=self.environment,
            prog_name="holdfast",
            color=self.shows_color,
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        parts = [f"$ {line}", f"exit {done.exit_code}" + (f" after {self.now:.1f} s" if self.now else "")]
        parts += _compressed([_shown(request) for request in self.server.requests])
        parts += ["> " + text for text in done.stdout.splitlines()]
        parts += ["! " + text for text in done.stderr.splitlines()]
        return self.shown("\n".join(parts)) + "\n"

    def files(self) -> dict[str, str]:
        """Return mode and content of each file of the home."""
        found = {}
        for file in sorted(self.root.rglob("*")):
            if file.is_file() and not file.is_symlink():
                head = f"= {file} {file.stat().st_mode & 0o777:o}"
                lines = file.read_text("utf-8", "replace").splitlines()
                found[str(file)] = self.shown("\n".join([head, *("| " + line for line in lines)]))
        return found

    def shown(self, text: str) -> str:
        """Return a text without what differs between two runs of a test."""
        return text.translate(_ESCAPE).replace(str(self.root), "~").replace(quote(str(self.root), ""), "~")


def _shown(request: SentRequest) -> str:
    body = request.body
    if request.name == "POST /v1/workspaces" and body.keys() == {"id", "path", "client_id", "env"} and not body["id"]:
        return f"- open {body['path']}" + ("" if request.can_repeat else " once")
    if isinstance(body, dict):
        body = {name: "…" if name in ("client_id", "env") else value for name, value in body.items()}
    query = {name: "…" if name == "client_id" else value for name, value in request.query.items()}
    timeout = "" if request.timeout is None or 29 < request.timeout <= 30 else f"{request.timeout:.0f} s"
    words = [request.name, str(query or ""), str(body or ""), "may be repeated" * request.can_repeat, timeout]
    return "- " + " ".join(word for word in words if word)


def _compressed(lines: list[str]) -> list[str]:
    """Count equal lines that follow each other."""
    found: list[list[Any]] = []
    for line in lines:
        if found and found[-1][0] == line:
            found[-1][1] += 1
        else:
            found.append([line, 1])
    return [line if count == 1 else f"{line} ({count} times)" for line, count in found]
