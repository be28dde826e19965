"""Health checks of user extensions in files: skills, hooks, commands, agents."""

from collections.abc import Iterable, Sequence

from holdfast.config.problems import Problem
from holdfast.domain.errors import ProviderError
from holdfast.domain.health import Finding
from holdfast.domain.settings import Selection
from holdfast.extensions.agents.reading import AgentFile
from holdfast.server.checks import is_about_hooks
from holdfast.server.desk import Desk

__all__ = ["agents", "commands", "hooks", "skills"]

_MEND = "Mend the file; until then it is left out."
_TRUST = "Look at it, then: holdfast trust."


async def skills(desk: Desk) -> Sequence[Finding]:
    """Check the skills."""
    found = await desk.outfit.extensions.skills.fresh()
    below = (_below("skills", skill.name, skill.path) for skill in found.hidden if skill.owner != "builtin")
    off = (Finding("skills", "note", f"{skill.name} is switched off by disabled_skills.") for skill in found.disabled)
    return (*_summed("skills", len(found.usable), found.problems), *below, *off)


async def hooks(desk: Desk) -> Sequence[Finding]:
    """Check the hooks of the settings and of other programs' files."""
    known = desk.outfit.extensions.hooks
    withheld = [file for file in known.claude_files() if not known.is_trusted(file) and file.hooks.hooks]
    own = [item for item in desk.outfit.configuration.reading().problems if is_about_hooks(item)]
    problems = (*own, *known.problems())
    found = _summed("hooks", len(known.current()), problems, "Mend the file; until then it is not run.")
    return (
        *found,
        *(_untrusted("hooks", _not_run(len(file.hooks.hooks)), file.folder.path, file.hooks.line) for file in withheld),
    )


def _not_run(count: int) -> str:
    return "1 hook is not run" if count == 1 else f"{count} hooks are not run"


async def commands(desk: Desk) -> Sequence[Finding]:
    """Check the commands, and the models that they name."""
    known = desk.outfit.extensions.commands
    found = await known.fresh()
    withheld = (
        _untrusted("commands", f"{key} has no effect", command.path, line)
        for command in found.usable
        if known.withheld(command)
        for key, line in command.needs
    )
    models = [await _model_trouble(desk, item.model, item.path, item.model_line) for item in found.usable]
    below = (_below("commands", command.name, command.path) for command in found.hidden)
    return (*_summed("commands", len(found.usable), (*found.problems, *filter(None, models))), *withheld, *below)


async def agents(desk: Desk) -> Sequence[Finding]:
    """Check the agents, and the models and tools that they name."""
    known = desk.outfit.extensions.agents
    found = await known.fresh()
    withheld = (
        _untrusted("agents", f"{agent.name} only looks, with the usual model", agent.path, agent.needs[0][1])
        for agent in found.usable
        if known.withheld(agent)
    )
    models = [await _model_trouble(desk, item.model, item.path, item.model_line) for item in found.usable]
    tools = await desk.workspace.engine.kit.tools.current()
    missing = [_missing_tools(item, {tool.spec.name for tool in tools}) for item in found.usable]
    problems = (*found.problems, *filter(None, models), *filter(None, missing))
    below = (_below("agents", agent.name, agent.path) for agent in found.hidden)
    return (*_summed("agents", len(found.usable), problems), *withheld, *below)


async def _model_trouble(desk: Desk, name: str, file: str, line: int) -> Problem | None:
    """Return the problem with a model that a file names; the default model is used in its place."""
    if name in ("", "large", "small") or desk.outfit.choice is None:
        return None
    try:
        await desk.outfit.choice.check(Selection(name))
    except ProviderError as error:
        return Problem("warning", file, line, "model", f"{error} Until then the usual one is asked.")
    return None


def _missing_tools(agent: AgentFile, known: set[str]) -> Problem | None:
    """Return the tools that do not exist. Tools of MCP and language servers may appear later and are not checked."""
    missing = [name for name in agent.tools or () if name not in known and not name.startswith(("mcp_", "lsp_"))]
    if not missing:
        return None
    text = f"there is no {', no '.join(missing)} here: {agent.name} works without."
    return Problem("warning", agent.path, agent.tools_line, "tools", text)


def _summed(area: str, count: int, problems: Iterable[Problem], todo: str = _MEND) -> tuple[Finding, ...]:
    """Return the problems; without problems a summary with the count; nothing if there are no items."""
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


def _below(area: str, name: str, file: str) -> Finding:
    return Finding(area, "note", f"{name} stands below another of the same name.", file=file)


def _untrusted(area: str, what: str, file: str, line: int) -> Finding:
    return Finding(area, "warning", f"{what}: the project's file is not trusted.", _TRUST, file, line)
