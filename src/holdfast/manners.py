"""How a workspace's settings shape what a model is told: more context files, the line below commits."""

import os
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from holdfast.domain.settings import Settings
from holdfast.workspace.surroundings import Lookout, Manners

__all__ = ["lookout_for"]

_TRAILERS = {"assisted-by": "Assisted-by: Holdfast", "co-authored-by": "Co-Authored-By: Holdfast"}
_OWN_FILES = ("holdfast/AGENTS.md", "AGENTS.md")


def lookout_for(directory: str, settings: Callable[[], Settings], environment: Mapping[str, str]) -> Lookout:
    """For a directory, under the settings as they are at each look."""

    def manners() -> Manners:
        options = settings().options
        home = Path(environment.get("HOME") or "/")
        config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
        own = options.global_context_paths or tuple(str(config / name) for name in _OWN_FILES)
        files = tuple(Path(os.path.expanduser(path)) for path in own)
        return Manners(options.context_paths, files, _TRAILERS.get(options.attribution.trailer_style, ""))

    return Lookout(directory, manners, lambda: date.today().isoformat())
