"""The text of permission rules and the calls they match: each clause of the parser and of the match decides a row."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain import permission_rules
from holdfast.domain.approvals import Decision
from holdfast.domain.permission_rules import BadRule, Rule, Scope, parse_rules
from holdfast.domain.tools import Permit
from holdfast.domain.url_patterns import parse_address
from planting import CLAUSES, assert_every_clause_decides

TEXT = Path(__file__).with_name("permission_rules.txt").read_text("utf-8")
PARSED: list[tuple[Decision, str, str]] = [
    json.loads(line) for line in TEXT.splitlines() if line and not line.startswith("#")
]
KINDS = CLAUSES | {"comparison", "exit", "branch", "element"}


def described(rule: Rule) -> str:
    words = [rule.subject, ":".join((rule.tool, *rule.actions))]
    words += [repr(rule.pattern)] if rule.pattern else []
    words += [repr([*rule.words])] if rule.words else []
    assert (rule.address is not None) == (rule.subject == "address")
    return " ".join(words) + str(rule.scope or "")


def parsed(effect: Decision, text: str) -> str:
    try:
        return " + ".join(map(described, parse_rules(text, effect)))
    except BadRule as error:
        return f"! {str(error).partition(' as it is written: ')[2]}"


def test_rules_are_parsed() -> None:
    for effect, text, meaning in PARSED:
        assert parsed(effect, text) == meaning, text


def test_long_rules_are_shortened_in_complaints() -> None:
    for length in (80, 81):
        with pytest.raises(BadRule) as caught:
            parse_rules("x" * length, "allow")
        shown = "x" * 80 if length == 80 else "x" * 77 + "..."
        assert str(caught.value).startswith(f"The rule {shown!r} in permissions.allow has no effect")


def test_every_clause_of_the_parser_decides() -> None:
    def check() -> None:
        test_rules_are_parsed()
        test_long_rules_are_shortened_in_complaints()

    functions = [
        permission_rules._Reader,
        permission_rules._strip_quotes,
        permission_rules._claude_paths,
        permission_rules._unquote,
    ]
    equivalent = {
        "found[2] or '' -> found[2]": "both are false",
        "posixpath.basename(words[0]) or words[0] -> posixpath.basename(words[0])": "`/` is refused",
        "not words or not words[0] -> not words[0]": "a pattern that is not blank has a word",
        "plain == pattern and '/' not in pattern.rstrip('/') -> '/' not in pattern.rstrip('/')": "`./` has a slash",
    }
    assert_every_clause_decides(functions, check, equivalent, KINDS)


# Matches: rule, value, whether a rule that allows matches, and whether one that denies does.

COMMANDS = [
    ("bash(a)", "a", 1, 1),
    ("bash(a)", "a b", 0, 1),
    ("bash(a)", "b a", 0, 0),
    ("bash(a)", "", 0, 0),
    ("bash(a *)", "a", 1, 1),
    ("bash(a *)", "a b c", 1, 1),
    ("bash(a * c)", "a c", 1, 1),
    ("bash(a * c)", "a c b c", 1, 1),
    ("bash(a * c)", "a c b", 0, 1),
    ("bash(a * b * c)", "a x b y b z c", 1, 1),
    ("bash(a * b * c)", "a x c", 0, 0),
    ("bash(a * b c)", "a b b c", 1, 1),
    ("bash(a b*)", "a bc", 1, 1),
    ("bash(a b*)", "a c", 0, 0),
    ("bash(a * *)", "a", 1, 1),
    ("bash(a * b)", "a", 0, 0),
    ("bash(* b)", "a b", 1, 1),
    ("bash", "a", 0, 0),
    ("bash(= a)", "a", 0, 0),
    ("write(a)", "", 0, 0),
]
OPEN_COMMANDS = [
    ("bash(a)", "a", 0, 1),
    ("bash(a *)", "a", 1, 1),
    ("bash(a *)", "b", 0, 0),
    ("bash(a b*)", "a b", 0, 1),
    ("write(a)", "a", 0, 0),
]
POSSIBLE_COMMANDS = [
    ("bash(a)", "", 1, 1),
    ("bash(a)", "a b", 0, 1),
    ("bash(a b)", "a", 1, 1),
    ("bash(a b)", "b", 0, 0),
    ("bash(a b c)", "a x", 0, 0),
    ("bash(* b)", "x", 1, 1),
    ("bash(a *)", "a x y", 1, 1),
    ("bash(= a)", "a", 0, 0),
    ("write(a)", "", 0, 0),
]
LINES = [
    ("bash(= a | b)", " a | b\n", 1, 1),
    ("bash(= a | b)", "a | c", 0, 0),
    ("bash(a)", "a", 0, 0),
    ("write(a)", "a", 0, 0),
]
PATHS = [
    ("write(a)", "/w/a", 1, 1),
    ("write(a)", "/w/b", 0, 0),
    ("write(a)", "/a", 0, 0),
    ("write(a)", "/w/a/b", 0, 1),
    ("write(a)", "/w/ab", 0, 0),
    ("write(/a)", "/a", 1, 1),
    ("write(a/)", "/w/a/b", 1, 1),
    ("write(a/**)", "/w/a/b/c", 1, 1),
    ("write(a/**)", "/w/a", 1, 1),
    ("write(a/**)", "/w/ab", 0, 0),
    ("write(a/*)", "/w/a/b", 1, 1),
    ("write(a/*)", "/w/a/b/c", 0, 0),
    ("write(**/a)", "/w/a", 1, 1),
    ("write(**/a)", "/w/x/y/a", 1, 1),
    ("write(**/a)", "/w/xa", 0, 0),
    ("write(a/**/b)", "/w/a/b", 1, 1),
    ("write(a/**/b)", "/w/ab", 0, 0),
    ("write(a/**b)", "/w/ab", 0, 0),
    ("write(a/**b)", "/w/a/x/yb", 1, 1),
    ("write(a**b)", "/w/ax/yb", 1, 1),
    ("write(a?)", "/w/ab", 1, 1),
    ("write(a?)", "/w/a", 0, 0),
    ("write(a?)", "/w/ab/c", 0, 0),
    ("write(a?b)", "/w/a/b", 0, 0),
    ("write(a*)", "/w/ab/c", 0, 0),
    ("write(a*)", "/w/a\nb", 1, 1),
    ("write(a*/b)", "/w/ax/b/c", 0, 1),
    ("write([ab])", "/w/a", 1, 1),
    ("write([ab])", "/w/c", 0, 0),
    ("write([ab])", "/w/a/b", 0, 0),
    ("write([!ab])", "/w/c", 1, 1),
    ("write([!ab])", "/w/a", 0, 0),
    ("write([^a])", "/w/c", 1, 1),
    ("write([^a])", "/w/a", 0, 0),
    ("write([a-c])", "/w/b", 1, 1),
    ("write([a-])", "/w/-", 1, 1),
    ("write([]a])", "/w/]", 1, 1),
    ("write([!]a])", "/w/b", 1, 1),
    ("write([!]a])", "/w/]", 0, 0),
    ("write([!]a)", "/w/[!]a", 1, 1),
    ("write([^]a)", "/w/[^]a", 1, 1),
    ("write([a)", "/w/[a", 1, 1),
    ("write([[]a)", "/w/[a", 1, 1),
    ("write([[]a)", "/w/[a/b", 0, 1),
    ("write([a&&b||c~~d])", "/w/&", 1, 1),
    ("write(a.b)", "/w/axb", 0, 0),
    ("write(../a)", "/a", 1, 1),
    ("write(~/a)", "/h/a", 1, 1),
    ("write(~/a)", "/w/~/a", 0, 0),
    ("write", "/w/a", 0, 0),
    ("bash(a)", "/w/a", 0, 0),
]
ADDRESSES = [
    ("fetch(https://a/b)", "https://a/b", 1, 1),
    ("fetch(https://a/b)", "https://a/c", 0, 0),
    ("fetch(https://a/b)", "", 0, 1),
    ("fetch(domain:a)", "http://a:81/x", 0, 1),
    ("fetch", "https://a/b", 0, 0),
    ("fetch", "", 0, 0),
]
TOOLS = [
    ("write", "write:write", 1, 1),
    ("write", "WRITE:write", 0, 1),
    ("write", "edit:write", 0, 0),
    ("write:write", "write:execute", 0, 0),
    ("lsp_*", "lsp_rename:write", 1, 1),
    ("bash:exec*", "bash:execute", 1, 1),
    ("mcp_X_y", "mcp_x_Y:execute", 0, 1),
    ("Edit", "mcp_x:download", 0, 1),
]
NAMING = [
    ("bash", "", 0, 0),
    ("bash(*)", "", 0, 0),
    ("bash(* a)", "", 0, 0),
    ("bash(a *)", "", 1, 1),
    ("bash(= *)", "", 0, 0),
    ("write(*)", "", 0, 0),
    ("write(**)", "", 0, 0),
    ("write(/**)", "", 0, 0),
    ("write(a)", "", 1, 1),
    ("fetch(https://a/)", "", 1, 1),
]


def permit(text: str) -> Permit:
    tool, action = text.split(":")
    return Permit(tool, action, "", "", {})


MATCHES: dict[str, tuple[Callable[[Rule, str], bool], list[tuple[str, str, int, int]]]] = {
    "command": (lambda rule, value: rule.fits_command(value.split()), COMMANDS),
    "open command": (lambda rule, value: rule.fits_command(value.split(), is_open=True), OPEN_COMMANDS),
    "possible command": (lambda rule, value: rule.may_fit(value.split()), POSSIBLE_COMMANDS),
    "line": (Rule.fits_line, LINES),
    "path": (lambda rule, value: rule.fits_path("/w", value, "/h"), PATHS),
    "address": (lambda rule, value: rule.fits_address(parse_address(value) if value else None), ADDRESSES),
    "tool": (lambda rule, value: rule.is_about(permit(value)), TOOLS),
    "naming": (lambda rule, _: rule.is_naming, NAMING),
}


@pytest.mark.parametrize("kind", MATCHES)
def test_rule_matches(kind: str) -> None:
    matches, rows = MATCHES[kind]
    for text, value, *expected in rows:
        found = [any(matches(rule, value) for rule in parse_rules(text, effect)) for effect in ("allow", "deny")]
        assert found == [bool(item) for item in expected], (text, value)


@pytest.mark.parametrize(
    ("effect", "text", "root", "path", "is_matched"),
    [
        ("allow", "write(a)", "/w[x]", "/w[x]/a", True),
        ("allow", "write(a)", "/w[x]", "/wx/a", False),
        ("allow", "write(a/*)", "/w*", "/wy/a/b", False),
        ("allow", "write(a)", "/w\\", "/w\\/a", True),
        ("deny", "write(a)", "/[id]", "/[id]/a/b", True),
        ("deny", "write(.)", "/w[x]", "/w[x]/a", True),
        ("deny", "write(.)", "/w?", "/w?/a", True),
        ("allow", "write(~/a)", "/w", "/h*/a", True),
        ("allow", "write(~/a)", "/w", "/hx/a", False),
    ],
)
def test_wildcards_in_the_names_of_directories_are_characters(
    effect: Decision, text: str, root: str, path: str, is_matched: bool
) -> None:
    assert [rule.fits_path(root, path, "/h*") for rule in parse_rules(text, effect)] == [is_matched]


def test_the_home_directory_may_be_unknown() -> None:
    (home,) = parse_rules("write(~/a)", "allow")
    assert not any(home.fits_path("/w", path) for path in ("/a", "/w/a", "/w/~/a"))
    (relative,) = parse_rules("write(a)", "allow")
    assert relative.fits_path("/w", "/w/a")


def test_a_scope_limits_a_rule() -> None:
    here, there = Scope("/x"), Scope("/y")
    for text in ("bash(a) in /x", "bash(= a) in /x"):
        (rule,) = parse_rules(text, "allow")
        for scope in (here, there, None):
            assert (rule.fits_command(["a"], scope=scope) or rule.fits_line("a", scope)) == (scope == here)
    (rule,) = parse_rules("bash in /x", "allow")
    assert rule.is_naming
    for text in ("bash(a)", "bash(= a)"):
        (rule,) = parse_rules(text, "allow")
        assert rule.fits_command(["a"], scope=here) or rule.fits_line("a", here)


NOTATIONS = {
    "bash": "bash",
    "bash:execute": "bash:execute",
    "bash(= a)": "bash(= a)",
    "Edit:write(a)": "edit:write(**/a)",
    "bash in /x": "bash in /x",
    "bash(= a) in /x": "bash(= a) in /x",
    'bash(a) in "/x y" using /a /b': 'bash(a) in "/x y" using /a /b',
    'download(https://a/) to "/c\\u0029" with {"a":1}': 'download(https://a/) to "/c\\u0029" with {"a": 1}',
    "fetch(domain:a)": "fetch(https://a/*)",
    'bash in "/é x"': 'bash in "/é x"',
    'bash in "/é\\u0007"': 'bash in "/\\u00e9\\u0007"',
}


def test_own_notation_of_a_rule() -> None:
    for text, notation in NOTATIONS.items():
        assert [rule.ours for rule in parse_rules(text, "allow")] == [notation]


def test_every_clause_of_a_match_decides() -> None:
    def check() -> None:
        for kind in MATCHES:
            test_rule_matches(kind)
        test_the_home_directory_may_be_unknown()
        test_a_scope_limits_a_rule()
        test_own_notation_of_a_rule()

    # `_fits_words` and `_path_pattern` are left out: many of their mutants do not end.
    functions = [
        Rule,
        Scope,
        permission_rules._quote_path,
    ]
    assert_every_clause_decides(functions, check, {}, KINDS)
