"""State of MCP and language servers: fetched once, then updated by events."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.domain.events import LspEvent, McpEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.languages import NEVER, LspInfo, LspState
from holdfast.domain.mcp import McpInfo

__all__ = ["LSP_WORDS", "Servers", "Tally", "tally"]

LSP_WORDS = {
    LspState.UNSTARTED: "not started",
    LspState.STARTING: "starting",
    LspState.READY: "ready",
    LspState.ERROR: "error",
    LspState.STOPPED: "stopped",
    LspState.DISABLED: "disabled",
}


class Tally(msgspec.Struct, frozen=True):
    """Number of servers of a kind, and how many are ready or have problems."""

    kind: str
    ready: int
    troubled: int
    total: int


class Servers:
    """The servers of one workspace."""

    def __init__(self) -> None:
        self.mcps: dict[str, McpInfo] = {}
        self.lsps: dict[str, LspInfo] = {}

    async def read(self, client: Client, workspace: WorkspaceId) -> None:
        """Fetch the states; keeps the previous ones if the request fails."""
        try:
            self.mcps = await client.mcp_states(workspace)
            self.lsps = await client.list_lsps(workspace)
        except ClientError:
            return

    def take(self, event: object) -> bool:
        """Process an event. Returns True if it concerns a server."""
        match event:
            case McpEvent(payload=change):
                notice = change.payload
                known = self.mcps.get(notice.name) or McpInfo(notice.name, notice.state, NEVER)
                self.mcps[notice.name] = msgspec.structs.replace(
                    known,
                    state=notice.state,
                    error=notice.error,
                    tool_count=notice.tool_count,
                    prompt_count=notice.prompt_count,
                    resource_count=notice.resource_count,
                )
            case LspEvent(payload=told):
                self.lsps[told.payload.name] = LspInfo(
                    told.payload.name, told.payload.state, NEVER, told.payload.error, told.payload.diagnostic_count
                )
            case _:
                return False
        return True

    def tallies(self) -> Iterator[Tally]:
        """Yield the counts of each kind. Disabled and unused servers do not count."""
        mcps = [info.state for info in self.mcps.values() if info.state != "disabled"]
        yield from tally("mcp", mcps, "connected", ("error", "needs auth"))
        idle = (LspState.UNSTARTED, LspState.STOPPED, LspState.DISABLED)
        lsps = [info.state for info in self.lsps.values() if info.state not in idle]
        yield from tally("lsp", lsps, LspState.READY, (LspState.ERROR,))


def tally(kind: str, states: Iterable[object], good: object, bad: Iterable[object]) -> Iterator[Tally]:
    """Count the servers of a kind; yields nothing if there are none."""
    known, wrong = list(states), set(bad)
    if known:
        yield Tally(kind, known.count(good), sum(state in wrong for state in known), len(known))
