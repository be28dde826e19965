"""Usage of a session: token counts are replaced, costs are added, and unreported usage is estimated."""

import pytest

from engine.helpers import RecordingLedger, fixed_tool, info, run_to_end, session_of
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import PatchSession
from holdfast.domain.usage import Price, Usage
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step, Think
from holdfast.testing.harness import Harness

PRICE = Price(input=1_000_000.0, output=10_000_000.0, cache_read=100_000.0, cache_write=10_000.0)


async def session_after(*usages: Usage) -> Session:
    """Return the session after a run whose steps report this usage."""
    steps = [Step((Call("tool"),), usage) for usage in usages[:-1]]
    model = ScriptedModel([*steps, Step((Say("done"),), usages[-1])], info=info(price=PRICE))
    return await session_of(await run_to_end(model, fixed_tool("tool")))


async def test_reported_usage_is_the_size_of_the_context() -> None:
    session = await session_after(Usage(input_tokens=5, output_tokens=3))
    assert (session.prompt_tokens, session.completion_tokens) == (5, 3)
    assert session.cost == pytest.approx(35.0)
    assert not session.estimated_usage


async def test_cached_tokens_are_part_of_the_context_and_have_their_own_price() -> None:
    session = await session_after(Usage(5, 3, cache_read_tokens=20, cache_write_tokens=100))
    assert (session.prompt_tokens, session.completion_tokens) == (25, 3)
    assert session.cost == pytest.approx(5 + 30 + 2 + 1)


async def test_counters_are_replaced_and_costs_add_up() -> None:
    session = await session_after(Usage(5, 3), Usage(9, 1), Usage(11, 2))
    assert (session.prompt_tokens, session.completion_tokens) == (11, 2)
    assert session.cost == pytest.approx(25 + 60)


async def test_zero_keeps_the_previous_value() -> None:
    session = await session_after(Usage(5, 3), Usage(input_tokens=9), Usage(output_tokens=4))
    assert (session.prompt_tokens, session.completion_tokens) == (9, 4)


async def test_costs_add_up_over_runs() -> None:
    model = ScriptedModel([Step((Say("a"),), Usage(1)), Step((Say("b"),), Usage(2))], info=info(price=PRICE))
    harness = await Harness.open(model)
    for number in (1, 2):
        await harness.prompt("go", f"r{number}")
        await harness.wait_until_idle()
    assert (await session_of(harness)).cost == pytest.approx(3.0)


async def test_unreported_usage_is_estimated_and_costs_nothing() -> None:
    session = await session_after(Usage())
    assert session.estimated_usage
    assert session.cost == 0.0
    assert session.completion_tokens == 1
    assert session.prompt_tokens > 0


async def test_an_estimate_is_a_quarter_of_the_characters() -> None:
    """Reasoning, text, name and arguments of a call are output; its result is input of the next step."""
    first = Step((Think("x" * 40), Say("y" * 80), Call("tool", '{"a":"1"}')))
    ledger = RecordingLedger()
    await run_to_end(ScriptedModel([first, Step((Say("z"),))]), fixed_tool("tool", "r" * 400), ledger=ledger)
    patches = [item.patch for item in ledger.operations if isinstance(item, PatchSession) if item.patch.prompt_tokens]
    assert [patch.completion_tokens for patch in patches] == [(40 + 80 + 4 + 9 + 3) // 4, 1]
    before, after = (patch.prompt_tokens or 0 for patch in patches)
    assert after - before == pytest.approx((40 + 80 + 4 + 9 + 400) / 4, abs=1)


async def test_an_estimate_of_the_input_contains_the_system_prompt() -> None:
    ledger = RecordingLedger()
    model = ScriptedModel([Step((Say("z"),))])
    await run_to_end(model, ledger=ledger)
    (estimated,) = [item.patch.prompt_tokens for item in ledger.operations if isinstance(item, PatchSession)]
    (request,) = model.requests
    assert estimated == -(-(len("go") + len(request.system)) // 4)


async def test_a_report_ends_the_estimate() -> None:
    session = await session_after(Usage(), Usage(7, 1))
    assert not session.estimated_usage
    assert session.prompt_tokens == 7


async def test_every_step_updates_the_session() -> None:
    """Including the last one, which is stored with the end of the run."""
    ledger = RecordingLedger()
    model = ScriptedModel([Step((Call("tool"),), Usage(1, 1)), Step((Say("x"),), Usage(2, 2))])
    await run_to_end(model, fixed_tool("tool"), ledger=ledger)
    patches = [item.patch.prompt_tokens for item in ledger.operations if isinstance(item, PatchSession)]
    assert patches == [1, 2]
