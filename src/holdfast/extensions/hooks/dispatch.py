"""Dispatch of an event to its hooks, which run concurrently, and the combined result."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.hooks import HookEvent, Ruling
from holdfast.domain.tools import claude_tool_name
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.extensions.hooks.hook_process import HookResult, merged, run_hook
from holdfast.extensions.search_paths import their_event
from holdfast.workspace.process.shell_call import command_environment, find_bash

__all__ = ["HookDispatcher"]


_log = logging.getLogger("holdfast.server")


class HookDispatcher:
    """Runs the hooks of one workspace."""

    def __init__(self, ground: ExtensionContext) -> None:
        self._ground = ground

    async def rule(
        self,
        hooks: Sequence[Hook],
        facts: Mapping[str, object],
        given: Mapping[str, object] | None = None,
        *,
        is_about_input: bool = False,
    ) -> Ruling:
        """Run the hooks concurrently and merge their results in order. `given` is the input of the tool."""
        given = given or {}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(hook, facts, given)) for hook in hooks]
        said = [task.result() for task in tasks]
        for hook, word in zip(hooks, said, strict=True):
            if word.trouble:
                _log.warning("the %s hook at %s:%d %s", hook.event, hook.file, hook.line, word.trouble)
        return merged(hooks, said, given, is_about_input=is_about_input)

    async def _one(self, hook: Hook, facts: Mapping[str, object], given: Mapping[str, object]) -> HookResult:
        try:
            return await self._run(hook, facts, given)
        except ToolError as error:
            return HookResult(trouble=f"could not be started: {error}")
        except Exception:
            # An internal error must not end the turn.
            _log.exception("the %s hook at %s:%d failed", hook.event, hook.file, hook.line)
            return HookResult(trouble="could not be run: the log has the details.")

    async def _run(self, hook: Hook, facts: Mapping[str, object], given: Mapping[str, object]) -> HookResult:
        ground = self._ground
        names, values = ground.secrets()
        environment = command_environment(
            os.environ, ground.environment, cwd=ground.path, withheld=names, secrets=values
        )
        tool = facts.get("tool_name", "")
        is_theirs = hook.dialect == "claude"
        shown = {**facts, "tool_name": claude_tool_name(str(tool))} if tool and is_theirs else facts
        name = their_event(hook.event) if is_theirs else hook.event
        event = {"event": hook.event, "hook_event_name": name, "cwd": ground.path, **shown}
        return await run_hook(
            hook,
            msgspec.json.encode(event),
            spawn=ground.spawn,
            bash=find_bash(ground.environment),
            directory=ground.path,
            environment={**environment, **self._variables(hook.event, event, given)},
        )

    def _variables(self, event: HookEvent, facts: Mapping[str, object], given: Mapping[str, object]) -> dict[str, str]:
        said = {
            "EVENT": event,
            "SESSION_ID": facts.get("session_id"),
            "RUN_ID": facts.get("run_id"),
            "CWD": self._ground.path,
            "PROJECT_DIR": self._ground.configuration.locations.root,
            "TOOL_NAME": facts.get("tool_name"),
            "TOOL_INPUT_COMMAND": given.get("command"),
            "TOOL_INPUT_FILE_PATH": given.get("file_path"),
            "OUTCOME": facts.get("outcome"),
        }
        texts = {name: value for name, value in said.items() if isinstance(value, str) and "\0" not in value}
        both = {f"{prefix}_{name}": value for prefix in ("HOLDFAST", "CRUSH") for name, value in texts.items()}
        short = {name: value for name, value in both.items() if len(value) <= 65_536}
        return {**short, "CLAUDE_PROJECT_DIR": self._ground.configuration.locations.root}
