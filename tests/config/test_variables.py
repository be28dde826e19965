"""Expansion of `$` in settings values."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import variables as module
from holdfast.config.variables import (
    MAX_OUTPUT_BYTES,
    Expander,
    ExpansionFailed,
    command_output,
    is_template,
    read_template,
    run_command,
)

ENVIRONMENT = {"A": "one", "B_2": "two", "EMPTY": "", "PATH": "/usr/bin:/bin"}


def expand(text: str, *, may_run: bool = False) -> str:
    return Expander(ENVIRONMENT).expand(text, may_run=may_run)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$A", "one"),
        ("${A}", "one"),
        ("x$A-$B_2/y", "xone-two/y"),
        ("${A}b", "oneb"),
        ("$EMPTY", ""),
        ("${NONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${A:-other}", "one"),
        ("${NONE:-$A and ${NONE:-${B_2}}}", "one and two"),
        ("${NONE:-}", ""),
        ("${NONE:-{}}", "{}"),
        ("$$A", "$A"),
        (r"\$A", "$A"),
        ("cost: 5$", "cost: 5$"),
        ("$5 and $-", "$5 and $-"),
        (r"C:\dir", r"C:\dir"),
        ("ünï$A", "ünïone"),
    ],
)
def test_values_are_substituted(text: str, expanded: str) -> None:
    assert expand(text) == expanded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$NONE", "NONE is not set"),
        ("${NONE}", "NONE is not set"),
        ("${NONE:-$OTHER}", "OTHER is not set"),
        ("${A", "never closed"),
        ("$(echo", "never closed"),
        ("${}", "a name is expected"),
        ("${A:?no}", "is not valid"),
        ("$(echo hello)", "only in your own files"),
        ("${NONE:-$(echo hello)}", "only in your own files"),
        ("${A:-" * 100 + "}" * 100, "deeper"),
    ],
)
def test_failure_names_the_missing_variable(text: str, says: str) -> None:
    with pytest.raises(ExpansionFailed, match=says):
        expand(text)


def test_the_environment_of_this_process_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONLY_HERE", "x")
    with pytest.raises(ExpansionFailed, match="ONLY_HERE"):
        expand("$ONLY_HERE")
    assert expand("$(echo ${ONLY_HERE:-nothing})", may_run=True) == "nothing"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(echo hello)", "hello"),
        ("<$(printf ' a b \\n\\n')>", "<a b>"),
        ("$(echo $A; echo ')' \")\")", "one\n) )"),
        ("$( (echo nested) )", "nested"),
        ("$(true)", ""),
        ("$(cat)", ""),
    ],
)
def test_commands_run_only_with_permission(text: str, expanded: str) -> None:
    assert expand(text, may_run=True) == expanded


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo hunter2 >&2; echo hunter2; exit 3", "status 3"),
        ("no-such-command-anywhere", "status 127"),
        ("kill -9 $$", "status -9"),
        ("yes hunter2", "more than 64 KiB"),
        ("printf '\\377'", "not UTF-8"),
    ],
)
def test_failed_command_does_not_quote_its_output(command: str, says: str) -> None:
    with pytest.raises(ExpansionFailed, match=says) as caught:
        run_command(command, ENVIRONMENT)
    assert "hunter2" not in str(caught.value)


def _has_ended(process: int) -> bool:
    """Wait for the process; kill it if it is still running."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        if select.select([descriptor], [], [], 5)[0]:
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return False
    finally:
        os.close(descriptor)


def _cut_off(command: str, note: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the process that a command noted before its time limit. A busy machine gets a longer limit."""
    for limit in (0.3, 1.0, 4.0, 16.0):
        monkeypatch.setattr(module, "COMMAND_TIMEOUT", limit)
        with pytest.raises(ExpansionFailed, match="did not end"):
            run_command(command.format(note=note), ENVIRONMENT)
        if note.exists() and (text := note.read_text().strip()):
            return int(text)
    raise AssertionError("it never began")


@pytest.mark.parametrize(
    "command", ["sleep 600 & echo $! > {note}; wait", "exec >&-; sleep 600 & echo $! > {note}; wait"]
)
def test_command_at_its_time_limit_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert _has_ended(_cut_off(command, tmp_path / "pid", monkeypatch))


def test_process_outside_its_group_does_not_block_the_expansion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "setsid sh -c 'echo $$ > {note}; exec sleep 600' & wait"
    os.kill(_cut_off(command, tmp_path / "pid", monkeypatch), signal.SIGKILL)


def test_processes_left_by_a_command_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert run_command(f"sleep 600 >/dev/null 2>&1 & echo $! > {note}; echo done", ENVIRONMENT) == "done"
    assert _has_ended(int(note.read_text()))


def test_template_detection() -> None:
    assert [is_template(text) for text in ("$A", "${A:-x}", "$(x)", "a$A", "${")] == [True] * 5
    assert [is_template(text) for text in ("", "abc", "5$", "$$A", r"\$A")] == [False] * 5


@given(st.text(alphabet="$(){}:-A\\'\" ", max_size=40))
def test_parsing_yields_pieces_or_an_error(text: str) -> None:
    with suppress(ExpansionFailed):
        assert all(piece != "" for piece in read_template(text))


@given(st.text(max_size=40))
def test_any_text_can_be_quoted(text: str) -> None:
    assert Expander({}).expand(text.replace("\\", "").replace("$", "$$"), may_run=False) == text.replace("\\", "")


@pytest.mark.parametrize(
    ("output", "status", "error"),
    [
        (b" key\n", 0, ""),
        (b"", 0, ""),
        (b"x" * MAX_OUTPUT_BYTES, 0, ""),
        (b"x" * (MAX_OUTPUT_BYTES + 1), 0, "more than"),
        (b"key", 1, "status 1"),
        (b"key", -9, "status -9"),
        (b"key", None, "did not end"),
        (b"\xff", 0, "UTF-8"),
    ],
)
def test_the_output_of_a_command_and_its_bounds(output: bytes, status: int | None, error: str) -> None:
    if not error:
        assert command_output(output, status) == output.decode().strip()
        return
    with pytest.raises(ExpansionFailed, match=error):
        command_output(output, status)
