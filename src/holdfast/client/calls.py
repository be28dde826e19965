"""Request layer: calls a route of the route table, and encodes and decodes its bodies."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.client.errors import BrokenResponse, ServerProblem, message_of
from holdfast.client.pool import Pool
from holdfast.client.wire import IDEMPOTENT, Address, QueryItems, build_request, fill
from holdfast.domain.asks import Via
from holdfast.protocol.routes import ROUTES, Route

__all__ = ["Calls"]

T = TypeVar("T")

_BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
_JSON = (("Accept", "application/json"),)


class Calls:
    """Base class of the client methods. `seconds` is the time limit for a response."""

    def __init__(self, address: Address, *, client_id: str, via: Via, seconds: float) -> None:
        self.client_id = client_id
        self.via = via
        self._pool = Pool(address)
        self._seconds: float | None = seconds
        self._encoder = msgspec.json.Encoder()
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}

    @property
    def address(self) -> Address:
        """The address of the server."""
        return self._pool.address

    @address.setter
    def address(self, address: Address) -> None:
        """Send further requests to another address, for example after a restart of the server."""
        self._pool.move(address)

    async def _ask(self, answer: type[T], name: str, *, query: QueryItems = (), body: object = None, **names: str) -> T:
        """Call a route that returns a body."""
        return self._decode(answer, name, await self._exchange(name, names, query=query, body=body))

    async def _send(self, name: str, *, query: QueryItems = (), body: object = None, **names: str) -> None:
        """Call a route that returns only a status."""
        await self._exchange(name, names, query=query, body=body)

    async def _exchange(
        self,
        name: str,
        names: Mapping[str, str],
        *,
        query: QueryItems = (),
        body: object = None,
        can_repeat: bool = False,
        is_patient: bool = False,
    ) -> bytes:
        """Call a route and return the raw body. Every 2xx status counts as success, regardless of the route table."""
        route = _BY_NAME[name]
        message = build_request(
            self.address,
            route.method,
            fill(route.full_path, names),
            query,
            None if body is None else self._encoder.encode(body),
            _JSON,
        )
        answer = await self._pool.exchange(
            message,
            method=route.method,
            can_repeat=can_repeat or route.method in IDEMPOTENT,
            seconds=None if is_patient else self._seconds,
        )
        if not 200 <= answer.head.status < 300:
            raise ServerProblem(answer.head.status, message_of(answer.body))
        return answer.body

    def _decode(self, answer: type[T], name: str, raw: bytes) -> T:
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = msgspec.json.Decoder(answer)
        try:
            value: T = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenResponse(f"The server answered {name} with something that cannot be read.") from None
        return value
