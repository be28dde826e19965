"""The six stories, played by a client that is as strict as a stock one, against the real server on a real socket."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.testing.gates import start
from stock.client import StockClient
from stock.recorded_story import Story
from stock.run import CommandResult, StockRun
from stock.servers import HeldModel, Process
from stock.tui import StockTui

FINISHED = "agent_event created agent_finished"


def check(story: str, **clients: StockClient) -> None:
    for name, client in clients.items():
        Story(story).check(name, client.log, client.screen.labels)


async def test_run_simple(socket: Path, project: Path) -> None:
    run = StockRun(socket, project)
    assert await run.run("good morning") == CommandResult(0, "echo: good morning\n")
    check("run-simple", A=run)


async def test_run_continue_model_stdin(socket: Path, project: Path) -> None:
    first, second, third = (StockRun(socket, project) for _ in range(3))
    assert await first.run("one") == CommandResult(0, "echo: one\n")
    answer = await second.run("two", stdin="from a pipe\n", is_continued=True)
    assert answer == CommandResult(0, "echo: from a pipe two\n")
    assert second.log[-2].body["prompt"] == "from a pipe\n\n\ntwo"
    assert second.session_id == first.session_id
    assert await third.run("three", model=("demo", "scripted")) == CommandResult(0, "echo: three\n")
    assert third.session_id != first.session_id
    check("run-continue-model-stdin", A=first, B=second, C=third)


async def test_tui_prompt_queue_cancel(socket: Path, project: Path, model: HeldModel) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send("hello")
    await tui.see(FINISHED)
    assert not tui.is_busy()
    assert tui.screen.text("assistant") == ["echo: hello"]
    await _queue(tui, model)
    await _clear_and_cancel(tui, model)
    assert tui.screen.text("user") == ["hello", "count slowly", "and then this", "a long story"]
    sessions = await tui.call("GET", "/sessions", into="sessions")
    assert [session["title"] for session in sessions] == ["A talk with a stranger"]
    await tui.leave()
    check("tui-prompt-queue-cancel", A=tui)


async def _queue(tui: StockTui, model: HeldModel) -> None:
    """Queue a second prompt, which is answered after the first."""
    model.is_held = True
    await tui.send("count slowly")
    assert tui.is_busy()
    await tui.see("message created assistant")
    await model.release_words(1)
    await tui.send("and then this")
    assert tui.is_busy()
    assert tui.queue == ["and then this"]
    model.release()
    await tui.see(FINISHED, times=2)
    assert not tui.is_busy()
    assert tui.queue == []
    assert tui.screen.text("assistant")[1:] == ["echo: count slowly", "echo: and then this"]


async def _clear_and_cancel(tui: StockTui, model: HeldModel) -> None:
    """Drop a waiting prompt, which leaves no message, and cancel a streaming response, which keeps its text."""
    model.is_held = True
    await tui.send("a long story")
    await tui.see("message created assistant")
    await model.release_words(3)
    await tui.send("never asked")
    await tui.clear_queue()
    assert tui.queue == []
    assert tui.is_busy()
    await tui.cancel()
    await tui.see("message updated assistant canceled")
    await tui.see(FINISHED)
    assert not tui.is_busy()
    assert tui.screen.text("assistant")[-1] == "echo: a long"


async def test_two_runs_one_session(socket: Path, project: Path, model: HeldModel) -> None:
    first = StockRun(socket, project)
    await first.run("begin")
    a, b = StockRun(socket, project), StockRun(socket, project)
    model.is_held = True
    one = start(a.run("one", is_continued=True))
    await model.release_words(1)
    two = start(b.run("two", is_continued=True))
    await b.accepted.wait()
    model.release()
    assert await one == CommandResult(0, "echo: one\n")
    assert await two == CommandResult(0, "echo: two\n")
    assert model.most_at_once == 1
    check("two-runs-one-session", first=first, A=a, B=b)


async def test_two_clients(socket: Path, project: Path, model: HeldModel) -> None:
    a, b = StockTui(socket, project), StockTui(socket, project)
    await a.start()
    model.is_held = True
    await a.send("a long story of a ship")
    await a.see("message created assistant")
    await model.release_words(3)

    await b.start(is_continued=True)
    assert b.is_busy()
    assert b.screen.text("assistant") == ["echo: a long"]
    assert b.workspace == a.workspace
    await model.release_words(2)
    while b.screen.text("assistant") != ["echo: a long story of"]:
        await b.see("message updated assistant")
    await b.cancel()
    for tui in (a, b):
        await tui.see(FINISHED)
        assert not tui.is_busy()
        assert tui.screen.ends() == ["canceled"]

    model.is_held = False
    await b.send("your turn")
    for tui in (b, a):
        await tui.see(FINISHED)
        assert tui.screen.text("user")[-1] == "your turn"
        assert tui.screen.text("assistant")[-1] == "echo: your turn"
    seen = await a.call("GET", f"/sessions/{a.session_id}", into="session")
    assert seen["attached_clients"] == 2
    del a.log[-1]
    await b.leave()
    await a.leave()
    check("two-clients", A=a, B=b)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path)
    await process.start()
    yield process
    await process.end()


async def test_server_restart(process: Process, project: Path) -> None:
    tui = StockTui(process.socket, project)
    await tui.start()
    await tui.send("words=3")
    await tui.see(FINISHED)
    stopping = start(process.end())
    await tui.read_stream_end()
    await stopping
    await process.start()
    before = tui.workspace
    await tui.reconnect()
    assert tui.workspace == before
    assert tui.screen.text("assistant") == ["word1 word2 word3"]
    await tui.send("words=2")
    await tui.see(FINISHED)
    assert tui.screen.text("assistant")[-1] == "word1 word2"
    await tui.leave()
    check("server-restart", A=tui)


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ('tool=write {"file_path": "x", "content": "1"}', "permission_request created"),
        (
            'tool=question {"questions": [{"type": "yes_no", "question": "?", "description": "!"}]}',
            "question_batch_request created",
        ),
    ],
)
async def test_r10_requests_of_killed_server_are_closed(
    process: Process, project: Path, prompt: str, asked: str
) -> None:
    """R10: a stock client does not query open requests, so a reconnecting one is notified of closed ones."""
    tui = StockTui(process.socket, project)
    await tui.start()
    await tui.send(prompt)
    await tui.see(asked)
    await process.end(signal.SIGKILL)
    await tui.read_stream_end()
    assert tui.screen.dialog or tui.screen.form
    await process.start()
    await tui.reconnect()
    await tui.watch(lambda label: label.startswith(asked.replace("request", "notification")))
    assert (tui.screen.dialog, tui.screen.form) == (None, None)
    await tui.send("now words=2")
    await tui.see(FINISHED)
    assert tui.screen.text("assistant")[-1] == "word1 word2"
    await tui.leave()


async def test_killed_server_is_detected_and_replaced(process: Process, project: Path) -> None:
    """Waiting clients are released; the active run is reported as failed; the session continues."""
    tui, run = StockTui(process.socket, project), StockRun(process.socket, project)
    await tui.start()
    await tui.send("words=500 pause=20")
    await tui.see("message updated assistant")
    waiting = start(run.run("words=500 pause=20"))
    await run.accepted.wait()
    await process.end(signal.SIGKILL)
    await tui.read_stream_end()
    assert await waiting == CommandResult(0, "\n")
    await process.start()
    await tui.reconnect()
    assert tui.screen.ends()[0] == "error"
    await tui.send("now words=2")
    await tui.see(FINISHED)
    assert tui.screen.text("assistant")[-1] == "word1 word2"
    await tui.leave()
