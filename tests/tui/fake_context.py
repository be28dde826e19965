"""A context of the terminal app without the app: every effect of a controller is recorded in one log, in order."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from textual.app import SuspendNotSupported

from holdfast.client.errors import ClientError
from holdfast.client.view import View
from holdfast.domain.ids import SessionId
from holdfast.domain.runs import Run
from holdfast.testing.gates import start
from holdfast.tui.app_context import AppContext
from holdfast.tui.server_connection import Servers
from holdfast.tui.themes import PLAIN

__all__ = ["NO", "FakeClient", "FakeContext", "Recorder"]

Entry = tuple[object, ...]
NO = ClientError("No.")


class Recorder:
    """An object whose methods only record their calls. Attributes that are set keep their values."""

    def __init__(self, log: list[Entry], name: str, **values: object) -> None:
        self._log, self._name = log, name
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any name
        if name.startswith("__"):
            raise AttributeError(name)

        def record(*arguments: object, **named: object) -> None:
            self._log.append((f"{self._name}.{name}", *arguments, *((named,) if named else ())))

        return record


class FakeClient:
    """A client that records requests. `results` has the result of each method: a value, an error, a list of results, or
    a function of the arguments.
    """

    client_id = "me"

    def __init__(self, log: list[Entry], results: dict[str, Any]) -> None:
        self._log, self._results = log, results

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def request(workspace: str, *arguments: object, **named: object) -> object:
            assert workspace == "w"
            self._log.append((name, *arguments, *((named,) if named else ())))
            return self.result(name, *arguments)

        return request

    def result(self, name: str, *arguments: object) -> object:
        found = self._results.get(name)
        result = found.pop(0) if isinstance(found, list) else found
        if callable(result):
            result = result(*arguments)
        if isinstance(result, Exception):
            raise result
        return result


class FakeConnection:
    """A connection without a server. `queue` are the runs of the session that wait, `active` those that do not."""

    workspace = "w"
    directory = "/p"

    def __init__(self, log: list[Entry], client: FakeClient) -> None:
        self._log = log
        self.client = client
        self.session: SessionId | None = SessionId("s")
        self.view = View()
        self.servers = Servers()
        self.is_open = True
        self.yolo = False
        self.shell_commands: list[str] = []
        self.active: list[Run] = []
        self.queue: list[Run] = []
        self.ended_runs: list[str] = []
        self.node = ""
        self.has_alternatives = False

    def runs(self) -> list[Run]:
        return [*self.active, *self.queue]

    def waiting(self) -> list[Run]:
        return self.queue

    async def open_session(self, session: SessionId | None) -> None:
        self._log.append(("open", session))
        self.client.result("open")
        self.session = session

    async def prompt(self, text: str, **named: object) -> object:
        self._log.append(("prompt", text, named) if named else ("prompt", text))
        return self.client.result("prompt")

    async def cancel(self) -> object:
        self._log.append(("cancel",))
        return self.client.result("cancel")


class FakeContext:
    """The context of a controller. `answers` are the results of the dialogs, in order; `results` those of requests."""

    def __init__(self, answers: tuple[object, ...] = (), **results: Any) -> None:  # noqa: ANN401 - of any request
        self.log: list[Entry] = []
        self.dialogs: list[Any] = []
        self._answers = list(answers)
        self.connection = FakeConnection(self.log, FakeClient(self.log, results))
        self.composer = Recorder(
            self.log, "composer", text="", sent_prompts=[], has_focus=True, has_attachments=False, completes=False
        )
        self.transcript = Recorder(self.log, "transcript")
        self.completer = Recorder(self.log, "completer")
        self.queue = Recorder(self.log, "queue", display=False)
        self.lines: dict[str, Recorder] = {}
        self.size = SimpleNamespace(width=80, height=24)
        self.palette = PLAIN
        self.config: dict[str, Any] = {}
        self.is_mounted = True
        self.can_suspend = True
        self.frames = 0

    @property
    def context(self) -> AppContext:
        return cast(AppContext, self)

    @property
    def options(self) -> dict[str, Any]:
        return AppContext.options.fget(self.context)  # type: ignore[attr-defined, no-any-return]

    def line(self, name: str) -> Recorder:
        return self.lines.setdefault(name, Recorder(self.log, name))

    def request_frame(self) -> None:
        self.frames += 1

    def notify(self, text: str, **more: object) -> None:
        self.log.append(("notice", text, *((more,) if more else ())))

    async def show_dialog(self, dialog: object) -> object:
        self.dialogs.append(dialog)
        self.log.append(("dialog", type(dialog).__name__, getattr(dialog, "_title", "")))
        return self._answers.pop(0)

    async def run_action(self, name: str) -> None:
        self.log.append(("action", name))

    def submit(self, text: str) -> None:
        self.log.append(("submit", text))

    @contextmanager
    def suspend(self) -> Any:  # noqa: ANN401 - a generator
        if not self.can_suspend:
            raise SuspendNotSupported
        self.log.append(("suspended",))
        yield
        self.log.append(("resumed",))

    async def send(self, request: Awaitable[object]) -> bool:
        return await AppContext.send(self.context, request)

    async def fetch(self, request: Awaitable[object]) -> object:
        return await AppContext.fetch(self.context, request)

    def start(self, work: Callable[..., Coroutine[None, None, None]], *arguments: object, **more: object) -> None:
        """Run the work at once, to its end."""
        self.log.append(("start", work.__name__, *((more,) if more else ())))
        self.work = start(work(*arguments))

    async def finish(self) -> None:
        """Wait for the work that was started last."""
        await self.work

    def start_thread(self, work: Callable[[], None]) -> None:
        self.log.append(("thread",))
        work()

    def call_from_thread(self, callback: Callable[..., None], *arguments: object) -> None:
        callback(*arguments)

    def write_terminal(self, sequence: str) -> None:
        self.log.append(("terminal", sequence))

    def cancel_group(self, group: str) -> None:
        self.log.append(("cancelled", group))

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self.log.append(("timer", seconds))
        callback()

    def entries(self, *without: str) -> list[Entry]:
        """Return the log, without entries of these names, and clear it."""
        found = [entry for entry in self.log if entry[0] not in without]
        self.log.clear()
        return found
