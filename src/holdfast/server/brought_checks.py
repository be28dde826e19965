"""The checks of what people bring along in files: skills, hooks, commands, agents."""

from collections.abc import Iterable, Sequence

from holdfast.config.problems import Problem
from holdfast.domain.health import Finding
from holdfast.server.hub import Desk

__all__ = ["agents", "commands", "hooks", "skills"]

_MEND = "Mend the file; until then it is left out."
_TRUST = "Look at it, then: holdfast trust."


async def skills(desk: Desk) -> Sequence[Finding]:
    found = await desk.outfit.extensions.skills.fresh()
    below = (
        Finding("skills", "note", f"{skill.name} stands below another of the same name.", file=skill.path)
        for skill in found.hidden
        if skill.owner != "builtin"
    )
    off = (Finding("skills", "note", f"{skill.name} is switched off by disabled_skills.") for skill in found.disabled)
    return (*_summed("skills", len(found.usable), found.problems), *below, *off)


async def hooks(desk: Desk) -> Sequence[Finding]:
    known = desk.outfit.extensions.hooks
    withheld = [file for file in known.claude_files() if not known.is_trusted(file) and file.hooks.hooks]
    found = _summed("hooks", len(known.current()), known.problems(), "Mend the file; until then it is not run.")
    return (
        *found,
        *(
            _untrusted("hooks", f"{len(file.hooks.hooks)} hooks are not run", file.folder.path, file.hooks.line)
            for file in withheld
        ),
    )


async def commands(desk: Desk) -> Sequence[Finding]:
    known = desk.outfit.extensions.commands
    found = await known.fresh()
    withheld = (
        _untrusted("commands", f"{key} has no effect", command.path, line)
        for command in found.usable
        if known.withheld(command)
        for key, line in command.needs
    )
    return (*_summed("commands", len(found.usable), found.problems), *withheld)


async def agents(desk: Desk) -> Sequence[Finding]:
    known = desk.outfit.extensions.agents
    found = await known.fresh()
    withheld = (
        _untrusted("agents", f"{agent.name} only looks, with the usual model", agent.path, agent.needs[0][1])
        for agent in found.usable
        if known.withheld(agent)
    )
    return (*_summed("agents", len(found.usable), found.problems), *withheld)


def _summed(area: str, count: int, problems: Iterable[Problem], todo: str = _MEND) -> tuple[Finding, ...]:
    """What is wrong; if nothing is, how many there are; if there are none, nothing."""
    found = tuple(
        Finding(
            area,
            problem.severity,
            f"{problem.key}: {problem.text}" if problem.key else problem.text,
            todo if problem.severity == "error" else "",
            problem.file,
            problem.line,
        )
        for problem in problems
    )
    if found or not count:
        return found
    return (Finding(area, "ok", f"{count} {area if count != 1 else area.removesuffix('s')}, nothing to mend."),)


def _untrusted(area: str, what: str, file: str, line: int) -> Finding:
    return Finding(area, "warning", f"{what}: the project's file is not trusted.", _TRUST, file, line)
