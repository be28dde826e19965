"""Candidate language servers of a workspace, from its settings and the catalogue. Reads the disk.

A server named in the settings takes precedence over the catalogue entry of the same name, which provides its defaults.
In an untrusted project nothing of the project is executed: no program in its directories, interpreter, library or build
script.
"""

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.settings import LspSettings, Settings
from holdfast.extensions.lsp.catalogue import CATALOGUE, Care, Known, language_of
from holdfast.workspace.paths import is_within

__all__ = ["Plan", "Ready", "Site", "Unready", "argv_of", "careful", "found_program", "plans_of", "root_of"]

_OWN_PROGRAMS = (".venv/bin", "venv/bin", "node_modules/.bin", "vendor/bin")
_OWN_PYTHONS = (".venv", "venv")
_LARGEST_MARKER = 1 << 20


class Site(msgspec.Struct, frozen=True):
    """Project facts: the workspace path, whether the project is trusted, and the environment of the user."""

    path: str
    is_trusted: bool
    environment: Mapping[str, str]


class Plan(msgspec.Struct, frozen=True):
    """Start parameters of a server and its file types. Empty `endings` match all files."""

    name: str
    command: tuple[str, ...]
    endings: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    role: str = ""
    needs_marker: bool = False
    care: Care = ""
    is_named: bool = False
    """Configured by the user, or by a project that the user trusts."""
    is_disabled: bool = False
    timeout: int = 30
    env: dict[str, str] = {}
    """Unexpanded, so that a change of it is a change of the plan."""
    init_options: dict[str, Any] = {}
    options: dict[str, Any] = {}

    def fits(self, path: str) -> bool:
        """Return whether the server supports a file, by its extension, whole name or language."""
        if not self.endings:
            return True
        name = os.path.basename(path)
        words = {name.lower(), name.lower().rpartition(".")[2], language_of(name)}
        return any(ending.lower().removeprefix(".") in words or name == ending for ending in self.endings)


class Ready(msgspec.Struct, frozen=True):
    """Complete launch parameters."""

    plan: Plan
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Unready(msgspec.Struct, frozen=True):
    """The reason why a server cannot be started. `is_absent`: the program is not installed, and may
    be installed later.
    """

    why: str
    is_absent: bool = True


def plans_of(settings: Settings) -> tuple[Plan, ...]:
    """Return the servers named in the settings, followed by the rest of the catalogue if `auto_lsp` is set."""
    known = {item.name: item for item in CATALOGUE}
    named = [_named(name, item, known.get(name) or _same_program(item)) for name, item in settings.lsp.items()]
    if not settings.options.auto_lsp:
        return tuple(named)
    taken = {plan.name for plan in named} | {_program(plan.command) for plan in named if plan.command}
    others = [item for item in CATALOGUE if item.name not in taken and item.command[0] not in taken]
    return (*named, *(_of(item) for item in others))


def _named(name: str, item: LspSettings, known: Known | None) -> Plan:
    command = (item.command, *item.args) if item.command else known.command if known else ()
    if known is not None and not item.command and item.args:
        command = (known.command[0], *item.args)
    return Plan(
        name,
        command,
        item.filetypes or (known.endings if known else ()),
        item.root_markers or (known.markers if known else ()),
        role=known.role if known else "",
        needs_marker=bool(item.root_markers),
        care=known.care if known else "",
        is_named=True,
        is_disabled=item.disabled,
        timeout=item.timeout or 30,
        env=item.env,
        init_options=_merged(known.init_options if known else {}, item.init_options),
        options=_merged(known.options if known else {}, item.options),
    )


def _same_program(item: LspSettings) -> Known | None:
    return next((known for known in CATALOGUE if known.command[0] == os.path.basename(item.command)), None)


def _of(item: Known) -> Plan:
    return Plan(
        item.name,
        item.command,
        item.endings,
        item.markers,
        item.role,
        item.needs_marker,
        item.care,
        init_options=item.init_options,
        options=item.options,
    )


def _program(command: Sequence[str]) -> str:
    return os.path.basename(command[0])


def root_of(path: str, workspace: str, markers: Sequence[str]) -> str | None:
    """Return the nearest directory above a file that has a marker, within the workspace, or None."""
    folder = os.path.dirname(path)
    while is_within(workspace, folder):
        if any(_is_marked(folder, marker) for marker in markers):
            return folder
        if folder == workspace:
            break
        folder = os.path.dirname(folder)
    return None


def _is_marked(folder: str, marker: str) -> bool:
    name, _, text = marker.partition("|")
    if not name or name.startswith("/") or ".." in name.split("/"):
        return False
    place = os.path.join(folder, name)
    if not text:
        return bool(glob.glob(glob.escape(folder) + "/" + name)) if "*" in name else os.path.lexists(place)
    try:
        with open(place, "rb") as file:
            return text.encode() in file.read(_LARGEST_MARKER)
    except OSError:
        return False


def found_program(name: str, site: Site) -> str | None:
    """Find a program on the PATH. The project's own directories are searched only if the project is trusted."""
    folders = [entry for entry in site.environment.get("PATH", os.defpath).split(":") if os.path.isabs(entry)]
    if "/" in name:
        path = os.path.join(site.path, os.path.expanduser(name))
        return path if _is_program(path) else None
    if site.is_trusted:
        folders = [*(os.path.join(site.path, folder) for folder in _OWN_PROGRAMS), *folders]
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_program(path) and (site.is_trusted or not is_within(site.path, os.path.realpath(path))):
            return path
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def argv_of(plan: Plan, site: Site) -> tuple[str, ...] | None:
    """Return the command line, or None if the program is not installed."""
    if not plan.command:
        return None
    program = found_program(plan.command[0], site)
    return (program, *plan.command[1:]) if program else None


def careful(plan: Plan, argv: Sequence[str], site: Site, root: str) -> Plan | None:
    """Return a plan that is safe in an untrusted project, with options that avoid project code, or None if there is
    none.
    """
    if site.is_trusted or not plan.care:
        return plan
    if plan.care == "python":
        return msgspec.structs.replace(plan, options=_merged(_away_from_pythons(site, root), plan.options))
    if plan.care == "typescript" and (library := _library_beside(argv[0], "typescript/lib/tsserver.js")):
        options = _merged({"tsserver": {"path": library}}, plan.init_options)
        return msgspec.structs.replace(plan, init_options=options)
    return plan if plan.is_named else None


def _away_from_pythons(site: Site, root: str) -> dict[str, Any]:
    """Options with an interpreter from outside the project. The packages of project environments are only read."""
    python = found_program("python3", site) or found_program("python", site) or sys.executable
    patterns = (f"{glob.escape(os.path.join(root, name))}/lib/python3*/site-packages" for name in _OWN_PYTHONS)
    packages = sorted(found for pattern in patterns for found in glob.glob(pattern))
    return {"python": {"pythonPath": python, "analysis": {"extraPaths": packages}}}


def _library_beside(program: str, name: str) -> str:
    """Find a Node library that was installed together with a program."""
    folder = os.path.dirname(os.path.realpath(program))
    while folder != "/":
        for place in (os.path.join(folder, "node_modules", name), os.path.join(os.path.dirname(folder), name)):
            if os.path.isfile(place):
                return place
        folder = os.path.dirname(folder)
    return ""


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge recursively; `over` takes precedence."""
    both = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = _merged(base[name], over[name])
    return both
