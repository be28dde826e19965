"""Redaction of secrets: each clause of each pattern decides a result."""

from typing import Any

import pytest

from holdfast.config import redaction
from holdfast.config.line_numbers import KeyPath
from holdfast.config.redaction import is_named_secret, is_secret, redact
from planting import assert_every_clause_decides

PLAIN: KeyPath = ("mcp", "m", "command")
LONG = "abcdefgh"
DESCRIPTIONS: tuple[tuple[str, str], ...] = (
    # Keys with a known prefix.
    *(
        (f"{head}-{LONG}", "set")
        for head in ("sk", "pk", "rk", "xai", "gsk", "hf", "csk", "fw", "nvapi", "tgp", "pplx")
    ),
    *((f"x {head}_{LONG} y", "x set y") for head in ("ghp", "gho", "ghu", "ghs", "glpat", "github_pat")),
    *((f"xox{letter}-{LONG}", "set") for letter in "abprs"),
    ("sk-abcdefg", "sk-abcdefg"),
    ("task-abcdefgh", "task-abcdefgh"),
    ("AIza" + "a" * 20, "set"),
    ("AIza" + "a" * 19, "AIza" + "a" * 19),
    ("AKIA" + "A" * 12, "set"),
    ("ASIA" + "A" * 12, "set"),
    ("AKIA" + "A" * 11, "AKIA" + "A" * 11),
    ("eyJ" + "a" * 10 + ".b", "set"),
    ("eyJ" + "a" * 10, "eyJ" + "a" * 10),
    # Headers.
    ("Bearer abcdef", "Bearer set"),
    ("BASIC abcdef", "BASIC set"),
    ("bearer abcde", "bearer abcde"),
    ("bearer $TOKEN", "bearer $TOKEN"),
    # Addresses.
    ("https://me:pw@host/x", "https://set@host/x"),
    ("https://host/a@b", "https://host/a@b"),
    ("me@host", "me@host"),
    # Names with a value.
    *((f"?{name}=abc&b=1", f"?{name}=set&b=1") for name in ("key", "api_key", "token", "secret", "password", "passwd")),
    *((f"{name}: abc", f"{name}: set") for name in ("signature", "authorization", "X-API-KEY")),
    ("author: abc", "author: abc"),
    ("key=$KEY", "key=$KEY"),
    ("authorization: bearer abcdef", "authorization: bearer set"),
    # Options.
    *((f"run --{name} abc x", f"run --{name} set x") for name in ("api-key", "token", "secret", "password", "auth")),
    ("run -token abc", "run -token set"),
    ("run --token --other", "run --token --other"),
    ("run --token $T", "run --token $T"),
    ("run --name abc", "run --name abc"),
    ("run x--token abc", "run x--token abc"),
)
TREES: tuple[tuple[Any, Any], ...] = (
    # Names.
    ({"providers": {"p": {"api_key": "abc"}}}, {"providers": {"p": {"api_key": "set"}}}),
    ({"providers": {"p": {"api_key": ""}}}, {"providers": {"p": {"api_key": ""}}}),
    ({"providers": {"p": {"api_key": 5}}}, {"providers": {"p": {"api_key": "set"}}}),
    ({"providers": {"p": {"api_key": None}}}, {"providers": {"p": {"api_key": None}}}),
    ({"providers": {"p": {"api_key": True}}}, {"providers": {"p": {"api_key": True}}}),
    ({"providers": {"p": {"name": 5}}}, {"providers": {"p": {"name": 5}}}),
    ({"api_key": "abc"}, {"api_key": "abc"}),
    ({"env": {"PLAIN": "abc"}}, {"env": {"PLAIN": "set"}}),
    ({"mcp": {"m": {"headers": {"x": "abc"}}}}, {"mcp": {"m": {"headers": {"x": "set"}}}}),
    ({"providers": {"p": {"extra_headers": {"x": "abc"}}}}, {"providers": {"p": {"extra_headers": {"x": "set"}}}}),
    ({"providers": {"p": {"oauth": {"x": "abc"}}}}, {"providers": {"p": {"oauth": {"x": "set"}}}}),
    ({"mcp": {"m": {"oauth_token": {"x": "abc"}}}}, {"mcp": {"m": {"oauth_token": {"x": "set"}}}}),
    ({"mcp": {"env": {"command": "abc"}}}, {"mcp": {"env": {"command": "set"}}}),
    ({"a": {"env": "abc"}}, {"a": {"env": "abc"}}),
    *(
        ({"mcp": {"m": {"oauth_token": {name: "abc"}}}}, {"mcp": {"m": {"oauth_token": {name: "abc"}}}})
        for name in ("token_url", "auth_url", "client_id", "expires_at", "expires_in", "auth_style")
    ),
    ({"p": {"aws_auth_refresh": "abc"}}, {"p": {"aws_auth_refresh": "abc"}}),
    ({"models": {"large": {"max_tokens": 5}}}, {"models": {"large": {"max_tokens": 5}}}),
    ({"p": {"default_max_tokens": 5}}, {"p": {"default_max_tokens": 5}}),
    # Templates name the source of a secret, not the secret.
    ({"env": {"A": "$B"}}, {"env": {"A": "$B"}}),
    ({"env": {"A": "token $B"}}, {"env": {"A": "token $B"}}),
    ({"env": {"A": "abc$B"}}, {"env": {"A": "set$B"}}),
    ({"env": {"A": "${B:-abc}"}}, {"env": {"A": "${B:-set}"}}),
    ({"env": {"A": "${B:-}"}}, {"env": {"A": "${B:-}"}}),
    ({"env": {"A": "$(run --token abc)"}}, {"env": {"A": "$(run --token set)"}}),
    ({"env": {"A": "${open"}}, {"env": {"A": "set"}}),
    ({"env": {"A": "$$5"}}, {"env": {"A": "set"}}),
    # Arguments.
    *(
        ({"a": [f"--{name}", "abc", "d"]}, {"a": [f"--{name}", "set", "d"]})
        for name in ("api-key", "token", "secret", "password", "auth", "credential", "credentials", "header")
    ),
    ({"a": ["--header=abc"]}, {"a": ["--header=set"]}),
    ({"a": ["--header=$T"]}, {"a": ["--header=$T"]}),
    ({"a": ["--header=x", "abc"]}, {"a": ["--header=set", "abc"]}),
    ({"a": ["--header", "--other", "abc"]}, {"a": ["--header", "--other", "abc"]}),
    ({"a": ["--header", "$T"]}, {"a": ["--header", "$T"]}),
    ({"a": ["--header", 5, "abc"]}, {"a": ["--header", 5, "abc"]}),
    ({"a": ["header", "abc"]}, {"a": ["header", "abc"]}),
    # The paths of a saved rule are shown; the rule itself is not.
    (
        {"permissions": {"allow": ["bash(run --token abc) in /x/sk-abcdefgh"]}},
        {"permissions": {"allow": ["bash(run --token set) in /x/sk-abcdefgh"]}},
    ),
    (
        {"permissions": {"allow": ["download(https://x/?key=abc) to /x/sk-abcdefgh"]}},
        {"permissions": {"allow": ["download(https://x/?key=set) to /x/sk-abcdefgh"]}},
    ),
    ({"permissions": {"allow": ["bash(x) at /x/sk-abcdefgh"]}}, {"permissions": {"allow": ["bash(x) at /x/set"]}}),
    ({"options": {"x": ["bash(x) in /x/sk-abcdefgh"]}}, {"options": {"x": ["bash(x) in /x/set"]}}),
)
NAMES: tuple[tuple[KeyPath, bool, bool], ...] = (
    *(
        (("p", name), True, True)
        for name in ("api_key", "api-key", "apikey", "access_key", "accesskey", "key", "token")
    ),
    *((("p", name), True, True) for name in ("secret", "password", "passwd", "authorization", "auth", "cookie")),
    *(
        (("p", name), True, True)
        for name in ("credential", "credentials", "bearer", "pat", "X-Key", "a.token", "A_PAT")
    ),
    *((("p", name), False, False) for name in ("monkey", "keys", "path", "author", "tokens")),
    (("key",), False, False),
    ((), False, False),
    ((0,), False, False),
    (("env", "PLAIN"), True, False),
    (("env", "TOKEN", 0), True, True),
    (("oauth", "client_id", 0), False, False),
)


@pytest.mark.parametrize(("text", "shown"), DESCRIPTIONS)
def test_redaction_of_texts(text: str, shown: str) -> None:
    assert redact(text, PLAIN) == shown


@pytest.mark.parametrize(("tree", "shown"), TREES)
def test_redaction_of_trees(tree: object, shown: object) -> None:
    assert redact(tree) == shown


@pytest.mark.parametrize(("path", "secret", "named"), NAMES)
def test_secret_names(path: KeyPath, secret: bool, named: bool) -> None:
    assert (is_secret(path), is_named_secret(path)) == (secret, named)


def test_every_clause_decides() -> None:
    def check() -> None:
        assert [redact(text, PLAIN) for text, _ in DESCRIPTIONS] == [shown for _, shown in DESCRIPTIONS]
        assert [redact(tree) for tree, _ in TREES] == [shown for _, shown in TREES]
        assert [(is_secret(path), is_named_secret(path)) for path, _, _ in NAMES] == [row[1:] for row in NAMES]

    lost = "len(names) > 1 and re.search(_SECRET_NAME, names[-1]) is not None"
    whole = "len(names) > 1 and names[-1] not in _NOT_SECRET and (re.search(_SECRET_NAME, names[-1]) is not None)"
    assert_every_clause_decides(
        [redaction], check, equivalent={f"{whole} -> {lost}": "none of the names that hold no secret fits the pattern"}
    )
