"""Forced approvals, where a deny rule could apply: requested in interactive use, otherwise refused."""

import pytest

from engine.test_approvals import Scenario
from holdfast.domain.approvals import Verdict
from holdfast.domain.runs import Prompt
from holdfast.testing.gates import until
from holdfast.testing.harness import Harness

WHY = "The line is not fully understood, and a deny rule could apply."


async def open_scenario() -> tuple[Scenario, Harness]:
    scenario = Scenario()
    harness = await scenario.open()
    harness.workspace.approvals.judge = lambda _: Verdict("ask", WHY, (), insists=True)
    return scenario, harness


@pytest.mark.parametrize("action", ["allow", "deny"])
async def test_yolo_does_not_skip_a_forced_request(action: str) -> None:
    scenario, harness = await open_scenario()
    asks = harness.workspace.approvals
    asks.skips = True
    run = await harness.workspace.inputs.submit(Prompt(harness.session, "go", interactive=True, yolo=True))
    await until(lambda: bool(asks.permissions))
    assert asks.permissions[0].insists
    assert scenario.ran == []
    await asks.grant(asks.permissions[0].id, "allow" if action == "allow" else "deny")
    ran = [run.run_id] if action == "allow" else []
    await until(lambda: bool(asks.questions) and not asks.permissions and scenario.ran == ran)
    await harness.close()
    assert scenario.ran == ran


async def test_unattended_run_is_refused_a_forced_request() -> None:
    scenario, harness = await open_scenario()
    harness.workspace.approvals.skips = True
    await harness.workspace.inputs.submit(Prompt(harness.session, "go", interactive=False, yolo=True))
    await harness.wait_until_idle()
    assert scenario.ran == []
    assert not harness.workspace.approvals.permissions
    assert WHY in str(await harness.messages())
    await harness.close()
