"""Amazon Bedrock. Its SDK blocks in threads, so the watch registers its sockets to be able to close them."""

import socket
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from boto3 import Session  # type: ignore[import-untyped]
from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.session import Session as BotocoreSession  # type: ignore[import-untyped]
from botocore.tokens import FrozenAuthToken  # type: ignore[import-untyped]
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider
from urllib3.exceptions import NewConnectionError

from holdfast.domain.model_requests import ModelInfo
from holdfast.http11.client_connection import ConnectError, connect_error
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.shared_http_clients import CURRENT_WATCHDOG

__all__ = ["build", "refine"]

_MAX_PAGE = 4_000


class _Socket:
    """A socket that can be shut down from a thread other than the reading one."""

    has_unread = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - urllib3's, of two kinds
        self._socket = connection.sock

    def abort(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            # Already closed.
            return


def _register_socket(connection: Any) -> None:  # noqa: ANN401
    watchdog = CURRENT_WATCHDOG.get()
    if watchdog is not None and connection.sock is not None:
        watchdog.register(_Socket(connection))


class _SupervisedConnection:
    """Mix-in that registers the connection with the current watch."""

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except NewConnectionError as error:
            cause = error.__cause__
            raise (connect_error(cause) if isinstance(cause, OSError) else ConnectError(str(error))) from error
        _register_socket(self)

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        _register_socket(self)
        return super().request(*args, **kwargs)  # type: ignore[misc]


class _Plain(_SupervisedConnection, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _Secure(_SupervisedConnection, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _PlainPool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Plain


class _SecurePool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Secure


class _Bearer(BotocoreSession):  # type: ignore[misc]
    """A session that authenticates with one bearer key and no other credentials."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def get_auth_token(self, **_: Any) -> FrozenAuthToken:  # noqa: ANN401
        return FrozenAuthToken(self._key)

    def get_credentials(self) -> None:
        return None


def build(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> BedrockConverseModel:
    """Create the model, with a bearer key or with the credentials of the AWS tools."""
    port = urlsplit(access.base_url).netloc.rpartition(":")[2]
    if port.isdigit() and not 0 < int(port) < 65_536:
        raise ValueError(f"there is no port {port}")
    extras = access.extras
    credentials: dict[str, Any] = {
        "aws_access_key_id": extras.get("access_key_id"),
        "aws_secret_access_key": extras.get("secret_access_key"),
        "aws_session_token": extras.get("session_token"),
    }
    config: dict[str, Any] = {
        "read_timeout": access.first_byte + 60,
        "connect_timeout": 30,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    if access.api_key:
        credentials = {"botocore_session": _Bearer(access.api_key)}
        config["signature_version"] = "bearer"
    session = Session(profile_name=extras.get("profile"), region_name=extras.get("region") or None, **credentials)
    sdk = session.client("bedrock-runtime", config=Config(**config), endpoint_url=access.base_url or None)
    _watch_sockets(sdk)
    sdk.meta.events.register("before-parse.bedrock-runtime", _check_content_type)
    return BedrockConverseModel(info.model, provider=BedrockProvider(bedrock_client=sdk))


def _check_content_type(response_dict: dict[str, Any], **_: Any) -> None:  # noqa: ANN401
    """Inspect responses before the SDK does: it discards bodies that are not in the format of AWS."""
    body = response_dict["body"]
    if response_dict["status_code"] >= 300:
        response_dict["body"] = _with_message(body)
        return
    kind = response_dict["headers"].get("content-type", "")
    watchdog = CURRENT_WATCHDOG.get()
    if watchdog is not None and kind.startswith(("text/html", "application/json")):
        watchdog.page = response_dict["status_code"], body.read(_MAX_PAGE)
        raise ValueError("its response is not a stream")


def _with_message(body: bytes) -> bytes:
    """Move the text of an error response to the key that the SDK reads."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not decoded or (isinstance(decoded, dict) and ("message" in decoded or "Message" in decoded)):
        return body
    return msgspec.json.encode({"message": body.decode("utf-8", "replace")})


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """Move extra body fields to the setting that Bedrock uses for them."""
    out = {name: value for name, value in settings.items() if name != "extra_body"}
    if body := settings.get("extra_body"):
        out["bedrock_additional_model_requests_fields"] = body
    return out


def _watch_sockets(sdk: Any) -> None:  # noqa: ANN401 - boto3 has no types
    session = sdk._endpoint.http_session
    session._pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme
