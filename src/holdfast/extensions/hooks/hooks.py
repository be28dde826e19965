"""The hooks of one workspace: what the engine asks on its way goes to commands, and comes back as one ruling.

Those of a project's settings, ours or Claude Code's, are run only when the file is trusted as it is.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config.files import Signature, Unreadable, contents, signature
from holdfast.config.problems import Problem
from holdfast.config.trust import file_digest
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import Ruling, ToolUse
from holdfast.domain.ids import SessionId, is_helper_session
from holdfast.domain.runs import Run
from holdfast.domain.tools import Tool, ToolOutcome
from holdfast.extensions.base import Ground
from holdfast.extensions.folders import Folder, claude_files
from holdfast.extensions.hooks.reading import ClaudeHooks, Hook, from_settings, read_claude, wanted
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.extensions.hooks.asking import Asker

__all__ = ["ClaudeFile", "Hooks", "load_claude"]

_MOST_SESSIONS = 4_096
_MOST_WAITING = 1_024
_MOST_AT_ONCE = 16
_LAST_WORDS = 1.0
_LONGEST_RESULT = 262_144
_log = logging.getLogger("holdfast.server")


class ClaudeFile(msgspec.Struct, frozen=True):
    """One of Claude Code's files of settings, as it was read."""

    folder: Folder
    hooks: ClaudeHooks
    digest: str
    seen: Signature = None


def load_claude(folder: Folder) -> ClaudeFile | None:
    """None if there is none, or it says nothing about hooks. A project's must not lead out of it."""
    seen = signature(folder.path)
    if seen is None:
        return None
    try:
        data, seen = contents(folder.path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        problem = Problem("error", folder.path, 0, "", str(error).removeprefix(f"{folder.path} "))
        return ClaudeFile(folder, ClaudeHooks(problems=(problem,)), "", seen)
    return ClaudeFile(folder, read_claude(data, folder.path), file_digest(data), seen)


class Hooks:
    """`environment` is the server's own: it tells where its user's files are."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._ground = ground
        self._files = claude_files(ground.configuration.places, environment)
        self._known: dict[str, ClaudeFile | None] = {}
        self._sessions: OrderedDict[SessionId, None] = OrderedDict()
        self._tasks = TaskOwner()
        self._ends: deque[RunComplete] = deque()
        self._asking: Asker | None = None

    # As an extension

    def start(self) -> None:
        """There is nothing to begin: files are looked at when something happens."""

    def refresh(self) -> None:
        """Nor is there anything to bring up to date."""

    def tools(self) -> Sequence[Tool]:
        return ()

    async def close(self) -> None:
        """Hooks for the end of a run have a moment to say what they have to say: a stop of the server is an end too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._tasks.drain()
        self._tasks.cancel_all()
        await self._tasks.drain()

    # Which there are

    def current(self) -> tuple[Hook, ...]:
        """Those that are in force."""
        reading = self._ground.configuration.reading()
        own = from_settings(reading.settings.hooks, reading.origins)
        files = [file for file in self.claude_files() if self.is_trusted(file)]
        if any(file.hooks.disables_all for file in files):
            return own
        return (*own, *(hook for file in files for hook in file.hooks.hooks))

    def claude_files(self) -> list[ClaudeFile]:
        """Their files as they are now. Costs a look at each; one that has changed is read again."""
        for folder in self._files:
            known = self._known.get(folder.path)
            if folder.path not in self._known or signature(folder.path) != (known.seen if known else None):
                self._known[folder.path] = read = load_claude(folder)
                for problem in () if read is None else read.hooks.problems:
                    _log.warning("%s", problem)
        return [file for file in self._known.values() if file is not None]

    def is_trusted(self, file: ClaudeFile) -> bool:
        trust = self._ground.configuration.trust
        return file.folder.owner == "user" or trust.is_file_trusted(file.folder.path, file.digest)

    def problems(self) -> tuple[Problem, ...]:
        """Return the mistakes in Claude Code's files, trusted or not. Those in ours are reported with the settings."""
        return tuple(problem for file in self.claude_files() for problem in file.hooks.problems)

    # As the engine asks

    async def before_tool(self, use: ToolUse) -> Ruling:
        hooks = wanted(self.current(), "PreToolUse", use.name)
        if not hooks:
            return Ruling()
        return await self._asker().rule(hooks, _about(use), use.input, is_about_input=True)

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> Ruling:
        hooks = wanted(self.current(), "PostToolUse", use.name)
        if not hooks:
            return Ruling()
        response = {"content": outcome.content[:_LONGEST_RESULT], "is_error": outcome.is_error}
        return await self._asker().rule(hooks, {**_about(use), "tool_response": response}, use.input)

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        """When a session begins, or is taken up again after the server was away, hooks are told of that first."""
        every = self.current()
        facts = {"session_id": run.session_id, "run_id": run.run_id}
        begun = Ruling()
        source = "startup" if is_first else "resume"
        if self._is_new(run.session_id) and (hooks := wanted(every, "SessionStart", source)):
            begun = await self._asker().rule(hooks, {**facts, "source": source})
        if not (hooks := wanted(every, "UserPromptSubmit")):
            return Ruling(context=begun.context)
        ruling = await self._asker().rule(hooks, {**facts, "prompt": prompt})
        context = "\n".join(text for text in (begun.context, ruling.context) if text)
        return msgspec.structs.replace(ruling, context=context)

    def after_run(self, end: RunComplete) -> None:
        """Looked for afterwards, in its own time: everybody else hears of the end first."""
        if is_helper_session(end.session_id):
            return
        if len(self._ends) >= _MOST_WAITING:
            _log.warning("hooks for the end of run %s are not run: %d wait already", end.run_id, _MOST_WAITING)
            return
        self._ends.append(end)
        if len(self._tasks) < _MOST_AT_ONCE:
            self._tasks.start(self._after_runs(), name="hooks for ends")

    async def _after_runs(self) -> None:
        while self._ends:
            await self._after_run(self._ends.popleft())

    async def _after_run(self, end: RunComplete) -> None:
        try:
            hooks = wanted(self.current(), "RunEnd")
        except Exception:
            _log.exception("hooks for the end of run %s are not run", end.run_id)
            return
        if not hooks:
            return
        facts = {
            "session_id": end.session_id,
            "run_id": end.run_id,
            "outcome": end.outcome,
            "error": end.error,
            "text": end.text,
        }
        await self._asker().rule(hooks, facts)

    def _asker(self) -> "Asker":
        if self._asking is None:
            from holdfast.extensions.hooks.asking import Asker  # noqa: PLC0415 - only where there are hooks

            self._asking = Asker(self._ground)
        return self._asking

    def _is_new(self, session: SessionId) -> bool:
        if session in self._sessions:
            return False
        self._sessions[session] = None
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return True


def _about(use: ToolUse) -> dict[str, Any]:
    return {
        "session_id": use.session_id,
        "run_id": use.run_id,
        "tool_name": use.name,
        "tool_use_id": use.tool_call_id,
        "tool_input": use.input,
    }
