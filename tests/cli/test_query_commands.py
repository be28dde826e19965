"""The commands around `run`: output and error messages."""

import os
import signal
from pathlib import Path
from unicodedata import combining, east_asian_width

import click
import msgspec
import pytest
from click.testing import CliRunner

from cli.isolated_home import TIMEOUT, IsolatedHome
from holdfast.cli.click_group import holdfast
from holdfast.cli.common import table
from holdfast.cli.run_client.run_lookup import expand_id
from holdfast.domain.errors import BadRequest
from holdfast.server.rotating_log import FILE_COUNT, MAX_BYTES


@pytest.fixture(scope="module")
def place(home: IsolatedHome) -> str:
    """A directory with two sessions: one with a tool and an answer, one that failed."""
    made = home.home / "talked"
    made.mkdir()
    home.stdout_of("run", "--cwd", str(made), "--run-id", "told", "words=3 tool=ls")
    home.call("run", "--cwd", str(made), "--run-id", "broke", "please fail")
    return str(made)


def _session(home: IsolatedHome, run_id: str, place: str | None = None) -> str:
    return home.run_of(run_id, place).session_id


def test_runs_are_listed(home: IsolatedHome, place: str) -> None:
    lines = home.stdout_of("runs", "--cwd", place).splitlines()
    assert lines[0].split() == ["RUN", "STATE", "AGE", "PROMPT"]
    assert [line.split()[:2] for line in lines[1:]] == [["broke", "failed"], ["told", "completed"]]
    assert max(map(len, lines)) <= 80
    runs = msgspec.json.decode(home.stdout_of("runs", "list", "--cwd", place, "--json", "--limit", "1"))
    assert [run["run_id"] for run in runs] == ["broke"]
    one = home.stdout_of("runs", "list", "--cwd", place, "--session", _session(home, "told", place), "--json")
    assert [run["run_id"] for run in msgspec.json.decode(one)] == ["told"]


def test_a_run_is_shown_from_anywhere(home: IsolatedHome, place: str) -> None:
    shown = home.call("runs", "show", "told", cwd=Path(place)).stdout
    assert "completed" in shown
    assert shown.endswith("\n> words=3 tool=ls\n\nword1 word2 word3\n")


def test_runs_wait_reports_the_outcome(home: IsolatedHome, place: str) -> None:
    done = home.call("runs", "wait", "broke", "--cwd", place)
    assert (done.returncode, done.stdout) == (1, "")
    assert "asked to fail" in done.stderr


def test_runs_wait_can_time_out(home: IsolatedHome) -> None:
    """The run continues until it is cancelled."""
    run_id = home.stdout_of("run", "--detach", "words=2000 pause=20")
    done = home.call("runs", "wait", "--timeout", "0.1", run_id)
    assert (done.returncode, done.stdout) == (124, "")
    waiting = home.start("runs", "wait", "--stream", run_id)
    assert waiting.stdout is not None
    waiting.stdout.read(1)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(TIMEOUT) == 130
    assert home.run_of(run_id).outcome is None
    assert home.stdout_of("runs", "cancel", run_id) in ("cancelling", "cancelled")
    done = home.call("runs", "wait", run_id)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "holdfast: cancelled.\n")


@pytest.mark.parametrize(("verb", "name"), [("show", "nobody"), ("wait", ".."), ("cancel", "a/b")])
def test_an_unknown_run(home: IsolatedHome, verb: str, name: str) -> None:
    done = home.call("runs", verb, name)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("holdfast: ")
    assert len(done.stderr.splitlines()) == 1


def test_sessions_are_listed(home: IsolatedHome, place: str) -> None:
    lines = home.stdout_of("sessions", "--cwd", place).splitlines()
    assert lines[0].split() == ["SESSION", "AGE", "MESSAGES", "TITLE"]
    assert {line.split()[0] for line in lines[1:]} == {_session(home, "told", place), _session(home, "broke", place)}
    assert max(map(len, lines)) <= 80
    assert len(msgspec.json.decode(home.stdout_of("sessions", "list", "--json", "--cwd", place))) == 2


def test_a_session_is_read(home: IsolatedHome, place: str) -> None:
    output = home.stdout_of("sessions", "show", _session(home, "told", place), "--cwd", place)
    assert output.endswith("\n\n> words=3 tool=ls\n\n[tool ls]\n\nword1 word2 word3")
    assert "please fail" in home.stdout_of("sessions", "last", "--cwd", place)
    messages = msgspec.json.decode(home.stdout_of("sessions", "last", "--json", "--cwd", place))
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_a_session_is_exported(home: IsolatedHome, place: str) -> None:
    session = _session(home, "told", place)
    assert "## You\n\nwords=3 tool=ls" in home.stdout_of("sessions", "export", session, "--cwd", place)
    file = home.home / "talk.json"
    home.stdout_of("sessions", "export", session, "--cwd", place, "--format", "json", "-o", str(file))
    exported = msgspec.json.decode(file.read_bytes())
    assert exported["session"]["id"] == session
    assert len(exported["messages"]) == 4


def test_a_session_is_renamed_and_deleted(home: IsolatedHome) -> None:
    run_id = home.stdout_of("run", "--detach", "words=1")
    home.stdout_of("runs", "wait", run_id)
    session = _session(home, run_id)
    home.stdout_of("sessions", "rename", session, "A", "better", "title")
    assert home.call("sessions", "rename", session, " ").returncode == 2
    assert home.stdout_of("sessions", "show", session).startswith("A better title (")
    done = home.call("sessions", "delete", session)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    home.stdout_of("sessions", "delete", "--yes", session)
    for verb in ("show", "delete", "export"):
        done = home.call("sessions", verb, session)
        assert (done.returncode, done.stdout) == (4, "")
        assert "no such session" in done.stderr


def test_a_prefix_of_an_id_is_sufficient(home: IsolatedHome) -> None:
    """Of a run that was left, also from elsewhere."""
    place = home.home / "short"
    place.mkdir()
    run_id = home.stdout_of("run", "--cwd", str(place), "--detach", "words=2")
    assert home.stdout_of("runs", "wait", run_id[:10]) == "word1 word2"
    session = home.run_of(run_id, str(place)).session_id
    short = session[:12]
    assert session in home.stdout_of("sessions", "show", short, "--cwd", str(place))
    assert home.stdout_of("run", "--cwd", str(place), "--session", short, "words=1") == "word1"
    home.stdout_of("sessions", "rename", "--cwd", str(place), short, "New", "words")
    assert home.stdout_of("sessions", "export", "--cwd", str(place), short).startswith("# New words\n")
    listed = home.stdout_of("runs", "list", "--cwd", str(place), "--session", short, "--json")
    assert len(msgspec.json.decode(listed)) == 2
    assert home.call("runs", "show", run_id[:3], "--cwd", str(place)).returncode == 4
    home.stdout_of("sessions", "delete", "--yes", "--cwd", str(place), short)
    assert msgspec.json.decode(home.stdout_of("sessions", "--json", "--cwd", str(place))) == []


def test_only_unique_prefixes_of_generated_ids_are_expanded() -> None:
    first, second = "abcd" + "0" * 28, "abcd" + "1" * 28
    assert expand_id("abcd0", [first, second, "abcd0-mine"]) == first
    assert expand_id("abcd", ["abcd", first]) == "abcd"
    assert expand_id("job-1", ["job-10", first]) == "job-1", "chosen names are not expanded"
    with pytest.raises(BadRequest, match=f"abcd is ambiguous: {first}, {second}. Give a longer prefix"):
        expand_id("abcd", [second, first])


def test_a_directory_without_sessions(home: IsolatedHome) -> None:
    empty = home.home / "empty"
    empty.mkdir()
    for what in ("runs", "sessions"):
        done = home.call(what, cwd=empty)
        assert (done.returncode, done.stdout) == (0, "")
        assert "holdfast run" in done.stderr
    assert home.call("sessions", "last", cwd=empty).returncode == 4
    assert home.call("attach", cwd=empty).returncode == 4


def test_a_session_is_followed(home: IsolatedHome) -> None:
    """Earlier messages, then the streamed text, each once."""
    run_id = home.stdout_of("run", "--detach", "words=3")
    home.stdout_of("runs", "wait", run_id)
    session = _session(home, run_id)
    process = home.start("attach", session)
    assert process.stdout is not None
    seen = process.stdout.read(1)
    home.stdout_of("run", "--session", session, "words=4 tool=ls pause=2")
    wanted = b"\n> words=3\n\nword1 word2 word3\n\n> words=4 tool=ls pause=2\n\n[tool ls]\nword1 word2 word3 word4\n"
    while len(seen) < len(wanted) and (piece := process.stdout.read(1)):
        seen += piece
    process.send_signal(signal.SIGINT)
    assert (process.wait(TIMEOUT), seen) == (130, wanted)


def test_following_survives_the_server(alone: IsolatedHome) -> None:
    """C-46: the server is started again, and later messages are shown, too."""
    server = alone.serve()
    run_id = alone.stdout_of("run", "--detach", "words=3")
    alone.stdout_of("runs", "wait", run_id)
    session = _session(alone, run_id)
    process = alone.start("attach", session)
    assert process.stdout is not None
    before, after = b"\n> words=3\n\nword1 word2 word3\n", b"\n> words=2 x\n\nword1 word2\n"
    seen = b""
    while len(seen) < len(before):
        seen += process.stdout.read(1)
    server.kill()
    server.wait(TIMEOUT)
    alone.stdout_of("run", "--session", session, "words=2 x")
    while len(seen) < len(before + after):
        seen += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert (process.wait(TIMEOUT), seen) == (130, before + after)


def test_the_server_status_is_printed(home: IsolatedHome, place: str) -> None:
    status = msgspec.json.decode(home.stdout_of("server", "status", "--json"))
    assert status["pid"] == home.server_process()
    assert status["data_dir"] == os.path.realpath(home.home / "d")
    assert f"process {status['pid']}" in home.stdout_of("server")


def test_without_a_server(alone: IsolatedHome) -> None:
    """Looking starts nothing."""
    done = alone.call("server")
    assert (done.returncode, "No server is running." in done.stderr) == (4, True)
    assert alone.stdout_of("server", "stop") == "No server is running."
    assert alone.call("logs").returncode == 4
    places = msgspec.json.decode(alone.stdout_of("dirs", "--json"))
    assert places["data"] == os.path.realpath(alone.home / "d")
    assert places["server"].startswith("unix://")
    assert places["settings"] == str(alone.home / ".config/holdfast/config.toml")
    assert "database" in alone.stdout_of("dirs")
    assert alone.server_process() is None
    assert not (alone.home / "d").exists()


def test_a_long_log_is_rotated(alone: IsolatedHome) -> None:
    """R11: at most five files; the server writes to the first."""
    log = Path(alone.where.log)
    log.parent.mkdir(parents=True)
    names = [log, *(log.with_name(f"server.log.{number}") for number in range(1, FILE_COUNT))]
    for age, name in enumerate(names):
        name.write_text(f"{age}\n")
    os.truncate(log, MAX_BYTES)
    alone.stdout_of("run", "words=1")
    assert [name.read_bytes()[:2] for name in names[1:]] == [b"0\n", b"1\n", b"2\n", b"3\n"]
    assert sorted(log.parent.iterdir()) == sorted(names)
    assert "listening" in alone.stdout_of("logs")
    assert log.stat().st_mode & 0o777 == 0o600


def test_logs_are_followed(alone: IsolatedHome) -> None:
    """Also when the file is rotated."""
    log = alone.home / "d" / "logs" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n", "utf-8")
    assert alone.stdout_of("logs", "-n", "2") == "two\nthree"
    process = alone.start("logs", "--follow", "-n", "1")
    assert process.stdout is not None
    assert process.stdout.read(6) == b"three\n"
    with log.open("a", encoding="utf-8") as file:
        file.write("four\n")
    assert process.stdout.read(5) == b"four\n"
    log.rename(log.with_suffix(".1"))
    log.write_text("five\n", "utf-8")
    assert process.stdout.read(5) == b"five\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 130


def test_a_closed_pipe_is_not_an_error(home: IsolatedHome, place: str) -> None:
    process = home.start("sessions", "export", _session(home, "told", place), "--cwd", place)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.wait(TIMEOUT)


def test_the_client_example_works(home: IsolatedHome) -> None:
    """Attach, prompt, stream, cancel, in some ten lines of Python."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "client.py"
    process = home.start(code=example.read_text())
    output, complaint = process.communicate(timeout=TIMEOUT)
    text, outcome = output.decode().splitlines()
    assert (process.returncode, outcome, complaint) == (0, "cancelled", b"")
    assert text.startswith("word1 word2 word3")
    assert "word400" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_HOLDFAST_COMPLETE" in CliRunner().invoke(holdfast, ["completion", shell]).stdout


@pytest.mark.parametrize(
    "name", ["run", "runs", "sessions", "attach", "serve", "server", "logs", "dirs", "completion", "demo"]
)
def test_every_help_text_has_a_summary(name: str) -> None:
    runner = CliRunner()
    assert name in runner.invoke(holdfast, ["--help"]).stdout
    output = runner.invoke(holdfast, [name, "--help"], prog_name="holdfast").stdout
    assert "Usage: holdfast" in output
    if name not in ("completion", "demo"):
        assert f"\n    holdfast {name}" in output


@pytest.mark.parametrize("group", ["sessions", "runs", "server"])
def test_every_group_has_examples(group: str) -> None:
    found = holdfast.get_command(click.Context(holdfast), group)
    assert isinstance(found, click.Group)
    for name in found.commands:
        output = CliRunner().invoke(holdfast, [group, name, "--help"], prog_name="holdfast").stdout
        assert f"\n    holdfast {group}" in output
        assert max(map(len, output.splitlines())) <= 100


def test_the_top_level_help() -> None:
    output = CliRunner().invoke(holdfast, ["--help"]).stdout
    assert '\n    git diff | holdfast run "' in output
    assert max(map(len, output.splitlines())) <= 80


def test_tables_fit_where_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide letters take two columns; where it is narrow the beginnings of ids must do."""
    rows = [("0123456789abcdef" * 2, "completed", "日本語" * 40), ("own", "failed", "ab\u0301\x1b[2J" * 40)]
    for columns in (50, 200):
        monkeypatch.setattr(os, "get_terminal_size", lambda _, columns=columns: os.terminal_size((columns, 9)))
        lines = table(("RUN", "STATE", "PROMPT"), rows).splitlines()
        widths = [sum(2 if east_asian_width(each) == "W" else not combining(each) for each in line) for line in lines]
        assert columns - 1 <= max(widths) <= columns
        assert lines[1].startswith("01234567  completed" if columns == 50 else f"{rows[0][0]}  completed")
        assert lines[2].startswith("own ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("holdfast ser", {"serve", "server"}),
        ("holdfast runs ", {"cancel", "list", "show", "wait"}),
        ("holdfast sessions --j", {"--json"}),
        ("holdfast run --delivery re", {"reject"}),
    ],
)
def test_command_names_are_completed(line: str, words: set[str]) -> None:
    """Also those of a group that lists when it is called without arguments."""
    given = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_HOLDFAST_COMPLETE": "bash_complete"}
    output = CliRunner().invoke(holdfast, [], prog_name="holdfast", env=given).stdout
    assert {word.partition(",")[2] for word in output.split()} == words


def test_fish_completions_keep_commas() -> None:
    """A comma in it does not end it."""
    script = CliRunner().invoke(holdfast, ["completion", "fish"]).stdout
    assert 'string split -m 1 ","' in script
    assert 'string split ","' not in script
