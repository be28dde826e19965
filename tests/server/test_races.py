"""Cancels that race with prompts over HTTP from two clients: none is lost, none affects a later prompt."""

import asyncio
import random

import pytest

from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.gates import start
from server.helpers import in_process_server, read_until, send_prompt, server_directory

_PAIRS = 125
_LANES = 5


def slow_model(chance: random.Random) -> ScriptedModel:
    """Model that answers within a few milliseconds, so that a cancel may arrive before, during and after."""
    return ScriptedModel(lambda _: Step((Say("a b c d"),)), pause=lambda: chance.random() * 0.003)


async def sleep_for(seconds: float) -> None:
    """Wait until the clock of the loop has advanced by this time."""
    loop = asyncio.get_running_loop()
    due: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, due.set_result, None)
    await due


class Lane:
    """One session in which prompts are sent and cancelled, with the runs that each cancel reported."""

    def __init__(self, prompter: Client, canceller: Client, workspace: WorkspaceId, session: SessionId) -> None:
        self.prompter = prompter
        self.canceller = canceller
        self.workspace = workspace
        self.session = session
        self.cancelled: set[RunId] = set()
        self.runs: list[RunId] = []

    async def pair(self, run: RunId, offset: float, *, is_concurrent: bool) -> None:
        """Send a prompt, a cancel after the offset, and a prompt after the response to the cancel, which must not be
        affected.
        """
        self.runs.append(run)
        sending = start(send_prompt(self.prompter, self.workspace, self.session, "go", run))
        if not is_concurrent:
            await sending
        await sleep_for(offset)
        answer = await self.canceller.cancel_session(self.workspace, self.session)
        self.cancelled.update(answer.cancelled)
        await sending
        after = RunId(f"{run}-after")
        self.runs.append(after)
        await send_prompt(self.prompter, self.workspace, self.session, "on", after)


async def ends_of(client: Client, workspace: WorkspaceId, expected: int) -> dict[str, list[str]]:
    """Return all published ends by run, once every run has one."""
    ends: dict[str, list[str]] = {}

    def note(item: StreamEvent) -> bool:
        if isinstance(item.event, RunCompleteEvent):
            reported = item.event.change.object
            ends.setdefault(reported.run_id, []).append(reported.outcome)
        return len(ends) == expected

    async with client.events(workspace, since=0) as events:
        await read_until(events, note)
    return ends


@pytest.mark.parametrize("seed", range(8))
async def test_r2_r3_c36_cancels_race_with_prompts(seed: int) -> None:
    """R2, R3, C-36: 125 pairs for each seed, a thousand in all."""
    chance = random.Random(seed)
    model = slow_model(chance)
    async with server_directory() as directory, in_process_server(directory, model) as server:
        first, workspace = await server.open_workspace()
        second, _ = await server.open_workspace()
        lanes = []
        for number in range(_LANES):
            session = (await first.create_session(workspace, f"s{number}")).id
            clients = (first, second) if number % 2 else (second, first)
            lanes.append(Lane(*clients, workspace, session))

        async def play(lane: Lane, number: int) -> None:
            for turn in range(_PAIRS // _LANES):
                offset = chance.choice([0.0, chance.random() * 0.005, chance.random() * 0.02])
                await lane.pair(RunId(f"{number}-{turn}"), offset, is_concurrent=chance.random() < 0.4)

        await asyncio.gather(*(play(lane, number) for number, lane in enumerate(lanes)))
        ends = await ends_of(first, workspace, 2 * _PAIRS)
        for lane in lanes:
            for run in lane.runs:
                assert len(ends[run]) == 1, run
                stored = await first.get_run(workspace, run)
                assert (stored.state, stored.outcome) == ("ended", ends[run][0])
                # A run is cancelled if and only if a cancel reported it.
                assert (ends[run] == ["cancelled"]) == (run in lane.cancelled), run
                assert ends[run][0] in ("cancelled", "completed")
        assert model.open_streams == 0
