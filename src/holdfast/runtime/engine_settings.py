"""The part of the settings that concerns the engine: limits and retries of runs, and the project context that a model
receives.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import date
from pathlib import Path

import msgspec

from holdfast.domain.ids import SessionId
from holdfast.domain.project_context import ProjectContext
from holdfast.domain.settings import Options, Settings
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.workspace.git.background_status import StatusScan
from holdfast.workspace.project_context import ContextLoader, ContextOptions

__all__ = ["context_loader", "engine_settings", "own_files"]

_TRAILERS = {"assisted-by": "Assisted-by: Holdfast", "co-authored-by": "Co-Authored-By: Holdfast"}
_OWN_FILES = ("holdfast/AGENTS.md", "AGENTS.md")


def engine_settings(given: EngineSettings, options: Options) -> EngineSettings:
    """Return the server's engine settings with the options of the user applied."""
    return msgspec.structs.replace(
        given,
        auto_summarize=given.auto_summarize and not options.disable_auto_summarize,
        retries=msgspec.structs.replace(
            given.retries, most=options.max_retries, loading_timeout=float(options.model_load_timeout)
        ),
        limits=Limits(options.max_steps, options.max_minutes, options.max_cost),
        max_subagents=options.max_agents,
        subagent_depth=options.max_agent_depth,
    )


def own_files(options: Options, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the paths of the user's own context files, which apply to every project. They need not exist."""
    home = Path(environment.get("HOME") or "/")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    own = options.global_context_paths or tuple(str(config / name) for name in _OWN_FILES)
    return tuple(Path(os.path.expanduser(path)) for path in own)


def context_loader(
    directory: str,
    settings: Callable[[], Settings],
    environment: Mapping[str, str],
    notes: Callable[[], tuple[str, ...]] = tuple,
    first: Callable[[], Awaitable[None]] | None = None,
    scan: Callable[[], StatusScan] | None = None,
) -> ContextLoader:
    """Return the loader of a directory's context, which reads the settings at each call.

    `notes` returns the notes of extensions, `first` is awaited before them, `scan` returns the git changes.
    """

    def current_options() -> ContextOptions:
        options = settings().options
        files = own_files(options, environment)
        trailer = _TRAILERS.get(options.attribution.trailer_style, "")
        return ContextOptions(options.context_paths, files, trailer, notes())

    return _ExtendedLoader(directory, current_options, lambda: date.today().isoformat(), first, scan)


class _ExtendedLoader(ContextLoader):
    """Loads the context after the extensions have determined their notes."""

    def __init__(
        self,
        directory: str,
        options: Callable[[], ContextOptions],
        today: Callable[[], str],
        first: Callable[[], Awaitable[None]] | None,
        scan: Callable[[], StatusScan] | None,
    ) -> None:
        super().__init__(directory, options, today, scan)
        self._first = first

    async def load(self, session: SessionId) -> ProjectContext:
        """Return the context for a session."""
        if self._first is not None:
            await self._first()
        return await super().load(session)
