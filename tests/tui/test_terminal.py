"""The real command in a real terminal. Needs tmux."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scratch import new_directory

COMMAND = f"{sys.executable} -P -c 'from holdfast.cli.frontends import tui_command; tui_command()'"
_TIMEOUT = 30.0


class Terminal:
    """A tmux of its own, with one window."""

    def __init__(self, root: Path, size: tuple[int, int]) -> None:
        self.root = root
        self.data = root / "data"
        self.project = root / "project"
        self.project.mkdir()
        self._name = root.name
        self._size = size
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("TMUX", "TMUX_PANE", "HOLDFAST_HOST", "NO_COLOR")
        } | {"HOLDFAST_DATA_DIR": str(self.data), "XDG_RUNTIME_DIR": str(root), "XDG_CONFIG_HOME": str(root / "config")}
        # Some shells export them; they must not override the size of the terminal.
        self.environment |= {"COLUMNS": str(size[0]), "LINES": str(size[1])}

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def open(self, command: str = COMMAND) -> None:
        wide, high = map(str, self._size)
        # The shell continues after the app, so that its remains are visible.
        after = f"{command}; echo left with $?; exec sleep 1000"
        self.tmux("new-session", "-d", "-x", wide, "-y", high, "-c", str(self.project), after)

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, text: str, *, is_there: bool = True) -> str:
        deadline = time.monotonic() + _TIMEOUT
        while (text in (screen := self.screen())) is not is_there:
            assert time.monotonic() < deadline, f"{text!r} did not appear or disappear:\n{screen}"
            self.tmux("run-shell", f"sleep {_poll_interval()}")
        return screen

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True, check=False)
        # The run may still be active: a server whose directory is removed then would stay forever.
        subprocess.run(
            [sys.executable, "-m", "holdfast", "server", "stop", "--force", "--data-dir", str(self.data)],
            env=self.environment,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )


def _poll_interval() -> float:
    """Return the seconds between two checks: a terminal does not report its changes."""
    return 0.05


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is missing: install the package tmux.")
        pytest.skip("tmux is missing: install the package tmux.")
    root = new_directory()
    made = Terminal(root, (100, 30))
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(root, ignore_errors=True)


def test_app_in_a_real_terminal(terminal: Terminal) -> None:
    terminal.open()
    terminal.until("Write what you want done")
    terminal.type("words=400 pause=40")
    terminal.keys("Enter")
    terminal.until("word5 ")
    terminal.until("Writing")
    terminal.keys("Escape")
    terminal.until("esc again to cancel")
    terminal.keys("Escape")
    screen = terminal.until("■ Cancelled")
    assert "word400" not in screen
    terminal.type("ask")
    terminal.keys("Enter")
    terminal.until("wants to change a file")
    # Text that is typed meanwhile stays text: letters, a paste, Enter behind them.
    terminal.type("was das ")
    terminal.until("finish or send your text first")
    terminal.tmux("set-buffer", "always\ta\td")
    terminal.tmux("paste-buffer", "-p")
    terminal.until("was das always")
    assert not (terminal.project / "holdfast-tour.txt").exists()
    terminal.keys("C-u")
    terminal.until("enter answer")
    terminal.keys("Right", "Left", "Enter")
    terminal.until("● write")
    terminal.until("◇ tour")
    assert (terminal.project / "holdfast-tour.txt").exists()
    terminal.keys("C-c")
    terminal.until("left with 0")


def test_modified_enter_keys_in_a_real_terminal(terminal: Terminal) -> None:
    """Alt-Enter is an Escape and an Enter in older terminals: it queues as well."""
    terminal.open()
    terminal.until("Write what you want done")
    terminal.type("words=4000 pause=40")
    terminal.keys("Enter")
    terminal.until("word2 ")
    terminal.type("in a turn of its own")
    terminal.keys("M-Enter")
    terminal.until("⋯ in a turn of its own")
    terminal.type("in this one")
    terminal.keys("Enter")
    terminal.until("↳ in this one")
    terminal.keys("C-c")
    terminal.until("left with 0")


def test_window_resize(terminal: Terminal) -> None:
    terminal.open()
    terminal.until("Write what you want done")
    terminal.type("words=40")
    terminal.keys("Enter")
    terminal.until("word40")
    terminal.tmux("resize-window", "-x", "60", "-y", "20")
    terminal.until("word40")
    terminal.tmux("resize-window", "-x", "140", "-y", "45")
    terminal.until("word40")
    terminal.keys("C-c")
    terminal.until("left with 0")


def test_external_editor_returns_its_text(terminal: Terminal) -> None:
    composer = terminal.root / "editor"
    composer.write_text('#!/bin/sh\nprintf "words=7 from the editor" > "$1"\n')
    composer.chmod(0o755)
    terminal.environment["EDITOR"] = str(composer)
    terminal.open()
    terminal.until("Write what you want done")
    terminal.keys("C-o")
    terminal.until("words=7 from the editor")
    terminal.keys("Enter")
    terminal.until("word7")


def test_no_color_and_no_terminal(terminal: Terminal) -> None:
    """NO_COLOR suppresses all colour codes; without a terminal the command names the alternative."""
    terminal.environment["NO_COLOR"] = "1"
    terminal.open()
    terminal.until("Write what you want done")
    used = {int(number) for number in re.findall(r"[34]8;5;(\d+)", terminal.tmux("capture-pane", "-p", "-e"))}
    assert used <= {0, 7, 8, 15, 16, 59, 102, 145, 188, 231, *range(232, 256)}, "only shades of grey"
    piped = subprocess.run(
        [sys.executable, "-P", "-c", "from holdfast.cli.frontends import tui_command; tui_command()"],
        env=terminal.environment,
        cwd=terminal.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.returncode != 0
    assert "holdfast run" in piped.stderr
