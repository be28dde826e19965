"""Handlers for project initialization: whether to offer it, and the prompt that describes the project."""

import asyncio
import os
from pathlib import Path

from holdfast.config.files import replace
from holdfast.domain.settings import Options
from holdfast.protocol.bodies import InitPrompt, NeedsInit
from holdfast.server.calls import Call
from holdfast.server.desk import Desk
from holdfast.workspace.surroundings import context_places

__all__ = ["init_project", "init_prompt", "needs_init"]

_PROMPT = (
    "Look at this project and write {} for whoever works on it next: how to build, run and test it, how the "
    "code is laid out, and the habits it keeps. Short and exact; improve the file if it is there already."
)


async def needs_init(call: Call) -> NeedsInit:
    """Return whether to offer initialization: at most once, and only for a project with files but without a
    description.
    """
    desk = call.desk
    return NeedsInit(await asyncio.to_thread(_wants_start, _flag(desk), Path(desk.path), desk.outfit.settings.options))


async def init_project(call: Call) -> None:
    """Record that initialization was offered, whatever the answer, so that it is not offered again."""
    await asyncio.to_thread(replace, str(_flag(call.desk)), b"")
    call.desk.tell_of_change()


async def init_prompt(call: Call) -> InitPrompt:
    """Return the prompt that writes the description."""
    return InitPrompt(_PROMPT.format(_guide(call.desk.outfit.settings.options)))


def _flag(desk: Desk) -> Path:
    """Return the marker file. It is in the data directory, because it does not belong in the project and outlives the
    server.
    """
    return desk.data_dir / "start-asked"


def _guide(options: Options) -> str:
    return options.initialize_as or Options().initialize_as


def _wants_start(flag: Path, directory: Path, options: Options) -> bool:
    if os.path.exists(flag) or os.path.exists(directory / _guide(options)):
        return False
    return _has_files(directory) and not context_places(directory, (), options.context_paths)


def _has_files(directory: Path) -> bool:
    """Return True if the directory has visible files. Hidden files do not count, because a new repository has them."""
    try:
        with os.scandir(directory) as found:
            return any(not item.name.startswith(".") for item in found)
    except OSError:
        return False
