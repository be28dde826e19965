"""Runs one hook as a process: the event on stdin, the result on stdout, with a time limit.

The process is a child of the process guard and is stopped if the caller is cancelled. Exit codes and output have the
meaning that Crush and Claude Code give them; parsing and merging are pure.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.hooks import HookDecision, HookEvent, HookOutcome
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.workspace.process.piped_process import GuardedChild, GuardedSpawn

__all__ = ["HookResult", "merge_results", "parse_output", "run_hook"]


_EXIT_DENY = 2
_EXIT_HALT = 49
_DECISIONS: dict[str, HookDecision] = {
    "allow": "allow",
    "approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "block": "deny",
}
_STRICTNESS: tuple[HookDecision, ...] = ("", "allow", "ask", "deny")
_MAX_TEXT = 32_768
_EVENTS_WITH_TEXT = frozenset({"UserPromptSubmit", "SessionStart"})
"""Events whose plain text output is added to the model's context."""


class HookResult(msgspec.Struct, frozen=True):
    """Result of one hook. `error` is the reason if it failed."""

    decision: HookDecision = ""
    halts: bool = False
    reason: str = ""
    context: str = ""
    message: str = ""
    """Shown to the user."""
    patch: dict[str, object] | None = None
    error: str = ""


def parse_output(event: HookEvent, code: int, stdout: str, stderr: str) -> HookResult:
    """Parse the exit code and the output of a hook."""
    if code == _EXIT_DENY:
        return HookResult("deny", reason=_shorten(stderr) or _shorten(stdout))
    if code == _EXIT_HALT:
        return HookResult("deny", halts=True, reason=_shorten(stderr) or _shorten(stdout))
    if code:
        lines = stderr.strip().splitlines()
        return HookResult(error=f"ended with code {code}" + (f": {lines[-1][:200]}" if lines else "") + ".")
    text = stdout.strip()
    if not text:
        return HookResult()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if isinstance(tree, dict):
        return _from_json(tree)
    if event in _EVENTS_WITH_TEXT:
        return HookResult(context=_shorten(text))
    return HookResult(error="printed JSON that is not valid." if text.startswith("{") else "")


def _from_json(tree: Mapping[str, Any]) -> HookResult:
    inner = tree.get("hookSpecificOutput")
    specific: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    decision = _decision(specific.get("permissionDecision")) or _decision(tree.get("decision"))
    halts = tree.get("halt") is True or tree.get("continue") is False
    reasons = (specific.get("permissionDecisionReason"), tree.get("reason"), tree.get("stopReason"))
    contexts = (specific.get("additionalContext"), tree.get("context"), tree.get("additionalContext"))
    return HookResult(
        "deny" if halts else decision,
        halts,
        next((_shorten(reason) for reason in reasons if isinstance(reason, str) and reason.strip()), ""),
        "\n".join(text for context in contexts if (text := _join_texts(context))),
        _shorten(tree.get("systemMessage")),
        _patch(specific.get("updatedInput", tree.get("updated_input"))),
    )


def merge_results(
    hooks: Sequence[Hook],
    results: Sequence[HookResult],
    tool_input: Mapping[str, object],
    *,
    is_about_input: bool = False,
) -> HookOutcome:
    """Merge the results. `tool_input` is the input of the tool; it can be changed only before the tool runs."""
    decisions = {result.decision for result in results}
    decision = next((item for item in reversed(_STRICTNESS) if item in decisions), _STRICTNESS[0])
    changed = dict(tool_input)
    for result in results:
        changed |= result.patch or {}
    is_changed = is_about_input and changed != dict(tool_input)
    halts = any(result.halts for result in results)
    reason = "\n".join(result.reason for result in results if result.reason and result.decision == decision)
    report: dict[str, Any] = {
        "hook_count": len(hooks),
        "decision": decision or "none",
        "halt": halts,
        "input_rewrite": is_changed,
        "hooks": [_report_entry(hook, result, is_about_input) for hook, result in zip(hooks, results, strict=True)],
    }
    if reason:
        report["reason"] = reason
    context = "\n".join(result.context for result in results if result.context)
    return HookOutcome(decision, halts, reason, _shorten(context), changed if is_changed else None, report)


def _report_entry(hook: Hook, result: HookResult, is_about_input: bool) -> dict[str, object]:
    line: dict[str, object] = {
        "name": hook.name or hook.command,
        "decision": result.decision or "none",
        "halt": result.halts,
        "input_rewrite": is_about_input and bool(result.patch),
    }
    more = {"matcher": hook.matcher, "reason": result.reason, "message": result.message, "error": result.error}
    return line | {key: value for key, value in more.items() if value}


def _decision(value: object) -> HookDecision:
    return _DECISIONS.get(value.lower(), "") if isinstance(value, str) else ""


def _join_texts(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    return _shorten("\n".join(item.strip() for item in items if isinstance(item, str) and item.strip()))


def _patch(value: object) -> dict[str, object] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    try:
        # Python accepts unpaired surrogates in JSON, other parsers do not.
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError, TypeError):
        return None
    return value if isinstance(value, dict) else None


def _shorten(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "\n[…]"


_MAX_OUTPUT = 1 << 20


class _OutputTooLarge(Exception):
    pass


async def run_hook(
    hook: Hook, event: bytes, *, spawn: GuardedSpawn, bash: str, directory: str, environment: Mapping[str, str]
) -> HookResult:
    """Run the hook and return its result. Never raises: a failure, timeout or output overflow is
    stored as `error`.
    """
    try:
        child = await spawn((bash, "-c", "--", hook.command), directory, environment, has_input=True)
    except (ToolError, OSError) as error:
        return HookResult(error=f"could not be started: {error}")
    try:
        async with asyncio.timeout(hook.timeout):
            stdout, stderr = await _communicate(child, event)
            code = await child.wait()
    except TimeoutError:
        return HookResult(error=f"took longer than {hook.timeout:g} seconds and was ended.")
    except _OutputTooLarge:
        return HookResult(error=f"printed more than {_MAX_OUTPUT} bytes and was ended.")
    except ToolError as error:
        return HookResult(error=f"could not be started: {error}")
    finally:
        await child.stop(0)
    return parse_output(hook.event, code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


async def _communicate(child: GuardedChild, event: bytes) -> tuple[bytes, bytes]:
    """Write and read concurrently, because a hook may print before it reads, and need not read at all."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_write_event(child, event))
            stdout = group.create_task(_read_limited(child.stdout))
            stderr = group.create_task(_read_limited(child.stderr))
    except* _OutputTooLarge:
        raise _OutputTooLarge from None
    return stdout.result(), stderr.result()


async def _write_event(child: GuardedChild, event: bytes) -> None:
    if child.stdin is None:
        return
    with suppress(OSError):
        child.stdin.write(event)
        await child.stdin.drain()
    child.stdin.close()


async def _read_limited(stream: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(65_536):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_OUTPUT:
            raise _OutputTooLarge
    return b"".join(pieces)
