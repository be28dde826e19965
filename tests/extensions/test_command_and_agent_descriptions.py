"""Every field of the descriptions of commands and agents for clients, with and without trust in their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from config.settings_files import SettingsFiles
from holdfast.config.credentials import Credentials
from holdfast.domain.extensions import CommandArgument, CommandInfo, SubagentInfo
from holdfast.extensions.agents import Agents
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.commands import Commands

Json = dict[str, Any]

COMMAND = """---
description: Reviews a change.
argument-hint: "[NUMBER]"
model: small
allowed-tools: view, grep
---
Look at $NUMBER for $WHO: $ARGUMENTS
"""
AGENT = """---
name: scout
description: Finds its way.
model: small
tools: view, edit
---
Find the way.
"""
LOOKING = ("glob", "grep", "ls", "view")


class _AllTools:
    async def current(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(spec=SimpleNamespace(name=name)) for name in ("edit", "view")]


def _ground(place: SettingsFiles) -> ExtensionContext:
    credentials = Credentials(str(place.data / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    return ExtensionContext(
        str(place.project), place.data, place.open(), credentials, cast(Any, None), place.environment, lambda _: None
    )


def _folder(place: SettingsFiles, owner: str, kind: str) -> Path:
    return (place.user_file.parent if owner == "user" else place.project / ".holdfast") / kind


def _fields(note: CommandInfo | SubagentInfo) -> Json:
    return {field.name: getattr(note, field.name) for field in msgspec.structs.fields(type(note))}


# Owner of the file, front-matter keys that need trust, whether it is trusted; then the effective keys.
CASES = [
    (owner, keys, is_trusted)
    for owner in ("user", "project")
    for keys in (("model", "tools"), ("model",), ("tools",), ())
    for is_trusted in (False, True)
]


def _without(text: str, keys: tuple[str, ...], tools: str) -> str:
    unwanted = {"model": "model:", "tools": f"{tools}:"}
    gone = tuple(start for key, start in unwanted.items() if key not in keys)
    return "".join(line for line in text.splitlines(keepends=True) if not (gone and line.startswith(gone)))


@pytest.mark.parametrize(("owner", "keys", "is_trusted"), CASES)
async def test_fields_of_command_description(
    tmp_path: Path, owner: str, keys: tuple[str, ...], is_trusted: bool
) -> None:
    place = SettingsFiles(tmp_path)
    path = place.write(_folder(place, owner, "commands") / "review.md", _without(COMMAND, keys, "allowed-tools"))
    ground = _ground(place)
    commands = Commands(ground, place.environment)
    (command,) = (await commands.rescan()).usable
    if is_trusted:
        ground.configuration.trust.trust_files({command.path: command.digest}, at=1.0)
    needed = tuple(key for key, name in (("model", "model"), ("allowed-tools", "tools")) if name in keys)
    withheld = needed if owner == "project" and not is_trusted else ()
    model = "small" if "model" in keys and not withheld else ""
    allowed = ("view", "grep") if "tools" in keys and not withheld else ()
    (note,) = await commands.list_all()
    assert _fields(note) == {
        "name": "review",
        "source": owner,
        "description": "Reviews a change.",
        "hint": "[NUMBER]",
        "arguments": (CommandArgument("NUMBER"), CommandArgument("WHO")),
        "path": str(path),
        "model": model,
        "allowed_tools": allowed,
        "withheld": withheld,
    }
    brief = await commands.expand("/review now")
    assert brief is not None
    assert (brief.model, brief.allow) == (model, allowed), "what is listed is what has an effect"


@pytest.mark.parametrize(("owner", "keys", "is_trusted"), CASES)
async def test_fields_of_agent_description(tmp_path: Path, owner: str, keys: tuple[str, ...], is_trusted: bool) -> None:
    place = SettingsFiles(tmp_path)
    path = place.write(_folder(place, owner, "agents") / "scout.md", _without(AGENT, keys, "tools"))
    ground = _ground(place)
    agents = Agents(ground, place.environment)
    (agent,) = (await agents.rescan()).usable
    if is_trusted:
        ground.configuration.trust.trust_files({agent.path: agent.digest}, at=1.0)
    needed = ("tools", *(("model",) if "model" in keys else ()))
    withheld = needed if owner == "project" and not is_trusted else ()
    model = "small" if "model" in keys and not withheld else ""
    tools = LOOKING if withheld else ("view", "edit") if "tools" in keys else None
    (note,) = agents.notes()
    assert _fields(note) == {
        "name": "scout",
        "source": owner,
        "description": "Finds its way.",
        "path": str(path),
        "model": model,
        "tools": tools,
        "withheld": withheld,
    }
    agent_type = agents.subagent_type("agent:scout", cast(Any, _AllTools()))
    assert agent_type is not None
    assert agent_type.model == (model or "large")
    given = [tool.spec.name for tool in await agent_type.tools.current()]
    assert given == [name for name in ("edit", "view") if tools is None or name in tools]
