"""Selection of servers for a file, and preparation of their start. Blocks: it reads the disk and expands settings."""

import os
from collections.abc import Sequence

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.domain.errors import NotFound
from holdfast.extensions.base import Ground
from holdfast.extensions.lsp.plans import Plan, Ready, Site, Unready, argv_of, careful, plans_of, root_of
from holdfast.workspace.environment import command_environment

__all__ = ["Match", "matches_for", "may_help", "prepared", "surveyed"]

_MOST_NAMES = 500


def surveyed(ground: Ground) -> tuple[Site, tuple[Plan, ...]]:
    """Return the current project facts, and the plans from the settings and the catalogue."""
    reading = ground.configuration.reading()
    names, values = ground.secrets()
    root = os.path.realpath(ground.path)
    environment = command_environment(os.environ, ground.environment, cwd=root, withheld=names, secrets=values)
    # Servers run outside the sandbox. With a sandbox they must not execute files that a sandboxed command could have
    # written.
    is_trusted = reading.project.is_trusted and not reading.settings.options.sandbox
    return Site(root, is_trusted, environment), plans_of(reading.settings)


class Match(msgspec.Struct, frozen=True):
    """A server for a file, and the root of its project. `why_not` is the reason why it may not be started."""

    plan: Plan
    root: str
    why_not: str = ""


def matches_for(path: str, plans: Sequence[Plan], site: Site) -> tuple[Match, ...]:
    """Return the servers for a file, at most one for each role. Catalogue entries must be installed."""
    found: list[Match] = []
    refused: list[Match] = []
    roles: set[str] = set()
    for plan in plans:
        if plan.is_disabled or (plan.role and plan.role in roles) or not plan.fits(path):
            continue
        root = root_of(path, site.path, plan.markers)
        if root is None and plan.needs_marker:
            continue
        match = Match(plan, root or site.path)
        if not plan.is_named and argv_of(plan, site) is None:
            continue
        if plan.care == "code" and not plan.is_named and not site.is_trusted:
            refused.append(msgspec.structs.replace(match, why_not=_not_trusted(plan)))
            continue
        found.append(match)
        roles.add(plan.role)
    return (*found, *(match for match in refused if not match.plan.role or match.plan.role not in roles))


def may_help(plans: Sequence[Plan], site: Site) -> bool:
    """Return whether a server is installed, or named in the settings, for files at the top of the workspace."""
    try:
        names = os.listdir(site.path)[:_MOST_NAMES]
    except OSError:
        return False
    marks = set(names)
    for plan in plans:
        is_for_it = any(plan.fits(name) for name in names) if plan.endings else True
        is_marked = any(marker.partition("|")[0] in marks for marker in plan.markers)
        wanted = is_marked if plan.needs_marker else is_marked or is_for_it
        may = plan.care != "code" or site.is_trusted
        if plan.is_named and not plan.is_disabled:
            return True
        if wanted and may and not plan.is_disabled and argv_of(plan, site) is not None:
            return True
    return False


def prepared(plan: Plan, root: str, site: Site, configuration: Configuration) -> Ready | Unready:
    """Return the launch parameters of a server, or the reason why it cannot be started."""
    environment = {**site.environment, "PWD": root}
    if plan.is_named:
        try:
            item, problems = configuration.lsp(plan.name)
        except NotFound:
            return Unready("It is not in the settings any more.", is_absent=False)
        if problems:
            return Unready(f"{problems[0].key}: {problems[0].text}")
        if item.command:
            plan = msgspec.structs.replace(plan, command=(item.command, *item.args))
        environment |= item.env
    if not plan.command:
        return Unready("Its settings name no command, and the catalogue does not know it: set command.")
    argv = argv_of(plan, site)
    if argv is None:
        return Unready(f"{plan.command[0]} is not installed, or not on the PATH: install it, or set command.")
    safe = careful(plan, argv, site, root)
    return Ready(safe, argv, environment) if safe is not None else Unready(_not_trusted(plan), is_absent=False)


def _not_trusted(plan: Plan) -> str:
    return (
        "It would run code of this project, so it waits. To let it do so here: holdfast trust. To let it do so"
        f" everywhere: holdfast config set lsp.{plan.name}.disabled false."
    )
