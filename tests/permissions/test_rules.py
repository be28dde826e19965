"""Rules as users write them, and their effect."""

import os
from pathlib import Path

import pytest

from holdfast.domain.approvals import Decision
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import BadRule, RuleSet
from permissions.test_corpus import bash

ROOT = "/w"


def judge(permit: Permit, **lists: tuple[str, ...]) -> Decision:
    return RuleSet(PermissionSettings(**lists), ROOT).judge(permit).decision


def file(tool: str, path: str, action: str = "write") -> Permit:
    return Permit(tool, action, path, "", {"file_path": path})


def address(tool: str, url: str) -> Permit:
    return Permit(tool, "fetch", ROOT, "", {"url": url})


def test_decisions_of_the_default_rules() -> None:
    assert judge(file("view", "/w/a.txt", "read")) == "allow"
    assert judge(file("view", "src/a.txt", "read")) == "allow"
    assert judge(file("view", "/etc/passwd", "read")) == "ask"
    assert judge(file("view", "../x", "read")) == "ask"
    assert judge(Permit("ls", "list", "/etc", "", {"path": "/etc"})) == "ask"
    assert judge(Permit("ls", "list", "/w/src", "", {"path": "src"})) == "allow"
    assert judge(file("write", "/w/a.txt")) == "ask"
    assert judge(file("edit", "/w/a.txt")) == "ask"
    assert judge(address("fetch", "https://example.org/")) == "ask"
    assert judge(Permit("mcp_x_y", "execute", ROOT, "", {"a": 1})) == "ask"


def test_tools_and_actions_of_the_compatible_list() -> None:
    assert judge(file("write", "/w/a"), allowed_tools=("write",)) == "allow"
    assert judge(file("write", "/w/a"), allowed_tools=("write:write",)) == "allow"
    assert judge(file("write", "/w/a"), allowed_tools=("edit",)) == "ask"
    assert judge(bash("make"), allowed_tools=("bash",)) == "allow"
    assert judge(bash("make"), allowed_tools=("bash:execute",)) == "allow"
    assert judge(Permit("mcp_x_y", "execute", ROOT, "", {}), allow=("mcp_x_*",)) == "allow"


@pytest.mark.parametrize(
    ("lists", "decision"),
    [
        ({"allow": ("write",), "ask": ("write(src/**)",)}, "ask"),
        ({"allow": ("write(src/**)",), "deny": ("write",)}, "deny"),
        ({"allow": ("write(src/a)",), "ask": ("write",), "deny": ("write(src/*)",)}, "deny"),
        ({"allow": ("write(src/**)",)}, "allow"),
        ({"allow": ("write(src/*)",)}, "allow"),
        ({"allow": ("write(/w/src/a)",)}, "allow"),
        ({"allow": ("write(**)",)}, "allow"),
        ({"allow": ("write(other/**)",)}, "ask"),
        ({"allow": ("write(*)",)}, "ask"),
        ({"allow": ("*:write(src/?)",)}, "allow"),
        ({"allow": ("write(src/[ab])",)}, "allow"),
        ({"allow": ("write(src/[!ab])",)}, "ask"),
    ],
)
def test_strictest_matching_rule_wins(lists: dict[str, tuple[str, ...]], decision: str) -> None:
    assert judge(file("write", "/w/src/a"), **lists) == decision


def test_rules_apply_to_resolved_paths(tmp_path: Path) -> None:
    """A link out of an allowed directory is not allowed; a link into a denied one is denied."""
    root = tmp_path / "w"
    (root / "src").mkdir(parents=True)
    (root / "src" / "link").symlink_to(tmp_path)
    (root / "door").symlink_to(root / "src")

    def decision(path: str, **lists: tuple[str, ...]) -> str:
        rules = RuleSet(PermissionSettings(**lists), str(root), real=os.path.realpath)
        return rules.judge(file("write", str(root / path))).decision

    assert decision("src/link/x", allow=("write(src/**)",)) == "ask"
    assert decision("door/x", deny=("write(src/**)",)) == "deny"
    assert decision("src/../x", allow=("write(src/**)",)) == "ask"
    is_examined = RuleSet(PermissionSettings(), str(root), real=os.path.realpath)
    assert is_examined.judge(bash("cat src/link/x", str(root))).decision == "ask"
    assert is_examined.judge(bash("cat src/x", str(root))).decision == "allow"


@pytest.mark.parametrize(
    ("rule", "line", "decision"),
    [
        ("bash(npm test)", "npm test", "allow"),
        ("bash(npm test)", "npm test --watch", "ask"),
        ("bash(npm test *)", "npm test", "allow"),
        ("bash(npm test *)", "npm test --watch a b", "allow"),
        ("bash(npm test *)", "npm publish", "ask"),
        ("bash(npm run test*)", "npm run test:unit", "allow"),
        ("bash(npm * --dry-run)", "npm publish --dry-run", "allow"),
        ("bash(make *)", "make && make install", "allow"),
        ("bash(make *)", "make && rm x", "ask"),
        ("bash(make *)", "make; ls", "allow"),
        ("bash(make *)", "timeout 5 make", "allow"),
        ("bash(make *)", "sudo make", "ask"),
        ("bash(make *)", "CC=./evil make", "ask"),
        ("bash(make *)", "LC_ALL=C make", "allow"),
        ("bash(make *)", "make > out", "ask"),
        ("bash(make *)", "make 2>/dev/null", "allow"),
        ("bash(make *)", "make $(rm x)", "ask"),
        ("bash(make *)", "./make", "ask"),
        ("bash(make *)", "ls | xargs make", "allow"),
        ("bash(make)", "ls | xargs make", "ask"),
        ("bash(git commit -m 'a b')", 'git commit -m "a b"', "allow"),
        ("bash(git commit -m 'a b')", "git commit -m a b", "ask"),
        ("bash(= for f in *; do wc $f; done)", "for f in *; do wc $f; done", "allow"),
        ("bash(= for f in *; do wc $f; done)", "for f in *; do rm $f; done", "ask"),
        ("bash(curl https://example.org/*)", "curl https://example.org/x", "allow"),
        ("bash(curl https://example.org/*)", "curl https://example.com/x", "ask"),
        ("bash", "make", "allow"),
        ("bash", "for f in *; do echo $f; done", "allow"),
        ("bash", "curl example.org", "ask"),
        ("bash", "for f in *; do curl $f; done", "ask"),
        ("bash", "sudo make", "ask"),
        ("bash", "npm install -g x", "ask"),
        ("bash", "npm install x", "allow"),
        ("bash", "/usr/bin/curl x", "ask"),
        ("bash(*)", "make", "allow"),
        ("bash(*)", "curl x", "ask"),
    ],
)
def test_command_rules(rule: str, line: str, decision: str) -> None:
    assert judge(bash(line), allow=(rule,)) == decision


@pytest.mark.parametrize(
    "line",
    [
        "rm x",
        "/bin/rm x",
        "'rm' x",
        "ls; rm x",
        "ls && (rm x)",
        "for f in *; do rm $f; done",
        "echo $(rm x)",
        "echo `rm x`",
        "cat <(rm x)",
        "if true; then rm x; fi",
        "f() { rm x; }; f",
        "timeout 5 rm x",
        "env A=1 rm x",
        "sudo rm x",
        "sudo -u bob rm x",
        "bash -c 'rm x'",
        "bash -lc 'rm x'",
        "ls | xargs rm",
        "find . -exec rm {} +",
        "eval 'rm x'",
        "exec rm x",
        "nice -5 rm x",
        "ls\nrm x",
    ],
)
def test_denied_command_is_found_anywhere_in_a_line(line: str) -> None:
    assert judge(bash(line), deny=("bash(rm *)",), allow=("bash",)) == "deny"


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("x=push; git $x", "ask"),
        ("$(echo git) push", "ask"),
        ("/usr/bin/git p$x", "ask"),
        ("git pu{sh,}", "ask"),
        ('eval "git $x"', "ask"),
        ('bash -c "git $x"', "ask"),
        ('bash -c "git push $x"', "deny"),
        ("echo push | xargs git", "ask"),
        ("cat > f <<'E'\nhello\nE\ngit $x", "ask"),
        ("ls\rgit push", "ask"),
        ("git push" + " x" * 5_000, "ask"),
        ('git commit -m "$x"', "allow"),
        ("for f in *; do wc $f; done", "allow"),
        ("cat > f <<'E'\ngit push\nE\nls 'a b'", "allow"),
        ("ls | xargs rm", "allow"),
    ],
)
def test_possibly_denied_command_asks_even_if_everything_is_allowed(line: str, decision: str) -> None:
    assert judge(bash(line), deny=("bash(git push *)",), allow=("bash",)) == decision
    found = judge(bash(line), ask=("bash(git push *)",), allow=("bash",))
    assert found == ("allow" if decision == "allow" else "ask")
    assert judge(bash(line), allow=("bash",)) == "allow"


def test_git_options_do_not_hide_the_subcommand() -> None:
    for line in (
        "git push",
        "git -C x push",
        "git -c a=b push origin",
        "git --no-pager push",
        "/usr/bin/git -C / push",
    ):
        assert judge(bash(line), deny=("bash(git push *)",)) == "deny", line
    assert judge(bash("git status"), ask=("bash(git *)",)) == "ask"


def test_a_redirection_is_a_write() -> None:
    allowed = ("bash(make *)", "write(out/**)")
    assert judge(bash("make > out/log"), allow=allowed) == "allow"
    assert judge(bash("make > log"), allow=allowed) == "ask"
    assert judge(bash("make > out/../log"), allow=allowed) == "ask"
    assert judge(bash("cd x && make > out/log"), allow=allowed) == "ask"


def test_dangerous_calls_ask_unless_a_rule_names_them() -> None:
    hook = file("write", "/w/.git/hooks/pre-commit")
    assert judge(hook, allow=("write",)) == "ask"
    assert judge(file("edit", "/w/sub/.git/config"), allowed_tools=("edit",)) == "ask"
    assert judge(hook, allow=("write(.git/hooks/*)",)) == "allow"
    assert judge(bash("curl x"), allow=("bash", "bash(curl *)")) == "allow"
    assert judge(bash("sudo make"), allow=("bash", "bash(sudo *)")) == "allow"
    assert judge(bash("sudo curl x"), allow=("bash", "bash(sudo *)")) == "ask"


def test_address_rules() -> None:
    rule = ("fetch(https://example.org/*)",)
    assert judge(address("fetch", "https://example.org/a"), allow=rule) == "allow"
    assert judge(address("fetch", "https://example.com/a"), allow=rule) == "ask"
    assert judge(address("fetch", "https://example.org/a"), deny=rule, allow=("fetch",)) == "deny"
    assert judge(address("fetch", "https://example.org/a"), allow=("fetch(**)",)) == "allow"


def test_shell_outside_the_workspace_asks() -> None:
    assert judge(bash("ls", "/etc")) == "ask"
    assert judge(bash("ls", "/w/src")) == "allow"
    assert judge(bash("git status", "/w/src")) == "ask"


@pytest.mark.parametrize(
    ("lists", "named"),
    [
        ({"allow": ("bash(git status",)}, "bash(git status"),
        ({"deny": ("bash()",)}, "bash()"),
        ({"ask": ("bash(echo 'a)",)}, "bash(echo 'a)"),
        ({"allow": ("bash(make *)", "bash(a && b)")}, "bash(a && b)"),
        ({"allowed_tools": ("write:read",)}, "write:read"),
        ({"allow": ("",)}, "''"),
        ({"allowed_tools": ("a b",)}, "a b"),
        ({"deny": ("write(",)}, "write("),
    ],
)
def test_invalid_rule_is_reported(lists: dict[str, tuple[str, ...]], named: str) -> None:
    with pytest.raises(BadRule) as caught:
        RuleSet(PermissionSettings(**lists), ROOT)
    assert named in str(caught.value)
    assert "permissions." in str(caught.value)


def test_rule_saved_by_always_allow() -> None:
    rules = RuleSet(PermissionSettings(), ROOT)
    assert rules.judge(bash("ls && git push origin 'a b'")).saves == ("bash(git push origin 'a b') in /w",)
    assert rules.judge(bash("make; make; npm test")).saves == ("bash(make) in /w", "bash(npm test) in /w")
    assert rules.judge(bash("cd src && make")).saves == ("bash(make) in /w/src",)
    assert rules.judge(bash("./run.sh", "/w/a (b)")).saves == (
        'bash(./run.sh) in "/w/a (b\\u0029" using "/w/a (b\\u0029/run.sh"',
    )
    assert rules.judge(bash("rm *.py")).saves == ("bash(= rm *.py) in /w",)
    assert rules.judge(bash("make > out")).saves == ("bash(= make > out) in /w using /w/out",)
    assert rules.judge(bash("rm 'a*'")).saves == ("bash(rm 'a[*]') in /w",)
    assert rules.judge(file("write", "/w/src/a[1].txt")).saves == ("write:write(src/a[[]1].txt)",)
    assert rules.judge(file("write", "/etc/x")).saves == ("write:write(/etc/x)",)
    assert rules.judge(address("fetch", "https://a/?q=*")).saves == ("fetch:fetch(https://a/?q=%2A)",)
    assert rules.judge(Permit("mcp_x_y", "execute", ROOT, "", {})).saves == ("mcp_x_y:execute",)
    download = Permit("download", "download", "/w/f", "", {"url": "https://a/b", "file_path": "/w/f"})
    assert rules.judge(download).saves == ("download:download(https://a/b) to /w/f",)
    resource = Permit("read_mcp_resource", "read", ROOT, "", {"mcp_name": "docs", "uri": "x://a)"})
    assert rules.judge(resource).saves == ('read_mcp_resource:read with {"mcp_name": "docs", "uri": "x://a\\u0029"}',)
    for permit in (
        file("write", "/w/src/a[1].txt"),
        address("fetch", "https://a/?q=*"),
        address("fetch", "https://a/%252e%252e/x;y"),
        bash("rm 'a*'"),
        bash("./run.sh", "/w/a (b)"),
        bash("make > out"),
        download,
        resource,
    ):
        assert judge(permit, allow=rules.judge(permit).saves) == "allow", permit
    assert judge(bash("rm ab"), allow=rules.judge(bash("rm 'a*'")).saves) == "ask"


@pytest.mark.parametrize(
    ("rule", "permit"),
    [
        ("bash(rm)", bash("rm -rf x")),
        ("bash(git push --force)", bash("git push --force origin main")),
        ("bash(/bin/rm *)", bash("rm x")),
        ("write(src)", file("write", "/w/src/a")),
        ("write(src/)", file("write", "/w/src/a/b")),
        ("write(./src/**)", file("write", "/w/src/a")),
        ("write(../other/**)", file("write", "/other/a")),
        ("write(src//a)", file("write", "/w/src/a")),
        ("view(~/.ssh/**)", file("view", "/home/u/.ssh/id", "read")),
        ("Read(~/.ssh)", file("view", "/home/u/.ssh/id", "read")),
        ("Read(.env)", file("view", "/w/deep/.env", "read")),
        ("Read(.env)", Permit("grep", "list", "/w/.env", "", {"path": "/w/.env"})),
        ("Edit(/docs/**)", file("write", "/w/docs/a")),
        ("Edit(/docs/**)", file("multiedit", "/docs/a")),
        ("Edit(//docs/**)", file("edit", "/docs/a")),
        ("Write(docs/**)", file("edit", "/w/docs/a")),
        ("View(src/**)", file("view", "/w/src/a", "read")),
        ("mcp__Tracker__create", Permit("mcp_tracker_create", "execute", ROOT, "", {})),
        ("mcp__tracker", Permit("mcp_tracker_create", "execute", ROOT, "", {})),
        ("mcp_my.server_x", Permit("mcp_my_server_x", "execute", ROOT, "", {})),
        ("WebFetch(domain:example.org)", address("fetch", "http://EXAMPLE.org:8080/x?y")),
        ("fetch(https://example.org)", address("fetch", "https://example.org/a/b?c")),
        ("fetch(*)", address("fetch", "https://example.org/")),
        ("crush_logs", Permit("holdfast_logs", "use", ROOT, "", {}, is_agreed=True)),
    ],
)
def test_deny_rule_is_matched_broadly(rule: str, permit: Permit) -> None:
    everything = ("bash", "write", "edit", "multiedit", "view", "fetch", "mcp_*")
    rules = RuleSet(PermissionSettings(deny=(rule,), allow=everything), ROOT, home="/home/u")
    assert rules.judge(permit).decision == "deny"


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("timeout", "timeout 5 make"),
        ("timeout", "/usr/bin/timeout 5 make"),
        ("timeout", "nice timeout 5 make"),
        ("timeout", "sh -c 'nice timeout 5 make'"),
        ("env", "env A=1 make"),
        ("env", "ls; env A=1 make"),
        ("xargs", "ls | xargs make"),
        ("sh", "sh -c ls"),
        ("bash", "timeout 5 bash -c 'ls; ls'"),
        ("command", "command make"),
        ("time", "time make"),
        ("find", "find . -exec make {} +"),
        ("sudo", "sudo make"),
    ],
)
def test_programs_that_run_others_can_be_denied(program: str, line: str) -> None:
    assert judge(bash(line), deny=(f"bash({program} *)",), allow=("bash", f"bash({program} *)")) == "deny"
    assert judge(bash("make all"), deny=(f"bash({program} *)",), allow=("bash",)) == "allow"
