"""Conversion of provider failures to `ProviderError`, with a cause and advice.

A failure is a response (status, headers, body), an error inside a stream, a broken or silent connection, or an
exception of a vendor's SDK. The engine decides about retries from the `trouble` of the error.
"""

import calendar
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.http11.client_connection import ConnectError, ConnectionRefused, RequestWatchdog
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.providers.adapter_config import is_loopback

__all__ = [
    "ErrorContext",
    "connection_error",
    "convert_exception",
    "credentials_error",
    "error_in_stream",
    "incomplete_error",
    "redact",
    "refused_error",
    "stall_error",
    "status_error",
]


_MAX_DETAIL = 300
_MAX_BODY = 20_000
"""Maximum size of an error body to examine. Some providers echo the whole request."""
_MAX_RETRY_AFTER = 86_400.0

# Compiled on failure, not at server start.
_OVERFLOW = (
    r"context[ _-]?(length|window|size)|maximum context|max(imum)? (prompt|input) (length|size|tokens)"
    r"|(prompt|input|request|conversation|messages?)( is| are|'s)? too (long|large|many tokens)"
    r"|too many (input |prompt )?tokens|(input|prompt) tokens? (count )?(of \d+ )?exceeds?|input length"
    r"|tokens? (limit|in your prompt)|exceeds? the (model's )?(maximum|available context|limit of \d+ tokens)"
    r"|reduce the length|model_max_length|greater than the (context|maximum)|larger than .{0,30}context"
    r"|request_too_large|string too long|token count .{0,40}exceeds"
)
_OVERFLOW_CODES = {
    "context_length_exceeded",
    "string_above_max_length",
    "request_too_large",
    "exceed_context_size_error",
}
_QUOTA = (
    r"insufficient[ _](quota|balance|credits?|funds)|exceeded your current quota|billing|payment required"
    r"|credit balance|out of credits|spend(ing)? limit|quota (has been )?exhausted|usage limit|arrears|top up"
)
_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_balance_exhausted"}
_CREDENTIALS = (
    r"api[ _-]?key|authenticat|unauthori[sz]ed|credential|access token|invalid token|security token"
    r"|not signed in|\blog ?in\b|\bsign ?in\b|expired token|token (is|has) (expired|invalid)"
)
_BUSY = (
    r"overloaded|over capacity|at capacity|rate.?limit|too many requests|try again later|temporarily|unavailable"
    r"|server_error|internal (server )?error|resource.?exhausted|throttl|timed? ?out"
)
_LOADING = r"\bloading\b|\bbeing loaded\b"
_MODEL = r"model"
_TOKENLIKE = r"\b(?:sk|pk|rk|gsk|xai|key|AIza|ya29|hf|r8|csk|tgp)[-_.][\w*.-]{6,}|\bAIza[\w-]{10,}"
_BEARER = r"(bearer|basic)\s+(?=\S*[\d._=/+-])[\w.+/=*-]{6,}"
_IN_URL = r"([?&](?:api[_-]?)?(?:key|token|access_token)=)[^&\s\"']+"
_USER = r"(://)[^/@\s]+@"
_PAGE = rb"^\s*(<!doctype|<html|<head|<body)"
_TITLE = r"<title[^>]*>(.*?)</title>"

_DATE = r"(\d{1,2})[ -](\w{3})[ -](\d{4}) (\d\d):(\d\d):(\d\d)"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_TITLES: dict[Trouble, str] = {
    "busy": "Provider busy",
    "connection": "Provider not reached",
    "not_running": "Provider not running",
    "loading": "Model loading",
    "cut": "Answer cut off",
    "stalled": "Provider silent",
    "credentials": "Not signed in",
    "quota": "Quota used up",
    "overflow": "Conversation too long",
    "refused": "Request refused",
    "other": "Provider Error",
}


class ErrorContext(msgspec.Struct, frozen=True):
    """Provider, model and address for error messages, and the secrets to redact from them."""

    provider: str
    model: str = ""
    base_url: str = ""
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ErrorContext({self.provider!r})"


def status_error(
    context: ErrorContext, status: int, headers: Mapping[str, str], body: bytes, *, now: float
) -> ProviderError:
    """Return the error for an unsuccessful status or a response without a stream. `now` is the time in Unix seconds."""
    is_page = bool(re.match(_PAGE, body, re.IGNORECASE)) or "text/html" in headers.get("content-type", "")
    if is_page and not _is_busy(status, headers):
        return _page(context, status, body)
    detail, codes = _page_title(body) if is_page else "", set[str]()
    if not is_page:
        detail, codes = _parse_error_body(body)
    trouble = _classify(status, headers, detail, codes)
    if status == 503 and _search(_LOADING, detail):
        trouble = "loading"
    if status in range(300, 400):
        detail = f"it redirects to {headers.get('location', 'another address')}"
    wait = _retry_after(headers, now) if trouble == "busy" else None
    return _error(context, trouble, detail or _status_text(status), f"HTTP {status}", status=status, retry_after=wait)


def error_in_stream(context: ErrorContext, error: Any, *, now: float = 0.0) -> ProviderError:  # noqa: ANN401
    """Return the error for a failure reported inside a response stream."""
    detail, codes = _parse_error_body(msgspec.json.encode({"error": error}, enc_hook=str))
    numbers = [int(code) for code in codes if code.isdigit() and 400 <= int(code) < 600]
    status = numbers[0] if numbers else 0
    trouble = _classify(status, {}, f"{detail} {' '.join(codes)}", codes)
    wait = _retry_after_in_text(detail) if trouble == "busy" else None
    return _error(context, trouble, detail or "an error without a message", "", status=status, retry_after=wait)


def connection_error(context: ErrorContext, reason: str, *, is_refused: bool = False) -> ProviderError:
    """Return the error of a connection that could not be made, or that broke before anything was received.

    A refused connection on loopback is certain: no server runs there, and retries would only delay the message.
    """
    is_certain = is_refused and is_loopback(context.base_url)
    return _error(context, "not_running" if is_certain else "connection", reason or "the connection broke", "")


def credentials_error(context: ErrorContext, detail: str) -> ProviderError:
    """Return the error for missing or invalid credentials."""
    return _error(context, "credentials", detail, "")


def refused_error(context: ErrorContext, detail: str, advice: str = "") -> ProviderError:
    """Return the error for a failure that every retry would repeat."""
    error = _error(context, "refused", detail, "")
    return ProviderError(f"{error} {advice}".strip(), title=error.title, trouble="refused")


def incomplete_error(context: ErrorContext, reason: str = "") -> ProviderError:
    """Return the error for a response that ended before it was complete."""
    detail = "the answer ended before it was complete" + (f" ({reason})" if reason else "")
    return _error(context, "cut", detail, "")


def stall_error(context: ErrorContext, seconds: float, *, has_begun: bool) -> ProviderError:
    """Return the error for a provider that was silent for too long."""
    detail = f"nothing {'more ' if has_begun else ''}came for {seconds:g} second{'' if seconds == 1 else 's'}"
    return _error(context, "stalled", detail, "")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Remove secrets and anything that looks like a credential."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    text = _replace(_BEARER, r"\1 [hidden]", _replace(_TOKENLIKE, "[hidden]", text))
    return _replace(_IN_URL, r"\1[hidden]", _replace(_USER, r"\1", text))


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL)


def _replace(pattern: str, by: str, text: str) -> str:
    return re.sub(pattern, by, text, flags=re.IGNORECASE)


def _error(
    context: ErrorContext,
    trouble: Trouble,
    detail: str,
    note: str,
    *,
    status: int = 0,
    retry_after: float | None = None,
) -> ProviderError:
    text = _shorten(redact(detail, context.secrets))
    summary = f"{context.provider}: {text}" + (f" ({note})" if note and note not in text else "")
    message = f"{summary.rstrip('.')}. {_advice(context, trouble, status, detail)}{_retry_advice(retry_after)}".strip()
    title = "Rate limited" if status == 429 and trouble == "busy" else _TITLES[trouble]
    return ProviderError(message, title=title, trouble=trouble, retry_after=retry_after)


def _advice(context: ErrorContext, trouble: Trouble, status: int, detail: str) -> str:
    where = redact(context.base_url, context.secrets)
    match trouble:
        case "credentials":
            name = context.provider
            return (
                f"Check the key, or store a new one with `holdfast login {name}`; one in the settings "
                f"(providers.{name}.api_key) comes before it."
            )
        case "quota":
            return "Look at the account's plan and billing there, or choose another model."
        case "not_running":
            return f"No server runs at {where}: start it, or correct base_url."
        case "connection":
            return f"Is {where or 'the server'} the right base_url, and does it run?"
        case "stalled":
            return f"If the server is always slow, increase providers.{context.provider}.timeout."
        case "refused" if status == 404 and not _search(_MODEL, detail):
            return f"Check base_url{f' ({where})' if where else ''}: it usually ends in /v1."
        case "refused" if status == 404:
            return f"Check the model's name; `holdfast models {context.provider}` lists the available ones."
        case "refused" if 300 <= status < 400:
            return f"Check base_url{f' ({where})' if where else ''}."
        case "loading":
            return "It is still loading its model."
        case _:
            # A conversation that is too long gets its advice from the caller, which knows whether a summary helps.
            return ""


def _retry_advice(seconds: float | None) -> str:
    """Mention the delay only if it is too long for an automatic retry."""
    if seconds is None or seconds <= 60:
        return ""
    hours, minutes = seconds / 3600, seconds / 60
    return f"It requests a pause of {f'{minutes:.0f} minutes' if hours < 2 else f'{hours:.0f} hours'}."


def _classify(status: int, headers: Mapping[str, str], detail: str, codes: set[str]) -> Trouble:
    if status == 401:
        return "credentials"
    if status == 402 or codes & _QUOTA_CODES or (status in (0, 400, 403, 429) and _search(_QUOTA, detail)):
        return "quota"
    if status == 413 or codes & _OVERFLOW_CODES or (status in (0, 400, 422, 500) and _is_overflow(detail)):
        return "overflow"
    if _is_busy(status, headers) or codes & {"rate_limit_exceeded", "overloaded_error"}:
        return "busy"
    if status in (0, 400, 403) and _search(_CREDENTIALS, detail):
        return "credentials"
    if status:
        return "refused"
    return "busy" if _search(_BUSY, detail) else "other"


def _is_overflow(detail: str) -> bool:
    """Return whether the input is too long. A too large output limit is not an overflow."""
    is_about_output = _search(r"max_(completion_|output_)?tokens", detail) and not _search(
        r"context|input|prompt|messages", detail
    )
    return bool(_search(_OVERFLOW, detail)) and not is_about_output


def _is_busy(status: int, headers: Mapping[str, str]) -> bool:
    hint = headers.get("x-should-retry", "").lower()
    return hint == "true" or (hint != "false" and (status in (408, 409, 425, 429) or status >= 500))


def _page(context: ErrorContext, status: int, body: bytes) -> ProviderError:
    title = _page_title(body)
    summary = f"a web page{f' (“{title}”)' if title else ''} was returned instead of a model's response"
    where = redact(context.base_url, context.secrets)
    message = f"{context.provider}: {_shorten(redact(summary, context.secrets))} (HTTP {status}). "
    message += f"Check base_url{f' ({where})' if where else ''}: it usually ends in /v1."
    return ProviderError(message, title=_TITLES["refused"], trouble="refused")


def _page_title(body: bytes) -> str:
    found = _search(_TITLE, body[:_MAX_BODY].decode("utf-8", "replace"))
    return _shorten(found[1]) if found else ""


def _parse_error_body(body: bytes) -> tuple[str, set[str]]:
    """Return the provider's message and its error codes. Every provider nests them differently."""
    text = body[:_MAX_BODY].decode("utf-8", "replace")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text, set()
    texts: list[str] = []
    codes: set[str] = set()
    _collect(value, texts, codes, 0)
    return (max(texts, key=len)[:_MAX_BODY] if texts else text if value else ""), codes


def _collect(value: Any, texts: list[str], codes: set[str], depth: int) -> None:  # noqa: ANN401
    if depth > 8:
        return
    if isinstance(value, str):
        if (inner := _embedded(value)) is not None:
            _collect(inner, texts, codes, depth + 1)
        else:
            texts.append(value)
    elif isinstance(value, list):
        for item in value[:5]:
            _collect(item, texts, codes, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            name = str(key).lower()
            if name in ("code", "type", "status") and isinstance(item, str | int):
                codes.add(str(item))
            elif name in ("error", "message", "detail", "details", "msg", "error_message", "raw", "metadata", "errors"):
                _collect(item, texts, codes, depth + 1)


def _embedded(text: str) -> Any:  # noqa: ANN401
    """Decode JSON inside a message: gateways embed the upstream error as text."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return None
    return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the delay in seconds, preferring the finer header. A date is relative to `now`."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if not text:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            seconds = _parse_date(text) - now
        if not math.isnan(seconds):
            return min(max(0.0, seconds), _MAX_RETRY_AFTER)
    return None


def _parse_date(text: str) -> float:
    """Convert an HTTP date to Unix time; NaN if it is invalid."""
    found = _search(_DATE, text)
    if found is None or found[2].lower() not in _MONTHS:
        return math.nan
    day, year, hour, minute, second = (int(found[group]) for group in (1, 3, 4, 5, 6))
    return float(calendar.timegm((year, _MONTHS.index(found[2].lower()) + 1, day, hour, minute, second)))


def _retry_after_in_text(text: str) -> float | None:
    found = re.search(r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s)\b", text, re.IGNORECASE)
    return None if found is None else float(found[1]) * (0.001 if found[2].lower() == "ms" else 1.0)


def _shorten(text: str) -> str:
    text = " ".join("".join(character if character.isprintable() else " " for character in text[:2_000]).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 1] + "…"


def _status_text(status: int) -> str:
    return f"it answered with HTTP {status}"


# Exceptions of SDKs, recognized by attributes and class names: importing the SDKs would take a second.

_BROKEN = {
    "TransportError", "StreamError", "APIConnectionError", "ModelConnectionError", "HTTPClientError", "HTTPError",
    "ConnectionBroken", "ConnectError", "ClosedResourceError", "BrokenResourceError", "ModelTimeoutError",
}  # fmt: skip
_INVALID_DATA = {"UnexpectedModelBehavior", "JSONDecodeError", "UnknownApiResponseError"}
_SDK_FAILURES = {"TypeError", "AttributeError", "LookupError", "UnicodeError"}
_USAGE_ERRORS = {"BotoCoreError", "UserError", "NotImplementedError", "TypeError", "ValueError"}
_CREDENTIAL_ERRORS = {"DefaultCredentialsError", "RefreshError", "NoCredentialsError", "PartialCredentialsError"}


def convert_exception(
    context: ErrorContext, watchdog: RequestWatchdog, error: BaseException | None, *, now: float
) -> ProviderError:
    """Return the error for a failed request. Without an exception, the request was cancelled."""
    if isinstance(error, ProviderError):
        return error
    if watchdog.has_stalled:
        return stall_error(context, watchdog.timeout, has_begun=watchdog.has_begun)
    if watchdog.page is not None and watchdog.page[1]:
        return _unexpected_body_error(context, *watchdog.page, now=now)
    if error is None:
        return incomplete_error(context)
    chain = list(_iter_causes(error))
    for item in chain:
        if (found := _exception_status_error(context, item, now=now)) is not None:
            return found
    return _classify_exception(context, chain, has_begun=watchdog.has_begun)


def _unexpected_body_error(context: ErrorContext, status: int, body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response that is a JSON error or a web page instead of the requested stream."""
    if body.lstrip().startswith((b"{", b"[")):
        return error_in_stream(context, body.decode("utf-8", "replace"), now=now)
    return status_error(context, status, {"content-type": "text/html"}, body, now=now)


def _classify_exception(context: ErrorContext, chain: Sequence[BaseException], *, has_begun: bool) -> ProviderError:
    names = {kind.__name__ for item in chain for kind in type(item).__mro__}
    ours = [item for item in chain if isinstance(item, ConnectError | ConnectionBroken)]
    reason = next((text for item in (*ours, *reversed(chain)) if (text := str(item))), type(chain[0]).__name__)
    if names & _CREDENTIAL_ERRORS:
        return credentials_error(context, reason)
    if names & _BROKEN:
        is_refused = any(isinstance(item, ConnectionRefused | ConnectionRefusedError) for item in chain)
        return (
            incomplete_error(context, reason) if has_begun else connection_error(context, reason, is_refused=is_refused)
        )
    if "ValidationError" in names:
        # A complete chunk that does not match the schema would not match after a retry either.
        return _invalid_response_error(context, next(filter(None, map(_validation_detail, chain)), "ValidationError"))
    if names & _INVALID_DATA:
        return incomplete_error(context, reason)
    if names & _SDK_FAILURES and has_begun:
        return _invalid_response_error(context, type(chain[0]).__name__)
    if names & _USAGE_ERRORS:
        return refused_error(context, reason)
    return error_in_stream(context, {"message": reason})


def _invalid_response_error(context: ErrorContext, why: str) -> ProviderError:
    return refused_error(context, f"its response was not understood ({why})", "Check base_url.")


def _validation_detail(error: BaseException) -> str:
    """Return field and reason of a pydantic validation error, without the value, which may be confidential."""
    try:
        first: Any = error.errors()[0]  # type: ignore[attr-defined]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (AttributeError, TypeError, LookupError):
        return ""


def _exception_status_error(context: ErrorContext, error: BaseException, *, now: float) -> ProviderError | None:
    """Return the error for an exception that carries an HTTP status, else None. Libraries store status and body in
    different attributes.
    """
    status = getattr(error, "status_code", getattr(error, "code", None))
    if not isinstance(status, int):
        return None
    body = getattr(error, "body", None)
    if status < 300:
        return error_in_stream(context, body or str(error))
    headers = getattr(error, "headers", None)
    if headers is None and (response := getattr(error, "response", None)) is not None:
        headers = getattr(response, "headers", None)
    lowered = {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
    return status_error(context, status, lowered, _bytes(body), now=now)


def _bytes(body: Any) -> bytes:  # noqa: ANN401 - any value of the library
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8", "replace")
    try:
        return msgspec.json.encode(body, enc_hook=str)
    except (TypeError, ValueError):
        return str(body).encode("utf-8", "replace")


def _iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; groups are flattened."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        item = pending.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, BaseExceptionGroup):
            pending += item.exceptions
        pending += [cause for cause in (item.__cause__, item.__context__) if cause is not None]
