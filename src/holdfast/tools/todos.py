"""The `todos` tool: stores the model's plan, which screens show."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionPatch, Todo
from holdfast.domain.store_operations import PatchSession
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata

__all__ = ["Known", "TodoItem", "Todos", "TodosArguments"]

_MAX_TODOS = 200
_MAX_CACHED = 1_000

Known: TypeAlias = Callable[[ToolContext], Awaitable[Sequence[Todo]]]
"""Returns the stored list of the session."""


class TodoItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the plan, as the model sends it."""

    content: Annotated[str, Meta(min_length=1, description="The task, in the imperative.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Meta(description="Its state.")]
    active_form: Annotated[
        str, Meta(description="The task in the present continuous, shown while it is in progress.")
    ] = ""


class TodosArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `todos`."""

    todos: Annotated[tuple[TodoItem, ...], Meta(description="The complete list, in order.")]


class Todos(BaseTool[TodosArguments]):
    """`known` returns the stored list; without it the tool remembers the lists that it has written."""

    name = "todos"
    arguments = TodosArguments

    def __init__(self, known: Known | None = None) -> None:
        super().__init__()
        self._known = known
        self._written: OrderedDict[SessionId, Sequence[Todo]] = OrderedDict()

    async def act(self, context: ToolContext, arguments: TodosArguments) -> ToolOutcome:
        """Store the list and report its counts."""
        if len(arguments.todos) > _MAX_TODOS:
            raise ToolError(f"The list has {len(arguments.todos)} entries; {_MAX_TODOS} at most. Combine small steps.")
        todos = tuple(Todo(item.content, item.status, item.active_form or item.content) for item in arguments.todos)
        before = await self._known(context) if self._known else self._written.get(context.session_id, ())
        patch = SessionPatch(context.session_id, context.now_ms() // 1000, todos=todos)
        await context.record(PatchSession(patch))
        if self._known is None:
            self._remember(context.session_id, todos)
        return ToolOutcome(_text(todos), _metadata(before, todos))

    def _remember(self, session: SessionId, todos: Sequence[Todo]) -> None:
        self._written[session] = todos
        self._written.move_to_end(session)
        while len(self._written) > _MAX_CACHED:
            self._written.popitem(last=False)


def _metadata(before: Sequence[Todo], todos: Sequence[Todo]) -> str:
    old = {todo.content: todo.status for todo in before}
    completed = [todo for todo in todos if todo.status == "completed"]
    just = [
        todo.content for todo in completed if old.get(todo.content, "completed" if not before else "") != "completed"
    ]
    started = [
        todo.active_form for todo in todos if todo.status == "in_progress" and old.get(todo.content) != "in_progress"
    ]
    return metadata(
        is_new=not before,
        todos=[msgspec.to_builtins(todo) for todo in todos],
        just_completed=just or None,
        just_started=started[0] if started else None,
        completed=len(completed),
        total=len(todos),
    )


def _text(todos: Sequence[Todo]) -> str:
    counts = {
        status: sum(todo.status == status for todo in todos) for status in ("pending", "in_progress", "completed")
    }
    running = counts["in_progress"]
    advice = " Have only one step in progress at a time." if running > 1 else ""
    return (
        f"The list was saved: {counts['pending']} to do, {running} in progress, {counts['completed']} done.{advice}"
        if todos
        else "The list is empty now."
    )
