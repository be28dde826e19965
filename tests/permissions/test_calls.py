"""Tool calls that run no command: files, addresses, resources of MCP servers. Each row is decided by one clause."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from permissions.fake_disk import rules_of, summary_of

OUT = "https://example.org/a"


def view(path: str) -> Permit:
    return Permit("view", "read", path, "", {"file_path": path})


def write(path: str, tool: str = "write") -> Permit:
    return Permit(tool, "write", path, "", {"file_path": path})


def ls(path: str) -> Permit:
    return Permit("ls", "list", path, "", {})


def fetch(url: object) -> Permit:
    return Permit("fetch", "fetch", "/w", "", {"url": url})


def download(url: str, path: str) -> Permit:
    return Permit("download", "download", path, "", {"url": url, "file_path": path})


def tool(name: str, action: str = "execute", *, is_agreed: bool = False, **params: Any) -> Permit:  # noqa: ANN401
    return Permit(name, action, "", "", params, is_agreed=is_agreed)


RESOURCE = tool("read_mcp_resource", "read", mcp_name="m", uri="a://b")
LISTED = tool("list_mcp_resources", "list", mcp_name="m")
NONE: dict[str, tuple[str, ...]] = {}
ROWS: tuple[tuple[dict[str, tuple[str, ...]], Permit, str], ...] = (
    # Reading is allowed inside the workspace, as written and as resolved; everything else asks.
    (NONE, view("/w/a"), "allow"),
    (NONE, view("a"), "allow"),
    (NONE, view("/w"), "allow"),
    (NONE, view("/dev/null"), "allow"),
    (NONE, view("/wide/a"), "ask => view:read(/wide/a)"),
    (NONE, view("/etc/a"), "ask => view:read(/etc/a)"),
    (NONE, view("../w/a"), "allow"),
    (NONE, view("link-to-outside"), "ask => view:read(link-to-outside)"),
    (NONE, view("out-link/x"), "ask => view:read(out-link/x)"),
    (NONE, view("/w/sub/back/a"), "allow"),
    (NONE, ls("/w/src"), "allow"),
    (NONE, ls(""), "allow"),
    (NONE, ls("/etc"), "ask => ls:list(/etc)"),
    (NONE, tool("lsp", "use"), "allow"),
    (NONE, write("/w/a"), "ask => write:write(a)"),
    (NONE, write("/etc/a"), "ask => write:write(/etc/a)"),
    (NONE, write("/w/[a]*"), "ask => write:write([[]a][*])"),
    (NONE, write("/w/a\x01"), "ask"),
    (NONE, tool("mcp_m_t"), "ask => mcp_m_t:execute"),
    (NONE, tool("agent"), "ask => agent:execute"),
    (NONE, tool("agent", ""), "ask => agent"),
    (NONE, RESOURCE, 'ask => read_mcp_resource:read with {"mcp_name": "m", "uri": "a://b"}'),
    (NONE, LISTED, 'ask => list_mcp_resources:list with {"mcp_name": "m"}'),
    (NONE, fetch(OUT), f"ask => fetch:fetch({OUT})"),
    (NONE, fetch("https://EXAMPLE.org:443/a/../*"), "ask => fetch:fetch(https://example.org/%2A)"),
    (NONE, fetch("ftp://example.org"), "ask"),
    (NONE, fetch(7), "ask => fetch:fetch"),
    (NONE, Permit("fetch", "read", "/w", "", {"url": OUT}), "ask"),
    (NONE, download(OUT, "/w/a"), f"ask => download:download({OUT}) to /w/a"),
    (NONE, download(OUT, "/w/a b)"), f'ask => download:download({OUT}) to "/w/a b\\u0029"'),
    # An agreed call needs no rule, unless one denies it or asks.
    (NONE, tool("mcp_m_t", is_agreed=True), "allow"),
    ({"ask": ("mcp_m_t",)}, tool("mcp_m_t", is_agreed=True), "ask"),
    ({"deny": ("mcp_m_t",)}, tool("mcp_m_t", is_agreed=True), "deny"),
    # The strictest rule wins, whatever its position.
    ({"allow": ("write",), "ask": ("write",), "deny": ("write",)}, write("/w/a"), "deny"),
    ({"allow": ("write",), "ask": ("write",)}, write("/w/a"), "ask"),
    ({"allowed_tools": ("write",)}, write("/w/a"), "allow"),
    ({"allow": ("write",)}, write("/w/a"), "allow"),
    ({"allow": ("write",)}, write("/etc/a"), "allow"),
    ({"allow": ("write",)}, write("/w/a", "edit"), "ask => edit:write(a)"),
    ({"allow": ("WRITE",)}, write("/w/a"), "allow"),
    ({"deny": ("wRiTe",)}, write("/w/a"), "deny"),
    ({"deny": ("mcp_M_t",)}, tool("mcp_m_T"), "deny"),
    ({"allow": ("mcp_M_t",)}, tool("mcp_m_T"), "ask => mcp_m_T:execute"),
    ({"allow": ("mcp_m_*",)}, tool("mcp_m_t"), "allow"),
    ({"allow": ("mcp_m_t:execute",)}, tool("mcp_m_t"), "allow"),
    ({"allow": ("mcp_m_t:read",)}, tool("mcp_m_t"), "ask => mcp_m_t:execute"),
    ({"deny": ("view:read",)}, view("/w/a"), "deny"),
    ({"deny": ("*:write",)}, view("/w/a"), "allow"),
    # Paths: a deny rule matches as written or as resolved, an allow rule must match both.
    ({"deny": ("write(keep/**)",)}, write("/w/keep/f"), "deny"),
    ({"deny": ("write(keep/**)",)}, write("way/f"), "deny"),
    ({"deny": ("write(way/**)",)}, write("way/f"), "deny"),
    ({"deny": ("write(keep/**)",)}, write("/w/keeper/f"), "ask => write:write(keeper/f)"),
    ({"deny": ("write(keep)",)}, write("keep/f"), "deny"),
    ({"deny": ("write(kee*)",)}, write("keep/f"), "ask => write:write(keep/f)"),
    ({"ask": ("write(keep/**)",), "allow": ("write",)}, write("way/f"), "ask"),
    ({"ask": ("write(way/**)",), "allow": ("write",)}, write("way/f"), "ask"),
    ({"allow": ("write(keep/**)",)}, write("way/f"), "ask => write:write(way/f)"),
    ({"allow": ("write(way/**)",)}, write("way/f"), "ask => write:write(way/f)"),
    ({"allow": ("write(way/**)", "write(keep/**)")}, write("way/f"), "ask => write:write(way/f)"),
    ({"allow": ("write({keep,way}/**)", "write(?**)")}, write("way/f"), "allow"),
    ({"allow": ("write(keep)",)}, write("keep/f"), "ask => write:write(keep/f)"),
    ({"allow": ("write(src/**)",)}, write("src"), "allow"),
    ({"allow": ("write(src/*)",)}, write("src/a/b"), "ask => write:write(src/a/b)"),
    ({"allow": ("write(**/b)",)}, write("src/a/b"), "allow"),
    ({"allow": ("write(**/b)",)}, write("b"), "allow"),
    ({"allow": ("write(s**b)",)}, write("src/a/b"), "allow"),
    ({"allow": ("write(src/?)",)}, write("src/a"), "allow"),
    ({"allow": ("write(src?a)",)}, write("src/a"), "ask => write:write(src/a)"),
    ({"allow": ("write(src/[!b])",)}, write("src/a"), "allow"),
    ({"allow": ("write(src/[!a])",)}, write("src/a"), "ask => write:write(src/a)"),
    ({"allow": ("write(src/[a)",)}, write("src/[a"), "allow"),
    ({"allow": ("write(~/x)",)}, write("/home/u/x"), "allow"),
    ({"allow": ("write(~)",)}, write("/home/u/x"), "allow"),
    ({"allow": ("write(/etc/x)",)}, write("/etc/x"), "allow"),
    ({"allow": ("write(../x)",)}, write("/x"), "allow"),
    ({"allow": ("write(src/)",)}, write("src/x"), "allow"),
    # Addresses.
    ({"allow": (f"fetch({OUT})",)}, fetch(OUT), "allow"),
    ({"allow": (f"fetch({OUT})",)}, fetch(f"{OUT}?q"), f"ask => fetch:fetch({OUT}?q)"),
    ({"allow": (f"fetch({OUT}*)",)}, fetch(f"{OUT}?q"), "allow"),
    ({"deny": (f"fetch({OUT})",)}, fetch(f"{OUT}?q"), "deny"),
    ({"deny": (f"fetch({OUT})",)}, fetch(f"{OUT}/b"), "deny"),
    ({"deny": (f"fetch({OUT})",)}, fetch(f"{OUT}b"), f"ask => fetch:fetch({OUT}b)"),
    ({"deny": (f"fetch({OUT})",)}, fetch("not an address"), "deny"),
    ({"ask": (f"fetch({OUT})",), "allow": ("fetch",)}, fetch("not an address"), "ask"),
    ({"allow": (f"fetch({OUT})",)}, fetch("not an address"), "ask"),
    ({"deny": (f"fetch({OUT})",)}, fetch(""), "ask"),
    ({"allow": ("fetch(http://example.org/a)",)}, fetch(OUT), f"ask => fetch:fetch({OUT})"),
    ({"allow": ("fetch(*://example.org/a)",)}, fetch(OUT), "allow"),
    ({"allow": ("fetch(https://example.org:444/a)",)}, fetch(OUT), f"ask => fetch:fetch({OUT})"),
    ({"allow": ("fetch(https://example.org:*/a)",)}, fetch("https://example.org:444/a"), "allow"),
    ({"allow": ("fetch(https://*.org/a)",)}, fetch(OUT), "allow"),
    ({"allow": ("fetch(https://example.org/%61)",)}, fetch(OUT), "allow"),
    (
        {"allow": ("fetch(https://example.org/a/*)",)},
        fetch("https://example.org/a/%252e%252e/b"),
        "ask => fetch:fetch(https://example.org/a/%252e%252e/b)",
    ),
    ({"deny": ("fetch(https://example.org/b)",)}, fetch("https://example.org/a/%252e%252e/b"), "deny"),
    ({"deny": ("fetch(https://example.org/b)",)}, fetch("https://example.org//b"), "deny"),
    ({"deny": ("fetch(https://example.org/b)",)}, fetch("https://example.org/b;x"), "deny"),
    ({"deny": (f"fetch({OUT}?q=1)",)}, fetch(f"{OUT}?q=%31"), "deny"),
    ({"deny": (f"fetch({OUT}?q=1)",)}, fetch(OUT), f"ask => fetch:fetch({OUT})"),
    ({"deny": ("fetch(domain:example.org)",)}, fetch("http://example.org:8080/x"), "deny"),
    (
        {"allow": ("fetch(domain:example.org)",)},
        fetch("http://example.org/x"),
        "ask => fetch:fetch(http://example.org/x)",
    ),
    # A download is a write to its file as well as a request.
    ({"deny": (f"download({OUT})",)}, download(OUT, "/w/a"), "deny"),
    ({"deny": ("download(keep/**)",)}, download(OUT, "/w/keep/f"), "deny"),
    ({"deny": ("download(keep/**)",)}, download(OUT, "/w/way/f"), "deny"),
    ({"allow": (f"download({OUT})",)}, download(OUT, "/w/a"), "allow"),
    ({"allow": (f"download({OUT}) to /w/a",)}, download(OUT, "/w/a"), "allow"),
    ({"allow": (f"download({OUT}) to /w/a",)}, download(OUT, "/w/b"), f"ask => download:download({OUT}) to /w/b"),
    # A rule with parameters applies to exactly these.
    ({"allow": ('read_mcp_resource:read with {"uri": "a://b", "mcp_name": "m"}',)}, RESOURCE, "allow"),
    (
        {"allow": ('read_mcp_resource:read with {"uri": "a://c", "mcp_name": "m"}',)},
        RESOURCE,
        'ask => read_mcp_resource:read with {"mcp_name": "m", "uri": "a://b"}',
    ),
    ({"allow": ("read_mcp_resource",)}, RESOURCE, "allow"),
    # The files of a repository that make git run programs need a rule that names them.
    ({"allow": ("write",)}, write(".git/config"), "ask => write:write(.git/config)"),
    ({"allow": ("write",)}, write("sub/.git/hooks/x"), "ask => write:write(sub/.git/hooks/x)"),
    ({"allow": ("write(**)",)}, write(".git/config"), "ask => write:write(.git/config)"),
    ({"allow": ("write(/**)",)}, write(".git/config"), "ask => write:write(.git/config)"),
    ({"allow": ("write(.git/**)",)}, write(".git/config"), "allow"),
    ({"allow": ("write",)}, write(".gitignore"), "allow"),
    ({"allow": ("download",)}, download(OUT, "/w/.git/x"), f"ask => download:download({OUT}) to /w/.git/x"),
    ({"allow": ("view",)}, view(".git/config"), "allow"),
)


@pytest.mark.parametrize(("lists", "permit", "expected"), ROWS)
def test_decision_for_each_call(lists: dict[str, tuple[str, ...]], permit: Permit, expected: str) -> None:
    assert summary_of(rules_of(PermissionSettings(**lists)).judge(permit)) == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1].tool} {row[2]}")
def test_the_order_of_the_parameters_is_irrelevant(row: tuple[dict[str, tuple[str, ...]], Permit, str]) -> None:
    """A model writes them in any order; a saved rule covers them in each."""
    settings, permit, expected = row
    turned = structs.replace(permit, params=dict(reversed(permit.params.items())))
    rules = rules_of(PermissionSettings(**settings))
    assert summary_of(rules.judge(turned)) == expected
    saved = rules_of(PermissionSettings(allow=rules.judge(permit).saves))
    assert saved.judge(turned) == saved.judge(permit)
