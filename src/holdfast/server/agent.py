"""Handlers for prompts, cancels and the prompt queue."""

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
    """Return the model and whether the agent is busy. Clients poll this, so it does not access the disk."""
    engine = call.desk.workspace.engine
    try:
        info = (await engine.kit.models.large()).info
    except ProviderError:
        # The reason is returned by `init_agent` and `send_prompt`.
        nobody = ModelInfo("", "")
        return AgentInfo(
            is_busy=engine.is_busy(), is_ready=False, model=facts_of(nobody), model_cfg=ModelChoice("", "")
        )
    choice = choice_of(call.desk, "large", info)
    return AgentInfo(is_busy=engine.is_busy(), is_ready=True, model=facts_of(info), model_cfg=choice)


async def init_agent(call: Call) -> None:
    """Check whether a model can be used. Active runs are not affected."""
    await call.desk.workspace.engine.kit.models.large()


async def update_agent(call: Call) -> None:
    """Check whether a model can be used. Each run looks up models and tools itself, so there is nothing to update."""
    await call.desk.workspace.engine.kit.models.large()


async def send_prompt(call: Call) -> Accepted:
    """Accept a prompt. Without a usable model it is refused at once and nothing is stored."""
    model = await call.desk.workspace.engine.kit.models.large()
    prompt = call.body.to_prompt()
    if prompt.require_model and (reason := model.info.fallback_reason or _saved_choice(call, model.info)):
        raise ProviderError(reason, title="No usable model", trouble="refused")
    if prompt.prompt.lstrip().startswith("/") or "@" in prompt.prompt:
        # Commands and mentioned files are resolved now and stored with the run, so later changes of the files have no
        # effect.
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
    """Return a session with its live state."""
    return dressed(call.hub, call.desk, await known(call))


async def cancel_session(call: Call) -> Cancelled:
    """Cancel the current run of a session and its queue."""
    return Cancelled(await call.desk.workspace.inputs.cancel(call.session, call.query.get("client_id", "")))


async def clear_queue(call: Call) -> Cancelled:
    """Cancel the queued prompts of a session."""
    return Cancelled(await call.desk.workspace.inputs.clear(call.session, call.query.get("client_id", "")))


async def count_queued(call: Call) -> int:
    """Return the number of queued prompts of a session."""
    return len(call.desk.workspace.engine.lane(call.session).queue)


async def list_queued(call: Call) -> list[str]:
    """Return the texts of the queued prompts of a session."""
    engine = call.desk.workspace.engine
    waiting = [item.run for item in engine.lane(call.session).queue]
    records = [await engine.kit.ledger.run(call.desk.id, run) for run in waiting]
    return [record.run.prompt for record in records if record is not None]


async def summarize(call: Call) -> None:
    """Summarize a session and return when the summary is stored. A caller that disconnects does not cancel the run."""
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
    """Return the end of the run, or None if the workspace is closed first."""
    while frames := await heard.take():
        for frame in frames:
            if isinstance(frame.event, RunCompleteEvent) and frame.event.payload.payload.run_id == run:
                return frame.event.payload.payload
    return None
