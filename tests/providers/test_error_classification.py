"""Classification of failures: one row for each clause, and exceptions of libraries by name."""

from typing import Any

import msgspec
import pytest

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.http11.client_connection import ConnectError, ConnectionRefused, RequestWatchdog, connect_error
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.providers.adapter_config import ModelAccess, is_loopback, is_secret_name
from holdfast.providers.provider_errors import (
    ErrorContext,
    connection_error,
    convert_exception,
    credentials_error,
    error_in_stream,
    incomplete_error,
    redact,
    refused_error,
    stall_error,
    status_error,
)
from holdfast.testing.seeded_loop import in_virtual_time

ACCESS = ErrorContext("acme", "m", "http://acme.test/v1", ("the-secret-key",))


def error_body(text: str, **more: Any) -> bytes:  # noqa: ANN401
    return msgspec.json.encode({"error": {"message": text, **more}})


QUOTA, LONG, KEY, BUSY = "billing", "prompt is too long", "invalid api key", "overloaded"
STATUSES: dict[int, tuple[Trouble, Trouble, Trouble, Trouble, Trouble]] = {
    # no text, and each kind of text
    400: ("refused", "quota", "overflow", "credentials", "refused"),
    401: ("credentials", "credentials", "credentials", "credentials", "credentials"),
    402: ("quota", "quota", "quota", "quota", "quota"),
    403: ("refused", "quota", "refused", "credentials", "refused"),
    404: ("refused", "refused", "refused", "refused", "refused"),
    405: ("refused", "refused", "refused", "refused", "refused"),
    408: ("busy", "busy", "busy", "busy", "busy"),
    409: ("busy", "busy", "busy", "busy", "busy"),
    413: ("overflow", "overflow", "overflow", "overflow", "overflow"),
    422: ("refused", "refused", "overflow", "refused", "refused"),
    425: ("busy", "busy", "busy", "busy", "busy"),
    429: ("busy", "quota", "busy", "busy", "busy"),
    499: ("refused", "refused", "refused", "refused", "refused"),
    500: ("busy", "busy", "overflow", "busy", "busy"),
    503: ("busy", "busy", "busy", "busy", "busy"),
    599: ("busy", "busy", "busy", "busy", "busy"),
}


@pytest.mark.parametrize("status", STATUSES)
def test_statuses_and_messages_are_classified(status: int) -> None:
    words = ("", QUOTA, LONG, KEY, BUSY)
    assert (
        tuple(status_error(ACCESS, status, {}, error_body(text), now=0).trouble for text in words) == STATUSES[status]
    )


def test_messages_without_a_status() -> None:
    found = tuple(error_in_stream(ACCESS, {"message": text}).trouble for text in ("hm", QUOTA, LONG, KEY, BUSY))
    assert found == ("other", "quota", "overflow", "credentials", "busy")


CODES: dict[str, tuple[Trouble, Trouble]] = {
    # with status 418, and in the middle of a response
    "insufficient_quota": ("quota", "quota"),
    "billing_hard_limit_reached": ("quota", "quota"),
    "billing_not_active": ("quota", "quota"),
    "credit_balance_exhausted": ("quota", "quota"),
    "context_length_exceeded": ("overflow", "overflow"),
    "string_above_max_length": ("overflow", "overflow"),
    "request_too_large": ("overflow", "overflow"),
    "exceed_context_size_error": ("overflow", "overflow"),
    "rate_limit_exceeded": ("busy", "busy"),
    "overloaded_error": ("busy", "busy"),
    "server_error": ("refused", "busy"),
    "429": ("refused", "busy"),
    "399": ("refused", "other"),
    "400": ("refused", "refused"),
    "599": ("refused", "busy"),
    "600": ("refused", "other"),
    "another": ("refused", "other"),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["code", "type", "status"])
def test_error_codes(code: str, name: str) -> None:
    value = int(code) if code.isdigit() else code
    found = status_error(ACCESS, 418, {}, error_body("hm", **{name: value}), now=0).trouble
    assert (found, error_in_stream(ACCESS, {"message": "hm", name: value}).trouble) == CODES[code]


@pytest.mark.parametrize("trouble", ["quota", "overflow", "credentials", "busy"])
def test_each_overflow_message_is_recognised(trouble: Trouble) -> None:
    wordings: dict[str, str] = {
        "quota": "insufficient quota|insufficient_balance|insufficient credit|insufficient funds|"
        "you exceeded your current quota|payment required|credit balance|out of credits|spending limit|spend limit|"
        "quota exhausted|quota has been exhausted|usage limit|arrears|top up",
        "overflow": "context length|context_window|context-size|maximum context|max prompt length|maximum input size|"
        "max input tokens|input is too large|messages are too many tokens|conversation too long|too many tokens|"
        "too many input tokens|input tokens exceeds|prompt token count of 5 exceeds|input length|token limit|"
        "tokens in your prompt|exceeds the maximum|exceeds the available context|exceed the limit of 5 tokens|"
        "reduce the length|model_max_length|greater than the context|larger than the model's context|"
        "request_too_large|string too long|token count (5) exceeds",
        "credentials": "api key|api_key|apikey|authentication failed|unauthorized|unauthorised|credential|access token|"
        "invalid token|security token|not signed in|log in|login|sign in|expired token|token is expired|"
        "token has invalid",
        "busy": "overloaded|over capacity|at capacity|rate limit|ratelimit|too many requests|try again later|"
        "temporarily|unavailable|server_error|internal error|internal server error|resource exhausted|throttled|"
        "timed out|timeout|time out",
    }
    texts = wordings[trouble].split("|")
    assert {text: error_in_stream(ACCESS, text).trouble for text in texts} == dict.fromkeys(texts, trouble)


def test_excessive_output_limit_is_not_an_overflow() -> None:
    for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
        assert error_in_stream(ACCESS, f"{name} exceeds the maximum of 5").trouble == "other"
        for word in ("context", "input", "prompt", "messages"):
            assert error_in_stream(ACCESS, f"{name} and {word} exceeds the maximum of 5").trouble == "overflow"


@pytest.mark.parametrize(
    ("status", "header", "trouble"),
    [
        (400, "TRUE", "busy"),
        (400, "false", "refused"),
        (400, "", "refused"),
        (503, "False", "refused"),
        (503, "odd", "busy"),
        (429, "false", "refused"),
    ],
)
def test_the_retry_header_decides_about_a_retry(status: int, header: str, trouble: Trouble) -> None:
    assert status_error(ACCESS, status, {"x-should-retry": header}, b"", now=0).trouble == trouble


def test_loading_model_is_retried() -> None:
    for text, status, trouble in (
        ("Loading model", 503, "loading"),
        ("it is being loaded", 503, "loading"),
        ("downloading", 503, "busy"),
        ("Loading model", 500, "busy"),
    ):
        assert status_error(ACCESS, status, {}, error_body(text), now=0).trouble == trouble


PAGE = b"  <HTML><head><title>Welcome</title></head>"


@pytest.mark.parametrize(
    ("status", "headers", "body", "trouble"),
    [
        (200, {}, PAGE, "refused"),
        (404, {}, b"<!DOCTYPE html>", "refused"),
        (404, {}, b"<head>", "refused"),
        (404, {}, b"<body>", "refused"),
        (401, {"content-type": "text/html; charset=utf-8"}, b"no", "refused"),
        (401, {"content-type": "text/plain"}, b"no", "credentials"),
        (502, {}, PAGE, "busy"),
        (400, {"x-should-retry": "true"}, PAGE, "busy"),
    ],
)
def test_web_pages_are_summarised(status: int, headers: dict[str, str], body: bytes, trouble: Trouble) -> None:
    error = status_error(ACCESS, status, headers, body, now=0)
    assert error.trouble == trouble
    assert "<" not in str(error)
    if body is PAGE:
        assert "Welcome" in str(error)


@pytest.mark.parametrize(
    ("name", "is_waited_for"), [("busy", True), ("quota", False), ("overflow", False), ("credentials", False)]
)
def test_only_a_busy_provider_has_a_retry_delay(name: str, is_waited_for: bool) -> None:
    status = {"busy": 429, "quota": 402, "overflow": 413, "credentials": 401}[name]
    error = status_error(ACCESS, status, {"retry-after": "5"}, b"", now=0)
    assert (error.trouble, error.retry_after) == (name, 5.0 if is_waited_for else None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("overloaded, try again in 2s", 2.0),
        ("overloaded, RETRY AFTER 250 ms", 0.25),
        ("overloaded, try again in 1.5 s.", 1.5),
        ("overloaded, try again in 5 minutes", None),
        ("billing: try again in 2s", None),
    ],
)
def test_retry_delay_in_the_message(text: str, seconds: float | None) -> None:
    assert error_in_stream(ACCESS, text).retry_after == seconds


def test_titles_differ_by_kind() -> None:
    assert status_error(ACCESS, 429, {}, b"", now=0).title == "Rate limited"
    assert status_error(ACCESS, 429, {}, b'{"error":{"code":"insufficient_quota"}}', now=0).title == "Quota used up"
    errors = (
        status_error(ACCESS, 503, {}, b"", now=0),
        connection_error(ACCESS, ""),
        connection_error(ErrorContext("p", base_url="http://127.0.0.1:1"), "", is_refused=True),
        status_error(ACCESS, 503, {}, error_body("loading"), now=0),
        incomplete_error(ACCESS),
        stall_error(ACCESS, 1, has_begun=False),
        credentials_error(ACCESS, "no"),
        status_error(ACCESS, 402, {}, b"", now=0),
        status_error(ACCESS, 413, {}, b"", now=0),
        refused_error(ACCESS, "no"),
        error_in_stream(ACCESS, "odd"),
    )
    assert [(error.trouble, error.title) for error in errors] == [
        ("busy", "Provider busy"),
        ("connection", "Provider not reached"),
        ("not_running", "Provider not running"),
        ("loading", "Model loading"),
        ("cut", "Answer cut off"),
        ("stalled", "Provider silent"),
        ("credentials", "Not signed in"),
        ("quota", "Quota used up"),
        ("overflow", "Conversation too long"),
        ("refused", "Request refused"),
        ("other", "Provider Error"),
    ]


@pytest.mark.parametrize(
    ("url", "is_refused", "trouble"),
    [
        ("http://127.0.0.1:1/v1", True, "not_running"),
        ("http://localhost:1/v1", True, "not_running"),
        ("http://[::1]:1/v1", True, "not_running"),
        ("http://127.0.0.1:1/v1", False, "connection"),
        ("http://acme.test/v1", True, "connection"),
        ("http://localhost.test/v1", True, "connection"),
    ],
)
def test_a_refused_local_connection_is_not_retried(url: str, is_refused: bool, trouble: Trouble) -> None:
    assert connection_error(ErrorContext("p", base_url=url), "no", is_refused=is_refused).trouble == trouble
    assert is_loopback(url) == (trouble == "not_running" or not is_refused)


# Secrets


@pytest.mark.parametrize("secrets", [("abcd-1", "abcd-1-longer"), ("abcd-1-longer", "abcd-1"), ("abcd-1-longer",)])
def test_secret_that_is_a_prefix_of_another(secrets: tuple[str, ...]) -> None:
    assert redact("key abcd-1-longer was refused", secrets) == "key [hidden] was refused"
    assert redact("no secret", ("", *secrets)) == "no secret"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sk-abcdef x", "[hidden] x"),
        ("sk-abcde x", "sk-abcde x"),
        ("SK_abcdef", "[hidden]"),
        ("task-abcdefgh", "task-abcdefgh"),
        ("AIzaabcdefghij", "[hidden]"),
        ("hf_abcdef gsk_abcdef r8_abcdef", "[hidden] [hidden] [hidden]"),
        ("Bearer abc.def1", "Bearer [hidden]"),
        ("basic dXNlcjpwdw==", "basic [hidden]"),
        ("bearer tokens", "bearer tokens"),
        ("?key=abc&x=1", "?key=[hidden]&x=1"),
        ("&api_key=abc", "&api_key=[hidden]"),
        ("&access_token=abc", "&access_token=[hidden]"),
        ("?monkey=abc", "?monkey=abc"),
        ("https://me:pw@host/x", "https://host/x"),
        ("https://host/me@x", "https://host/me@x"),
    ],
)
def test_texts_that_look_like_secrets_are_redacted(text: str, shown: str) -> None:
    assert redact(text, ()) == shown


def test_secrets_of_model_access() -> None:
    headers = {"X-Auth": "header-1", "api-Key": "header-2", "x-team": "public-1", "Cookie": "short"}
    extras = {"region": "public-2", "secret_access_key": "extra-1", "session_token": "extra-2"}
    access = ModelAccess(api_key="key-123", headers=headers, extras=extras)
    assert access.secrets == ("key-123", "header-1", "header-2", "extra-1", "extra-2")
    make_exception = ("auth", "KEY", "x-token", "secret", "Set-Cookie", "credential", "team", "")
    assert [is_secret_name(name) for name in make_exception] == [True] * 6 + [False] * 2
    for error in (incomplete_error, connection_error, credentials_error, refused_error):
        place = ErrorContext("p", base_url="http://key-123.test", secrets=access.secrets)
        assert "key-123" not in str(error(place, "it said key-123 and header-1"))


# Exceptions of libraries


def fault(error: BaseException | None, *, has_begun: bool = False, **watched: Any) -> ProviderError:  # noqa: ANN401
    async def main() -> ProviderError:
        watch = RequestWatchdog(60, 5)
        watch.has_begun = has_begun
        for name, value in watched.items():
            setattr(watch, name, value)
        return convert_exception(ACCESS, watch, error, now=0)

    return in_virtual_time(main)


def make_exception(name: str, *bases: type[Exception], **fields: Any) -> Exception:  # noqa: ANN401
    made: Exception = type(name, bases or (Exception,), {})("its words")
    for field, value in fields.items():
        setattr(made, field, value)
    return made


BY_NAME: dict[str, tuple[Trouble, Trouble]] = {
    # before and after the first piece
    **dict.fromkeys(
        ("TransportError", "StreamError", "APIConnectionError", "ModelConnectionError", "HTTPClientError", "HTTPError",
         "ClosedResourceError", "BrokenResourceError", "ModelTimeoutError"),
        ("connection", "cut"),
    ),
    **dict.fromkeys(("UnexpectedModelBehavior", "JSONDecodeError", "UnknownApiResponseError"), ("cut", "cut")),
    **dict.fromkeys(("TypeError",), ("refused", "refused")),
    **dict.fromkeys(("AttributeError", "LookupError", "UnicodeError"), ("other", "refused")),
    **dict.fromkeys(("BotoCoreError", "UserError", "NotImplementedError", "ValueError"), ("refused", "refused")),
    **dict.fromkeys(
        ("DefaultCredentialsError", "RefreshError", "NoCredentialsError", "PartialCredentialsError"),
        ("credentials", "credentials"),
    ),
    "ValidationError": ("refused", "refused"),
    "Unheard": ("other", "other"),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_exceptions_are_classified_by_name(name: str) -> None:
    error = make_exception(name)
    assert (fault(error).trouble, fault(error, has_begun=True).trouble) == BY_NAME[name]
    wrapped = make_exception("Wrapper")
    wrapped.__cause__ = error
    assert fault(wrapped).trouble == BY_NAME[name][0]
    implicit = make_exception("Wrapper")
    implicit.__context__ = error
    assert fault(implicit).trouble == BY_NAME[name][0]
    assert fault(ExceptionGroup("several", [make_exception("Wrapper"), error])).trouble == BY_NAME[name][0]


def test_failures_of_the_http_client() -> None:
    assert fault(ConnectError("no name")).trouble == "connection"
    assert "no name" in str(fault(ConnectError("no name")))
    assert fault(ConnectionBroken("gone"), has_begun=True).trouble == "cut"
    wrapped = make_exception("APIConnectionError")
    wrapped.__cause__ = ConnectionRefused("the connection was refused")
    assert fault(wrapped).trouble == "connection"
    assert "the connection was refused" in str(fault(wrapped)), "our own words before those of the library"


def test_the_watchdog_takes_precedence_over_the_exception() -> None:
    known = ProviderError("as it is", trouble="quota")
    assert fault(known, has_stalled=True) is known
    assert fault(make_exception("TransportError"), has_stalled=True).trouble == "stalled"
    assert "60 seconds" in str(fault(None, has_stalled=True))
    assert "nothing more came for 5 seconds" in str(fault(None, has_stalled=True, has_begun=True))
    assert fault(None, page=(200, b' {"error": {"message": "overloaded"}}')).trouble == "busy"
    assert fault(None, page=(200, b' [{"error": {"message": "billing"}}]')).trouble == "quota"
    assert fault(make_exception("TransportError"), page=(200, b"<html>")).trouble == "refused"
    assert fault(make_exception("TransportError"), page=(200, b"")).trouble == "connection"
    assert fault(None).trouble == "cut"


class Response:
    """The part of a response that a library keeps."""

    def __init__(self) -> None:
        self.headers = {"Retry-After": "7"}


@pytest.mark.parametrize(
    ("fields", "trouble", "wait"),
    [
        ({"status_code": 401}, "credentials", None),
        ({"code": 402}, "quota", None),
        ({"code": "402"}, "other", None),
        ({"status_code": 429, "headers": {"Retry-After": "9"}}, "busy", 9.0),
        ({"status_code": 429, "response": Response()}, "busy", 7.0),
        ({"status_code": 429, "headers": {}, "response": Response()}, "busy", None),
        ({"status_code": 400, "body": b'{"error":"billing"}'}, "quota", None),
        ({"status_code": 400, "body": '{"error":"billing"}'}, "quota", None),
        ({"status_code": 400, "body": {"error": "billing"}}, "quota", None),
        ({"status_code": 400, "body": None}, "refused", None),
        ({"status_code": 400, "body": {"error": object()}}, "refused", None),
        ({"status_code": 299, "body": {"message": "overloaded"}}, "busy", None),
        ({"status_code": 300}, "refused", None),
    ],
)
def test_status_in_any_attribute_of_an_exception(fields: dict[str, Any], trouble: Trouble, wait: float | None) -> None:
    error = fault(make_exception("Odd", **fields))
    assert (error.trouble, error.retry_after) == (trouble, wait)


def test_reasons_of_an_unreachable_server() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    assert isinstance(connect_error(refused), ConnectionRefused)
    both = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect call failed")
    assert isinstance(connect_error(both), ConnectionRefused)
    mixed = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 113] No route")
    assert not isinstance(connect_error(mixed), ConnectionRefused)
    other = OSError(113, "[Errno 111] No route to host")
    assert not isinstance(connect_error(other), ConnectionRefused)
    assert str(connect_error(OSError(113, "No Route"))) == "no route"
