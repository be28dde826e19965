"""Runs one hook as a process: the event on stdin, the result on stdout, with a time limit.

The process is a child of the process guard and is stopped if the caller is cancelled.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.hooks import HookDecision, HookEvent, Ruling
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.workspace.process.child_process import GuardedChild, GuardedSpawn

__all__ = ["HookResult", "merged", "run_hook", "understood"]


# Parses the output of hooks and merges several results. Pure.

_DENIES = 2
_HALTS = 49
_DECISIONS: dict[str, HookDecision] = {
    "allow": "allow",
    "approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "block": "deny",
}
_STRICTNESS: tuple[HookDecision, ...] = ("", "allow", "ask", "deny")
_LONGEST = 32_768
_ADD_TEXT = frozenset({"UserPromptSubmit", "SessionStart"})
"""Events whose plain text output is added to the model's context."""


class HookResult(msgspec.Struct, frozen=True):
    """Result of one hook. `trouble` is the reason if it has none."""

    decision: HookDecision = ""
    halts: bool = False
    reason: str = ""
    context: str = ""
    message: str = ""
    """Shown to the user."""
    patch: dict[str, object] | None = None
    trouble: str = ""


def understood(event: HookEvent, code: int, stdout: str, stderr: str) -> HookResult:
    """Parse the exit code and the output of a hook."""
    if code == _DENIES:
        return HookResult("deny", reason=_cut(stderr) or _cut(stdout))
    if code == _HALTS:
        return HookResult("deny", halts=True, reason=_cut(stderr) or _cut(stdout))
    if code:
        why = stderr.strip().splitlines()
        return HookResult(trouble=f"ended with code {code}" + (f": {why[-1][:200]}" if why else "") + ".")
    text = stdout.strip()
    if not text:
        return HookResult()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if isinstance(tree, dict):
        return _from_tree(tree)
    if event in _ADD_TEXT:
        return HookResult(context=_cut(text))
    return HookResult(trouble="printed JSON that cannot be read." if text.startswith("{") else "")


def _from_tree(tree: Mapping[str, Any]) -> HookResult:
    inner = tree.get("hookSpecificOutput")
    special: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    decision = _decision(special.get("permissionDecision")) or _decision(tree.get("decision"))
    halts = tree.get("halt") is True or tree.get("continue") is False
    reasons = (special.get("permissionDecisionReason"), tree.get("reason"), tree.get("stopReason"))
    contexts = (special.get("additionalContext"), tree.get("context"), tree.get("additionalContext"))
    return HookResult(
        "deny" if halts else decision,
        halts,
        next((_cut(reason) for reason in reasons if isinstance(reason, str) and reason.strip()), ""),
        "\n".join(text for context in contexts if (text := _joined(context))),
        _cut(tree.get("systemMessage")),
        _patch(special.get("updatedInput", tree.get("updated_input"))),
    )


def merged(
    hooks: Sequence[Hook], said: Sequence[HookResult], given: Mapping[str, object], *, is_about_input: bool = False
) -> Ruling:
    """Merge the results. `given` is the input of the tool; it can be changed only before the tool runs."""
    decisions = {word.decision for word in said}
    decision = next((item for item in reversed(_STRICTNESS) if item in decisions), _STRICTNESS[0])
    changed = dict(given)
    for word in said:
        changed |= word.patch or {}
    is_changed = is_about_input and changed != dict(given)
    halts = any(word.halts for word in said)
    reason = "\n".join(word.reason for word in said if word.reason and word.decision == decision)
    report: dict[str, Any] = {
        "hook_count": len(hooks),
        "decision": decision or "none",
        "halt": halts,
        "input_rewrite": is_changed,
        "hooks": [_line(hook, word, is_about_input) for hook, word in zip(hooks, said, strict=True)],
    }
    if reason:
        report["reason"] = reason
    context = "\n".join(word.context for word in said if word.context)
    return Ruling(decision, halts, reason, _cut(context), changed if is_changed else None, report)


def _line(hook: Hook, word: HookResult, is_about_input: bool) -> dict[str, object]:
    line: dict[str, object] = {
        "name": hook.name or hook.command,
        "decision": word.decision or "none",
        "halt": word.halts,
        "input_rewrite": is_about_input and bool(word.patch),
    }
    more = {"matcher": hook.matcher, "reason": word.reason, "message": word.message, "error": word.trouble}
    return line | {key: value for key, value in more.items() if value}


def _decision(value: object) -> HookDecision:
    return _DECISIONS.get(value.lower(), "") if isinstance(value, str) else ""


def _joined(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    return _cut("\n".join(item.strip() for item in items if isinstance(item, str) and item.strip()))


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


def _cut(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n[…]"


# Runs one hook as a process: the event on stdin, the result on stdout, with a time limit.

_MOST_BYTES = 1 << 20


class _TooMuch(Exception):
    pass


async def run_hook(
    hook: Hook, event: bytes, *, spawn: GuardedSpawn, bash: str, directory: str, environment: Mapping[str, str]
) -> HookResult:
    """Run the hook and return its result. Never raises: a failure, timeout or output overflow is
    stored as `trouble`.
    """
    try:
        child = await spawn((bash, "-c", "--", hook.command), directory, environment, has_input=True)
    except (ToolError, OSError) as error:
        return HookResult(trouble=f"could not be started: {error}")
    try:
        async with asyncio.timeout(hook.seconds):
            stdout, stderr = await _talk(child, event)
            code = await child.wait()
    except TimeoutError:
        return HookResult(trouble=f"took longer than {hook.seconds:g} seconds and was ended.")
    except _TooMuch:
        return HookResult(trouble=f"printed more than {_MOST_BYTES} bytes and was ended.")
    except ToolError as error:
        return HookResult(trouble=f"could not be started: {error}")
    finally:
        await child.stop(0)
    return understood(hook.event, code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


async def _talk(child: GuardedChild, event: bytes) -> tuple[bytes, bytes]:
    """Write and read concurrently, because a hook may print before it reads, and need not read at all."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_tell(child, event))
            stdout = group.create_task(_heard(child.stdout))
            stderr = group.create_task(_heard(child.stderr))
    except* _TooMuch:
        raise _TooMuch from None
    return stdout.result(), stderr.result()


async def _tell(child: GuardedChild, event: bytes) -> None:
    if child.stdin is None:
        return
    with suppress(OSError):
        child.stdin.write(event)
        await child.stdin.drain()
    child.stdin.close()


async def _heard(stream: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(65_536):
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            raise _TooMuch
    return b"".join(pieces)
