"""Approvals that nothing skips, since a deny rule could apply: asked in interactive use, else refused."""

import pytest

from engine.test_approvals import Scene
from holdfast.domain.approvals import Verdict
from holdfast.domain.runs import Prompt
from holdfast.testing.gates import until
from holdfast.testing.harness import Harness

WHY = "The line is not fully understood, and a deny rule could apply."


async def opened() -> tuple[Scene, Harness]:
    scene = Scene()
    harness = await scene.open()
    harness.workspace.approvals.judge = lambda _: Verdict("ask", WHY, (), insists=True)
    return scene, harness


@pytest.mark.parametrize("action", ["allow", "deny"])
async def test_yolo_does_not_skip_it(action: str) -> None:
    scene, harness = await opened()
    asks = harness.workspace.approvals
    asks.skips = True
    run = await harness.workspace.inputs.submit(Prompt(harness.session, "go", interactive=True, yolo=True))
    await until(lambda: bool(asks.permissions))
    assert asks.permissions[0].insists
    assert scene.ran == []
    await asks.grant(asks.permissions[0].id, "allow" if action == "allow" else "deny")
    await until(lambda: bool(asks.questions) and not asks.permissions)
    assert scene.ran == ([run.run_id] if action == "allow" else [])
    await harness.close()


async def test_an_unattended_run_is_refused() -> None:
    scene, harness = await opened()
    harness.workspace.approvals.skips = True
    await harness.workspace.inputs.submit(Prompt(harness.session, "go", interactive=False, yolo=True))
    await harness.quiet()
    assert scene.ran == []
    assert not harness.workspace.approvals.permissions
    assert WHY in str(await harness.messages())
    await harness.close()
