"""Answers to permission requests and questions on a node that does not own the workspace.

The answer is stored with its content, because the owner resolves the waiting call from the stored event. The first
stored answer wins, whichever node accepted it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from holdfast.cluster.stored_inputs import InputStore
from holdfast.cluster.stored_state import OpenRequests
from holdfast.domain.approvals import GrantAction, PermissionRequest, QuestionAnswer, QuestionRequest, Via
from holdfast.domain.errors import BadRequest
from holdfast.domain.events import PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.messages import replace_surrogates
from holdfast.domain.store_operations import CloseRequest, Receipt
from holdfast.engine.approvals import (
    NEXT_BATCH_DELAY,
    check_answers,
    clean_text,
    find_batch,
    permission_notice,
    question_notice,
)

__all__ = ["RemoteApprovals"]

T = TypeVar("T")


class RemoteApprovals:
    """The open requests of a workspace, as its log shows them. See `engine.approvals.Approvals` for the owner's."""

    def __init__(self, store: InputStore, requests: OpenRequests) -> None:
        self._store = store
        self._requests = requests
        self._closed_at = float("-inf")

    @property
    def permissions(self) -> tuple[PermissionRequest, ...]:
        """The open permission requests, oldest first."""
        return tuple(self._requests.permissions.values())

    @property
    def questions(self) -> tuple[QuestionRequest, ...]:
        """The open batches of questions, oldest first."""
        return tuple(self._requests.questions.values())

    @property
    def pause(self) -> float:
        """Seconds until clients that show one batch at a time may show the next one."""
        return max(0.0, self._closed_at + NEXT_BATCH_DELAY - asyncio.get_running_loop().time())

    def batch_closed(self) -> None:
        """Start the pause before the next batch is shown."""
        self._closed_at = asyncio.get_running_loop().time()

    async def grant(
        self, request_id: str, action: GrantAction, *, reason: str = "", by: str = "", via: Via = ""
    ) -> bool:
        """Answer a permission request. Return False if it is not open. Raises `StorageError` if the answer could not be
        stored: the request then stays open.
        """
        request = await self._find(lambda: self._requests.permissions.get(request_id))
        if request is None:
            return False
        if action == "allow_always" and not request.rules:
            raise BadRequest("No rule can be saved that covers exactly this: allow it once or for the session.")
        is_denied = action == "deny"
        client = replace_surrogates(by), via
        notice = permission_notice(request, granted=not is_denied, denied=is_denied, client=client, action=action)
        stored = msgspec.structs.replace(notice.change.object, reason=replace_surrogates(reason.strip()))
        change = msgspec.structs.replace(notice.change, object=stored)
        return await self._close(PermissionNotificationEvent(change))

    async def answer(self, batch: str, answers: Iterable[QuestionAnswer], *, by: str = "", via: Via = "") -> bool:
        """Answer a batch of questions, found by the ids of the questions if its own id is empty. Raises `BadRequest`,
        or `StorageError` if the answer could not be stored: the batch then stays open.
        """
        given = {answer.request_id: clean_text(answer) for answer in answers}
        found = await self._find(lambda: find_batch(self.questions, batch, given))
        if found is None:
            return False
        check_answers(found, given)
        answered = tuple(given.get(item.id, QuestionAnswer(item.id)) for item in found.questions)
        notice = question_notice(found, by=by, via=via)
        stored = msgspec.structs.replace(notice.change.object, answers=answered)
        return await self._close(QuestionNotificationEvent(msgspec.structs.replace(notice.change, object=stored)))

    async def dismiss(self, batch: str = "", *, by: str = "", via: Via = "") -> bool:
        """Cancel a batch; without an id, the one shown by clients that show one at a time."""
        found = await self._find(lambda: self._requests.questions.get(batch) if batch else self._shown())
        return found is not None and await self._close(question_notice(found, by=by, via=via, cancelled=True))

    def _shown(self) -> QuestionRequest | None:
        return None if self.pause else next(iter(self._requests.questions.values()), None)

    async def _find(self, look: Callable[[], T | None]) -> T | None:
        """Return an open request. The client may have seen it on another node before it was read here."""
        found = look()
        if found is None:
            await self._store.reader.catch_up()
            found = look()
        return found

    async def _close(self, event: PermissionNotificationEvent | QuestionNotificationEvent) -> bool:
        """Return whether this answer was the first one stored."""
        cursor = self._store.reader.cursor
        stored = await self._store.put(CloseRequest(event))
        if isinstance(stored.answer, Receipt):
            return True
        # The answer that was first may be this one.
        return stored.is_repeated and await self._store.is_in_log(event, cursor)
