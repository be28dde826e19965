"""What happens in the lives that are killed: scenes, stories made of them, and the process that plays one.

A scene belongs to one session and uses labels and run ids that begin with its tag. It waits at gates only, so
that a story makes the same writes in the same order each time, as far as one process can.
"""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from crash.faulty_stores import stores
from crash.workspace import Killer, Life, Stage, serve
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Attachment, Delivery, Prompt
from holdfast.engine.settings import Pace

__all__ = ["STORIES", "live", "play_life"]

Scene = Callable[[Stage, SessionId, str], Awaitable[None]]
Story = Callable[[Stage], Awaitable[None]]

_PATIENCE_SECONDS = 20.0


async def steering(stage: Stage, session: SessionId, tag: str) -> None:
    """Tools one after the other and side by side; two prompts are folded in, one waits, one is sent twice."""
    await stage.ask(session, f"{tag}1 note look look / hold:{tag}1 look / say", f"{tag}-1")
    await stage.held(f"{tag}1")
    await stage.ask(session, f"{tag}2 look / say", f"{tag}-2")
    await stage.ask(session, f"{tag}3 say")
    await stage.ask(session, f"{tag}4 think hold:{tag}4 say")
    await stage.ask(session, f"{tag}2 look / say", f"{tag}-2")
    stage.go(f"{tag}1")
    await stage.held(f"{tag}4")
    stage.go(f"{tag}4")
    await stage.quiet(session)


async def stopping(stage: Stage, session: SessionId, tag: str) -> None:
    """Cancels of a waiting run and of the active one, a clear, and a failure that strands nobody."""
    await stage.ask(session, f"{tag}1 think say hold:{tag}1 say", f"{tag}-1")
    await stage.held(f"{tag}1")
    await stage.ask(session, f"{tag}2 note / say", f"{tag}-2")
    await stage.cancel_run(RunId(f"{tag}-2"))
    await stage.ask(session, f"{tag}3 note / say", f"{tag}-3")
    await stage.ask(session, f"{tag}4 say")
    await stage.clear(session)
    await stage.ask(session, f"{tag}5 say fail", f"{tag}-5")
    await stage.ask(session, f"{tag}6 say", f"{tag}-6")
    await stage.cancel_run(RunId(f"{tag}-1"))
    await stage.quiet(session)


async def sweeping(stage: Stage, session: SessionId, tag: str) -> None:
    """One cancel for a run in the middle of a tool and all behind it; one that comes before the run begins.

    The tool takes its time to stop, so that there is a moment between the cancel and the end.
    """
    await stage.ask(session, f"{tag}1 stiff:{tag}1 note / say", f"{tag}-1")
    await stage.held(f"{tag}1")
    await stage.ask(session, f"{tag}2 note / say", f"{tag}-2")
    await stage.ask(session, f"{tag}3 say")
    await stage.cancel(session)
    stage.go(f"{tag}1-gone")
    await stage.quiet(session)
    await asyncio.gather(stage.ask(session, f"{tag}4 note / say", f"{tag}-4"), stage.cancel(session))
    await stage.quiet(session)


async def summarizing(stage: Stage, session: SessionId, tag: str) -> None:
    """A summary by hand, and a run that goes on from it."""
    await stage.summarize(session)
    await stage.quiet(session)
    await stage.ask(session, f"{tag}1 say", f"{tag}-1")
    await stage.quiet(session)


async def interrupting(stage: Stage, session: SessionId, tag: str) -> None:
    """A prompt that puts itself in the place of all that is there: accepting it promises their cancel."""
    await stage.ask(session, f"{tag}1 slow:{tag}1 / say", f"{tag}-1")
    await stage.held(f"{tag}1")
    await stage.ask(session, f"{tag}2 note / say", f"{tag}-2")
    await stage.ask(session, f"{tag}3 say", f"{tag}-3", delivery="interrupt")
    stage.diary.note("cancelled", f"{tag}-1", f"{tag}-2")
    await stage.quiet(session)


async def rearranging(stage: Stage, session: SessionId, tag: str) -> None:
    """A queue whose order is changed while it waits."""
    await stage.ask(session, f"{tag}1 hold:{tag}1 say", f"{tag}-1")
    await stage.held(f"{tag}1")
    for number in (2, 3, 4):
        await stage.ask(session, f"{tag}{number} say", f"{tag}-{number}")
    await stage.move(RunId(f"{tag}-4"), 0)
    await stage.workspace.inputs.redeliver(RunId(f"{tag}-3"), "steer")
    stage.go(f"{tag}1")
    await stage.quiet(session)


async def delegating(stage: Stage, session: SessionId, tag: str) -> None:
    """A run whose tool has others work for it, in a session of their own: they live as long as it does."""
    await stage.ask(session, f"{tag}1 slow:{tag}1 / say", f"{tag}-1")
    await stage.held(f"{tag}1")
    child = await stage.session("child", session)
    for number, script in ((2, f"note hold:{tag}2 say"), (3, "note / say")):
        run_id, parent = RunId(f"{tag}-{number}"), RunId(f"{tag}-1")
        await stage.send(Prompt(child, f"{tag}{number} {script}", run_id=run_id, parent_run_id=parent))
    await stage.held(f"{tag}2")
    stage.go(f"{tag}2")
    await stage.quiet(child)
    stage.go(f"{tag}1")
    await stage.quiet(session)


async def sending(stage: Stage, session: SessionId, tag: str) -> None:
    """Two helpers side by side, sent by the real tool, and a third one after them."""
    await stage.ask(session, f"{tag}1 agent:{tag}h agent:{tag}i / agent:{tag}j note / say", f"{tag}-1")
    await stage.quiet(session)


async def undoing(stage: Stage, session: SessionId, tag: str) -> None:
    """Two files are written and taken back together, and one of them is written again."""
    await stage.ask(session, f"{tag}1 write:{tag}x write:{tag}y / say", f"{tag}-1")
    await stage.quiet(session)
    await stage.undo(session)
    await stage.ask(session, f"{tag}2 write:{tag}z / say", f"{tag}-2")
    await stage.quiet(session)


async def approving(stage: Stage, session: SessionId, tag: str) -> None:
    """A call that waits for permission, and gets two answers at once."""
    await stage.ask(session, f"{tag}1 permit / say", f"{tag}-1")
    await stage.answer(f"{tag}-1")
    await stage.quiet(session)


async def retrying(stage: Stage, session: SessionId, tag: str) -> None:
    """Attempts that break off and are withdrawn, between tools and in the last answer."""
    await stage.ask(session, f"{tag}1 think say cut note / say cut say", f"{tag}-1")
    await stage.quiet(session)


async def lasting(stage: Stage, session: SessionId, tag: str) -> None:
    """A run of many steps, whose events fill several pages."""
    await stage.ask(session, f"{tag}1 " + "say note look / " * 8 + "say", f"{tag}-1")
    await stage.quiet(session)


async def quarrelling(stage: Stage, session: SessionId, tag: str) -> None:
    """Three clients at once that do as they please and wait for nobody."""
    dice = random.Random(f"{stage.life.story} {tag}")
    await asyncio.gather(*(_client(stage, session, f"{tag}{name}", random.Random(dice.random())) for name in "pqr"))


async def _client(stage: Stage, session: SessionId, tag: str, dice: random.Random) -> None:
    sent: list[Prompt] = []
    inputs = stage.workspace.inputs
    for number in range(dice.randint(3, 6)):
        if dice.random() < 0.5 or not sent:
            sent.append(_some_prompt(session, f"{tag}{number}", dice))
        run_id = sent[-1].run_id or RunId("unknown")
        with contextlib.suppress(HoldfastError):
            match dice.randrange(10):
                case 0:
                    await stage.cancel(session)
                case 1:
                    await stage.clear(session)
                case 2:
                    # A run that has answered already ends as it was about to: nothing is promised here.
                    await inputs.cancel_run(run_id)
                case 3:
                    await stage.move(run_id, dice.randrange(3))
                case 4:
                    await inputs.redeliver(run_id, dice.choice(("steer", "queue")))
                case _:
                    await stage.send(sent[-1])


def _some_prompt(session: SessionId, label: str, dice: random.Random) -> Prompt:
    script = dice.choice(("say", "think note / say", "look look / note / say", "say fail", "note / look / think say"))
    files = (Attachment(b"text" * 1000, "a.txt", "a.txt", "text/plain"),) if dice.random() < 0.2 else ()
    delivery: Delivery | None = dice.choice((None, None, "steer", "queue", "reject", "interrupt"))
    run_id = RunId(label if dice.random() < 0.6 else "")
    return Prompt(session, f"{label} {script}", files, run_id, delivery)


async def leaving(stage: Stage, session: SessionId, tag: str) -> None:
    """Somebody works and others wait when the server is stopped."""
    await stage.ask(session, f"{tag}1 note / say hold:{tag}1 say", f"{tag}-1")
    await stage.held(f"{tag}1")
    await stage.ask(session, f"{tag}2 note / say", f"{tag}-2")
    await stage.ask(session, f"{tag}3 look / say")


async def working(stage: Stage) -> None:
    """Two sessions at work: one is in the middle of a tool while the other one has its turns."""
    one, two = await stage.session("one"), await stage.session("two")
    await stage.ask(two, "held slow:held look / say", "held")
    await stage.held("held")
    await steering(stage, one, "a")
    stage.go("held")
    await stage.quiet(two)
    await summarizing(stage, one, "b")
    await leaving(stage, one, "c")


async def stopped(stage: Stage) -> None:
    """Two sessions in which people change their minds."""
    one, two = await stage.session("one"), await stage.session("two")
    await stage.ask(two, "held slow:held / say", "held")
    await stage.held("held")
    await stopping(stage, one, "a")
    await sweeping(stage, one, "b")
    await stage.cancel(two)
    await stage.quiet(two)
    await interrupting(stage, two, "c")
    await rearranging(stage, two, "d")


async def approved(stage: Stage) -> None:
    """One session, one request for permission."""
    await approving(stage, await stage.session("one"), "a")


async def retried(stage: Stage) -> None:
    """One session: attempts that are withdrawn, a summary, and a run of several steps after it."""
    session = await stage.session("one")
    await retrying(stage, session, "a")
    await stage.summarize(session)
    await stage.quiet(session)
    await stage.ask(session, "b1 note / say cut look / say", "b-1")
    await stage.quiet(session)


async def helped(stage: Stage) -> None:
    """One session that sends helpers, and has files written and taken back."""
    session = await stage.session("one")
    await sending(stage, session, "a")
    await undoing(stage, session, "b")


_SCENES: tuple[Scene, ...] = (
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
    quarrelling,
    quarrelling,
)


async def tangled(seed: int, stage: Stage) -> None:
    """Scenes drawn at random, in two or three sessions at once, and no end that waits for them."""
    dice = random.Random(seed)
    sessions = [await stage.session(f"session {number}") for number in range(dice.randint(2, 3))]

    async def lane(place: int, scenes: list[Scene]) -> None:
        for number, scene in enumerate(scenes):
            await stage.quiet(sessions[place])
            await scene(stage, sessions[place], f"{'abc'[place]}{number}x")

    drawn = [dice.choices(_SCENES, k=dice.randint(1, 2)) for _ in sessions]
    await asyncio.gather(*(lane(place, scenes) for place, scenes in enumerate(drawn)))
    if dice.random() < 0.7:
        session = dice.choice(sessions)
        await stage.quiet(session)
        await leaving(stage, session, "z")


_SHORT: dict[str, Story] = {"approved": approved, "retried": retried, "helped": helped}
STORIES: dict[str, Story] = {"working": working, "stopped": stopped}
"""The stories whose write points are all tried. `random-7` is a tangle of scenes made from the seed 7."""


def play_life(life: Life) -> int:
    """Play one life in this process; the number of its write points, if it is not killed at one of them."""
    killer = Killer(life.kill_at)
    seed = int(life.story.removeprefix("random-")) if life.story.startswith("random-") else None
    story = {**STORIES, **_SHORT}[life.story] if seed is None else partial(tangled, seed)
    # Fast streams put many small flushes on their way; names are made beside the first turn.
    is_lively = seed is not None and seed % 2 == 1
    pace = Pace(60.0, 8) if is_lively else None
    stage = Stage(life, is_open=life.number > 1, pace=pace, titles=is_lively)

    async def run() -> None:
        ledger, disk = stores(life, killer)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await serve(stage, ledger, story if life.number == 1 else None)
        await disk.close()

    try:
        asyncio.run(run())
    finally:
        stage.diary.close()
    return killer.count


def live(life: Life) -> None:
    """The whole of a process that may be killed. What goes wrong otherwise is written down."""
    folder = Path(life.folder)
    try:
        count = play_life(life)
    except BaseException:
        (folder / "failure").write_text(traceback.format_exc())
        raise SystemExit(1) from None
    (folder / "points").write_text(str(count))
