"""Classification of failures from the messages of many providers, and the advice for them."""

import msgspec
import pytest

from holdfast.domain.errors import Trouble
from holdfast.providers.provider_errors import (
    ErrorContext,
    connection_error,
    error_in_stream,
    incomplete_error,
    redact,
    stall_error,
    status_error,
)

ACCESS = ErrorContext("acme", "m", "http://acme/v1", ("the-secret-key",))
NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "the request exceeds the available context size, try increasing it",
        "Input is too long for requested model.",
        "Please reduce the length of the messages or completion.",
        "Your request exceeded model token limit: 262144",
        "Too many tokens: 9000 > 8192",
        "Range of input length should be [1, 98304]",
        "context_length_exceeded",
        "The prompt is too large for the context window of this model",
    ],
)
def test_context_overflow_is_recognised(message: str) -> None:
    body = b'{"error":{"message":"%s"}}' % message.encode()
    assert status_error(ACCESS, 400, {}, body, now=NOW).trouble == "overflow"
    assert error_in_stream(ACCESS, {"message": message}).trouble == "overflow"


@pytest.mark.parametrize(
    ("status", "body", "trouble"),
    [
        (400, '{"error":{"message":"API key not valid. Please pass a valid API key."}}', "credentials"),
        (403, '{"error":{"message":"Invalid API key"}}', "credentials"),
        (403, '{"error":{"message":"The security token included in the request is expired"}}', "credentials"),
        (403, '{"error":{"message":"Your region is not allowed"}}', "refused"),
        (400, '{"type":"error","error":{"message":"Your credit balance is too low"}}', "quota"),
        (403, '{"error":{"message":"Insufficient balance"}}', "quota"),
        (429, '{"error":{"message":"Rate limit reached for tokens per min"}}', "busy"),
        (413, "", "overflow"),
        (422, '{"detail":[{"msg":"field required"}]}', "refused"),
        (400, '{"error":{"message":"max_tokens exceeds the maximum of 4096 for this model"}}', "refused"),
        (400, '{"error":{"message":"there is no such entry in the catalog in use"}}', "refused"),
        (418, "", "refused"),
        (425, "", "busy"),
        (500, '{"error":{"message":"context size exceeded"}}', "overflow"),
        (599, "", "busy"),
        (302, "", "refused"),
    ],
)
def test_classification_by_status_and_text(status: int, body: str, trouble: Trouble) -> None:
    assert status_error(ACCESS, status, {}, body.encode(), now=NOW).trouble == trouble


def test_a_provider_can_decide_about_a_retry() -> None:
    assert status_error(ACCESS, 400, {"x-should-retry": "true"}, b"", now=NOW).trouble == "busy"
    assert status_error(ACCESS, 500, {"x-should-retry": "false"}, b"", now=NOW).trouble == "refused"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, 86_400.0),
        ({}, None),
    ],
)
def test_retry_delay_of_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert status_error(ACCESS, 429, headers, b"", now=NOW).retry_after == seconds


def test_the_upstream_error_of_a_gateway_is_found() -> None:
    inner = '{"error":{"message":"the long words of the provider behind it"}}'
    body = msgspec.json.encode({"error": {"message": "Provider returned error", "metadata": {"raw": inner}}})
    assert "the long words of the provider behind it" in str(status_error(ACCESS, 429, {}, body, now=NOW))


def test_errors_contain_advice() -> None:
    assert "holdfast login acme" in str(status_error(ACCESS, 401, {}, b"", now=NOW))
    assert "holdfast models acme" in str(status_error(ACCESS, 404, {}, b'{"error":"model not found"}', now=NOW))
    assert "base_url (http://acme/v1)" in str(status_error(ACCESS, 404, {}, b"404 page not found", now=NOW))
    assert "http://acme/v1" in str(connection_error(ACCESS, "refused"))
    assert "https://new" in str(status_error(ACCESS, 301, {"location": "https://new"}, b"", now=NOW))
    assert stall_error(ACCESS, 60, has_begun=True).trouble == "stalled"
    assert incomplete_error(ACCESS).trouble == "cut"


def test_a_long_retry_delay_is_mentioned() -> None:
    assert "minutes" not in str(status_error(ACCESS, 429, {"retry-after": "60"}, b"", now=NOW))
    assert "of 90 minutes" in str(status_error(ACCESS, 429, {"retry-after": "5400"}, b"", now=NOW))
    assert "of 24 hours" in str(status_error(ACCESS, 429, {"retry-after": "inf"}, b"", now=NOW))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'""'])
def test_an_empty_body_is_not_quoted(body: bytes) -> None:
    assert str(status_error(ACCESS, 500, {}, body, now=NOW)) == "acme: it answered with HTTP 500."


@pytest.mark.parametrize(
    "body", [b"x\n\x00y" * 10_000, b'{"error":{"message":"' + b"too much of this " * 500_000 + b'"}}']
)
def test_errors_are_short_and_on_one_line(body: bytes) -> None:
    """Even errors that repeat the whole request: only their beginning is read."""
    error = str(status_error(ACCESS, 400, {}, body, now=NOW))
    assert len(error) < 500
    assert error.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "key the-secret-key was refused",
        "Incorrect API key provided: sk-proj-abcdefghijkl",
        "header Authorization: Bearer eyJhbGciOi.abc.def",
        "GET https://x/y?key=AIzaSyA1234567890&alt=sse",
        "https://user:the-password@host/v1",
    ],
)
def test_no_credentials_appear_in_messages(text: str) -> None:
    shown = redact(text, ACCESS.secrets)
    for secret in ("the-secret-key", "abcdefghijkl", "eyJhbGciOi", "AIzaSyA1234567890", "the-password"):
        assert secret not in shown
    assert "the-secret-key" not in repr(ACCESS)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        ({"message": "Overloaded", "type": "overloaded_error"}, "busy"),
        ({"message": "no", "code": 401}, "credentials"),
        ({"message": "no", "code": "insufficient_quota"}, "quota"),
        ({"message": "Rate limit. Please try again in 1.5s"}, "busy"),
        ("something odd", "other"),
        (None, "other"),
    ],
)
def test_errors_within_a_stream(error: object, trouble: Trouble) -> None:
    assert error_in_stream(ACCESS, error).trouble == trouble


def test_a_retry_delay_in_the_message_text() -> None:
    assert error_in_stream(ACCESS, {"message": "rate limit, try again in 250ms", "code": 429}).retry_after == 0.25


def test_a_refused_key_is_named_in_the_advice() -> None:
    """A stored key is not used while the settings name another."""
    text = str(status_error(ACCESS, 401, {}, b'{"error":{"message":"no"}}', now=0))
    assert "`holdfast login acme`" in text
    assert "providers.acme.api_key" in text
