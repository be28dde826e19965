"""Amazon Bedrock. Its library blocks in threads; we hold on to its sockets, so that we can hang up."""

import socket
from typing import Any

import httpx2
from boto3 import Session  # type: ignore[import-untyped]
from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.session import Session as BotocoreSession  # type: ignore[import-untyped]
from botocore.tokens import FrozenAuthToken  # type: ignore[import-untyped]
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

from holdfast.domain.models import ModelInfo
from holdfast.providers.access import Access
from holdfast.providers.watch import CURRENT

__all__ = ["build", "refine"]


class _Socket:
    """Can be hung up from another thread than the one that reads it."""

    has_unread = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - urllib3's, of two kinds
        self._socket = connection.sock

    def hang_up(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            # It is closed already.
            return


def _hold(connection: Any) -> None:  # noqa: ANN401
    watch = CURRENT.get()
    if watch is not None and connection.sock is not None:
        watch.hold(_Socket(connection))


class _Plain(AWSHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        super().connect()
        _hold(self)

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        _hold(self)
        return super().request(*args, **kwargs)


class _Secure(AWSHTTPSConnection):  # type: ignore[misc]
    def connect(self) -> None:
        super().connect()
        _hold(self)

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        _hold(self)
        return super().request(*args, **kwargs)


class _PlainPool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Plain


class _SecurePool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Secure


class _Bearer(BotocoreSession):  # type: ignore[misc]
    """A session that signs in with one key and knows no other credentials."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def get_auth_token(self, **_: Any) -> FrozenAuthToken:  # noqa: ANN401
        return FrozenAuthToken(self._key)

    def get_credentials(self) -> None:
        return None


def build(info: ModelInfo, access: Access, client: httpx2.AsyncClient) -> BedrockConverseModel:
    """With a bearer key, or the credentials that AWS's own tools use."""
    extras = access.extras
    known: dict[str, Any] = {
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
        known = {"botocore_session": _Bearer(access.api_key)}
        config["signature_version"] = "bearer"
    session = Session(profile_name=extras.get("profile"), region_name=extras.get("region") or None, **known)
    sdk = session.client("bedrock-runtime", config=Config(**config), endpoint_url=access.base_url or None)
    _watch_sockets(sdk)
    return BedrockConverseModel(info.model, provider=BedrockProvider(bedrock_client=sdk))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    out = {name: value for name, value in settings.items() if name != "extra_body"}
    if body := settings.get("extra_body"):
        out["bedrock_additional_model_requests_fields"] = body
    return out


def _watch_sockets(sdk: Any) -> None:  # noqa: ANN401 - boto3 has no types
    session = sdk._endpoint.http_session
    session._pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme
