"""What waits for a person: permissions of tools, and questions of the model. One of these serves one workspace.

An ask is stored and numbered before anybody sees it, and belongs to one tool call. Its answer is a numbered input like
a prompt: it takes effect when it is stored, and the first stored one wins; later ones find nothing. Until then the ask
is open, and it stays open if the store cannot write. When the call ends in another way, cancelled with its run or out
of time, the ask is withdrawn, and that is on its way to the log before the run's end is. Nothing here makes one
session wait for another.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    AskEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import Announce, Answer, CloseRequest, Receipt
from holdfast.domain.messages import encodable
from holdfast.domain.tools import Inquiry, Permit, ToolContext
from holdfast.engine.ports import Ledger, NewId
from holdfast.engine.recorder import Recorder

__all__ = [
    "Approvals",
    "Judge",
    "Subject",
    "check_answers",
    "cleaned",
    "find_batch",
    "permission_notice",
    "question_notice",
    "subject_of",
]


# Requests for permission and questions: subject, checks of answers, notifications. Pure.

T = TypeVar("T")
Subject: TypeAlias = tuple[str, ...]


def find_batch(
    batches: Sequence[QuestionRequest], batch: str, answers: Mapping[str, QuestionAnswer]
) -> QuestionRequest | None:
    """The open batch that is meant. None if there is none, or the answers are not all for it."""
    for request in batches:
        ids = {question.id for question in request.questions}
        if (batch == request.id or (not batch and answers)) and answers.keys() <= ids:
            return request
    return None


def check_answers(batch: QuestionRequest, answers: Mapping[str, QuestionAnswer]) -> None:
    """Raises `BadRequest` for an answer that does not fit its question."""
    for question in batch.questions:
        if (answer := answers.get(question.id)) is not None:
            _check(question, answer)


def _check(question: Question, answer: QuestionAnswer) -> None:
    known = [choice.id for choice in question.choices]
    selected = answer.selected_ids or ()
    if unknown := [item for item in selected if item not in known]:
        raise BadRequest(f"{len(unknown)} of the selected ids are no choices of the question.")
    if len(set(selected)) != len(selected):
        raise BadRequest("A choice is selected twice.")
    if question.type == "single_choice" and len(selected) > 1:
        raise BadRequest("Only one choice can be selected for this question.")
    if answer.yes is not None and question.type != "yes_no":
        raise BadRequest("This question is not answered with yes or no.")


def subject_of(permit: Permit) -> Subject:
    """What was shown, and nothing wider: the very line, the very file, the very address, or all parameters."""
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


def cleaned(thing: T) -> T:
    """The same with text that can be encoded: what a model or a client sends may hold half characters."""
    plain = msgspec.to_builtins(thing)
    return msgspec.convert(_encodable(plain), type(thing))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def question_notice(
    request: QuestionRequest, *, by: str = "", via: Via = "", cancelled: bool = False, withdrawn: bool = False
) -> QuestionNotificationEvent:
    """The event that closes a batch of questions."""
    notice = QuestionNotification(request.id, request.session_id, encodable(by), cancelled, withdrawn, via)
    return QuestionNotificationEvent(Change("created", notice))


def permission_notice(
    request: PermissionRequest,
    *,
    granted: bool,
    denied: bool,
    who: tuple[str, Via] = ("", ""),
    action: str = "",
    withdrawn: bool = False,
) -> PermissionNotificationEvent:
    """The event that says how a request for permission stands; without `granted` or `denied` it is open."""
    by, via = who
    notice = PermissionNotification(
        request.tool_call_id, granted, denied, request.id, request.session_id, by, action, withdrawn, via
    )
    return PermissionNotificationEvent(Change("created", notice))


# What waits for a person: permissions of tools, and questions of the model. One of these serves one workspace.

Judge: TypeAlias = Callable[[Permit], Verdict]
_Answers: TypeAlias = tuple[QuestionAnswer, ...]
_Notice: TypeAlias = PermissionNotificationEvent | QuestionNotificationEvent

_PAUSE_SECONDS = 0.5
"""How long after a batch of questions is closed the next one counts as shown to clients that show one at a time."""
_MOST_GRANTS = 10_000
_EXPIRED = "Nobody was there to answer, so it was not done."


class _Chosen(msgspec.Struct, frozen=True):
    """How an ask was answered. `expired`: it was not, in time."""

    action: GrantAction
    reason: str = ""
    expired: bool = False


class _Open:
    """An ask that waits. Once it is closed, nothing more becomes of it."""

    def __init__(self, ask: str) -> None:
        self.id = ask
        self.timer: asyncio.TimerHandle | None = None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self.rest()

    def rest(self) -> None:
        """No time is running out."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _OpenPermission(_Open):
    def __init__(self, request: PermissionRequest, permit: Permit, verdict: Verdict) -> None:
        super().__init__(request.id)
        self.request = request
        self.permit = permit
        self.verdict = verdict
        self.answer: asyncio.Future[_Chosen] = asyncio.get_running_loop().create_future()


class _OpenBatch(_Open):
    def __init__(self, request: QuestionRequest) -> None:
        super().__init__(request.id)
        self.request = request
        self.answer: asyncio.Future[_Answers | None] = asyncio.get_running_loop().create_future()


class Approvals:
    """The asks of one workspace. `judge` says what the rules say; `save_rule` keeps one for ever."""

    def __init__(
        self,
        recorder: Recorder,
        ledger: Ledger,
        new_id: NewId,
        judge: Judge = lambda _: Verdict("allow"),
        *,
        save_rule: Callable[[str], None] | None = None,
        timeout: Callable[[], float] = lambda: 86_400.0,
    ) -> None:
        self.judge = judge
        self.skips = False
        """Yolo: what would be asked is allowed. What a rule denies is not."""
        self.save_rule = save_rule
        """Keeps a rule beyond this workspace's life; without it, a rule counts until the workspace is closed."""
        self.timeout = timeout
        """Returns for how many seconds a request waits while no client is attached."""
        self._workspace = recorder.record.id
        self._ledger = ledger
        self._new_id = new_id
        self._recorder = recorder
        self._permissions: dict[str, _OpenPermission] = {}
        self._batches: dict[str, _OpenBatch] = {}
        self._granted: dict[tuple[SessionId | None, Subject], None] = {}
        """What was allowed for a session and those below it, or, without a session, always."""
        self._readers = 0
        self._closed_at = float("-inf")

    # What can be seen.

    @property
    def permissions(self) -> tuple[PermissionRequest, ...]:
        """All that are open, oldest first."""
        return tuple(opened.request for opened in self._permissions.values())

    @property
    def questions(self) -> tuple[QuestionRequest, ...]:
        return tuple(opened.request for opened in self._batches.values())

    @property
    def pause(self) -> float:
        """How many seconds it is until the next batch of questions may be shown, one at a time."""
        return max(0.0, self._closed_at + _PAUSE_SECONDS - asyncio.get_running_loop().time())

    def reader_came(self) -> None:
        """Somebody is there who may answer: nothing runs out."""
        self._readers += 1
        for opened in self._all():
            opened.rest()

    def reader_left(self) -> None:
        self._readers -= 1
        for opened in self._all():
            self._arm(opened)

    # What tools ask.

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        """Return when it may be done. Raises `PermissionDenied`."""
        verdict = self.judge(permit)
        if verdict.decision == "deny":
            raise PermissionDenied(f"Not allowed. {verdict.why} Do not try it in another way.", stops_turn=False)
        if verdict.insists and not interactive:
            raise PermissionDenied(f"Not allowed, because nobody can be asked. {verdict.why}", stops_turn=False)
        insists = insists or verdict.insists
        if not verdict.insists and (self.skips or skips or (verdict.decision == "allow" and not insists)):
            return
        subject = subject_of(permit)
        root = await self._root(context.session_id)
        if not insists and ((root, subject) in self._granted or (None, subject) in self._granted):
            return
        chosen = await self._ask(context, permit, verdict)
        if chosen.action == "deny":
            raise _denial(chosen, interactive=interactive)
        if chosen.action == "allow_session":
            self._grant(root, subject)

    async def inquire(self, context: ToolContext, inquiry: Inquiry) -> _Answers | None:
        """One answer for each question, in their order. None if they were dismissed."""
        questions = tuple(msgspec.structs.replace(item, id=self._new_id()) for item in inquiry.questions)
        request = QuestionRequest(
            self._new_id(),
            context.session_id,
            context.tool_call_id,
            questions,
            inquiry.confirm_title,
            inquiry.confirm_description,
            context.run_id,
        )
        opened = _OpenBatch(cleaned(request))
        asking = QuestionRequestEvent(Change("created", opened.request))
        try:
            await self._open(opened, lambda: self._batches.update({request.id: opened}), asking)
            return await opened.answer
        finally:
            self._withdraw(opened, question_notice(opened.request, withdrawn=True))

    async def _ask(self, context: ToolContext, permit: Permit, verdict: Verdict) -> _Chosen:
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
        opened = _OpenPermission(cleaned(request), permit, verdict)
        asking = PermissionRequestEvent(Change("created", opened.request))
        pending = permission_notice(opened.request, granted=False, denied=False)
        try:
            await self._open(opened, lambda: self._permissions.update({request.id: opened}), asking, pending)
            return await opened.answer
        finally:
            self._withdraw(opened, permission_notice(opened.request, granted=False, denied=True, withdrawn=True))

    async def _open(self, opened: _Open, enter: Callable[[], None], *events: AskEvent) -> None:
        """Store the ask; it can be seen and answered from the moment it has its number."""

        def stored(answer: Answer) -> None:
            if isinstance(answer, Receipt) and not opened.is_closed:
                enter()
                self._arm(opened)

        await self._recorder.put(*(Announce(event) for event in events), then=stored)

    # What people answer.

    async def grant(self, ask: str, action: GrantAction, *, reason: str = "", by: str = "", via: Via = "") -> bool:
        """Answer an ask. False if it is not open any more, or never was. Raises `StorageError` if the answer could not
        be stored: then the ask is still open.
        """
        opened = self._permissions.get(ask)
        if opened is None:
            return False
        if action == "allow_always" and not opened.verdict.saves:
            raise BadRequest("No rule can be saved that covers exactly this: allow it once or for the session.")
        is_denied = action == "deny"
        who = encodable(by), via
        notice = permission_notice(opened.request, granted=not is_denied, denied=is_denied, who=who, action=action)
        failures: list[Exception] = []

        def stored() -> None:
            if action == "allow_always":
                failures.extend(self._keep(opened))
            _decide(opened, opened.answer, _Chosen(action, encodable(reason.strip())))

        is_resolved = await self._close(opened, notice, stored)
        if failures:
            raise Conflict(f"It was allowed this once, but the rule could not be saved: {failures[0]}")
        return is_resolved

    async def answer(self, batch: str, answers: Iterable[QuestionAnswer], *, by: str = "", via: Via = "") -> bool:
        """Answer a batch of questions; without its id the ids of the questions tell which. Raises `BadRequest`, or
        `StorageError` if the answer could not be stored: then the batch is still open.
        """
        given = {answer.request_id: cleaned(answer) for answer in answers}
        found = find_batch(self.questions, batch, given)
        if found is None:
            return False
        check_answers(found, given)
        opened = self._batches[found.id]
        answered = tuple(given.get(item.id, QuestionAnswer(item.id)) for item in found.questions)
        notice = question_notice(found, by=by, via=via)
        return await self._close(opened, notice, lambda: _decide(opened, opened.answer, answered))

    async def dismiss(self, batch: str = "", *, by: str = "", via: Via = "") -> bool:
        """Cancel a batch. Without its id: the one that clients show which show one at a time."""
        opened = self._batches.get(batch) if batch else self._shown()
        if opened is None:
            return False
        notice = question_notice(opened.request, by=by, via=via, cancelled=True)
        return await self._close(opened, notice, lambda: _decide(opened, opened.answer, None))

    async def _close(self, opened: _Open, notice: _Notice, stored: Callable[[], None]) -> bool:
        """Whether this answer was the first one stored."""
        return isinstance(await self._put(opened, notice, stored), Receipt)

    def _put(
        self,
        opened: _Open,
        notice: _Notice,
        stored: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Store how an ask is closed. `stored` lets it take effect, in number order, unless another one was first."""

        def then(answer: Answer) -> None:
            if isinstance(answer, Receipt):
                self._forget(opened)
                stored()

        return self._recorder.put(CloseRequest(notice), then=then, otherwise=otherwise)

    def _forget(self, opened: _Open) -> None:
        """It is open no longer: screens that show one batch at a time pause before the next."""
        self._permissions.pop(opened.id, None)
        if self._batches.pop(opened.id, None) is not None:
            self._closed_at = asyncio.get_running_loop().time()

    def _shown(self) -> _OpenBatch | None:
        """Right after one was closed nothing is: who cancels then means that one."""
        if self.pause:
            return None
        return next(iter(self._batches.values()), None)

    def _keep(self, opened: _OpenPermission) -> list[Exception]:
        """Save the rules that were shown. Return what kept them from being saved.

        The saved rules decide from now on: they hold in their own directory only, and end when they are removed.
        """
        try:
            if self.save_rule is None:
                self._grant(None, subject_of(opened.permit))
                return []
            for rule in opened.verdict.saves:
                self.save_rule(rule)
        except Exception as error:
            return [error]
        return []

    def forget_sessions(self, sessions: Collection[SessionId]) -> None:
        """Drop what was allowed for sessions that were deleted."""
        for session, subject in tuple(self._granted):
            if session in sessions:
                del self._granted[session, subject]

    def _grant(self, session: SessionId | None, subject: Subject) -> None:
        self._granted[session, subject] = None
        if len(self._granted) > _MOST_GRANTS:
            del self._granted[next(iter(self._granted))]

    # What ends without an answer.

    def _withdraw(self, opened: _Open, notice: _Notice) -> None:
        """The call has ended without an answer. One that is being written now is stored before this, and counts."""
        if not opened.is_closed:
            opened.close()
            self._forget(opened)
            self._recorder.put(CloseRequest(notice))

    def _arm(self, opened: _Open) -> None:
        if self._readers == 0 and opened.timer is None:
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(self.timeout(), self._expire, opened)

    def _expire(self, opened: _Open) -> None:
        """Nobody has been there for too long. If that cannot be stored, the ask waits once more."""
        opened.timer = None
        again = partial(self._arm, opened)
        if isinstance(opened, _OpenPermission):
            notice = permission_notice(opened.request, granted=False, denied=True, withdrawn=True)
            self._put(opened, notice, partial(_decide, opened, opened.answer, _Chosen("deny", expired=True)), again)
        elif isinstance(opened, _OpenBatch):
            closing = question_notice(opened.request, withdrawn=True)
            self._put(opened, closing, partial(_decide, opened, opened.answer, None), again)

    def _all(self) -> list[_Open]:
        return [*self._permissions.values(), *self._batches.values()]

    async def _root(self, session: SessionId) -> SessionId:
        """The session at the top: what was allowed there counts for the helpers it sends."""
        known = await self._ledger.session(self._workspace, session)
        while known is not None and known.parent_session_id:
            session = known.parent_session_id
            known = await self._ledger.session(self._workspace, session)
        return session


def _decide(opened: _Open, future: asyncio.Future[T], answer: T) -> None:
    """Whoever waits may have been cancelled a moment ago: then nothing follows from the answer."""
    opened.close()
    if not future.done():
        future.set_result(answer)


def _denial(chosen: _Chosen, *, interactive: bool) -> PermissionDenied:
    """Without a reason the turn stops, so that a person can say what they want instead; where nobody is, the model is
    told.
    """
    if chosen.reason:
        return PermissionDenied(f"User denied permission: {chosen.reason}", stops_turn=False)
    return PermissionDenied(_EXPIRED if chosen.expired else None, stops_turn=interactive)
