"""Turns with failures, in pairs, over a real wire: they send and store the same as turns without failures."""

from collections.abc import AsyncIterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any

import msgspec
import pytest

from engine.helpers import fixed_tool
from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import RunId
from holdfast.domain.messages import Message
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Prompt, PromptExpansion
from holdfast.domain.settings import Selection
from holdfast.domain.usage import Price, Usage
from holdfast.engine.ports import Model
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.settings import EngineSettings
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.shared_http_clients import close_connections
from holdfast.testing.harness import FixedModels, Harness
from model_server.script import CallTool, Reply, Say, Think, event
from model_server.server import ModelServer, RecordedRequest

RESPONSES = (
    Reply((Think(("let me ", "see")), Say(("I ", "look")), CallTool("c1", "look", ("{}",))), Usage(1, 2)),
    Reply((Think(("both",)), CallTool("c2", "look", ('{"n"', ":1}")), CallTool("c3", "other", ("{}",))), Usage(3, 4)),
    Reply((Say(("all ", "done")),), Usage(5, 6)),
)
FAILURES = {
    "busy": Reply(status=503),
    "cut": Reply((Think(("no",)), Say(("not ", "this")), CallTool("c1", "look", ("{}",))), cut_after=3),
    "ended early": Reply((Say(("not ", "this")),), cut_after=2, ends_politely=True),
    "error": Reply(raw=(event({"error": {"message": "The server is overloaded", "code": 503}}),)),
}
Failure = tuple[int, str]
"""The response it precedes, and its kind; `key` is an expired key."""
INFO = ModelInfo("acme", "m", can_reason=True, reasoning_levels=("low", "high"), price=Price(1e6, 1e6))
SETTINGS = EngineSettings(titles=False, retries=RetryPolicy(first=0.0))


class Script:
    """Answers each request with the next failure, and then with its response."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self._left = list(failures)
        self._answered = 0
        self._is_old_refused = False
        self.places: list[int] = []
        """The response that each request was for."""

    def __call__(self, request: RecordedRequest) -> Reply:
        place = self._answered
        self.places.append(place)
        if self._left and self._left[0] == (place, "key"):
            self._left.pop(0)
            self._is_old_refused = True
        if self._is_old_refused and request.headers["authorization"] != "Bearer new":
            return Reply(status=401)
        if self._left and self._left[0][0] == place:
            return FAILURES[self._left.pop(0)[1]]
        self._answered += 1
        return RESPONSES[place]


class TurnResult(msgspec.Struct):
    """The result of a turn, without fields that differ from one to the next."""

    bodies: list[dict[str, Any]]
    keys: list[str]
    places: list[int]
    stored: list[object]
    cost: float
    tokens: tuple[int, int]
    end: tuple[str, str, str]
    ran: tuple[int, int]
    notices: list[str]


async def turn(failures: Sequence[Failure], effort: str, *, falls_back: bool) -> TurnResult:
    script = Script(failures)
    tools = fixed_tool("look"), fixed_tool("other")

    async def unusable(_: str) -> Model:
        raise ProviderError("It has no key.", trouble="credentials")

    async with ModelServer(script) as server:

        def model(key: str) -> CompatibleModel:
            access = ModelAccess(base_url=server.base_url(), api_key=key, headers={"x-team": "a"})
            return CompatibleModel(INFO, access, Selection(reasoning_effort=effort))

        models = FixedModels(model("old"), renewed=model("new"))
        harness = await Harness.open(models, tools=tools, settings=SETTINGS, named_model=unusable)
        brief = PromptExpansion("go on", model="acme/other") if falls_back else None
        await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId("r1"), brief=brief))
        await harness.wait_until_idle()
        messages = await harness.messages()
        session = await harness.ledger.session(harness.workspace.record.id, harness.session)
        await harness.close()
        await close_connections()
        assert session is not None
        assert all(request.headers["x-team"] == "a" for request in server.requests)
        end = harness.end_of("r1")
        return TurnResult(
            [request.json for request in server.requests],
            [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests],
            script.places,
            [without_times(message) for message in messages],
            session.cost,
            (session.prompt_tokens, session.completion_tokens),
            (end.outcome, end.text, end.error),
            (tools[0].started, tools[1].started),
            [notice.type for notice in harness.notices() if notice.type != "agent_finished"],
        )


def without_times(message: Message) -> object:
    """Return the message without times."""
    parts = msgspec.to_builtins(message.parts)
    for part in parts:
        for name in ("time", "started_at", "finished_at"):
            part["data"].pop(name, None)
    return message.role, message.model, message.provider, parts


@pytest.fixture
async def connections() -> AsyncIterator[None]:
    yield
    await close_connections()


def pairs() -> list[tuple[Failure, Failure]]:
    each = list(product(range(len(RESPONSES)), [*FAILURES, "key"]))
    return [pair for pair in combinations_with_replacement(each, 2) if [kind for _, kind in pair] != ["key", "key"]]


@pytest.mark.parametrize("falls_back", [False, True], ids=["chosen model", "fallback"])
@pytest.mark.parametrize("effort", ["", "high"])
async def test_pairs_of_failures_do_not_change_the_result(effort: str, falls_back: bool, connections: None) -> None:
    easy = await turn([], effort, falls_back=falls_back)
    assert easy.places == [0, 1, 2]
    assert easy.end == ("completed", "all done", "")
    assert easy.ran == (2, 1)
    assert easy.cost == 21.0
    assert [body.get("reasoning_effort") for body in easy.bodies] == [effort or None] * 3
    thoughts = [item["reasoning_content"] for item in easy.bodies[2]["messages"] if "reasoning_content" in item]
    assert thoughts == ["let me see", "both"]
    assert easy.notices == ["fallback"] * falls_back
    for number, failures in enumerate(pairs()):
        if number % 4 != 2 * falls_back + bool(effort):
            # Each pair with one of the four.
            continue
        played = await turn(failures, effort, falls_back=falls_back)
        expected = [place for place in range(3) for _ in range(1 + sum(at == place for at, _ in failures))]
        assert played.places == expected, failures
        assert played.bodies == [easy.bodies[place] for place in expected], failures
        has_new_key = any(kind == "key" for _, kind in failures)
        assert set(played.keys) == ({"old", "new"} if has_new_key else {"old"}), failures
        assert played.keys == sorted(played.keys, reverse=True), "the old one is not sent again"
        retries = sum(kind != "key" for _, kind in failures)
        assert played.notices == [*easy.notices, *["retrying"] * retries], failures
        for name in ("stored", "cost", "tokens", "end", "ran"):
            assert getattr(played, name) == getattr(easy, name), (failures, name)
