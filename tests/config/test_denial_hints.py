"""Mistakes in settings that may hide a deny rule, and renewed tokens: a row for each clause."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import validate
from holdfast.config.credentials import Credentials, SignInRequired, Token, TokenRefresher
from holdfast.domain.errors import HoldfastError, ProviderError
from planting import CLAUSES, assert_every_clause_decides

UNKNOWN: list[tuple[tuple[str | int, ...], object, bool]] = [
    (("permissions", "deny_all"), None, True),
    (("permissions", "denny"), None, True),
    (("permissions", "odd"), None, True),
    (("permissions", "alow"), None, False),
    (("permissions", "allowed_tool"), None, False),
    (("permissions", "disallowed_tools"), None, True),
    (("permision",), None, True),
    (("disallow",), None, True),
    (("options", "forbidden"), None, True),
    (("deny", "odd"), None, False),
    (("deny",), None, True),
    (("odd", 0), None, False),
    (("odd",), None, False),
    (("odd",), {"deny": []}, True),
    (("odd",), {"x": {"deny": []}}, True),
    (("odd",), {"x": 1}, False),
    (("odd",), [{"deny": 1}], True),
    (("odd",), [{"x": 1}], False),
    (("odd",), "deny", False),
]
KNOWN: list[tuple[tuple[str | int, ...], bool]] = [
    (("permissions",), True),
    (("permissions", "deny"), True),
    (("permissions", "deny", 0), True),
    (("permissions", "allow"), False),
    (("permissions", "allow", 0), False),
    (("deny",), False),
    (("options", "deny"), False),
]


def check_hints() -> None:
    for path, value, expected in UNKNOWN:
        assert validate.hides_denial(path, value, is_unknown=True) == expected, (path, value)
    for path, expected in KNOWN:
        assert validate.hides_denial(path) == expected, path
        assert validate.hides_denial(path, {"deny": []}) == expected, path


def test_every_clause_about_hidden_denials_decides() -> None:
    functions = (validate.hides_denial, validate._mentions_denial)
    assert_every_clause_decides(functions, check_hints, kinds=(*CLAUSES, "comparison", "exit", "argument"))


# Tokens

NOW = 1_000.0
OLD = Token("old", "refresh", 0.0, "https://id.test/token", "client", "secret", "https://r.test")


class _SafeError(HoldfastError):
    """An error of this project: its text contains no secret."""


async def renew(tmp_path: Path, answer: Any, token: Token = OLD, used: str = "old") -> tuple[Token, list[Any]]:  # noqa: ANN401
    credentials = Credentials(str(tmp_path / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    credentials.put_token("p", token)
    refresher = TokenRefresher(credentials, now=lambda: NOW)
    sent: list[Any] = []

    async def post(url: str, form: Any) -> Any:  # noqa: ANN401
        sent.append((url, dict(form)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        fresh = await refresher._refresh("p", post, used)
    finally:
        await refresher.close()
    assert credentials.token("p") == fresh
    return fresh, sent


@pytest.mark.parametrize(
    ("answer", "access", "refresh", "expires"),
    [
        ({"access_token": "a"}, "a", "refresh", 0.0),
        ({"access_token": "a", "refresh_token": "r"}, "a", "r", 0.0),
        ({"access_token": "a", "refresh_token": ""}, "a", "refresh", 0.0),
        ({"access_token": "a", "refresh_token": 5}, "a", "refresh", 0.0),
        ({"access_token": "a", "expires_in": 60}, "a", "refresh", 1_060.0),
        ({"access_token": "a", "expires_in": 0.5}, "a", "refresh", 1_000.5),
        ({"access_token": "a", "expires_in": 0}, "a", "refresh", 0.0),
        ({"access_token": "a", "expires_in": True}, "a", "refresh", 0.0),
        ({"access_token": "a", "expires_in": "60"}, "a", "refresh", 0.0),
    ],
)
async def test_fields_of_a_renewed_token(
    tmp_path: Path,
    answer: Any,  # noqa: ANN401
    access: str,
    refresh: str,
    expires: float,
) -> None:
    fresh, sent = await renew(tmp_path, answer)
    assert fresh == Token(access, refresh, expires, OLD.token_url, "client", "secret", "https://r.test")
    form = {"grant_type": "refresh_token", "refresh_token": "refresh"}
    assert sent == [
        (OLD.token_url, form | {"client_id": "client", "client_secret": "secret", "resource": "https://r.test"})
    ]


async def test_empty_fields_are_not_sent(tmp_path: Path) -> None:
    _, sent = await renew(tmp_path, {"access_token": "a"}, Token("old", "r", 0.0, "https://id.test"))
    assert sent == [("https://id.test", {"grant_type": "refresh_token", "refresh_token": "r"})]


@pytest.mark.parametrize(
    ("token", "answer", "error"),
    [
        (OLD, {}, ProviderError),
        (OLD, {"access_token": ""}, ProviderError),
        (OLD, {"access_token": 5}, ProviderError),
        (OLD, {"error": "invalid_grant"}, SignInRequired),
        (OLD, {"error": "server_error"}, ProviderError),
        (Token("old", "", 0.0, "https://id.test"), {"access_token": "a"}, SignInRequired),
        (Token("old", "r", 0.0, ""), {"access_token": "a"}, SignInRequired),
        (OLD, _SafeError("no"), _SafeError),
    ],
)
async def test_token_that_cannot_be_renewed_is_kept(
    tmp_path: Path, token: Token, answer: object, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await renew(tmp_path, answer, token)
    assert type(caught.value) is error
    credentials = Credentials(str(tmp_path / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    assert credentials.token("p") == token


async def test_failure_of_the_library_does_not_quote_the_form(tmp_path: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        await renew(tmp_path, ValueError("the form: refresh"))
    assert str(caught.value) == "The token of p could not be refreshed (ValueError): try again."
    assert caught.value.trouble == "connection"


@pytest.mark.parametrize(
    ("expires", "used", "is_sent"),
    [
        (0.0, "other", False),
        (NOW + 1, "other", False),
        (NOW, "other", True),
        (0.0, "old", True),
        (0.0, "", True),
        (NOW + 1, "", True),
    ],
)
async def test_token_renewed_by_another_process_is_adopted(
    tmp_path: Path, expires: float, used: str, is_sent: bool
) -> None:
    token = Token("old", "r", expires, "https://id.test")
    fresh, sent = await renew(tmp_path, {"access_token": "a"}, token, used)
    assert bool(sent) == is_sent
    assert fresh.access_token == ("a" if is_sent else "old")
