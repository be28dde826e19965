"""Handlers of the API, called with the few things that they read: every case of their decisions."""

import asyncio
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.domain.errors import BadRequest, ProviderError
from holdfast.domain.events import MessagePart
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart, text_of
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import Selection
from holdfast.protocol.bodies import SelectedModel
from holdfast.providers.scripted_model import TOUR
from holdfast.server.http.connection import Connection, HttpServer
from holdfast.server.http.request import Request
from holdfast.server.routes import configuration, prompts, sessions, web_login
from holdfast.server.routes.web_login import NoPort
from holdfast.server.streams.event_stream import stream

SESSION = SessionId("s")


async def no_other_owner(_: str) -> None:
    """The workspace belongs to this server."""


def request(**parts: object) -> Request:
    return cast(Request, SimpleNamespace(fetch_from_owner=no_other_owner, **parts))


async def test_streamed_text_belongs_to_its_own_message() -> None:
    stored = [Message((TextPart(Text(name)),), MessageId(name), "assistant", SESSION, "m", "p", 0, 0) for name in "abc"]
    open_parts = [MessagePart(SESSION, MessageId(name), 0, TextPart(Text(f"{name} and more"))) for name in "cax"]

    async def messages(workspace: str, session: SessionId) -> list[Message]:
        assert (workspace, session) == ("w", SESSION)
        return stored

    workspace = SimpleNamespace(id="w", open_parts=lambda: open_parts)
    ledger = SimpleNamespace(messages=messages)
    found = await sessions.list_messages(request(ledger=ledger, workspace=workspace, session=SESSION))
    assert [(message.id, text_of(message)) for message in found] == [
        ("a", "a and more"), ("b", "b"), ("c", "c and more"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "model"), list(product((TOUR.provider, "other", None), (TOUR.model, "other", None)))
)
def test_scripted_model_is_refused_unless_a_file_chooses_it(provider: str | None, model: str | None) -> None:
    """The name of its provider or of the model in a settings file is enough."""
    chosen = {key: value for key, value in (("provider", provider), ("model", model)) if value is not None}
    read = {"models": {"large": chosen} if chosen else {}}
    one = request(services=SimpleNamespace(configuration=SimpleNamespace(settings_from_files=read.__getitem__)))
    tour = ModelInfo(TOUR.provider, TOUR.model)
    is_chosen = provider == tour.provider or model == tour.model
    assert bool(prompts._saved_choice(one, tour)) is not is_chosen
    for info in (ModelInfo("other", tour.model), ModelInfo(tour.provider, "other")):
        assert prompts._saved_choice(one, info) == ""


@pytest.mark.parametrize("error", [ProviderError("There is none."), RuntimeError("broken"), asyncio.CancelledError()])
async def test_only_a_missing_model_is_a_state_of_the_agent(error: BaseException) -> None:
    """Any other error is not hidden behind it."""

    async def large() -> None:
        raise error

    workspace = SimpleNamespace(is_busy=lambda: True)
    asked = prompts.agent_info(request(workspace=workspace, models=SimpleNamespace(large=large)))
    if isinstance(error, ProviderError):
        info = await asked
        assert (info.is_ready, info.is_busy, info.model_cfg.model) == (False, True, "")
    else:
        with pytest.raises(type(error)):
            await asked


async def test_only_a_page_can_renew_its_token() -> None:
    renewed: list[Any] = []
    web = SimpleNamespace(sessions=SimpleNamespace(renew=renewed.append))
    with pytest.raises(NoPort):
        await web_login.page_pass(request(page=None, web=web))
    assert renewed == []
    await web_login.page_pass(request(page="page", web=web))
    assert renewed == ["page"]
    with pytest.raises(NoPort):
        await web_login.page_pass(request(page="page", web=SimpleNamespace(sessions=None)))


@pytest.mark.parametrize("value", [None, "", 1, ["p"], {}])
@pytest.mark.parametrize("name", ["config_provider_key", "config_refresh_oauth"])
async def test_provider_is_required_as_text(name: str, value: object) -> None:
    body = {} if value is None else {"provider_id": value}
    with pytest.raises(BadRequest, match="provider_id is required, as text"):
        await getattr(configuration, name)(request(body=body, services=SimpleNamespace()))


async def test_connections_that_end_after_the_stop_are_only_forgotten() -> None:
    """The event loop reports some that were accepted before it; each is aborted."""
    server = HttpServer()
    await server.stop(1.0)
    aborted: list[object] = []
    for _ in range(2):
        late = SimpleNamespace(
            is_local=True, is_unasked=True, is_incomplete=False, application=None, abort=lambda: aborted.append(1)
        )
        connection = cast(Connection, HashableConnection(late))
        server.register(connection)
        server.unregister(connection)
    assert aborted == [1, 1]


class HashableConnection:
    def __init__(self, values: SimpleNamespace) -> None:
        self.__dict__.update(vars(values))


async def test_default_small_model_of_a_provider_or_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    selection = Selection(model="small", provider="p", max_tokens=7)
    in_use = SelectedModel("used", "q", 9)

    async def default_small(provider: str) -> Selection:
        assert provider == "p"
        return selection

    async def small() -> object:
        return SimpleNamespace(info=ModelInfo("q", "used"))

    monkeypatch.setattr(configuration, "choice_of", lambda handle, size, info: in_use if size == "small" else None)
    for choice, query, expected in (
        (SimpleNamespace(default_small=default_small), {"provider_id": "p"}, SelectedModel("small", "p", 7)),
        (SimpleNamespace(default_small=default_small), {}, in_use),
        (None, {"provider_id": "p"}, in_use),
    ):
        services, models = SimpleNamespace(selected_models=choice), SimpleNamespace(small=small)
        one = request(services=services, query=query, models=models, handle=None)
        assert await configuration.default_small_model(one) == expected


async def test_a_refused_client_leaves_no_subscription() -> None:
    closed: list[str] = []

    def refuse(_: object) -> None:
        raise BadRequest("no")

    def subscribe(since: int | None, *, merge: bool) -> object:
        return SimpleNamespace(close=lambda: closed.append(f"{since} {merge}"))

    workspace = SimpleNamespace(id="w", bus=SimpleNamespace(subscribe=subscribe), approvals=None)
    one = request(
        number=lambda *_: 5,
        query={"client_id": "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"},
        workspace=workspace,
        exchange=None,
        manager=SimpleNamespace(apply=refuse),
    )
    with pytest.raises(BadRequest):
        await stream(one, cast(Any, None), cast(Any, None))
    assert closed == ["5 False"]
