"""A server whose store is PostgreSQL does the whole job, and refuses what it cannot use."""

import signal
from collections.abc import Iterator

import msgspec
import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, isolated_home
from holdfast.client.sync_client import SyncClient
from holdfast.protocol.bodies import WorkspaceBody
from postgres_server import database, postgres_server

SECRET = "sEcret-42"


@pytest.fixture
def alone() -> Iterator[IsolatedHome]:
    with database() as dsn, isolated_home() as made:
        made.environment["HOLDFAST_STORE"] = dsn
        yield made


def _workspace(client: SyncClient) -> str:
    _, body = client.request("GET", "/v1/workspaces")
    return msgspec.json.decode(body, type=tuple[WorkspaceBody, ...])[0].id


def _numbers(home: IsolatedHome, cursor: int, until: bytes) -> list[int]:
    """The event numbers after a cursor, up to the end of a run."""
    found: list[int] = []
    with SyncClient(home.where.address) as client:
        path = f"/v1/workspaces/{_workspace(client)}/events"
        with client.stream(path, [("since", str(cursor))]) as events:
            for event in events:
                if event.number is not None:
                    found.append(event.number)
                if b'"run_complete"' in event.data and until in event.data:
                    return found
    raise AssertionError("the stream ended")


def test_a_prompt_survives_kill_9_and_events_resume_by_number(alone: IsolatedHome) -> None:
    server = alone.serve()
    first = alone.start("run", "--stream", "--run-id", "cut", "words=2000 pause=20")
    assert first.stdout is not None
    first.stdout.read(1)
    session = alone.run_of("cut").session_id
    second = alone.start("run", "--verbose", "--session", session, ", words=3 pause=0")
    assert second.stderr is not None
    assert any(b"waiting for its turn" in line for line in second.stderr)
    server.kill()
    server.wait(TIMEOUT)
    # The client starts the next server, which ends the first run and answers the second.
    assert second.communicate(timeout=TIMEOUT)[0] == b"word1 word2 word3\n"
    first.communicate(timeout=TIMEOUT)
    assert first.returncode == 3
    assert alone.run_of("cut").outcome == "interrupted"
    assert alone.stdout_of("run", "--run-id", "last", "words=2") == "word1 word2"
    everything = _numbers(alone, 0, b'"run_id":"last"')
    assert everything == list(range(1, len(everything) + 1)), "numbers never skip ahead on PostgreSQL"
    assert _numbers(alone, 5, b'"run_id":"last"') == everything[5:]
    assert not (alone.home / "d" / "holdfast.db").exists()
    assert (alone.home / "d" / "place").exists()


def test_a_run_and_its_client_outlive_a_crash_of_postgresql() -> None:
    with postgres_server() as server, isolated_home() as home:
        home.environment["HOLDFAST_STORE"] = server.dsn()
        home.serve()
        process = home.start("run", "--stream", "--run-id", "r", "words=60 pause=20")
        assert process.stdout is not None
        first = process.stdout.read(1)
        server.crash()
        rest, errors = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, errors
        assert (first + rest).split() == [f"word{number}".encode() for number in range(1, 61)]
        assert home.run_of("r").outcome == "completed"
        numbers = _numbers(home, 0, b'"run_id":"r"')
        assert numbers == list(range(1, len(numbers) + 1))


def test_commands_do_not_receive_the_address_of_the_store(alone: IsolatedHome) -> None:
    alone.serve()
    alone.stdout_of("run", "--yolo", 'tool=bash {"command": "env > variables", "description": "list"}')
    variables = (alone.work / "variables").read_text()
    assert "HOME=" in variables
    assert "HOLDFAST_STORE" not in variables


@pytest.mark.parametrize(
    ("arguments", "variable", "code", "text"),
    [
        (["--store", f"postgresql://a:{SECRET}@h/d"], "", 2, "PGPASSFILE"),
        (["--store=mysql://h/d"], "", 2, "postgresql://user@host:5432/database"),
        ([], f"postgresql://a:{SECRET}@127.0.0.1:port/d", 2, "is not valid"),
        (["--wait", "soon"], "postgresql://a@127.0.0.1:1/d", 2, "number of seconds"),
        (["--wait", "0"], f"postgresql://a:{SECRET}@127.0.0.1:1/d", 4, "cannot be reached"),
        (["--relay", "http://127.0.0.1:0"], "", 2, "also give --store"),
        (["--relay=http://0.0.0.0:1"], "postgresql://a@127.0.0.1:1/d", 2, "also give --advertise"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_an_exit_code(
    arguments: list[str], variable: str, code: int, text: str
) -> None:
    with isolated_home() as home:
        if variable:
            home.environment["HOLDFAST_STORE"] = variable
        done = home.call("serve", *arguments)
        assert done.returncode == code, done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert text in errors[0]
        assert SECRET not in done.stdout + done.stderr
        assert not (home.home / "d" / "holdfast.db").exists()


def test_project_cannot_choose_the_store_and_settings_do_not_show_a_password() -> None:
    with isolated_home() as home:
        (home.work / "holdfast.toml").write_text('[storage]\nurl = "postgresql://elsewhere/d"\n')
        home.call("trust", "--yes")
        shown = home.stdout_of("config", "show", "--json")
        assert "elsewhere" not in shown
        assert "only your own settings can set this" in home.call("config", "check").stdout
        with home.settings.open("a") as settings:
            settings.write(f'[storage]\nurl = "postgresql://ada:{SECRET}@127.0.0.1:1/d"\n')
        for command in (["config", "show"], ["config", "show", "--json"], ["config", "check"], ["doctor"]):
            done = home.call(*command)
            assert SECRET not in done.stdout + done.stderr, command
        # A server that a command has started in the background still waits for PostgreSQL.
        done = home.call("serve", "--wait", "0", "--data-dir", str(home.home / "e"))
        assert done.returncode == 4, done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "d at 127.0.0.1:1" in done.stderr


def test_server_stops_while_it_waits_for_postgresql() -> None:
    with isolated_home() as home:
        home.environment["HOLDFAST_STORE"] = "postgresql://a@127.0.0.1:1/d"
        process = home.start("serve", "--wait", "600")
        assert process.stderr is not None
        assert any(b"cannot be reached" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
