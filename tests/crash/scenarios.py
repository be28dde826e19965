"""Scenarios that are killed: activities, scenarios composed of them, and the process that plays one.

An activity belongs to one session and uses labels and run ids that start with its tag. It waits only at gates, so that
a scenario makes the same writes in the same order each time, as far as one process can.
"""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from crash.faulty_stores import stores
from crash.workspace import Killer, Lifetime, WorkspaceDriver, serve
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Attachment, Delivery, Prompt
from holdfast.engine.settings import Pace

__all__ = ["SCENARIOS", "play_lifetime", "run_process"]

Activity = Callable[[WorkspaceDriver, SessionId, str], Awaitable[None]]
Scenario = Callable[[WorkspaceDriver], Awaitable[None]]

_TIMEOUT_SECONDS = 20.0


async def steering(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Sequential and parallel tools; two prompts are folded, one waits, one is sent twice."""
    await driver.prompt(session, f"{tag}1 note look look / hold:{tag}1 look / say", f"{tag}-1")
    await driver.held(f"{tag}1")
    await driver.prompt(session, f"{tag}2 look / say", f"{tag}-2")
    await driver.prompt(session, f"{tag}3 say")
    await driver.prompt(session, f"{tag}4 think hold:{tag}4 say")
    await driver.prompt(session, f"{tag}2 look / say", f"{tag}-2")
    driver.go(f"{tag}1")
    await driver.held(f"{tag}4")
    driver.go(f"{tag}4")
    await driver.wait_until_idle(session)


async def stopping(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Cancels of a waiting run and of the active one, a clear, and a failure that blocks no other run."""
    await driver.prompt(session, f"{tag}1 think say hold:{tag}1 say", f"{tag}-1")
    await driver.held(f"{tag}1")
    await driver.prompt(session, f"{tag}2 note / say", f"{tag}-2")
    await driver.cancel_run(RunId(f"{tag}-2"))
    await driver.prompt(session, f"{tag}3 note / say", f"{tag}-3")
    await driver.prompt(session, f"{tag}4 say")
    await driver.clear(session)
    await driver.prompt(session, f"{tag}5 say fail", f"{tag}-5")
    await driver.prompt(session, f"{tag}6 say", f"{tag}-6")
    await driver.cancel_run(RunId(f"{tag}-1"))
    await driver.wait_until_idle(session)


async def sweeping(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """One cancel for a run in the middle of a tool and all runs behind it; one before the run starts.

    The tool stops slowly, so that there is time between the cancel and the end.
    """
    await driver.prompt(session, f"{tag}1 stiff:{tag}1 note / say", f"{tag}-1")
    await driver.held(f"{tag}1")
    await driver.prompt(session, f"{tag}2 note / say", f"{tag}-2")
    await driver.prompt(session, f"{tag}3 say")
    await driver.cancel(session)
    driver.go(f"{tag}1-gone")
    await driver.wait_until_idle(session)
    await asyncio.gather(driver.prompt(session, f"{tag}4 note / say", f"{tag}-4"), driver.cancel(session))
    await driver.wait_until_idle(session)


async def summarizing(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A requested summary, and a run that continues from it."""
    await driver.summarize(session)
    await driver.wait_until_idle(session)
    await driver.prompt(session, f"{tag}1 say", f"{tag}-1")
    await driver.wait_until_idle(session)


async def interrupting(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A prompt that interrupts all other runs: its acceptance promises their cancel."""
    await driver.prompt(session, f"{tag}1 slow:{tag}1 / say", f"{tag}-1")
    await driver.held(f"{tag}1")
    await driver.prompt(session, f"{tag}2 note / say", f"{tag}-2")
    await driver.prompt(session, f"{tag}3 say", f"{tag}-3", delivery="interrupt")
    driver.journal.note("cancelled", f"{tag}-1", f"{tag}-2")
    await driver.wait_until_idle(session)


async def rearranging(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A queue whose order is changed while it waits."""
    await driver.prompt(session, f"{tag}1 hold:{tag}1 say", f"{tag}-1")
    await driver.held(f"{tag}1")
    for number in (2, 3, 4):
        await driver.prompt(session, f"{tag}{number} say", f"{tag}-{number}")
    await driver.move(RunId(f"{tag}-4"), 0)
    await driver.workspace.inputs.redeliver(RunId(f"{tag}-3"), "steer")
    driver.go(f"{tag}1")
    await driver.wait_until_idle(session)


async def delegating(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A run whose tool starts sub-agents in a session of their own: they end with the run."""
    await driver.prompt(session, f"{tag}1 slow:{tag}1 / say", f"{tag}-1")
    await driver.held(f"{tag}1")
    child = await driver.session("child", session)
    for number, script in ((2, f"note hold:{tag}2 say"), (3, "note / say")):
        run_id, parent = RunId(f"{tag}-{number}"), RunId(f"{tag}-1")
        await driver.send(Prompt(child, f"{tag}{number} {script}", run_id=run_id, parent_run_id=parent))
    await driver.held(f"{tag}2")
    driver.go(f"{tag}2")
    await driver.wait_until_idle(child)
    driver.go(f"{tag}1")
    await driver.wait_until_idle(session)


async def sending(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Two sub-agents in parallel, started by the real tool, and a third one after them."""
    await driver.prompt(session, f"{tag}1 agent:{tag}h agent:{tag}i / agent:{tag}j note / say", f"{tag}-1")
    await driver.wait_until_idle(session)


async def undoing(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Two files are written and reverted together, and one of them is written again."""
    await driver.prompt(session, f"{tag}1 write:{tag}x write:{tag}y / say", f"{tag}-1")
    await driver.wait_until_idle(session)
    await driver.undo(session)
    await driver.prompt(session, f"{tag}2 write:{tag}z / say", f"{tag}-2")
    await driver.wait_until_idle(session)


async def approving(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A call that waits for permission, and gets two answers at once."""
    await driver.prompt(session, f"{tag}1 permit / say", f"{tag}-1")
    await driver.answer(f"{tag}-1")
    await driver.wait_until_idle(session)


async def retrying(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Attempts that break off and are withdrawn, between tools and in the last response."""
    await driver.prompt(session, f"{tag}1 think say cut note / say cut say", f"{tag}-1")
    await driver.wait_until_idle(session)


async def lasting(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """A run of many steps, whose events fill several pages."""
    await driver.prompt(session, f"{tag}1 " + "say note look / " * 8 + "say", f"{tag}-1")
    await driver.wait_until_idle(session)


async def competing_clients(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """Three concurrent clients that act at random and wait for none of the others."""
    rng = random.Random(f"{driver.lifetime.scenario} {tag}")
    await asyncio.gather(*(_client(driver, session, f"{tag}{name}", random.Random(rng.random())) for name in "pqr"))


async def _client(driver: WorkspaceDriver, session: SessionId, tag: str, rng: random.Random) -> None:
    sent: list[Prompt] = []
    inputs = driver.workspace.inputs
    for number in range(rng.randint(3, 6)):
        if rng.random() < 0.5 or not sent:
            sent.append(_some_prompt(session, f"{tag}{number}", rng))
        run_id = sent[-1].run_id or RunId("unknown")
        with contextlib.suppress(HoldfastError):
            match rng.randrange(10):
                case 0:
                    await driver.cancel(session)
                case 1:
                    await driver.clear(session)
                case 2:
                    # A run that has already responded ends as it was about to: no promise applies.
                    await inputs.cancel_run(run_id)
                case 3:
                    await driver.move(run_id, rng.randrange(3))
                case 4:
                    await inputs.redeliver(run_id, rng.choice(("steer", "queue")))
                case _:
                    await driver.send(sent[-1])


def _some_prompt(session: SessionId, label: str, rng: random.Random) -> Prompt:
    script = rng.choice(("say", "think note / say", "look look / note / say", "say fail", "note / look / think say"))
    files = (Attachment(b"text" * 1000, "a.txt", "a.txt", "text/plain"),) if rng.random() < 0.2 else ()
    delivery: Delivery | None = rng.choice((None, None, "steer", "queue", "reject", "interrupt"))
    run_id = RunId(label if rng.random() < 0.6 else "")
    return Prompt(session, f"{label} {script}", files, run_id, delivery)


async def leaving(driver: WorkspaceDriver, session: SessionId, tag: str) -> None:
    """One run is active and others wait when the server is stopped."""
    await driver.prompt(session, f"{tag}1 note / say hold:{tag}1 say", f"{tag}-1")
    await driver.held(f"{tag}1")
    await driver.prompt(session, f"{tag}2 note / say", f"{tag}-2")
    await driver.prompt(session, f"{tag}3 look / say")


async def working(driver: WorkspaceDriver) -> None:
    """Two active sessions: one is in the middle of a tool while the other has its turns."""
    one, two = await driver.session("one"), await driver.session("two")
    await driver.prompt(two, "held slow:held look / say", "held")
    await driver.held("held")
    await steering(driver, one, "a")
    driver.go("held")
    await driver.wait_until_idle(two)
    await summarizing(driver, one, "b")
    await leaving(driver, one, "c")


async def stopped(driver: WorkspaceDriver) -> None:
    """Two sessions in which runs are cancelled."""
    one, two = await driver.session("one"), await driver.session("two")
    await driver.prompt(two, "held slow:held / say", "held")
    await driver.held("held")
    await stopping(driver, one, "a")
    await sweeping(driver, one, "b")
    await driver.cancel(two)
    await driver.wait_until_idle(two)
    await interrupting(driver, two, "c")
    await rearranging(driver, two, "d")


async def approved(driver: WorkspaceDriver) -> None:
    """One session, one request for permission."""
    await approving(driver, await driver.session("one"), "a")


async def retried(driver: WorkspaceDriver) -> None:
    """One session: withdrawn attempts, a summary, and a run of several steps after it."""
    session = await driver.session("one")
    await retrying(driver, session, "a")
    await driver.summarize(session)
    await driver.wait_until_idle(session)
    await driver.prompt(session, "b1 note / say cut look / say", "b-1")
    await driver.wait_until_idle(session)


async def helped(driver: WorkspaceDriver) -> None:
    """One session with sub-agents, and with files written and reverted."""
    session = await driver.session("one")
    await sending(driver, session, "a")
    await undoing(driver, session, "b")


_ACTIVITIES: tuple[Activity, ...] = (
    steering,
    retrying,
    lasting,
    stopping,
    sweeping,
    summarizing,
    interrupting,
    rearranging,
    delegating,
    sending,
    undoing,
    approving,
    competing_clients,
    competing_clients,
)


async def random_scenario(seed: int, driver: WorkspaceDriver) -> None:
    """Random activities, in two or three sessions at once, without waiting for their end."""
    rng = random.Random(seed)
    sessions = [await driver.session(f"session {number}") for number in range(rng.randint(2, 3))]

    async def lane(index: int, activities: list[Activity]) -> None:
        for number, activity in enumerate(activities):
            await driver.wait_until_idle(sessions[index])
            await activity(driver, sessions[index], f"{'abc'[index]}{number}x")

    drawn = [rng.choices(_ACTIVITIES, k=rng.randint(1, 2)) for _ in sessions]
    await asyncio.gather(*(lane(index, activities) for index, activities in enumerate(drawn)))
    if rng.random() < 0.7:
        session = rng.choice(sessions)
        await driver.wait_until_idle(session)
        await leaving(driver, session, "z")


_SHORT: dict[str, Scenario] = {"approved": approved, "retried": retried, "helped": helped}
SCENARIOS: dict[str, Scenario] = {"working": working, "stopped": stopped}
"""The scenarios whose write points are all tried. `random-7` is a random scenario made from the seed 7."""


def play_lifetime(lifetime: Lifetime) -> int:
    """Play one lifetime in this process and return the number of its write points, unless it is killed at one."""
    killer = Killer(lifetime.kill_at)
    seed = int(lifetime.scenario.removeprefix("random-")) if lifetime.scenario.startswith("random-") else None
    scenario = {**SCENARIOS, **_SHORT}[lifetime.scenario] if seed is None else partial(random_scenario, seed)
    # Fast streams cause many small flushes; titles are generated beside the first turn.
    is_lively = seed is not None and seed % 2 == 1
    pace = Pace(60.0, 8) if is_lively else None
    driver = WorkspaceDriver(lifetime, is_open=lifetime.number > 1, pace=pace, titles=is_lively)

    async def run() -> None:
        ledger, disk = stores(lifetime, killer)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await serve(driver, ledger, scenario if lifetime.number == 1 else None)
        await disk.close()

    try:
        asyncio.run(run())
    finally:
        driver.journal.close()
    return killer.count


def run_process(lifetime: Lifetime) -> None:
    """The whole of a process that may be killed. Other failures are recorded."""
    folder = Path(lifetime.folder)
    try:
        count = play_lifetime(lifetime)
    except BaseException:
        (folder / "failure").write_text(traceback.format_exc())
        raise SystemExit(1) from None
    (folder / "points").write_text(str(count))
