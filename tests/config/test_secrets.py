"""No key is ever shown."""

import logging
import traceback

import pytest

from config.settings_files import SettingsFiles
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials, Token
from holdfast.config.line_numbers import KeyPath
from holdfast.config.redaction import is_named_secret, is_secret, redact, redact_value
from holdfast.config.variables import ExpansionFailed

CANARY = "hunter2canaryhunter2"

EVERYWHERE = f"""
[providers.p]
api_key = "{CANARY}"
base_url = "https://user:{CANARY}@host/v1?api_key={CANARY}&x=1"
extra_headers = {{Authorization = "Bearer {CANARY}", X-Other = "{CANARY}"}}
extra_body = {{token = "{CANARY}"}}
oauth = {{access_token = "{CANARY}", refresh_token = "{CANARY}"}}
[providers.q]
api_key = "${{NONE:-{CANARY}}}"
[mcp.m]
command = "run --token {CANARY}"
args = ["--api-key", "{CANARY}", "--token={CANARY}", "-H", "Authorization: Bearer {CANARY}"]
env = {{ANY = "{CANARY}"}}
headers = {{X-Key = "{CANARY}"}}
oauth_client_secret = "{CANARY}"
[lsp.l]
env = {{ANY = "{CANARY}"}}
[env]
ANY = "{CANARY}"
[[hooks.Stop]]
command = "TOKEN={CANARY} curl -H 'X-Api-Key: {CANARY}' https://x"
"""


@pytest.fixture
def full(files: SettingsFiles) -> Configuration:
    files.write_user(EVERYWHERE)
    configuration = files.open()
    assert configuration.problems == ()
    return configuration


def test_no_view_contains_a_secret(full: Configuration) -> None:
    assert CANARY not in str(redact(full.snapshot().tree))


def test_no_repr_contains_a_secret(full: Configuration) -> None:
    settings = full.current()
    reading = full.snapshot()
    things = [settings, *settings.providers.values(), *settings.mcp.values(), *settings.lsp.values(), reading, full]
    things += [*settings.hooks["Stop"], settings.providers, full.provider("p"), *vars(full)["_loaded"].values()]
    things += [Token(CANARY, CANARY), Credentials("/x")]
    assert [thing for thing in things if CANARY in repr(thing) or CANARY in str(thing)] == []


def test_no_error_contains_a_secret(files: SettingsFiles, caplog: pytest.LogCaptureFixture) -> None:
    """Every value under a wrong key, and a file truncated in the middle of a value."""
    wrong = f'[options]\nmax_steps = "{CANARY}"\n[mcp.m]\ntype = "{CANARY}"\n[providers.p]\ntype = "{CANARY}"\n'
    for text in (wrong, f'[providers.p]\napi_key = "{CANARY}', f'api_key = "{CANARY}"\napi_key = "{CANARY}"\n{CANARY}'):
        files.write_user(text)
        configuration = files.open()
        assert configuration.problems
        assert CANARY not in "".join(map(str, configuration.problems))
    assert CANARY not in caplog.text


def test_no_failed_expansion_contains_a_secret(files: SettingsFiles) -> None:
    files.environment["SECRET"] = CANARY
    files.write_user(
        "[providers.p]\napi_key = '$SECRET$NONE'\nbase_url = '$(echo $SECRET; echo $SECRET >&2; exit 1)'\n"
    )
    configuration = files.open()
    _, problems = configuration.provider("p")
    assert len(problems) == 2
    assert CANARY not in "".join(map(str, problems))
    try:
        configuration.expand("$SECRET$NONE", ("providers", "p", "api_key"))
    except ExpansionFailed:
        logging.getLogger().exception("x")
        assert CANARY not in traceback.format_exc()


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        (("providers", "p", "api_key"), "$OPENAI_API_KEY", "$OPENAI_API_KEY"),
        (("providers", "p", "api_key"), "${K:-}", "${K:-}"),
        (("providers", "p", "api_key"), "$(pass show openai)", "$(pass show openai)"),
        (("providers", "p", "api_key"), "", ""),
        (("providers", "p", "api_key"), "abc", "set"),
        (("providers", "p", "api_key"), "abc$X", "set$X"),
        (("providers", "p", "api_key"), "${open", "set"),
        (("mcp", "m", "headers", "Authorization"), "Bearer $T", "Bearer $T"),
        (("providers", "p", "base_url"), "http://localhost:11434/v1", "http://localhost:11434/v1"),
        (("models", "large", "max_tokens"), 5, 5),
        (("models", "large", "model"), "gpt-5-2024-token", "gpt-5-2024-token"),
        (("options", "context_paths", 0), "docs/keys.md", "docs/keys.md"),
        (("permissions", "deny", 0), "bash(git push *)", "bash(git push *)"),
        (("providers", "p", "oauth", "expires_at"), 17, 17),
        (("providers", "p", "oauth", "pin"), 17, "set"),
        (("mcp", "m", "args", 0), "sk-proj-abcdefghij", "set"),
    ],
)
def test_placeholder_of_a_secret(path: KeyPath, value: object, shown: object) -> None:
    assert redact_value(value, path) == shown


def test_names_of_secrets() -> None:
    assert is_secret(("providers", "p", "api_key"))
    assert is_secret(("env", "PLAIN"))
    assert not is_named_secret(("env", "PLAIN"))
    assert is_named_secret(("env", "GITHUB_TOKEN"))
    assert not is_secret(("models", "large", "max_tokens"))
    assert not is_secret(("providers", "p", "aws_auth_refresh"))
