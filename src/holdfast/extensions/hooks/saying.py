"""Parses the output of hooks and merges several results. Pure.

Two formats are supported: Crush's (`decision`, `reason`, `context`, `updated_input`, `halt`) and Claude Code's
(`hookSpecificOutput`, `continue`, `decision: block`). The strictest decision takes precedence; changes of the tool
input are merged in the order of the hooks.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.hooks import HookDecision, HookEvent, Ruling
from holdfast.extensions.hooks.reading import Hook

__all__ = ["Said", "merged", "understood"]

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


class Said(msgspec.Struct, frozen=True):
    """Result of one hook. `trouble` is the reason if it has none."""

    decision: HookDecision = ""
    halts: bool = False
    reason: str = ""
    context: str = ""
    message: str = ""
    """Shown to the user."""
    patch: dict[str, object] | None = None
    trouble: str = ""


def understood(event: HookEvent, code: int, stdout: str, stderr: str) -> Said:
    """Parse the exit code and the output of a hook."""
    if code == _DENIES:
        return Said("deny", reason=_cut(stderr) or _cut(stdout))
    if code == _HALTS:
        return Said("deny", halts=True, reason=_cut(stderr) or _cut(stdout))
    if code:
        why = stderr.strip().splitlines()
        return Said(trouble=f"ended with code {code}" + (f": {why[-1][:200]}" if why else "") + ".")
    text = stdout.strip()
    if not text:
        return Said()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if isinstance(tree, dict):
        return _from_tree(tree)
    if event in _ADD_TEXT:
        return Said(context=_cut(text))
    return Said(trouble="printed JSON that cannot be read." if text.startswith("{") else "")


def _from_tree(tree: Mapping[str, Any]) -> Said:
    inner = tree.get("hookSpecificOutput")
    special: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    decision = _decision(special.get("permissionDecision")) or _decision(tree.get("decision"))
    halts = tree.get("halt") is True or tree.get("continue") is False
    reasons = (special.get("permissionDecisionReason"), tree.get("reason"), tree.get("stopReason"))
    contexts = (special.get("additionalContext"), tree.get("context"), tree.get("additionalContext"))
    return Said(
        "deny" if halts else decision,
        halts,
        next((_cut(reason) for reason in reasons if isinstance(reason, str) and reason.strip()), ""),
        "\n".join(text for context in contexts if (text := _joined(context))),
        _cut(tree.get("systemMessage")),
        _patch(special.get("updatedInput", tree.get("updated_input"))),
    )


def merged(
    hooks: Sequence[Hook], said: Sequence[Said], given: Mapping[str, object], *, is_about_input: bool = False
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


def _line(hook: Hook, word: Said, is_about_input: bool) -> dict[str, object]:
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
