"""The hooks of one workspace: runs commands on engine events and returns one combined result.

Theory of operation. The engine calls `before_tool`, `after_tool` and `before_prompt` and waits for the result, because
a hook can deny a call, change its input, or add context; `after_run` only queues, so that clients receive the end of a
run first. Each event is matched against the hooks in effect. The matching hooks run concurrently (`dispatch`), each as
a process with a time limit (`hook_process`), and their results are merged: the strictest decision is used. A hook that
fails, hangs or prints nonsense decides nothing; its error is logged and reported with the call.

Hooks come from our settings and from Claude Code's settings files. Both are checked for changes at every event instead
of being watched. Project hooks run only if the file is trusted with its current contents: a file that changes loses its
trust. The modules that run processes are loaded with the first event that has a hook.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.atomic_files import FileUnreadable, Signature, file_signature, read_file
from holdfast.config.problems import FileProblem
from holdfast.config.trust import content_digest
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import SessionId, is_subagent_session
from holdfast.domain.runs import Run
from holdfast.domain.tools import Tool, ToolOutcome
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.hooks.hook_config import (
    ClaudeHooks,
    Hook,
    hooks_from_settings,
    matching_hooks,
    parse_claude_settings,
)
from holdfast.extensions.search_paths import SearchPath, claude_settings_files
from holdfast.tasks import TaskOwner

__all__ = ["ClaudeFile", "Hooks", "load_claude_settings"]


_log = logging.getLogger("holdfast.server")
if TYPE_CHECKING:
    from holdfast.extensions.hooks.dispatch import HookDispatcher


_MAX_SESSIONS = 4_096
_MAX_QUEUED_ENDS = 1_024
_MAX_CONCURRENT = 16
_CLOSE_TIMEOUT = 1.0
_MAX_TOOL_RESULT = 262_144


class ClaudeFile(msgspec.Struct, frozen=True):
    """A settings file of Claude Code."""

    folder: SearchPath
    hooks: ClaudeHooks
    digest: str
    signature: Signature = None


def load_claude_settings(folder: SearchPath) -> ClaudeFile | None:
    """Read a settings file, or return None if it does not exist. Read errors are stored as problems."""
    seen = file_signature(folder.path)
    if seen is None:
        return None
    try:
        data, seen = read_file(folder.path)
    except FileNotFoundError:
        return None
    except FileUnreadable as error:
        problem = FileProblem("error", folder.path, 0, "", str(error).removeprefix(f"{folder.path} "))
        return ClaudeFile(folder, ClaudeHooks(problems=(problem,)), "", seen)
    return ClaudeFile(folder, parse_claude_settings(data, folder.path), content_digest(data), seen)


class Hooks:
    """The hooks extension. `environment` is the server's own and determines the locations of user files."""

    def __init__(self, context: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._context = context
        self._files = claude_settings_files(context.configuration.locations, environment)
        self._loaded: dict[str, ClaudeFile | None] = {}
        self._sessions: OrderedDict[SessionId, None] = OrderedDict()
        self._tasks = TaskOwner()
        self._queued_ends: deque[RunComplete] = deque()
        self._dispatcher: HookDispatcher | None = None

    # The extension interface

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
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._tasks.drain()
        self._tasks.cancel_all()
        await self._tasks.drain()

    # Discovery

    def current(self) -> tuple[Hook, ...]:
        """Return the hooks in effect."""
        reading = self._context.configuration.snapshot()
        own = hooks_from_settings(reading.settings.hooks, reading.origins)
        files = [file for file in self.claude_files() if self.is_trusted(file)]
        if any(file.hooks.disables_all for file in files):
            return own
        return (*own, *(hook for file in files for hook in file.hooks.hooks))

    def claude_files(self) -> list[ClaudeFile]:
        """Return Claude Code's settings files. Checks each for changes, and reads changed ones again."""
        for folder in self._files:
            known = self._loaded.get(folder.path)
            if folder.path not in self._loaded or file_signature(folder.path) != (known.signature if known else None):
                self._loaded[folder.path] = read = load_claude_settings(folder)
                for problem in () if read is None else read.hooks.problems:
                    _log.warning("%s", problem)
        return [file for file in self._loaded.values() if file is not None]

    def is_trusted(self, file: ClaudeFile) -> bool:
        """Return whether the hooks of a file may run."""
        trust = self._context.configuration.trust
        return file.folder.owner == "user" or trust.is_file_trusted(file.folder.path, file.digest)

    def problems(self) -> tuple[FileProblem, ...]:
        """Return the mistakes in Claude Code's files, trusted or not. Those in ours are reported with the settings."""
        return tuple(problem for file in self.claude_files() for problem in file.hooks.problems)

    # Engine events

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        """Run `PreToolUse` hooks, which can deny a call or change its input."""
        hooks = matching_hooks(self.current(), "PreToolUse", use.name)
        if not hooks:
            return HookOutcome()
        return await self._open_dispatcher().run_hooks(hooks, _tool_facts(use), use.input, is_about_input=True)

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        """Run `PostToolUse` hooks with the result of the call."""
        hooks = matching_hooks(self.current(), "PostToolUse", use.name)
        if not hooks:
            return HookOutcome()
        response = {"content": outcome.content[:_MAX_TOOL_RESULT], "is_error": outcome.is_error}
        return await self._open_dispatcher().run_hooks(
            hooks, {**_tool_facts(use), "tool_response": response}, use.input
        )

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        """Run `UserPromptSubmit` hooks, preceded by `SessionStart` hooks if the session is new or resumed after a
        restart.
        """
        hooks_in_effect = self.current()
        facts = {"session_id": run.session_id, "run_id": run.run_id}
        session_start = HookOutcome()
        source = "startup" if is_first else "resume"
        if self._is_first_prompt(run.session_id) and (hooks := matching_hooks(hooks_in_effect, "SessionStart", source)):
            session_start = await self._open_dispatcher().run_hooks(hooks, {**facts, "source": source})
        if not (hooks := matching_hooks(hooks_in_effect, "UserPromptSubmit")):
            return HookOutcome(context=session_start.context)
        ruling = await self._open_dispatcher().run_hooks(hooks, {**facts, "prompt": prompt})
        context = "\n".join(text for text in (session_start.context, ruling.context) if text)
        return msgspec.structs.replace(ruling, context=context)

    def after_run(self, end: RunComplete) -> None:
        """Queue `RunEnd` hooks. They run in the background, so that clients receive the end of the run first."""
        if is_subagent_session(end.session_id):
            return
        if len(self._queued_ends) >= _MAX_QUEUED_ENDS:
            _log.warning("hooks for the end of run %s are not run: %d are already queued", end.run_id, _MAX_QUEUED_ENDS)
            return
        self._queued_ends.append(end)
        if len(self._tasks) < _MAX_CONCURRENT:
            self._tasks.start(self._run_queued_ends(), name="hooks for ends")

    async def _run_queued_ends(self) -> None:
        while self._queued_ends:
            await self._run_end_hooks(self._queued_ends.popleft())

    async def _run_end_hooks(self, end: RunComplete) -> None:
        try:
            hooks = matching_hooks(self.current(), "RunEnd")
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
        await self._open_dispatcher().run_hooks(hooks, facts)

    def _open_dispatcher(self) -> "HookDispatcher":
        if self._dispatcher is None:
            # Most workspaces have no hooks.
            from holdfast.extensions.hooks.dispatch import HookDispatcher  # noqa: PLC0415

            self._dispatcher = HookDispatcher(self._context)
        return self._dispatcher

    def _is_first_prompt(self, session: SessionId) -> bool:
        if session in self._sessions:
            return False
        self._sessions[session] = None
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return True


def _tool_facts(use: ToolUse) -> dict[str, Any]:
    return {
        "session_id": use.session_id,
        "run_id": use.run_id,
        "tool_name": use.name,
        "tool_use_id": use.tool_call_id,
        "tool_input": use.input,
    }
