"""The hooks of one workspace: runs commands on engine events and returns one combined result.

Project hooks, from our settings or Claude Code's, run only if the file is trusted with its current contents.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.atomic_files import FileUnreadable, Signature, file_signature, read_file
from holdfast.config.problems import Problem
from holdfast.config.trust import content_digest
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import Ruling, ToolUse
from holdfast.domain.ids import SessionId, is_subagent_session
from holdfast.domain.runs import Run
from holdfast.domain.tools import Tool, ToolOutcome
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.hooks.hook_config import ClaudeHooks, Hook, from_settings, read_claude, wanted
from holdfast.extensions.search_paths import SearchPath, claude_files
from holdfast.tasks import TaskOwner

__all__ = ["ClaudeFile", "Hooks", "load_claude"]


_log = logging.getLogger("holdfast.server")
if TYPE_CHECKING:
    from holdfast.extensions.hooks.dispatch import HookDispatcher


_MOST_SESSIONS = 4_096
_MOST_WAITING = 1_024
_MOST_AT_ONCE = 16
_LAST_WORDS = 1.0
_LONGEST_RESULT = 262_144


class ClaudeFile(msgspec.Struct, frozen=True):
    """A settings file of Claude Code."""

    folder: SearchPath
    hooks: ClaudeHooks
    digest: str
    seen: Signature = None


def load_claude(folder: SearchPath) -> ClaudeFile | None:
    """Read a settings file, or return None if it does not exist. Read errors are stored as problems."""
    seen = file_signature(folder.path)
    if seen is None:
        return None
    try:
        data, seen = read_file(folder.path)
    except FileNotFoundError:
        return None
    except FileUnreadable as error:
        problem = Problem("error", folder.path, 0, "", str(error).removeprefix(f"{folder.path} "))
        return ClaudeFile(folder, ClaudeHooks(problems=(problem,)), "", seen)
    return ClaudeFile(folder, read_claude(data, folder.path), content_digest(data), seen)


class Hooks:
    """The hooks extension. `environment` is the server's own and determines the locations of user files."""

    def __init__(self, ground: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._ground = ground
        self._files = claude_files(ground.configuration.locations, environment)
        self._known: dict[str, ClaudeFile | None] = {}
        self._sessions: OrderedDict[SessionId, None] = OrderedDict()
        self._tasks = TaskOwner()
        self._ends: deque[RunComplete] = deque()
        self._asking: HookDispatcher | None = None

    # As an extension

    def start(self) -> None:
        """Do nothing: files are read when an event occurs."""

    def refresh(self) -> None:
        """Do nothing, for the same reason."""

    def tools(self) -> Sequence[Tool]:
        """Return no tools."""
        return ()

    async def close(self) -> None:
        """Give hooks of ended runs a short time to finish, because a shutdown of the server ends runs too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._tasks.drain()
        self._tasks.cancel_all()
        await self._tasks.drain()

    # Discovery

    def current(self) -> tuple[Hook, ...]:
        """Return the hooks in effect."""
        reading = self._ground.configuration.snapshot()
        own = from_settings(reading.settings.hooks, reading.origins)
        files = [file for file in self.claude_files() if self.is_trusted(file)]
        if any(file.hooks.disables_all for file in files):
            return own
        return (*own, *(hook for file in files for hook in file.hooks.hooks))

    def claude_files(self) -> list[ClaudeFile]:
        """Return Claude Code's settings files. Checks each for changes, and reads changed ones again."""
        for folder in self._files:
            known = self._known.get(folder.path)
            if folder.path not in self._known or file_signature(folder.path) != (known.seen if known else None):
                self._known[folder.path] = read = load_claude(folder)
                for problem in () if read is None else read.hooks.problems:
                    _log.warning("%s", problem)
        return [file for file in self._known.values() if file is not None]

    def is_trusted(self, file: ClaudeFile) -> bool:
        """Return whether the hooks of a file may run."""
        trust = self._ground.configuration.trust
        return file.folder.owner == "user" or trust.is_file_trusted(file.folder.path, file.digest)

    def problems(self) -> tuple[Problem, ...]:
        """Return the mistakes in Claude Code's files, trusted or not. Those in ours are reported with the settings."""
        return tuple(problem for file in self.claude_files() for problem in file.hooks.problems)

    # Engine events

    async def before_tool(self, use: ToolUse) -> Ruling:
        """Run `PreToolUse` hooks, which can deny a call or change its input."""
        hooks = wanted(self.current(), "PreToolUse", use.name)
        if not hooks:
            return Ruling()
        return await self._asker().rule(hooks, _about(use), use.input, is_about_input=True)

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> Ruling:
        """Run `PostToolUse` hooks with the result of the call."""
        hooks = wanted(self.current(), "PostToolUse", use.name)
        if not hooks:
            return Ruling()
        response = {"content": outcome.content[:_LONGEST_RESULT], "is_error": outcome.is_error}
        return await self._asker().rule(hooks, {**_about(use), "tool_response": response}, use.input)

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        """Run `UserPromptSubmit` hooks, preceded by `SessionStart` hooks if the session is new or resumed after a
        restart.
        """
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
        """Queue `RunEnd` hooks. They run in the background, so that clients receive the end of the run first."""
        if is_subagent_session(end.session_id):
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

    def _asker(self) -> "HookDispatcher":
        if self._asking is None:
            # Most workspaces have no hooks.
            from holdfast.extensions.hooks.dispatch import HookDispatcher  # noqa: PLC0415

            self._asking = HookDispatcher(self._ground)
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
