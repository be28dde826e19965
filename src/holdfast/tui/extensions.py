"""The list of extensions: MCP servers, language servers, skills."""

from collections.abc import Mapping, Sequence
from typing import Any

from textual import work

from holdfast.domain.languages import LspInfo, LspState
from holdfast.domain.mcp import McpInfo
from holdfast.protocol.brought import SkillInfo
from holdfast.tui.screens.picker import Choice, Picked, Picker
from holdfast.tui.screens.reading import ReadingScreen
from holdfast.tui.servers import LSP_WORDS
from holdfast.tui.stage import Stage

__all__ = ["Extensions", "lsp_choice", "mcp_choice", "skill_choices"]

_KEYS = (("enter", "all about it"), ("ctrl+r", "start it again"), ("esc", "close"))
_EMPTY = "Nothing was brought along: holdfast mcp add, holdfast lsp and holdfast skills tell how."
_MCP_MARKS = {"connected": "●", "starting": "◌", "error": "✗", "needs auth": "!", "disabled": "○"}
_MCP_WORDS = {"needs auth": "needs login"}
_LSP_MARKS = {LspState.READY: "●", LspState.STARTING: "◌", LspState.ERROR: "✗"}


class Extensions(Stage):
    """One list for all extensions, with the reason beside those that do not work."""

    @work
    async def action_extensions(self) -> None:
        """Show the extensions."""
        start = ""
        while True:
            skills = await self.ask(self.link.client.list_skills(self.link.workspace))
            if skills is None:
                return
            await self.link.servers.read(self.link.client, self.link.workspace)
            choices = [mcp_choice(info) for info in self.link.servers.mcps.values()]
            choices += [lsp_choice(info) for info in self.link.servers.lsps.values()]
            choices += skill_choices(skills, self._skill_states())
            picker = Picker("Extensions", choices, _KEYS, keys=("ctrl+r",), start=start, empty=_EMPTY)
            picked = await self.push_screen_wait(picker)
            if picked is None or not picked.value:
                return
            start = picked.value
            await self._look_at(picked)

    def _skill_states(self) -> Sequence[Mapping[str, Any]]:
        workspace = self.link.view.workspace
        return workspace.skills if workspace is not None else ()

    async def _look_at(self, picked: Picked) -> None:
        kind, _, name = picked.value.partition(" ")
        if picked.key == "ctrl+r":
            await self._restart(kind, name)
        elif kind == "mcp":
            log = await self.ask(self.link.client.mcp_log(self.link.workspace, name))
            await self._read(name, self.link.servers.mcps.get(name), log.text if log else "")
        elif kind == "lsp":
            said = await self.ask(self.link.client.lsp_log(self.link.workspace, name))
            await self._read(name, self.link.servers.lsps.get(name), said.text if said else "")
        elif kind == "skill":
            skill = await self.ask(self.link.client.read_skill(self.link.workspace, name))
            if skill is not None:
                await self.push_screen_wait(ReadingScreen(name, skill.content.decode("utf-8", "replace"), is_log=False))
        else:
            broken = next((item for item in self._skill_states() if item.get("path") == name), {})
            await self.push_screen_wait(ReadingScreen(name, str(broken.get("error") or "It is gone."), is_log=False))

    async def _read(self, name: str, info: McpInfo | LspInfo | None, log: str) -> None:
        """Show the error, the tools and the log of a server."""
        pieces = [info.error if info is not None else ""]
        if isinstance(info, McpInfo) and info.tools:
            pieces.append("Tools:\n" + "\n".join(f"  {tool}" for tool in info.tools))
        pieces.append(f"What it printed:\n{log}" if log.strip() else "It has printed nothing.")
        await self.push_screen_wait(ReadingScreen(name, "\n\n".join(piece for piece in pieces if piece)))

    async def _restart(self, kind: str, name: str) -> None:
        if kind == "mcp":
            is_told = await self.say(self.link.client.mcp_restart(self.link.workspace, name))
        elif kind == "lsp":
            is_told = await self.say(self.link.client.restart_lsps(self.link.workspace, name))
        else:
            self.notify("A skill is a text: it is read anew when it has changed.")
            return
        if is_told:
            self.notify(f"{name} starts again.", markup=False)


def mcp_choice(info: McpInfo) -> Choice:
    """Return the list entry: the state, then the error if there is one, else the counts."""
    counts = ((info.tool_count, "tool"), (info.prompt_count, "prompt"), (info.resource_count, "resource"))
    offers = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    facts = [_MCP_WORDS.get(info.state, info.state), *([_line(info.error)] if info.error else offers)]
    return Choice(f"mcp {info.name}", info.name, " · ".join(facts), _MCP_MARKS[info.state], "MCP servers")


def lsp_choice(info: LspInfo) -> Choice:
    """Return the list entry of a language server."""
    found = f"{info.diagnostic_count} found" if info.diagnostic_count else ""
    facts = [LSP_WORDS[info.state], found, _line(info.error)]
    mark = _LSP_MARKS.get(info.state, "○")
    return Choice(f"lsp {info.name}", info.name, " · ".join(filter(None, facts)), mark, "Language servers")


def skill_choices(skills: Sequence[SkillInfo], states: Sequence[Mapping[str, Any]]) -> list[Choice]:
    """Return the usable skills, then the broken ones with their errors."""
    choices = [
        Choice(f"skill {skill.name}", skill.name, f"{skill.source} · {_line(skill.description)}", "●", "Skills")
        for skill in skills
    ]
    broken = [(str(item.get("path")), str(item.get("error"))) for item in states if item.get("state")]
    return choices + [Choice(f"broken {path}", path, _line(error), "✗", "Skills") for path, error in broken]


def _line(text: str) -> str:
    return " ".join(text.split())
