"""`holdfast logs --follow`: appended lines, and a log that is rotated, truncated or temporarily missing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.click_group import holdfast


class Log:
    """The log of a data directory. `steps` happen one at each pause of the command; after the last it is left."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.file = data / "logs/server.log"
        self.file.parent.mkdir(parents=True)
        self.file.write_text("one\ntwo\n")

    def call(self, patch: pytest.MonkeyPatch, *arguments: str, steps: tuple[Callable[[], object], ...] = ()) -> Result:
        left = list(steps)

        def pause(_: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        patch.setattr("holdfast.cli.server_connection.sleep", pause)
        return CliRunner().invoke(holdfast, ["logs", "--data-dir", str(self.data), *arguments])

    def add(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)

    def turn_over(self) -> None:
        self.file.rename(self.file.with_suffix(".1"))
        self.file.write_text("new\n")

    def cut(self) -> None:
        os.truncate(self.file, 0)
        self.add("cut\n")

    def remove(self) -> None:
        self.file.unlink()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "d")


def test_without_follow_the_command_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    done = log.call(monkeypatch)
    assert (done.exit_code, done.stdout) == (0, "one\ntwo\n")


def test_ctrl_c_ends_following(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    done = log.call(monkeypatch, "-f")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "one\ntwo\n", "")


def test_appended_lines_are_shown_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (lambda: log.add("thr"), lambda: log.add("ee\n"), lambda: None)
    assert log.call(monkeypatch, "--follow", "-n", "1", steps=steps).stdout == "two\nthree\n"


def test_a_rotated_log_is_followed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (log.turn_over, lambda: log.add("newer\n"))
    assert log.call(monkeypatch, "-f", steps=steps).stdout == "one\ntwo\nnew\nnewer\n"


def test_lines_before_a_rotation_are_not_lost(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_words() -> None:
        log.add("last\n")
        log.turn_over()

    assert log.call(monkeypatch, "-f", steps=(last_words,)).stdout == "one\ntwo\nlast\nnew\n"


def test_a_truncated_log_is_read_from_its_beginning(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.call(monkeypatch, "-f", steps=(log.cut,)).stdout == "one\ntwo\ncut\n"


def test_a_missing_log_is_awaited(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (log.remove, lambda: None, lambda: log.file.write_text("back\n"))
    assert log.call(monkeypatch, "-f", steps=steps).stdout == "one\ntwo\nback\n"


def test_a_missing_log_is_a_one_line_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.remove()
    done = log.call(monkeypatch)
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr == f"holdfast: The log {log.file} cannot be read: No such file or directory.\n"
