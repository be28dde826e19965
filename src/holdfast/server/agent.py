"""Prompts, cancels, the queue."""

import msgspec

from holdfast.bus.bus import Subscription
from holdfast.domain.errors import Conflict, ProviderError
from holdfast.domain.events import RunComplete, RunCompleteEvent
from holdfast.domain.ids import RunId
from holdfast.domain.models import ModelInfo
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import Accepted, AgentInfo, Cancelled, ModelChoice
from holdfast.providers.tour import TOUR
from holdfast.server.calls import Call
from holdfast.server.configuration import choice_of, facts_of
from holdfast.server.hub import ServerLeaving
from holdfast.server.sessions import dressed, known

__all__ = [
    "agent_info",
    "agent_session",
    "cancel_session",
    "clear_queue",
    "count_queued",
    "init_agent",
    "list_queued",
    "send_prompt",
    "summarize",
    "update_agent",
]


class SummaryCancelled(Conflict):
    """The summary was cancelled: the conversation is as it was."""


async def agent_info(call: Call) -> AgentInfo:
    """Asked again and again by screens: nothing here touches the disk."""
    engine = call.desk.workspace.engine
    try:
        info = (await engine.kit.models.large()).info
    except ProviderError:
        # Whoever wants to know why asks for it to be made ready, or sends a prompt.
        nobody = ModelInfo("", "")
        return AgentInfo(
            is_busy=engine.is_busy(), is_ready=False, model=facts_of(nobody), model_cfg=ModelChoice("", "")
        )
    choice = choice_of(call.desk, "large", info)
    return AgentInfo(is_busy=engine.is_busy(), is_ready=True, model=facts_of(info), model_cfg=choice)


async def init_agent(call: Call) -> None:
    """Only looks whether a model can be used: nothing that runs is disturbed."""
    await call.desk.workspace.engine.kit.models.large()


async def update_agent(call: Call) -> None:
    """Models and tools are looked up by each run; there is nothing to bring up to date."""
    await call.desk.workspace.engine.kit.models.large()


async def send_prompt(call: Call) -> Accepted:
    """Refused at once, and nothing stored, if there is no model that could answer."""
    model = await call.desk.workspace.engine.kit.models.large()
    prompt = call.body.to_prompt()
    if prompt.require_model and (reason := model.info.fallback_reason or _saved_choice(call, model.info)):
        raise ProviderError(reason, title="No usable model", trouble="refused")
    if prompt.prompt.lstrip().startswith("/") or "@" in prompt.prompt:
        # What it stands for is found now, and kept with the run: a file that changes later changes nothing.
        brief = await call.desk.outfit.extensions.brief(prompt.prompt)
        prompt = msgspec.structs.replace(prompt, brief=brief)
    run = await call.desk.workspace.inputs.submit(prompt)
    return Accepted(run.run_id, run.session_id, run.delivery, run.position)


def _saved_choice(call: Call, info: ModelInfo) -> str:
    """Return why the scripted model does not answer a program though it is selected: an earlier command or a screen
    chose it, and neither this command nor a settings file does.
    """
    if (info.provider, info.model) != (TOUR.provider, TOUR.model):
        return ""
    by_hand = call.desk.outfit.configuration.written_by_hand("models").get("large", {})
    if TOUR.provider == by_hand.get("provider") or TOUR.model == by_hand.get("model"):
        return ""
    return (
        "The built-in scripted model was chosen for this directory earlier, and is no model. Choose one with --model; "
        "--model demo/tour selects the scripted one again."
    )


async def agent_session(call: Call) -> Session:
    return dressed(call.hub, call.desk, await known(call))


async def cancel_session(call: Call) -> Cancelled:
    return Cancelled(await call.desk.workspace.inputs.cancel(call.session, call.query.get("client_id", "")))


async def clear_queue(call: Call) -> Cancelled:
    return Cancelled(await call.desk.workspace.inputs.clear(call.session, call.query.get("client_id", "")))


async def count_queued(call: Call) -> int:
    return len(call.desk.workspace.engine.lane(call.session).queue)


async def list_queued(call: Call) -> list[str]:
    engine = call.desk.workspace.engine
    waiting = [item.run for item in engine.lane(call.session).queue]
    records = [await engine.kit.ledger.run(call.desk.id, run) for run in waiting]
    return [record.run.prompt for record in records if record is not None]


async def summarize(call: Call) -> None:
    """Answers when the summary is there. The run belongs to the workspace: a caller that leaves does not end it."""
    heard = call.desk.workspace.bus.subscribe(None)
    try:
        run = await call.desk.workspace.inputs.summarize(call.session)
        end = await _end_of(run.run_id, heard)
    finally:
        heard.close()
    if end is None:
        raise ServerLeaving
    if end.cancelled:
        raise SummaryCancelled
    if end.error:
        raise ProviderError(end.error)


async def _end_of(run: RunId, heard: Subscription) -> RunComplete | None:
    """None if the workspace is closed first."""
    while frames := await heard.take():
        for frame in frames:
            if isinstance(frame.event, RunCompleteEvent) and frame.event.payload.payload.run_id == run:
                return frame.event.payload.payload
    return None
