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
from holdfast.providers.http_client import close_connections
from holdfast.providers.model_access import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.testing.harness import FixedModels, Harness
from model_server.script import Ask, Reply, Say, Think, event
from model_server.server import Asked, ModelServer

ANSWERS = (
    Reply((Think(("let me ", "see")), Say(("I ", "look")), Ask("c1", "look", ("{}",))), Usage(1, 2)),
    Reply((Think(("both",)), Ask("c2", "look", ('{"n"', ":1}")), Ask("c3", "other", ("{}",))), Usage(3, 4)),
    Reply((Say(("all ", "done")),), Usage(5, 6)),
)
TROUBLES = {
    "busy": Reply(status=503),
    "cut": Reply((Think(("no",)), Say(("not ", "this")), Ask("c1", "look", ("{}",))), cut_after=3),
    "ended early": Reply((Say(("not ", "this")),), cut_after=2, ends_politely=True),
    "error": Reply(raw=(event({"error": {"message": "The server is overloaded", "code": 503}}),)),
}
Trouble = tuple[int, str]
"""Before which answer, and of which kind; `key` is a key that is not valid any more."""
INFO = ModelInfo("acme", "m", can_reason=True, reasoning_levels=("low", "high"), price=Price(1e6, 1e6))
SETTINGS = EngineSettings(titles=False, retries=RetryPolicy(first=0.0))


class Script:
    """Meets each request with a trouble as long as one is left, and then with its answer."""

    def __init__(self, troubles: Sequence[Trouble]) -> None:
        self._left = list(troubles)
        self._answered = 0
        self._is_old_refused = False
        self.places: list[int] = []
        """Which answer each request was for."""

    def __call__(self, asked: Asked) -> Reply:
        place = self._answered
        self.places.append(place)
        if self._left and self._left[0] == (place, "key"):
            self._left.pop(0)
            self._is_old_refused = True
        if self._is_old_refused and asked.headers["authorization"] != "Bearer new":
            return Reply(status=401)
        if self._left and self._left[0][0] == place:
            return TROUBLES[self._left.pop(0)[1]]
        self._answered += 1
        return ANSWERS[place]


class Played(msgspec.Struct):
    """What came of a turn, without what differs from one to the next."""

    bodies: list[dict[str, Any]]
    keys: list[str]
    places: list[int]
    stored: list[object]
    cost: float
    tokens: tuple[int, int]
    end: tuple[str, str, str]
    ran: tuple[int, int]
    notices: list[str]


async def turn(troubles: Sequence[Trouble], effort: str, *, falls_back: bool) -> Played:
    script = Script(troubles)
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
        await harness.quiet()
        messages = await harness.messages()
        session = await harness.ledger.session(harness.workspace.record.id, harness.session)
        await harness.close()
        await close_connections()
        assert session is not None
        assert all(asked.headers["x-team"] == "a" for asked in server.asked)
        end = harness.end_of("r1")
        return Played(
            [asked.json for asked in server.asked],
            [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked],
            script.places,
            [stored(message) for message in messages],
            session.cost,
            (session.prompt_tokens, session.completion_tokens),
            (end.outcome, end.text, end.error),
            (tools[0].started, tools[1].started),
            [notice.type for notice in harness.notices() if notice.type != "agent_finished"],
        )


def stored(message: Message) -> object:
    """Without times."""
    parts = msgspec.to_builtins(message.parts)
    for part in parts:
        for name in ("time", "started_at", "finished_at"):
            part["data"].pop(name, None)
    return message.role, message.model, message.provider, parts


@pytest.fixture
async def connections() -> AsyncIterator[None]:
    yield
    await close_connections()


def pairs() -> list[tuple[Trouble, Trouble]]:
    each = list(product(range(len(ANSWERS)), [*TROUBLES, "key"]))
    return [pair for pair in combinations_with_replacement(each, 2) if [kind for _, kind in pair] != ["key", "key"]]


@pytest.mark.parametrize("falls_back", [False, True], ids=["chosen model", "fallback"])
@pytest.mark.parametrize("effort", ["", "high"])
async def test_troubles_by_pairs_change_nothing_else(effort: str, falls_back: bool, connections: None) -> None:
    easy = await turn([], effort, falls_back=falls_back)
    assert easy.places == [0, 1, 2]
    assert easy.end == ("completed", "all done", "")
    assert easy.ran == (2, 1)
    assert easy.cost == 21.0
    assert [body.get("reasoning_effort") for body in easy.bodies] == [effort or None] * 3
    thoughts = [said["reasoning_content"] for said in easy.bodies[2]["messages"] if "reasoning_content" in said]
    assert thoughts == ["let me see", "both"]
    assert easy.notices == ["fallback"] * falls_back
    for number, troubles in enumerate(pairs()):
        if number % 4 != 2 * falls_back + bool(effort):
            # Each pair with one of the four.
            continue
        played = await turn(troubles, effort, falls_back=falls_back)
        expected = [place for place in range(3) for _ in range(1 + sum(at == place for at, _ in troubles))]
        assert played.places == expected, troubles
        assert played.bodies == [easy.bodies[place] for place in expected], troubles
        has_new_key = any(kind == "key" for _, kind in troubles)
        assert set(played.keys) == ({"old", "new"} if has_new_key else {"old"}), troubles
        assert played.keys == sorted(played.keys, reverse=True), "the old one is not sent again"
        retries = sum(kind != "key" for _, kind in troubles)
        assert played.notices == [*easy.notices, *["retrying"] * retries], troubles
        for name in ("stored", "cost", "tokens", "end", "ran"):
            assert getattr(played, name) == getattr(easy, name), (troubles, name)
