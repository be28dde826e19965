"""Approvals: permission requests of tools and questions of the model, answered by people.

A request belongs to one tool call and is stored and numbered before it is shown. Its answer is a numbered input like a
prompt: it takes effect when it is stored, and the first stored answer wins; later ones find no open request. The
request stays open if the answer cannot be stored. When the call ends without an answer, because it was cancelled with
its run or timed out, the request is withdrawn, and the withdrawal is put to the recorder before the run's end. No
session waits for another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from holdfast.domain.approvals import (
    GrantAction,
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    Verdict,
    Via,
)
from holdfast.domain.errors import BadRequest, Conflict, PermissionDenied
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    ApprovalEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import replace_surrogates
from holdfast.domain.store_operations import Announce, Answer, CloseRequest, Receipt
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext
from holdfast.engine.ports import Ledger, NewId
from holdfast.engine.recorder import Recorder
from holdfast.tasks import TaskOwner

__all__ = [
    "NEXT_BATCH_DELAY",
    "Approvals",
    "Judge",
    "SaveRule",
    "Subject",
    "check_answers",
    "clean_text",
    "find_batch",
    "permission_notice",
    "question_notice",
    "subject_of",
]


# Subjects of requests, checks of answers, notifications. Pure.

T = TypeVar("T")
Subject: TypeAlias = tuple[str, ...]


def find_batch(
    batches: Sequence[QuestionRequest], batch: str, answers: Mapping[str, QuestionAnswer]
) -> QuestionRequest | None:
    """Return the open batch with that id or with these questions. None if no batch contains all answered questions."""
    for request in batches:
        ids = {question.id for question in request.questions}
        if (batch == request.id or (not batch and answers)) and answers.keys() <= ids:
            return request
    return None


def check_answers(batch: QuestionRequest, answers: Mapping[str, QuestionAnswer]) -> None:
    """Raise `BadRequest` for an answer that does not fit its question."""
    for question in batch.questions:
        if (answer := answers.get(question.id)) is not None:
            _check(question, answer)


def _check(question: Question, answer: QuestionAnswer) -> None:
    known = [choice.id for choice in question.choices]
    selected = answer.selected_ids or ()
    if unknown := [item for item in selected if item not in known]:
        raise BadRequest(f"{len(unknown)} of the selected ids are not choices of the question.")
    if len(set(selected)) != len(selected):
        raise BadRequest("A choice is selected twice.")
    if question.type == "single_choice" and len(selected) > 1:
        raise BadRequest("Only one choice can be selected for this question.")
    if answer.yes is not None and question.type != "yes_no":
        raise BadRequest("This question is not answered with yes or no.")


def subject_of(permit: Permit) -> Subject:
    """Return what a grant for the session covers: exactly the command, file or URL that was shown, or all
    parameters.
    """
    params = permit.params
    if permit.command:
        what = permit.command
    elif isinstance(params.get("url"), str):
        what = f"{params['url']} {params.get('file_path', '')}"
    elif isinstance(params.get("file_path"), str):
        what = params["file_path"]
    elif permit.action == "list":
        what = permit.path
    else:
        what = msgspec.json.encode(params, order="sorted").decode()
    return (permit.tool, permit.action, permit.path, what)


def clean_text(value: T) -> T:
    """Replace unpaired surrogates, which a model or a client may send and UTF-8 cannot encode."""
    plain = msgspec.to_builtins(value)
    return msgspec.convert(_encodable(plain), type(value))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def question_notice(
    request: QuestionRequest, *, by: str = "", via: Via = "", cancelled: bool = False, withdrawn: bool = False
) -> QuestionNotificationEvent:
    """Return the event that closes a batch of questions."""
    notice = QuestionNotification(request.id, request.session_id, replace_surrogates(by), cancelled, withdrawn, via)
    return QuestionNotificationEvent(Change("created", notice))


def permission_notice(
    request: PermissionRequest,
    *,
    granted: bool,
    denied: bool,
    client: tuple[str, Via] = ("", ""),
    action: str = "",
    withdrawn: bool = False,
) -> PermissionNotificationEvent:
    """Return the event with the state of a permission request; without `granted` or `denied` it is open."""
    by, via = client
    notice = PermissionNotification(
        request.tool_call_id, granted, denied, request.id, request.session_id, by, action, withdrawn, via
    )
    return PermissionNotificationEvent(Change("created", notice))


# Open requests.

Judge: TypeAlias = Callable[[Permit], Verdict]
SaveRule: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Stores a rule permanently. The call continues when that is done."""
_Answers: TypeAlias = tuple[QuestionAnswer, ...]
_Notice: TypeAlias = PermissionNotificationEvent | QuestionNotificationEvent

NEXT_BATCH_DELAY = 0.5
"""Seconds after a batch is closed until the next one counts as shown by clients that show one at a time."""
_MAX_GRANTS = 10_000
_EXPIRED = "Not done: the request was not answered in time."


class _Decision(msgspec.Struct, frozen=True):
    """The answer to a permission request. `expired`: there was none in time."""

    action: GrantAction
    reason: str = ""
    expired: bool = False


class _Open:
    """An open request with the timer of its expiry."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.timer: asyncio.TimerHandle | None = None
        self.is_closed = False

    def close(self) -> None:
        """Mark the request as closed and stop its timer."""
        self.is_closed = True
        self.stop_timer()

    def stop_timer(self) -> None:
        """Cancel the expiry."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _OpenPermission(_Open):
    def __init__(self, request: PermissionRequest, permit: Permit, verdict: Verdict) -> None:
        super().__init__(request.id)
        self.request = request
        self.permit = permit
        self.verdict = verdict
        self.answer: asyncio.Future[_Decision] = asyncio.get_running_loop().create_future()


class _OpenBatch(_Open):
    def __init__(self, request: QuestionRequest) -> None:
        super().__init__(request.id)
        self.request = request
        self.answer: asyncio.Future[_Answers | None] = asyncio.get_running_loop().create_future()


class Approvals:
    """The open requests of one workspace. `judge` applies the permission rules; `save_rule` stores a rule
    permanently.
    """

    def __init__(
        self,
        recorder: Recorder,
        ledger: Ledger,
        new_id: NewId,
        judge: Judge = lambda _: Verdict("allow"),
        *,
        save_rule: SaveRule | None = None,
        timeout: Callable[[], float] = lambda: 86_400.0,
    ) -> None:
        self.judge = judge
        self.skips = False
        """Auto-approval: requests are granted. Calls that a rule denies stay denied."""
        self.save_rule = save_rule
        """Stores a rule permanently; without it, a rule is valid until the workspace is closed."""
        self.timeout = timeout
        """Returns the number of seconds until a request expires while no client is attached."""
        self._workspace = recorder.record.id
        self._ledger = ledger
        self._new_id = new_id
        self._recorder = recorder
        self._permissions: dict[str, _OpenPermission] = {}
        self._batches: dict[str, _OpenBatch] = {}
        self._granted: dict[tuple[SessionId | None, Subject], None] = {}
        """Subjects that are allowed for a session and its sub-agents or, without a session, always."""
        self._tasks = TaskOwner()
        self._readers = 0
        self._closed_at = float("-inf")

    @property
    def permissions(self) -> tuple[PermissionRequest, ...]:
        """The open permission requests, oldest first."""
        return tuple(opened.request for opened in self._permissions.values())

    @property
    def questions(self) -> tuple[QuestionRequest, ...]:
        """The open batches of questions, oldest first."""
        return tuple(opened.request for opened in self._batches.values())

    @property
    def pause(self) -> float:
        """Seconds until clients that show one batch at a time may show the next one."""
        return max(0.0, self._closed_at + NEXT_BATCH_DELAY - asyncio.get_running_loop().time())

    def client_attached(self) -> None:
        """Stop all expiry timers: a client is attached that can answer."""
        self._readers += 1
        for opened in self._all():
            opened.stop_timer()

    def client_detached(self) -> None:
        """Start the expiry timers if no client is attached any more."""
        self._readers -= 1
        for opened in self._all():
            self._arm(opened)

    # Requests of tools.

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        """Return when the call is allowed. Raises `PermissionDenied`."""
        verdict = self.judge(permit)
        if verdict.decision == "deny":
            raise PermissionDenied(f"Not allowed. {verdict.why} Do not try it in another way.", stops_turn=False)
        # Auto-approval must not answer for a person where a rule demands one.
        if verdict.insists and not interactive:
            raise PermissionDenied(
                f"Not allowed without approval, which this run cannot request. {verdict.why}", stops_turn=False
            )
        insists = insists or verdict.insists
        if not verdict.insists and (self.skips or skips or (verdict.decision == "allow" and not insists)):
            return
        subject = subject_of(permit)
        root = await self._root(context.session_id)
        if not insists and ((root, subject) in self._granted or (None, subject) in self._granted):
            return
        decision = await self._ask(context, permit, verdict)
        if decision.action == "deny":
            raise _denial(decision, interactive=interactive)
        if decision.action == "allow_session":
            self._grant(root, subject)

    async def ask_questions(self, context: ToolContext, batch: QuestionBatch) -> _Answers | None:
        """Return one answer for each question, in order; None if the batch was dismissed."""
        questions = tuple(msgspec.structs.replace(item, id=self._new_id()) for item in batch.questions)
        request = QuestionRequest(
            self._new_id(),
            context.session_id,
            context.tool_call_id,
            questions,
            batch.confirm_title,
            batch.confirm_description,
            context.run_id,
        )
        opened = _OpenBatch(clean_text(request))
        asking = QuestionRequestEvent(Change("created", opened.request))
        try:
            await self._open(opened, lambda: self._batches.update({request.id: opened}), asking)
            return await opened.answer
        finally:
            self._withdraw(opened, question_notice(opened.request, withdrawn=True))

    async def _ask(self, context: ToolContext, permit: Permit, verdict: Verdict) -> _Decision:
        request = PermissionRequest(
            self._new_id(),
            context.session_id,
            context.tool_call_id,
            permit.tool,
            permit.description,
            permit.action,
            permit.params,
            permit.path,
            context.run_id,
            verdict.why,
            verdict.saves,
            verdict.insists,
            permit.continues,
        )
        opened = _OpenPermission(clean_text(request), permit, verdict)
        asking = PermissionRequestEvent(Change("created", opened.request))
        pending = permission_notice(opened.request, granted=False, denied=False)
        try:
            await self._open(opened, lambda: self._permissions.update({request.id: opened}), asking, pending)
            return await opened.answer
        finally:
            self._withdraw(opened, permission_notice(opened.request, granted=False, denied=True, withdrawn=True))

    async def _open(self, opened: _Open, enter: Callable[[], None], *events: ApprovalEvent) -> None:
        """Store the request. It is listed and can be answered as soon as it has its number."""

        def stored(answer: Answer) -> None:
            # The call may have been cancelled while its request was being written; its withdrawal follows in the same
            # order.
            if isinstance(answer, Receipt) and not opened.is_closed:
                enter()
                self._arm(opened)

        await self._recorder.put(*(Announce(event) for event in events), on_answer=stored)

    # Answers.

    async def grant(
        self, request_id: str, action: GrantAction, *, reason: str = "", by: str = "", via: Via = ""
    ) -> bool:
        """Answer a permission request. Return False if it is not open. Raises `StorageError` if the answer could not be
        stored: the request then stays open.
        """
        opened = self._permissions.get(request_id)
        if opened is None:
            return await self._is_not_open()
        if action == "allow_always" and not opened.verdict.saves:
            raise BadRequest("No rule can be saved that covers exactly this: allow it once or for the session.")
        is_denied = action == "deny"
        client = replace_surrogates(by), via
        notice = permission_notice(
            opened.request, granted=not is_denied, denied=is_denied, client=client, action=action
        )
        saving: list[asyncio.Task[Exception | None]] = []

        def stored() -> None:
            decision = _Decision(action, replace_surrogates(reason.strip()))
            if (task := self._apply_decision(opened, decision, saves=action == "allow_always")) is not None:
                saving.append(task)

        is_resolved = await self._close(opened, notice, stored)
        for task in saving:
            if (failure := await asyncio.shield(task)) is not None:
                raise Conflict(f"It was allowed this once, but the rule could not be saved: {failure}")
        return is_resolved

    async def answer(self, batch: str, answers: Iterable[QuestionAnswer], *, by: str = "", via: Via = "") -> bool:
        """Answer a batch of questions, found by the ids of the questions if its own id is empty. Raises `BadRequest`,
        or `StorageError` if the answer could not be stored: the batch then stays open.
        """
        given = {answer.request_id: clean_text(answer) for answer in answers}
        found = find_batch(self.questions, batch, given)
        if found is None:
            return await self._is_not_open()
        check_answers(found, given)
        opened = self._batches[found.id]
        answered = tuple(given.get(item.id, QuestionAnswer(item.id)) for item in found.questions)
        notice = question_notice(found, by=by, via=via)
        return await self._close(opened, notice, lambda: _resolve(opened, opened.answer, answered))

    async def dismiss(self, batch: str = "", *, by: str = "", via: Via = "") -> bool:
        """Cancel a batch; without an id, the one shown by clients that show one at a time."""
        opened = self._batches.get(batch) if batch else self._displayed_batch()
        if opened is None:
            return await self._is_not_open()
        notice = question_notice(opened.request, by=by, via=via, cancelled=True)
        return await self._close(opened, notice, lambda: _resolve(opened, opened.answer, None))

    def apply_stored_decision(self, notice: PermissionNotification) -> None:
        """Resolve a permission request that a client of another node has answered; its answer is stored."""
        opened = self._permissions.get(notice.id)
        if opened is None or not (notice.granted or notice.denied):
            return
        self._forget(opened)
        action: GrantAction = "deny"
        if notice.granted:
            action = "allow_session" if notice.action == "allow_session" else "allow"
        decision = _Decision(action, notice.reason.strip())
        saving = self._apply_decision(opened, decision, saves=notice.action == "allow_always")
        if saving is not None:
            # The client that answered is on another node, so every client receives the error.
            saving.add_done_callback(partial(self._publish_failure, opened.request.session_id))

    def _publish_failure(self, session: SessionId, saving: "asyncio.Task[Exception | None]") -> None:
        if saving.cancelled() or (failure := saving.result()) is None:
            return
        error = f"It was allowed this once, but the rule could not be saved: {failure}"
        notice = AgentNotice("error", error=error, session_id=session)
        self._recorder.outlet.publish_live(AgentEvent(Change("created", notice)))

    def apply_stored_answers(self, notice: QuestionNotification) -> None:
        """Resolve a batch of questions that a client of another node has answered or dismissed."""
        opened = self._batches.get(notice.batch_id)
        if opened is not None:
            self._forget(opened)
            _resolve(opened, opened.answer, None if notice.cancelled or notice.withdrawn else notice.answers)

    async def _is_not_open(self) -> bool:
        """Return False: the request is not open. Raises `StorageError` if another node owns the workspace now, because
        the request may be open there.
        """
        await self._recorder.confirm_owner()
        return False

    async def _close(self, opened: _Open, notice: _Notice, stored: Callable[[], None]) -> bool:
        """Return whether this answer was the first one stored."""
        return isinstance(await self._put_closing(opened, notice, stored), Receipt)

    def _put_closing(
        self,
        opened: _Open,
        notice: _Notice,
        stored: Callable[[], None],
        on_failure: Callable[[], None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Store the closing of a request. `stored` applies it, in number order, unless another answer was first."""

        def on_answer(answer: Answer) -> None:
            if isinstance(answer, Receipt):
                self._forget(opened)
                stored()

        return self._recorder.put(CloseRequest(notice), on_answer=on_answer, on_failure=on_failure)

    def _forget(self, opened: _Open) -> None:
        """Remove a closed request. Clients that show one batch at a time pause before the next one."""
        self._permissions.pop(opened.id, None)
        if self._batches.pop(opened.id, None) is not None:
            self._closed_at = asyncio.get_running_loop().time()

    def _displayed_batch(self) -> _OpenBatch | None:
        """Return the batch that is shown. None right after one was closed: a cancel that arrives then was meant for
        it.
        """
        if self.pause:
            return None
        return next(iter(self._batches.values()), None)

    def _apply_decision(
        self, opened: _OpenPermission, decision: _Decision, *, saves: bool
    ) -> "asyncio.Task[Exception | None] | None":
        """Resolve a request. With `saves`, first save the rules that were shown; the task returns the error if that
        failed.

        The saved rules are valid in their own directory only, until they are removed.
        """
        if saves and self.save_rule is not None:
            # It is answered: a withdrawal must not follow.
            opened.close()
            return self._tasks.start(self._save_and_resolve(self.save_rule, opened, decision), name="save rules")
        if saves:
            self._grant(None, subject_of(opened.permit))
        _resolve(opened, opened.answer, decision)
        return None

    async def _save_and_resolve(
        self, save_rule: SaveRule, opened: _OpenPermission, decision: _Decision
    ) -> Exception | None:
        failure: Exception | None = None
        try:
            for rule in opened.verdict.saves:
                if (saving := save_rule(rule)) is not None:
                    await saving
        except Exception as error:
            failure = error
        _resolve(opened, opened.answer, decision)
        return failure

    def forget_sessions(self, sessions: Collection[SessionId]) -> None:
        """Forget the grants of deleted sessions."""
        for session, subject in tuple(self._granted):
            if session in sessions:
                del self._granted[session, subject]

    def _grant(self, session: SessionId | None, subject: Subject) -> None:
        self._granted[session, subject] = None
        # Dicts keep insertion order: the oldest grant is dropped, and its subject is asked for again.
        if len(self._granted) > _MAX_GRANTS:
            del self._granted[next(iter(self._granted))]

    # Requests without an answer.

    def _withdraw(self, opened: _Open, notice: _Notice) -> None:
        """Withdraw the request of a call that has ended. An answer that is being written is stored before and wins."""
        if not opened.is_closed:
            opened.close()
            self._forget(opened)
            self._recorder.put(CloseRequest(notice))

    def _arm(self, opened: _Open) -> None:
        if self._readers == 0 and opened.timer is None:
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(self.timeout(), self._expire, opened)

    def _expire(self, opened: _Open) -> None:
        """Deny a request after its timeout. If that cannot be stored, start the timeout again."""
        opened.timer = None
        again = partial(self._arm, opened)
        if isinstance(opened, _OpenPermission):
            notice = permission_notice(opened.request, granted=False, denied=True, withdrawn=True)
            self._put_closing(
                opened, notice, partial(_resolve, opened, opened.answer, _Decision("deny", expired=True)), again
            )
        elif isinstance(opened, _OpenBatch):
            closing = question_notice(opened.request, withdrawn=True)
            self._put_closing(opened, closing, partial(_resolve, opened, opened.answer, None), again)

    def _all(self) -> list[_Open]:
        return [*self._permissions.values(), *self._batches.values()]

    async def _root(self, session: SessionId) -> SessionId:
        """Return the top-level session: its grants also cover its sub-agents."""
        known = await self._ledger.session(self._workspace, session)
        while known is not None and known.parent_session_id:
            session = known.parent_session_id
            known = await self._ledger.session(self._workspace, session)
        return session


def _resolve(opened: _Open, future: asyncio.Future[T], answer: T) -> None:
    """Resolve the future of a request. The waiter may already have been cancelled; the answer is then ignored."""
    opened.close()
    if not future.done():
        future.set_result(answer)


def _denial(decision: _Decision, *, interactive: bool) -> PermissionDenied:
    """Return the error of a denied call. Without a reason it stops the turn of an interactive run, so that the user can
    send another prompt; in a non-interactive run the denial is a tool result.
    """
    if decision.reason:
        return PermissionDenied(f"User denied permission: {decision.reason}", stops_turn=False)
    return PermissionDenied(_EXPIRED if decision.expired else None, stops_turn=interactive)
