"""What waits for a person: permissions of tools, and questions of the model. One of these serves one workspace.

An ask is stored and numbered before anybody sees it, and belongs to one tool call. It is decided once, without
waiting for anything: the first answer takes it, everybody is told whose it was, later ones find nothing. When the
call ends in another way, cancelled with its run or out of time, the ask is withdrawn, and that is on its way to the
log before the run's end is. Nothing here makes one session wait for another.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

import msgspec

from holdfast.domain.asks import (
    GrantAction,
    PermissionNotification,
    PermissionRequest,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    Verdict,
    Via,
)
from holdfast.domain.errors import BadRequest, PermissionDenied
from holdfast.domain.events import (
    AskEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.ledger import Announce, Answer, Receipt
from holdfast.domain.messages import encodable
from holdfast.domain.tools import Inquiry, Permit, ToolContext
from holdfast.engine.inquiries import Subject, check_answers, cleaned, find_batch, subject_of
from holdfast.engine.ports import Ledger, NewId
from holdfast.engine.recorder import Recorder

__all__ = ["Asks", "Judge"]

Judge: TypeAlias = Callable[[Permit], Verdict]
T = TypeVar("T")
_Answers: TypeAlias = tuple[QuestionAnswer, ...]

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


class Asks:
    """The asks of one workspace. `judge` says what the rules say; `save_rule` keeps one for ever."""

    def __init__(
        self,
        workspace: WorkspaceId,
        ledger: Ledger,
        new_id: NewId,
        judge: Judge = lambda _: Verdict("allow"),
        *,
        timeout: float = 86_400.0,
    ) -> None:
        self.judge = judge
        self.skips = False
        """Yolo: what would be asked is allowed. What a rule denies is not."""
        self.save_rule: Callable[[str], None] | None = None
        """Keeps a rule beyond this workspace's life; without it, a rule counts until the workspace is closed."""
        self.timeout = timeout
        """How many seconds an ask waits while nobody is attached."""
        self._workspace = workspace
        self._ledger = ledger
        self._new_id = new_id
        self._recorder: Recorder
        self._permissions: dict[str, _OpenPermission] = {}
        self._batches: dict[str, _OpenBatch] = {}
        self._granted: dict[tuple[SessionId | None, Subject], None] = {}
        """What was allowed for a session and those below it, or, without a session, always."""
        self._readers = 0
        self._closed_at = float("-inf")

    def bind(self, recorder: Recorder) -> None:
        """The engine is there, before anything is asked: what is asked can be stored and told."""
        self._recorder = recorder

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
        if self.skips or skips or (verdict.decision == "allow" and not insists):
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
            self._withdraw_batch(opened)

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
            permit.continues,
        )
        opened = _OpenPermission(cleaned(request), permit, verdict)
        asking = PermissionRequestEvent(Change("created", opened.request))
        pending = _notice(opened.request, granted=False, denied=False)
        try:
            await self._open(opened, lambda: self._permissions.update({request.id: opened}), asking, pending)
            return await opened.answer
        finally:
            self._withdraw_permission(opened)

    async def _open(self, opened: _Open, enter: Callable[[], None], *events: AskEvent) -> None:
        """Store the ask; it can be seen and answered from the moment it has its number."""

        def stored(answer: Answer) -> None:
            if isinstance(answer, Receipt) and not opened.is_closed:
                enter()
                self._arm(opened)

        await self._recorder.put(*(Announce(event) for event in events), then=stored)

    # What people answer.

    async def grant(self, ask: str, action: GrantAction, *, reason: str = "", by: str = "", via: Via = "") -> bool:
        """Answer an ask. False if it is not open any more, or never was; raises what keeps a rule from being saved."""
        opened = self._permissions.get(ask)
        if opened is None:
            return False
        if action == "allow_always":
            self._keep(opened)
        del self._permissions[ask]
        _decide(opened, opened.answer, _Chosen(action, encodable(reason.strip())))
        is_denied = action == "deny"
        who = encodable(by), via
        notice = _notice(opened.request, granted=not is_denied, denied=is_denied, who=who, action=action)
        await asyncio.shield(self._announce(notice))
        return True

    async def answer(self, batch: str, answers: Iterable[QuestionAnswer], *, by: str = "", via: Via = "") -> bool:
        """Answer a batch of questions; without its id the ids of the questions tell which. Raises `BadRequest`."""
        given = {answer.request_id: cleaned(answer) for answer in answers}
        found = find_batch(self.questions, batch, given)
        if found is None:
            return False
        check_answers(found, given)
        opened = self._batches.pop(found.id)
        answered = tuple(given.get(item.id, QuestionAnswer(item.id)) for item in found.questions)
        _decide(opened, opened.answer, answered)
        await asyncio.shield(self._close_batch(found, by=by, via=via))
        return True

    async def dismiss(self, batch: str = "", *, by: str = "", via: Via = "") -> bool:
        """Cancel a batch. Without its id: the one that clients show which show one at a time."""
        opened = self._batches.get(batch) if batch else self._shown()
        if opened is None:
            return False
        del self._batches[opened.request.id]
        _decide(opened, opened.answer, None)
        await asyncio.shield(self._close_batch(opened.request, by=by, via=via, cancelled=True))
        return True

    def _shown(self) -> _OpenBatch | None:
        """Right after one was closed nothing is: who cancels then means that one."""
        if self.pause:
            return None
        return next(iter(self._batches.values()), None)

    def _keep(self, opened: _OpenPermission) -> None:
        if not opened.verdict.saves:
            raise BadRequest(
                "A rule of yours says to ask about this: change that rule, or allow it once or for the session."
            )
        if self.save_rule is not None:
            for rule in opened.verdict.saves:
                self.save_rule(rule)
        self._grant(None, subject_of(opened.permit))

    def _grant(self, session: SessionId | None, subject: Subject) -> None:
        self._granted[session, subject] = None
        if len(self._granted) > _MOST_GRANTS:
            del self._granted[next(iter(self._granted))]

    # What ends without an answer.

    def _withdraw_permission(self, opened: _OpenPermission) -> None:
        if opened.is_closed:
            return
        opened.close()
        self._permissions.pop(opened.request.id, None)
        self._announce(_notice(opened.request, granted=False, denied=True, withdrawn=True))

    def _withdraw_batch(self, opened: _OpenBatch) -> None:
        if opened.is_closed:
            return
        opened.close()
        self._batches.pop(opened.request.id, None)
        self._close_batch(opened.request, withdrawn=True)

    def _arm(self, opened: _Open) -> None:
        if self._readers == 0 and opened.timer is None:
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(self.timeout, self._expire, opened.id)

    def _expire(self, ask: str) -> None:
        """Nobody has been there for too long."""
        if (opened := self._permissions.pop(ask, None)) is not None:
            _decide(opened, opened.answer, _Chosen("deny", expired=True))
            self._announce(_notice(opened.request, granted=False, denied=True, withdrawn=True))
        elif (batch := self._batches.pop(ask, None)) is not None:
            _decide(batch, batch.answer, None)
            self._close_batch(batch.request, withdrawn=True)

    def _close_batch(
        self,
        request: QuestionRequest,
        *,
        by: str = "",
        via: Via = "",
        cancelled: bool = False,
        withdrawn: bool = False,
    ) -> asyncio.Future[Answer]:
        self._closed_at = asyncio.get_running_loop().time()
        notice = QuestionNotification(request.id, request.session_id, encodable(by), cancelled, withdrawn, via)
        return self._announce(QuestionNotificationEvent(Change("created", notice)))

    def _announce(self, event: AskEvent) -> asyncio.Future[Answer]:
        return self._recorder.put(Announce(event))

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


def _notice(
    request: PermissionRequest,
    *,
    granted: bool,
    denied: bool,
    who: tuple[str, Via] = ("", ""),
    action: str = "",
    withdrawn: bool = False,
) -> PermissionNotificationEvent:
    by, via = who
    notice = PermissionNotification(
        request.tool_call_id, granted, denied, request.id, request.session_id, by, action, withdrawn, via
    )
    return PermissionNotificationEvent(Change("created", notice))
