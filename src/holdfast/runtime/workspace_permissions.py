"""Permission rules of a workspace: applied from the current settings, and more strictly while a rule is unreadable."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.config.configuration import ConfigSnapshot
from holdfast.config.problems import FileProblem, format_key
from holdfast.domain.approvals import Verdict
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.workspace.git.readonly_check import git_is_quiet
from holdfast.workspace.process.program_files import expand_glob, real_path

if TYPE_CHECKING:
    from holdfast.permissions.deny_check import ProgramFiles
    from holdfast.permissions.rule_decision import RuleSet

__all__ = ["PermissionCheck", "allows", "outdated_rules", "replaces", "unread_rule"]


class PermissionCheck:
    """Decides about tool calls by the current settings. `saved_file` is the file that "always allow" writes."""

    def __init__(
        self, reading: Callable[[], ConfigSnapshot], path: str, saved_file: str, programs: "ProgramFiles"
    ) -> None:
        self._reading = reading
        self._path = path
        self._saved_file = saved_file
        self._programs = programs
        self._known: tuple[ConfigSnapshot, RuleSet] | None = None

    def __call__(self, permit: Permit) -> Verdict:
        reading = self._reading()
        unread = unread_rule(reading.problems)
        if self._known is None or reading is not self._known[0]:
            settings = self._settings(reading)
            if unread is not None:
                settings = replace(settings, allow=(), allowed_tools=())
            self._known = reading, _rules(settings, self._path, self._programs)
        rules = self._known[1]
        if unread is None:
            return rules.judge(permit)
        # It is unknown what the rule forbids, so only reading is allowed without an approval.
        verdict = rules.judge(replace(permit, is_agreed=False))
        if verdict.decision != "ask":
            return verdict
        why = (
            "A permission rule is not valid, so everything except reading requires approval until it is"
            f" corrected: {unread}"
        )
        return Verdict("ask", why, insists=unread.hides_denial)

    def _settings(self, reading: ConfigSnapshot) -> PermissionSettings:
        """Leave out saved rules of earlier versions that would match in every directory."""
        settings = reading.settings.permissions
        outdated = {problem.key for problem in outdated_rules(reading, self._saved_file)}
        keys = (format_key(("permissions", "allow", index)) for index in range(len(settings.allow)))
        allow = tuple(rule for rule, key in zip(settings.allow, keys, strict=True) if key not in outdated)
        return replace(settings, allow=allow)


def unread_rule(problems: Sequence[FileProblem]) -> FileProblem | None:
    """Return the first rule that forbids or asks and cannot be read; those that forbid take precedence."""
    asking = (
        problem for problem in problems if problem.severity == "error" and problem.key.startswith("permissions.ask")
    )
    return next((problem for problem in problems if problem.hides_denial), None) or next(asking, None)


def _rules(settings: PermissionSettings, path: str, programs: "ProgramFiles") -> "RuleSet":
    from holdfast.permissions.rule_decision import RuleSet  # noqa: PLC0415 - for the first tool that needs leave

    home = os.path.expanduser("~")
    return RuleSet(
        settings, path, real=real_path, expansions=expand_glob, git_is_quiet=git_is_quiet, home=home, programs=programs
    )


def allows(rules: Sequence[str], permit: Permit, path: str, programs: "ProgramFiles") -> bool:
    """Return whether these rules alone allow a call in the workspace at `path`."""
    return _rules(PermissionSettings(allow=tuple(rules)), path, programs).judge(permit).decision == "allow"


def outdated_rules(reading: ConfigSnapshot, saved_file: str) -> tuple[FileProblem, ...]:
    """Report saved rules of earlier versions that name a relative program without its directory."""
    from holdfast.permissions.always_allow_rules import is_outdated  # noqa: PLC0415

    text = (
        "was saved by an earlier version without its directory: approval is requested once more, then it is"
        " saved with it."
    )
    found: list[FileProblem] = []
    for index, rule in enumerate(reading.settings.permissions.allow):
        path = ("permissions", "allow", index)
        origin = reading.origins.get(path)
        if origin is not None and origin.file == saved_file and is_outdated(rule):
            found.append(FileProblem("warning", origin.file, origin.line, format_key(path), text))
    return tuple(found)


def replaces(new: str, old: str) -> bool:
    """Return whether a rule that is being saved is the new form of a saved rule of an earlier version."""
    from holdfast.permissions.always_allow_rules import is_outdated  # noqa: PLC0415

    return new.startswith(f"{old} ") and is_outdated(old)
