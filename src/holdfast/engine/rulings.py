"""What becomes of a tool call when hooks have spoken. Pure."""

import json
import posixpath

import msgspec

from holdfast.domain.hooks import Ruling, ToolUse
from holdfast.domain.tools import Permit, ToolOutcome

__all__ = ["asked_for", "refusal", "told"]

_REFUSED = "A hook of the user's refused this call."
_HALTED = "A hook of the user's stopped the turn."


def refusal(ruling: Ruling) -> ToolOutcome | None:
    """The result of a call that is not carried out; None if it is."""
    if ruling.halts:
        return ToolOutcome(ruling.reason or _HALTED, is_error=True, stops_turn=True)
    if ruling.decision == "deny":
        return ToolOutcome(ruling.reason or _REFUSED, is_error=True)
    return None


def asked_for(use: ToolUse, ruling: Ruling, path: str) -> Permit:
    """What somebody is asked because a hook wants them to be."""
    command = use.input.get("command")
    line = command if use.name == "bash" and isinstance(command, str) else ""
    what = ruling.reason or f"A hook wants to know whether {use.name} may do this."
    where = use.input.get("working_dir") if line else ""
    # A rule that is saved for a command holds in the directory in which it would be run.
    directory = posixpath.normpath(posixpath.join(path, where)) if isinstance(where, str) and where else path
    return Permit(use.name, "execute", directory, what, dict(use.input), line)


def told(outcome: ToolOutcome, before: Ruling, after: Ruling | None = None) -> ToolOutcome:
    """The result with what the hooks have to say to the model, and with what screens show of them."""
    after = after or Ruling()
    notes = [before.context]
    if after.decision == "deny" or after.halts:
        notes.append(after.reason)
    notes.append(after.context)
    content = "\n\n".join(piece for piece in (outcome.content, *notes) if piece)
    reports = {"hook": before.report, "post_hook": after.report}
    said = {name: report for name, report in reports.items() if report}
    if not said and content == outcome.content and not after.halts:
        return outcome
    return msgspec.structs.replace(
        outcome,
        content=content,
        metadata=_with(outcome.metadata, said) if said else outcome.metadata,
        stops_turn=outcome.stops_turn or after.halts,
    )


def _with(metadata: str, said: dict[str, dict[str, object]]) -> str:
    try:
        known = json.loads(metadata) if metadata else {}
    except ValueError:
        known = {}
    return json.dumps({**known, **said} if isinstance(known, dict) else said, ensure_ascii=False)
