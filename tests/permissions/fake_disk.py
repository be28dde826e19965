"""A fake disk with a few names for the rules: links, files that patterns match, programs."""

import fnmatch
import posixpath
from collections.abc import Sequence

from holdfast.domain.approvals import Verdict
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import RuleSet

__all__ = ["CONFIGURATIONS", "FewPrograms", "judge_line", "rules_of", "summary_of"]

_LINKS = {
    "/w/link-to-outside": "/etc/passwd",
    "/w/way": "/w/keep",
    "/w/door": "/w/keep/f",
    "/w/sub/back": "/w",
    "/w/out-link": "/out",
    "/w/self": "/proc/self/cwd",
}
_ALWAYS_ASK_FILES = ("a.txt", "b.txt", "src/a.py", "src/b.py", "README.md", "keep/f", "way/f", "out-link/x", "sub/-n")
_ALWAYS_ASK_PROGRAMS = {
    "/w/shell": "/bin/bash",
    "/w/runner": "/usr/bin/env",
    "/w/toucher": "/usr/bin/touch",
    "/w/program": "/w/program",
    "/w/bin/mine": "/w/bin/mine",
}


def real(path: str) -> str:
    at = "/"
    for part in path.split("/"):
        if part == "..":
            at = posixpath.dirname(at)
        elif part not in ("", "."):
            at = posixpath.join(at, part)
            at = _LINKS.get(at, at)
    return at


def expansions(pattern: str) -> Sequence[str] | None:
    """Return the files that a pattern matches; the pattern itself if there are none. `many*` matches too many."""
    if "many" in pattern:
        return None
    files = [f"/w/{name}" for name in _ALWAYS_ASK_FILES]
    depth = pattern.count("/")
    return [file for file in files if fnmatch.fnmatchcase(file, pattern) and file.count("/") == depth] or [pattern]


class FewPrograms:
    """Everything below /usr/bin and /bin, and a few files in the workspace, one of them on the search path."""

    def find(self, program: str, directory: str) -> str | None:
        if "/" in program:
            path = posixpath.normpath(posixpath.join(directory, program))
            return path if path in _ALWAYS_ASK_PROGRAMS or path.startswith(("/usr/bin/", "/bin/")) else None
        return {"absent": None, "mine": "/w/bin/mine"}.get(program, f"/usr/bin/{program}")

    def is_same(self, path: str, name: str) -> bool:
        return posixpath.basename(_ALWAYS_ASK_PROGRAMS.get(path, path)) == posixpath.basename(name)


DENIED = ("bash(touch *)", "bash(git push *)")
KEPT = ("write(keep/**)", "view(keep/**)")
CONFIGURATIONS = {
    "defaults": PermissionSettings(),
    "below": PermissionSettings(),
    "denied": PermissionSettings(deny=(*DENIED, *KEPT)),
    "denied, all allowed": PermissionSettings(deny=DENIED, allow=("bash",)),
    "files denied, all allowed": PermissionSettings(deny=KEPT, allow=("bash",)),
    "reading denied, all allowed": PermissionSettings(deny=KEPT[1:], allow=("bash",)),
    "writing denied, all allowed": PermissionSettings(deny=("write",), allow=("bash",)),
    "words denied, all allowed": PermissionSettings(
        deny=("bash(npm publish *)", "bash(deploy)", "bash(= make all)"), allow=("bash",)
    ),
    "option denied, all allowed": PermissionSettings(deny=("bash(* --force *)",), allow=("bash",)),
    "shell denied": PermissionSettings(deny=("bash",)),
    "all allowed": PermissionSettings(allow=("bash",)),
    "asked, all allowed": PermissionSettings(ask=("bash(rm *)", "write(src/**)"), allow=("bash",)),
    "named": PermissionSettings(
        allow=(
            "bash(make *)",
            "bash(touch *)",
            "bash(git *)",
            "write(out/**)",
            "bash(= rm x; rm y)",
            "bash(./run.sh) in /w using /w/run.sh",
        )
    ),
}


def rules_of(settings: PermissionSettings) -> RuleSet:
    return RuleSet(
        settings,
        "/w",
        real=real,
        expansions=expansions,
        git_is_quiet=lambda path: path == "/w",
        home="/home/u",
        programs=FewPrograms(),
    )


def judge_line(rules: RuleSet, line: str, directory: str = "/w") -> Verdict:
    return rules.judge(Permit("bash", "execute", directory, "", {}, line))


def summary_of(verdict: Verdict) -> str:
    """Summarise a verdict: `!` marks an approval that is never skipped; the rule saved by "always allow" follows the
    arrow.
    """
    saves = " | ".join(verdict.saves)
    return f"{verdict.decision}{'!' if verdict.insists else ''}{f' => {saves}' if saves else ''}"
