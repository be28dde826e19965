"""`holdfast runs` finds a run in open workspaces, in the recorded directory and in this directory, in that order."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import Caller
from cli.isolated_home import IsolatedHome
from holdfast.cli.run_client.run_lookup import record_directory, recorded_runs
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.client import Client
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from server.helpers import read_until, run_ended


class Places:
    """`has` is a directory with the run `kept`; `lacks` is one without it; `gone` is none."""

    def __init__(self, home: IsolatedHome) -> None:
        self.home = home
        self.has, self.lacks, self.gone = (home.home / name for name in ("has", "lacks", "gone"))
        self.has.mkdir()
        self.lacks.mkdir()
        asyncio.run(self._converse())

    async def _converse(self) -> None:
        """The workspaces close when the client detaches."""
        async with Client(self.home.where.address) as client:
            for place in (self.has, self.lacks):
                workspace = (await client.create_workspace(str(place))).id
                if place is self.has:
                    session = (await client.create_session(workspace, "s")).id
                    async with client.events(workspace, since=0) as events:
                        await client.send_prompt(workspace, AgentMessage(session, "words=1", RunId("kept")))
                        await read_until(events, run_ended(RunId("kept")))
                await client.leave_workspace(workspace)

    def show(self, here: Path, run: str = "kept") -> tuple[int, str]:
        done = Caller(self.home, str(here)).call("runs", "show", run)
        return done.exit_code, done.stdout if done.exit_code == 0 else done.stderr


@pytest.fixture(scope="module")
def places(home: IsolatedHome) -> Places:
    return Places(home)


@pytest.mark.parametrize("note", ["", "has", "lacks", "gone"])
@pytest.mark.parametrize("here", ["has", "lacks"])
def test_a_run_is_found_despite_an_outdated_record(
    places: Places, note: str, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its workspace is closed."""
    ask = ServerConnection.request

    def ask_of_closed(connection: ServerConnection, answer: type, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401
        return () if (method, path) == ("GET", "/v1/workspaces") else ask(connection, answer, method, path, **more)

    monkeypatch.setattr(ServerConnection, "request", ask_of_closed)
    data = places.home.environment["HOLDFAST_DATA_DIR"]
    file = Path(data) / "detached" / "kept"
    file.unlink(missing_ok=True)
    if note:
        record_directory(data, "kept", str(getattr(places, note)))
    code, text = places.show(getattr(places, here))
    if "has" in (note, here):
        assert (code, "word1" in text) == (0, True)
    else:
        assert code == 4
        assert f"There is no run kept in {places.lacks}" in text


def test_a_run_of_an_open_workspace_is_found_from_anywhere(places: Places) -> None:
    async def show() -> tuple[int, str]:
        async with Client(places.home.where.address) as client:
            await client.create_workspace(str(places.has))
            return await asyncio.to_thread(places.show, places.lacks)

    code, text = asyncio.run(show())
    assert (code, "word1" in text) == (0, True)


def test_records_are_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.run_client.run_lookup._MAX_RECORDED", 1)
    for name in ("a", "bb", "ccc"):
        record_directory(str(tmp_path), name, "/x")
        # The times of files are coarse.
        os.utime(tmp_path / "detached" / name, (len(name), len(name)))
    record_directory(str(tmp_path), "four", "/x")
    assert recorded_runs(str(tmp_path)) == ["four"]


def test_an_unwritable_record_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "detached").write_text("a file")
    record_directory(str(tmp_path), "one", "/x")
    assert recorded_runs(str(tmp_path)) == []
