"""Health report of a workspace. Each check is implemented in the module of its area; this module lists and runs
them.

A check receives the workspace and returns findings; it changes nothing. All run concurrently, each for at most `LIMIT`
seconds. A check that fails or times out becomes a finding and does not affect the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from holdfast.domain.doctor import Finding, Health
from holdfast.domain.errors import HoldfastError
from holdfast.server.health import checks
from holdfast.server.health import checks as brought_checks
from holdfast.server.http.request import Request
from holdfast.server.routes import lsp, mcp
from holdfast.server.workspace_handle import WorkspaceHandle

__all__ = ["CHECKS", "LIMIT", "Check", "doctor", "run_checks"]

Check: TypeAlias = Callable[[WorkspaceHandle], Awaitable[Sequence[Finding]]]

LIMIT = 20.0

CHECKS: dict[str, Check] = {
    "settings": checks.settings,
    "trust": checks.trust,
    "models": checks.models,
    "sandbox": checks.sandbox,
    "processes": checks.processes,
    "search tools": checks.search_tools,
    "mcp servers": mcp.check,
    "language servers": lsp.check,
    "skills": brought_checks.skills,
    "hooks": brought_checks.hooks,
    "commands": brought_checks.commands,
    "agents": brought_checks.agents,
    "data directory": checks.data_directory,
    "store": checks.store,
}
"""Every check by its area, in the order of the report."""

_log = logging.getLogger("holdfast.server")


async def doctor(request: Request) -> Health:
    """Run the checks and report server problems. `areas` selects areas, separated by commas; the default is all."""
    wanted = [name.strip() for name in request.query.get("areas", "").split(",") if name.strip()]
    found = await run_checks(
        request.handle, {name: check for name, check in CHECKS.items() if not wanted or name in wanted}
    )
    problems = request.observers.problems()
    if problem := await request.manager.check_storage():
        problems = (Finding("data directory", "error", problem, file=str(request.manager.data_dir)), *problems)
    own = tuple(item for item in problems if not wanted or item.area in wanted)
    return Health((*own, *found.findings))


async def run_checks(handle: WorkspaceHandle, chosen: dict[str, Check], limit: float = LIMIT) -> Health:
    """Run the given checks concurrently."""
    found = await asyncio.gather(*(_run_check(handle, area, check, limit) for area, check in chosen.items()))
    return Health(tuple(item for items in found for item in items))


async def _run_check(handle: WorkspaceHandle, area: str, check: Check, limit: float) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(limit):
            return await check(handle)
    except TimeoutError:
        return (Finding(area, "error", f"did not answer within {limit:g} seconds.", "See holdfast logs."),)
    except HoldfastError as error:
        return (Finding(area, "error", str(error)),)
    except Exception:
        # A check that fails must not prevent the others; the cause is logged.
        _log.exception("the check of %s failed", area)
        return (Finding(area, "error", "could not be checked.", "See holdfast logs."),)
