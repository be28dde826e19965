"""Convert exceptions of SDKs to `ProviderError`. They are recognized by attributes and class names, without imports."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.domain.errors import ProviderError
from holdfast.providers.connections import ConnectionBroken, ConnectionRefused, NotReached
from holdfast.providers.troubles import (
    Place,
    connection_error,
    credentials_error,
    cut_error,
    error_in_stream,
    refusal,
    refused_error,
    stall_error,
)
from holdfast.providers.watch import Watch

__all__ = ["fault_of"]

_BROKEN = {
    "TransportError", "StreamError", "APIConnectionError", "ModelConnectionError", "HTTPClientError", "HTTPError",
    "ConnectionBroken", "NotReached", "ClosedResourceError", "BrokenResourceError", "ModelTimeoutError",
}  # fmt: skip
_GARBLED = {"UnexpectedModelBehavior", "JSONDecodeError", "UnknownApiResponseError"}
_STUMBLED = {"TypeError", "AttributeError", "LookupError", "UnicodeError"}
_OWN_FAULT = {"BotoCoreError", "UserError", "NotImplementedError", "TypeError", "ValueError"}
_SIGNED_OUT = {"DefaultCredentialsError", "RefreshError", "NoCredentialsError", "PartialCredentialsError"}


def fault_of(place: Place, watch: Watch, error: BaseException | None, *, now: float) -> ProviderError:
    """Return the error for a failed request. Without an exception, the request was cancelled."""
    if isinstance(error, ProviderError):
        return error
    if watch.has_stalled:
        return stall_error(place, watch.patience, has_begun=watch.has_begun)
    if watch.page is not None and watch.page[1]:
        return _instead(place, *watch.page, now=now)
    if error is None:
        return cut_error(place)
    chain = list(_chain(error))
    for item in chain:
        if (found := _told(place, item, now=now)) is not None:
            return found
    return _by_name(place, chain, has_begun=watch.has_begun)


def _instead(place: Place, status: int, body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response that is a JSON error or a web page instead of the requested stream."""
    if body.lstrip().startswith((b"{", b"[")):
        return error_in_stream(place, body.decode("utf-8", "replace"), now=now)
    return refusal(place, status, {"content-type": "text/html"}, body, now=now)


def _by_name(place: Place, chain: Sequence[BaseException], *, has_begun: bool) -> ProviderError:
    names = {kind.__name__ for item in chain for kind in type(item).__mro__}
    ours = [item for item in chain if isinstance(item, NotReached | ConnectionBroken)]
    reason = next((text for item in (*ours, *reversed(chain)) if (text := str(item))), type(chain[0]).__name__)
    if names & _SIGNED_OUT:
        return credentials_error(place, reason)
    if names & _BROKEN:
        is_refused = any(isinstance(item, ConnectionRefused | ConnectionRefusedError) for item in chain)
        return cut_error(place, reason) if has_begun else connection_error(place, reason, is_refused=is_refused)
    if "ValidationError" in names:
        # A complete chunk that does not match the schema would not match after a retry either.
        return _not_understood(place, next(filter(None, map(_objection, chain)), "ValidationError"))
    if names & _GARBLED:
        return cut_error(place, reason)
    if names & _STUMBLED and has_begun:
        return _not_understood(place, type(chain[0]).__name__)
    if names & _OWN_FAULT:
        return refused_error(place, reason)
    return error_in_stream(place, {"message": reason})


def _not_understood(place: Place, why: str) -> ProviderError:
    return refused_error(place, f"its answer was not understood ({why})", "Check base_url.")


def _objection(error: BaseException) -> str:
    """Return field and reason of a pydantic validation error, without the value, which may be confidential."""
    try:
        first: Any = error.errors()[0]  # type: ignore[attr-defined]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (AttributeError, TypeError, LookupError):
        return ""


def _told(place: Place, error: BaseException, *, now: float) -> ProviderError | None:
    """Return the error for an exception that carries an HTTP status, else None. Libraries store status and body in
    different attributes.
    """
    status = getattr(error, "status_code", getattr(error, "code", None))
    if not isinstance(status, int):
        return None
    body = getattr(error, "body", None)
    if status < 300:
        return error_in_stream(place, body or str(error))
    headers = getattr(error, "headers", None)
    if headers is None and (response := getattr(error, "response", None)) is not None:
        headers = getattr(response, "headers", None)
    lowered = {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
    return refusal(place, status, lowered, _bytes(body), now=now)


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


def _chain(error: BaseException) -> Iterator[BaseException]:
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
