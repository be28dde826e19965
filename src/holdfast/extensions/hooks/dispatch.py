"""Dispatch of an event to its hooks, which run concurrently, and the combined result."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.hooks import HookEvent, HookOutcome
from holdfast.domain.tools import claude_tool_name
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.extensions.hooks.hook_process import HookResult, merge_results, run_hook
from holdfast.extensions.search_paths import claude_event_name
from holdfast.workspace.process.shell_launch import command_environment, find_bash

__all__ = ["HookDispatcher"]


_log = logging.getLogger("holdfast.server")


class HookDispatcher:
    """Runs the hooks of one workspace."""

    def __init__(self, context: ExtensionContext) -> None:
        self._context = context

    async def run_hooks(
        self,
        hooks: Sequence[Hook],
        facts: Mapping[str, object],
        tool_input: Mapping[str, object] | None = None,
        *,
        is_about_input: bool = False,
    ) -> HookOutcome:
        """Run the hooks concurrently and merge their results in order. `tool_input` is the input of the tool."""
        tool_input = tool_input or {}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_safely(hook, facts, tool_input)) for hook in hooks]
        results = [task.result() for task in tasks]
        for hook, result in zip(hooks, results, strict=True):
            if result.error:
                _log.warning("the %s hook at %s:%d %s", hook.event, hook.file, hook.line, result.error)
        return merge_results(hooks, results, tool_input, is_about_input=is_about_input)

    async def _run_safely(
        self, hook: Hook, facts: Mapping[str, object], tool_input: Mapping[str, object]
    ) -> HookResult:
        try:
            return await self._run(hook, facts, tool_input)
        except ToolError as error:
            return HookResult(error=f"could not be started: {error}")
        except Exception:
            # An internal error must not end the turn.
            _log.exception("the %s hook at %s:%d failed", hook.event, hook.file, hook.line)
            return HookResult(error="could not be run: the log has the details.")

    async def _run(self, hook: Hook, facts: Mapping[str, object], tool_input: Mapping[str, object]) -> HookResult:
        context = self._context
        names, values = context.secrets()
        environment = command_environment(
            os.environ, context.environment, cwd=context.path, withheld=names, secrets=values
        )
        tool = facts.get("tool_name", "")
        is_claude = hook.dialect == "claude"
        visible = {**facts, "tool_name": claude_tool_name(str(tool))} if tool and is_claude else facts
        name = claude_event_name(hook.event) if is_claude else hook.event
        event = {"event": hook.event, "hook_event_name": name, "cwd": context.path, **visible}
        return await run_hook(
            hook,
            msgspec.json.encode(event),
            spawn=context.spawn,
            bash=find_bash(context.environment),
            directory=context.path,
            environment={**environment, **self._variables(hook.event, event, tool_input)},
        )

    def _variables(
        self, event: HookEvent, facts: Mapping[str, object], tool_input: Mapping[str, object]
    ) -> dict[str, str]:
        named = {
            "EVENT": event,
            "SESSION_ID": facts.get("session_id"),
            "RUN_ID": facts.get("run_id"),
            "CWD": self._context.path,
            "PROJECT_DIR": self._context.configuration.locations.root,
            "TOOL_NAME": facts.get("tool_name"),
            "TOOL_INPUT_COMMAND": tool_input.get("command"),
            "TOOL_INPUT_FILE_PATH": tool_input.get("file_path"),
            "OUTCOME": facts.get("outcome"),
        }
        texts = {name: value for name, value in named.items() if isinstance(value, str) and "\0" not in value}
        variables = {f"{prefix}_{name}": value for prefix in ("HOLDFAST", "CRUSH") for name, value in texts.items()}
        limited = {name: value for name, value in variables.items() if len(value) <= 65_536}
        return {**limited, "CLAUDE_PROJECT_DIR": self._context.configuration.locations.root}
