"""MCP servers, language servers and skills: their states, errors and prompts."""

from extensions.mcp.servers import STUB_EVERYTHING, STUB_TIME, needs_node
from holdfast.domain.events import Change, LspEvent, McpEvent
from holdfast.domain.extensions import NEVER, LspInfo, LspNotice, LspState, McpInfo, McpNotice, McpState
from holdfast.protocol.extension_routes import SkillInfo
from holdfast.tui.pickers import lsp_item, mcp_item, skill_items
from holdfast.tui.screens.dialogs import Form
from holdfast.tui.screens.pager import PagerScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.server_connection import ServerCounts, Servers
from server.helpers import EchoModel
from tui.app_driver import AppDriver, open_app, running_server


async def add_servers(screen: AppDriver, **servers: object) -> None:
    for name, server in servers.items():
        await screen.app.connection.client.config_set(screen.app.connection.workspace, f"mcp.{name}", server)


async def test_servers_are_counted_listed_and_explained() -> None:
    async with running_server() as (_, server), open_app(server, size=(120, 40)) as screen:
        await add_servers(screen, time=STUB_TIME, broken={"command": "/no/such/program"})
        await screen.wait_until(lambda: "mcp 1/2" in screen.line("top-right"), "one works, one does not")
        await screen.submit("/extensions")
        await screen.wait_for_dialog(Picker)
        for seen in ("MCP servers", "● time", "connected · 2 tools", "error · /no/such/program could not be started"):
            await screen.wait_for_picture(seen)
        await screen.wait_for_picture("● holdfast-config")
        await screen.pilot.press(*"broken", "enter")
        await screen.wait_for_dialog(PagerScreen)
        await screen.wait_for_picture("/no/such/program could not be started")
        await screen.pilot.press("escape")
        await screen.wait_for_dialog(Picker)
        await screen.pilot.press(*"time", "ctrl+r")
        await screen.wait_for_notice("time is restarting")
        await screen.wait_for_dialog(Picker)
        await screen.pilot.press("escape")
        await screen.wait_for_no_dialog()
        await screen.wait_until(lambda: "mcp 1/2" in screen.line("top-right"), "it is back")


@needs_node
async def test_prompts_of_servers_are_commands_with_a_form() -> None:
    async with running_server(EchoModel()) as (_, server), open_app(server) as screen:
        await add_servers(screen, all=STUB_EVERYTHING)
        await screen.wait_until(
            lambda: any(info.prompt_count for info in screen.app.connection.servers.mcps.values()), "prompts"
        )
        await screen.pilot.press(*"/all:arg")
        await screen.wait_until(lambda: screen.composer.completes, "the command is offered")
        await screen.pilot.press("enter")
        await screen.wait_for_dialog(Form)
        await screen.pilot.press("enter", "enter")
        await screen.wait_until(lambda: "city is required." in screen.picture(), "what is needed is said")
        await screen.pilot.press(*"New York", "enter")
        await screen.pilot.press(*"NY", "enter")
        await screen.wait_for_no_dialog()
        await screen.wait_for_text("echo: What's weather in New York, NY?")


def server_event(name: str, state: McpState, error: str = "") -> McpEvent:
    return McpEvent(Change("updated", McpNotice("state_changed", name, state, error, 3)))


def test_server_events_update_the_counts() -> None:
    servers = Servers()
    assert list(servers.counts()) == []
    assert servers.apply(server_event("a", "connected"))
    assert servers.apply(server_event("b", "needs auth"))
    assert servers.apply(server_event("c", "disabled"))
    assert servers.apply(server_event("d", "starting"))
    assert not servers.apply("anything else")
    assert list(servers.counts()) == [ServerCounts("mcp", 1, 1, 3)]
    servers.apply(server_event("b", "connected"))
    servers.apply(LspEvent(Change("updated", LspNotice("state_changed", "ty", LspState.ERROR, "It died."))))
    servers.apply(LspEvent(Change("updated", LspNotice("state_changed", "ruff", LspState.UNSTARTED))))
    assert list(servers.counts()) == [ServerCounts("mcp", 2, 0, 3), ServerCounts("lsp", 0, 1, 1)]


def test_list_shows_errors_of_extensions() -> None:
    broken = mcp_item(McpInfo("docs", "needs auth", NEVER, "Log in:\nholdfast mcp login docs"))
    assert (broken.mark, broken.detail) == ("!", "needs login · Log in: holdfast mcp login docs")
    ready = lsp_item(LspInfo("ty", LspState.READY, NEVER, diagnostic_count=2))
    assert (ready.mark, ready.detail) == ("●", "ready · 2 diagnostics")
    known = SkillInfo("i", "changelog", "Write an entry.", "", "project", user_invocable=True)
    bad = {"name": "", "path": "/p/SKILL.md", "state": 1, "error": "no name"}
    assert [(item.title, item.mark) for item in skill_items([known], [bad])] == [
        ("changelog", "●"),
        ("/p/SKILL.md", "✗"),
    ]


async def test_narrow_screen_counts_only_failed_servers() -> None:
    async with running_server() as (_, server), open_app(server, size=(80, 24)) as screen:

        def is_shown(state: McpState) -> bool:
            screen.app.connection.servers.apply(server_event("time", state))
            screen.app.context.request_frame()
            return "mcp" in screen.line("top-right")

        await screen.wait_until(lambda: is_shown("error"), "trouble is told")
        await screen.wait_until(lambda: not is_shown("connected"), "what works is not")
