"""Handlers for prompts, cancels, the prompt queue and runs."""

import msgspec

from holdfast.bus.bus import Subscription
from holdfast.domain.errors import (
    BadRequest,
    Conflict,
    HoldfastError,
    NotFound,
    NoUsableModel,
    ProviderError,
    UnknownRun,
)
from holdfast.domain.events import RunComplete, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.engine.run_lifecycle import state_of
from holdfast.protocol.bodies import AgentInfo, CancelledRuns, PromptAccepted, SelectedModel
from holdfast.protocol.error_status import Problem, TooLarge
from holdfast.providers.scripted_model import TOUR
from holdfast.server.http.request import Request
from holdfast.server.routes.configuration import choice_of, facts_of
from holdfast.server.routes.sessions import known, with_live_state
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import ServerStopping

__all__ = [
    "agent_info",
    "agent_session",
    "cancel_run",
    "cancel_session",
    "clear_queue",
    "count_queued",
    "get_run",
    "init_agent",
    "list_queued",
    "list_runs",
    "patch_run",
    "send_prompt",
    "summarize",
    "update_agent",
]
_MAX_RUNS = 1_000
_REFUSALS: dict[int, type[HoldfastError]] = {404: NotFound, 409: Conflict, 413: TooLarge}
"""Errors for the statuses with which an owner refuses a prompt; for others it is `BadRequest`."""


class SummaryCancelled(Conflict):
    """The summary was cancelled: the conversation is as it was."""


async def agent_info(request: Request) -> AgentInfo:
    """Return the model and whether the agent is busy. Clients poll this, so it does not access the disk."""
    workspace = request.workspace
    answer = await request.fetch_from_owner("agent_info")
    if answer is not None and answer.status == 200:
        # Whether it is busy follows the log that the clients of this server see.
        return msgspec.structs.replace(msgspec.json.decode(answer.body, type=AgentInfo), is_busy=workspace.is_busy())
    try:
        info = (await request.models.large()).info
    except ProviderError:
        # The reason is returned by `init_agent` and `send_prompt`.
        no_model = ModelInfo("", "")
        return AgentInfo(
            is_busy=workspace.is_busy(), is_ready=False, model=facts_of(no_model), model_cfg=SelectedModel("", "")
        )
    choice = choice_of(request.handle, "large", info)
    return AgentInfo(is_busy=workspace.is_busy(), is_ready=True, model=facts_of(info), model_cfg=choice)


async def init_agent(request: Request) -> None:
    """Check whether a model can be used. Active runs are not affected."""
    await request.models.large()


async def update_agent(request: Request) -> None:
    """Check whether a model can be used. Each run looks up models and tools itself, so there is nothing to update."""
    await request.models.large()


async def send_prompt(request: Request) -> PromptAccepted:
    """Accept a prompt. Without a usable model it is refused at once and nothing is stored, except in a cluster: keys
    belong to a server, and the run then waits until an owner of the workspace has one.
    """
    prompt = request.body.to_prompt()
    if _needs_expansion(prompt.prompt) and not request.handle.is_local:
        if not prompt.run_id:
            # With it, a prompt that the owner may have stored can be stored again here.
            prompt = msgspec.structs.replace(prompt, run_id=RunId(request.workspace.new_id()))
        if (accepted := await _submit_at_owner(request, prompt.run_id)) is not None:
            return accepted
    is_clustered = request.handle.node is not None
    try:
        model = await request.models.large() if request.handle.is_local else None
    except NoUsableModel:
        if not is_clustered:
            raise
        model = None
    if model is not None and is_clustered and model.info.fallback_reason:
        model = None
    if (
        model is not None
        and prompt.require_model
        and (reason := model.info.fallback_reason or _saved_choice(request, model.info))
    ):
        raise NoUsableModel(reason)
    if _needs_expansion(prompt.prompt):
        # Commands and mentioned files are resolved now and stored with the run, so later changes of the files have no
        # effect.
        brief = await request.extensions.expand_prompt(prompt.prompt)
        prompt = msgspec.structs.replace(prompt, brief=brief)
    run = await request.workspace.inputs.submit(prompt)
    return PromptAccepted(run.run_id, run.session_id, run.delivery, run.position)


def _needs_expansion(prompt: str) -> bool:
    return prompt.lstrip().startswith("/") or "@" in prompt


async def _submit_at_owner(request: Request, run: RunId) -> PromptAccepted | None:
    """Let the owner accept a prompt, because the commands and agents that it names are on the owner's disk. Returns
    None without an answer: the prompt is then stored here under the same id.
    """
    body = msgspec.json.encode(msgspec.structs.replace(request.body, run_id=run))
    answer = await request.fetch_from_owner("send_prompt", body)
    if answer is None:
        return None
    if answer.status == 202:
        if not request.handle.is_local:
            await request.remote.catch_up()
        return msgspec.json.decode(answer.body, type=PromptAccepted)
    raise _REFUSALS.get(answer.status, BadRequest)(msgspec.json.decode(answer.body, type=Problem).message)


def _saved_choice(request: Request, info: ModelInfo) -> str:
    """Return why the scripted model does not answer a program though it is selected: an earlier command or a screen
    chose it, and neither this command nor a settings file does.
    """
    if (info.provider, info.model) != (TOUR.provider, TOUR.model):
        return ""
    from_files = request.services.configuration.settings_from_files("models").get("large", {})
    if TOUR.provider == from_files.get("provider") or TOUR.model == from_files.get("model"):
        return ""
    return (
        "The built-in scripted model, which is not a language model, was selected for this directory earlier."
        " Select a model with --model; "
        "--model demo/tour selects the scripted one again."
    )


async def agent_session(request: Request) -> Session:
    """Return a session with its live state."""
    return with_live_state(request.manager, request.handle, await known(request))


async def cancel_session(request: Request) -> CancelledRuns:
    """Cancel the current run of a session and its queue."""
    return CancelledRuns(await request.workspace.inputs.cancel(request.session, request.query.get("client_id", "")))


async def clear_queue(request: Request) -> CancelledRuns:
    """Cancel the queued prompts of a session."""
    return CancelledRuns(await request.workspace.inputs.clear(request.session, request.query.get("client_id", "")))


async def count_queued(request: Request) -> int:
    """Return the number of queued prompts of a session."""
    return len(request.workspace.lane(request.session).queue)


async def list_queued(request: Request) -> list[str]:
    """Return the texts of the queued prompts of a session."""
    waiting = [item.run for item in request.workspace.lane(request.session).queue]
    records = [await request.ledger.run(request.workspace.id, run) for run in waiting]
    return [record.run.prompt for record in records if record is not None]


async def summarize(request: Request) -> None:
    """Summarize a session and return when the summary is stored. A caller that disconnects does not cancel the run."""
    subscription = request.workspace.bus.subscribe(None)
    try:
        run = await request.workspace.inputs.summarize(request.session)
        end = await _end_of(run.run_id, subscription)
    finally:
        subscription.close()
    if end is None:
        raise ServerStopping
    if end.cancelled:
        raise SummaryCancelled
    if end.error:
        raise ProviderError(end.error)


async def _end_of(run: RunId, subscription: Subscription) -> RunComplete | None:
    """Return the end of the run, or None if the workspace is closed first."""
    while frames := await subscription.take():
        for frame in frames:
            if isinstance(frame.event, RunCompleteEvent) and frame.event.change.object.run_id == run:
                return frame.event.change.object
    return None


async def list_runs(request: Request) -> list[Run]:
    """Return runs, newest first. `limit` counts the returned runs, after the filter by state."""
    limit = min(request.number("limit", 50), _MAX_RUNS)
    session = SessionId(request.query["session_id"]) if request.query.get("session_id") else None
    before, state = request.number("before", 0), request.query.get("state")
    ledger = request.ledger
    if state is None:
        runs = await ledger.runs(request.workspace.id, session, limit, before)
        return [_now(request.handle, run) for run in runs]
    if state != "ended":
        # Few runs have not ended, and the oldest of them may be older than many that have.
        unended = [_now(request.handle, run) for run in await ledger.open_runs(request.workspace.id)]
        found = [run for run in unended if run.state == state and session in (None, run.session_id)]
        found = [run for run in found if not before or run.number < before]
        return sorted(found, key=lambda run: run.number, reverse=True)[:limit]
    return await _ended_runs(request, session, limit, before)


async def _ended_runs(request: Request, session: SessionId | None, limit: int, before: int) -> list[Run]:
    found: list[Run] = []
    while len(found) < limit:
        page = await request.ledger.runs(request.workspace.id, session, limit, before)
        found += (run for run in page if run.state == "ended")
        if len(page) < limit:
            break
        before = page[-1].number
    return found[:limit]


async def get_run(request: Request) -> Run:
    """Return a run."""
    record = await request.ledger.run(request.workspace.id, request.run)
    if record is None:
        raise UnknownRun
    return _now(request.handle, record.run)


async def patch_run(request: Request) -> Run:
    """Change the position or the delivery of a queued run."""
    inputs = request.workspace.inputs
    patch = request.body
    if (patch.position is None) == (patch.delivery is None):
        raise BadRequest("Give either a position or a delivery.")
    if patch.position is not None:
        await inputs.move(request.run, patch.position)
    else:
        await inputs.redeliver(request.run, patch.delivery)
    return await get_run(request)


async def cancel_run(request: Request) -> Run:
    """Cancel a run."""
    await request.workspace.inputs.cancel_run(request.run, request.query.get("client_id", ""))
    return await get_run(request)


def _now(handle: WorkspaceHandle, run: Run) -> Run:
    """Return the run with its current state, which the lane knows before the stored row does."""
    state = state_of(handle.workspace.lane(run.session_id), run.run_id)
    return run if state is None or run.outcome else msgspec.structs.replace(run, state=state)
