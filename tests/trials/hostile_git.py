"""Use git in hostile repositories as the server does, and check that none of their programs runs.

`probe` makes every git call of the server, and runs every read-only command that needs no approval.
"""

import asyncio
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.git.background_status import GitScan
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.git.readonly_check import git_runs_nothing_else
from holdfast.workspace.process.piped_process import spawn
from holdfast.workspace.process.shell_launch import command_environment
from holdfast.workspace.project_context import git_state
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope
from trials.hostile_repositories import FORMS, KEYS, Arena

__all__ = ["LINES", "ProbeResult", "probe", "try_repository"]

LINES = (
    "git status", "git status --porcelain -uall", "git diff", "git diff --stat HEAD", "git diff --cached",
    "git log -p -3", "git log --oneline --graph --all", "git show", "git blame a.txt",
    "git describe --always --dirty", "git grep -n one", "git branch -avv", "git stash list", "git ls-files -m",
    "git rev-parse HEAD", "git remote -v", "git shortlog -sn HEAD", "git cat-file -p HEAD:a.txt", "git reflog",
    "git worktree list", "git tag -l", "git check-ignore -v a.txt",
)  # fmt: skip
"""Read-only commands. Those that need an approval are not run."""


class ProbeResult(msgspec.Struct, frozen=True):
    """`own` are the keys obeyed by the server's own calls, `lines` those obeyed by commands without an approval."""

    own: tuple[str, ...]
    lines: tuple[str, ...]
    run: int


def probe(arena: Arena, workspace: Path, lines: Sequence[str] = LINES) -> ProbeResult:
    """Do everything with git that happens in a workspace without approval."""
    asyncio.run(_own_calls(arena, str(workspace)))
    own = arena.fired()
    environment = command_environment(os.environ, {"HOME": str(arena.base / "home")}, cwd=str(workspace))
    is_quiet = git_runs_nothing_else(str(workspace), environment)
    own += arena.fired()
    rules = RuleSet(PermissionSettings(), str(workspace), real=os.path.realpath, git_is_quiet=lambda _: is_quiet)
    run = [line for line in lines if rules.judge(_permit(line, str(workspace))).decision == "allow"]
    for line in run:
        command = ["bash", "-c", "--", line]
        subprocess.run(
            command, cwd=workspace, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    return ProbeResult(tuple(own), tuple(arena.fired()), len(run))


def _permit(line: str, workspace: str) -> Permit:
    return Permit("bash", "execute", workspace, "", {"command": line}, line)


async def _own_calls(arena: Arena, workspace: str) -> None:
    git_state(workspace)
    git = PrivateGit(str(arena.base / "data"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(arena.base / "home")}
    try:
        scan = GitScan(git, spawn, workspace, environment)
        scan.current()
        await scan.finished()
        if git.prepare(workspace, environment, workspace) is not None:
            # Without git the search uses the built-in walk.
            searcher = Searcher(git=git, uses_ripgrep=False)
            where = SearchScope(workspace, workspace, environment, 20)
            await searcher.grep(where, GrepRequest("one"))
            await searcher.files(where, "**")
    finally:
        git.close()


def try_repository(seed: int) -> None:
    """Build one layout with one executing key, and check that the key is not obeyed."""
    chance = random.Random(seed)
    form, key = chance.choice(sorted(FORMS)), chance.choice(sorted(KEYS))
    with tempfile.TemporaryDirectory(prefix="holdfast-hostile-") as folder:
        arena = Arena(Path(folder))
        workspaces = FORMS[form](arena, arena.payload([key]))
        arena.fired()
        for workspace in workspaces:
            found = probe(arena, workspace)
            assert not found.own, f"{form}, {key}: {found.own} ran at {workspace.name}"
            assert not found.lines, f"{form}, {key}: {found.lines} ran unasked at {workspace.name}"
