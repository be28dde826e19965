"""Exact texts of provider errors: source in the response, limits, and advice for each kind."""

import itertools
from typing import Any

import msgspec
import pytest

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.http11.client_connection import ConnectionRefused, RequestWatchdog
from holdfast.providers import provider_errors
from holdfast.providers.provider_errors import (
    ErrorContext,
    connection_error,
    credentials_error,
    error_in_stream,
    incomplete_error,
    redact,
    refused_error,
    stall_error,
    status_error,
)
from holdfast.testing.seeded_loop import in_virtual_time

ACCESS = ErrorContext("acme", "m", "http://acme.test/v1")
BARE = ErrorContext("acme")
LOCAL = ErrorContext("acme", base_url="http://127.0.0.1:1/v1")


def error_text(status: int, body: Any = b"", access: ErrorContext = ACCESS, **headers: str) -> str:  # noqa: ANN401
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return str(
        status_error(access, status, {name.replace("_", "-"): value for name, value in headers.items()}, data, now=0)
    )


ADVICE = [
    (
        error_text(404, b"nothing"),
        "acme: nothing (HTTP 404). Check base_url (http://acme.test/v1): it usually ends in /v1.",
    ),
    (error_text(404, b"nothing", BARE), "acme: nothing (HTTP 404). Check base_url: it usually ends in /v1."),
    (
        error_text(404, b"no such model"),
        "acme: no such model (HTTP 404). Check the model's name; `holdfast models acme` lists the available ones.",
    ),
    (error_text(405, b"nothing"), "acme: nothing (HTTP 405)."),
    (error_text(405, b"no such model"), "acme: no such model (HTTP 405)."),
    (error_text(399, b"x"), "acme: it redirects to another address (HTTP 399). Check base_url (http://acme.test/v1)."),
    (error_text(300, b"x", BARE, location="/y"), "acme: it redirects to /y (HTTP 300). Check base_url."),
    (error_text(400, b"x"), "acme: x (HTTP 400)."),
    (error_text(299, b"x"), "acme: x (HTTP 299)."),
    (error_text(400, b"HTTP 400 at once."), "acme: HTTP 400 at once."),
    (error_text(503, b"loading"), "acme: loading (HTTP 503). It is still loading its model."),
    (
        error_text(402),
        "acme: it answered with HTTP 402. Look at the account's plan and billing there, or choose another model.",
    ),
    (
        str(connection_error(ACCESS, "")),
        "acme: the connection broke. Is http://acme.test/v1 the right base_url, and does it run?",
    ),
    (str(connection_error(BARE, "gone.")), "acme: gone. Is the server the right base_url, and does it run?"),
    (str(connection_error(LOCAL, "x")), "acme: x. Is http://127.0.0.1:1/v1 the right base_url, and does it run?"),
    (
        str(connection_error(LOCAL, "x", is_refused=True)),
        "acme: x. No server runs at http://127.0.0.1:1/v1: start it, or correct base_url.",
    ),
    (str(incomplete_error(ACCESS)), "acme: the answer ended before it was complete."),
    (str(incomplete_error(ACCESS, "reset")), "acme: the answer ended before it was complete (reset)."),
    (
        str(stall_error(ACCESS, 1, has_begun=False)),
        "acme: nothing came for 1 second. If the server is always slow, increase providers.acme.timeout.",
    ),
    (
        str(stall_error(ACCESS, 2.5, has_begun=True)),
        "acme: nothing more came for 2.5 seconds. If the server is always slow, increase providers.acme.timeout.",
    ),
    (str(error_in_stream(ACCESS, "")), "acme: an error without a message."),
    (str(refused_error(ACCESS, "no")), "acme: no."),
    (str(refused_error(ACCESS, "no", "Do this.")), "acme: no. Do this."),
    (str(credentials_error(ACCESS, "no"))[:20], "acme: no. Check the "),
    (
        error_text(404, b"<html><title>Hi</title>"),
        "acme: a web page (“Hi”) was returned instead of a model's response (HTTP 404). Check base_url"
        " (http://acme.test/v1): it "
        "usually ends in /v1.",
    ),
    (
        error_text(404, b"<html>", BARE),
        "acme: a web page was returned instead of a model's response (HTTP 404). Check base_url: it usually ends"
        " in /v1.",
    ),
    (error_text(502, b"<html><title>Bad</title>"), "acme: Bad (HTTP 502)."),
]


@pytest.mark.parametrize(("text", "expected"), ADVICE)
def test_text_and_advice(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ("60", ""),
        ("61", " It requests a pause of 1 minutes."),
        ("7199", " It requests a pause of 120 minutes."),
        ("7200", " It requests a pause of 2 hours."),
    ],
)
def test_a_long_wait_is_part_of_the_text(wait: str, expected: str) -> None:
    assert error_text(429, b"x", retry_after=wait) == f"acme: x (HTTP 429).{expected}"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "nan", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": " ", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "86400001", "retry-after": "3"}, 86_400.0),
        ({"retry-after": "Thu, 01-Jan-1970 00:00:07 GMT"}, 7.0),
        ({"retry-after": "Thu, 01 Dec 1969 00:00:07 GMT"}, 0.0),
        ({"retry-after": "Fri, 02 Jan 1970 00:00:00 GMT"}, 86_400.0),
        ({"retry-after": "Thu, 01 Jax 1970 00:00:07 GMT"}, None),
    ],
)
def test_header_with_milliseconds_takes_precedence(headers: dict[str, str], seconds: float | None) -> None:
    assert status_error(ACCESS, 429, headers, b"", now=0).retry_after == seconds


def nested(depth: int) -> Any:  # noqa: ANN401
    value: Any = "the inner words"
    for _ in range(depth):
        value = {"error": value}
    return value


NAMES = ("error", "message", "detail", "details", "msg", "error_message", "raw", "metadata", "errors", "Message")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *(({name: "the words"}, "the words") for name in NAMES),
        ({"other": "the words", "message": "b"}, "b"),
        # The longest of all, not the last in any order.
        ({"message": "zz", "detail": "a longer text", "msg": "b"}, "a longer text"),
        ({"errors": ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]}, "eeeee"),
        (nested(8), "the inner words"),
        (nested(9), msgspec.json.encode(nested(9)).decode()),
        ([[[[[[[[["a"]]]]]]]]], '[[[[[[[[["a"]]]]]]]]]'),
        ([[[[[[[["a"]]]]]]]], "a"),
        ({"message": ' {"message":"inside"}'}, "inside"),
        ({"message": " [broken"}, "[broken"),
        ({"message": "{broken"}, "{broken"),
        (b"\xff plain", "\ufffd plain"),
    ],
)  # fmt: skip
def test_message_of_an_error_body(body: Any, words: str) -> None:  # noqa: ANN401
    assert error_text(418, body) == f"acme: {words} (HTTP 418)."


def test_embedded_bodies_count_as_depth() -> None:
    """A nested body is read up to the same depth as a plain one."""
    text = "the inner words"
    for _ in range(4):
        text = msgspec.json.encode({"message": text}).decode()
    assert error_text(418, text.encode()) == "acme: the inner words (HTTP 418)."
    deeper = msgspec.json.encode({"message": msgspec.json.encode({"message": text}).decode()})
    assert "the inner words (HTTP" not in error_text(418, deeper)


def test_bounds_of_the_text() -> None:
    assert error_text(418, b"x" * 300) == f"acme: {'x' * 300} (HTTP 418)."
    assert error_text(418, b"x" * 301) == f"acme: {'x' * 299}… (HTTP 418)."
    assert error_text(418, b" " * 1_999 + b"ab") == "acme: a (HTTP 418)."
    title = b"<html>" + b" " * 19_979 + b"<title>x</title>"
    assert len(title[:20_000]) == 20_000
    assert "(“x”)" in error_text(404, title[:5] + title[7:])
    assert "(“" not in error_text(404, title)


@pytest.mark.parametrize("codes", [{"code": 429}, {"status": "429"}])
def test_a_code_of_a_stream_is_a_status(codes: dict[str, Any]) -> None:
    error = error_in_stream(ACCESS, {"message": "wait, try again in 90 s", **codes})
    assert (error.title, error.retry_after) == ("Rate limited", 90.0)
    assert str(error).endswith("It requests a pause of 2 minutes.")
    assert error_in_stream(ACCESS, {"message": "x", "code": {"a": 1}}).trouble == "other"


def test_longer_secrets_are_hidden_before_shorter_ones() -> None:
    assert redact("abcdef", ("cd", "abcde")) == "[hidden]f"
    assert redact("abcdef", ("cd", "bcdef")) == "a[hidden]"


def test_defaults_of_model_access() -> None:
    assert ErrorContext("p") == ErrorContext("p", "", "", ())


# Exceptions of libraries


def fault(error: BaseException, access: ErrorContext = ACCESS, *, has_begun: bool = False) -> ProviderError:
    async def main() -> ProviderError:
        watch = RequestWatchdog(60, 5)
        watch.has_begun = has_begun
        return provider_errors.convert_exception(access, watch, error, now=0)

    return in_virtual_time(main)


def chain(*errors: BaseException) -> BaseException:
    for outer, inner in itertools.pairwise(errors):
        outer.__cause__ = inner
    return errors[0]


class TransportError(Exception):
    """A name that libraries give to a broken connection."""


class ValidationError(Exception):
    """A name that libraries give to a response of the wrong shape."""

    def __init__(self, *found: object) -> None:
        super().__init__()
        self._found = found

    def errors(self) -> Any:  # noqa: ANN401
        return list(self._found)


@pytest.mark.parametrize("inner", [ConnectionRefused("no"), ConnectionRefusedError(111, "no")])
def test_a_refused_connection_anywhere_in_the_chain(inner: Exception) -> None:
    for access, trouble in ((LOCAL, "not_running"), (ACCESS, "connection")):
        assert fault(chain(TransportError("x"), inner), access).trouble == trouble
    assert fault(TransportError("x"), LOCAL).trouble == "connection"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValidationError({"loc": ("a", 1), "msg": "odd"}), "(a.1: odd)"),
        (ValidationError(), "(ValidationError)"),
        (ValidationError(3), "(ValidationError)"),
        (ValidationError({"msg": "odd"}), "(ValidationError)"),
        (chain(Exception("outer"), ValidationError({"loc": ("a",), "msg": "odd"})), "(a: odd)"),
    ],
)
def test_response_of_another_shape(error: BaseException, expected: str) -> None:
    assert str(fault(error)) == f"acme: its response was not understood {expected}. Check base_url."


@pytest.mark.parametrize(
    ("error", "trouble", "words"),
    [
        (chain(TransportError("outer"), Exception("inner")), "connection", "acme: inner. Is"),
        (chain(TransportError("outer"), Exception("")), "connection", "acme: outer. Is"),
        (TransportError(), "connection", "acme: TransportError. Is"),
        (chain(KeyError("x"), Exception("y")), "refused", "acme: its response was not understood (KeyError)."),
    ],
)
def test_innermost_message_is_used(error: BaseException, trouble: Trouble, words: str) -> None:
    found = fault(error, has_begun=trouble == "refused")
    assert found.trouble == trouble
    assert str(found).startswith(words)


class _Odd:
    def __str__(self) -> str:
        return "the odd object"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": _Odd()}, "the odd object"),
        ({"error": "\ud800"}, r"{'error': '\ud800'}"),
        ({"error": "x", _Odd(): 1}, "x"),
    ],
)
def test_a_body_of_any_type(body: Any, words: str) -> None:  # noqa: ANN401
    error = Exception("unused")
    error.status_code, error.body = 418, body  # type: ignore[attr-defined]
    assert str(fault(error)) == f"acme: {words} (HTTP 418)."


def test_circular_exception_chain_ends() -> None:
    one, two = TransportError("one"), Exception("two")
    one.__cause__, two.__context__ = two, one
    assert [str(item) for item in provider_errors._iter_causes(one)] == ["one", "two"]
    group = ExceptionGroup("all", [one, two])
    assert [str(item) for item in provider_errors._iter_causes(group)][1:] == ["one", "two"]


def test_a_success_that_reports_an_error() -> None:
    error = Exception("overloaded, try again in 2s")
    error.status_code = 200  # type: ignore[attr-defined]
    assert (fault(error).trouble, fault(error).retry_after) == ("busy", 2.0)
