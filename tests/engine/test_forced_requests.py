"""Approvals that nothing skips, since a deny rule could apply: asked in interactive use, else refused."""

import pytest

from engine.test_approvals import Scene
from holdfast.domain.approvals import Verdict
from holdfast.domain.runs import Prompt
from holdfast.testing.gates import until
from holdfast.testing.harness import World

WHY = "The line is not fully understood, and a deny rule could apply."


async def opened() -> tuple[Scene, World]:
    scene = Scene()
    world = await scene.open()
    world.workspace.approvals.judge = lambda _: Verdict("ask", WHY, (), insists=True)
    return scene, world


@pytest.mark.parametrize("action", ["allow", "deny"])
async def test_yolo_does_not_skip_it(action: str) -> None:
    scene, world = await opened()
    asks = world.workspace.approvals
    asks.skips = True
    run = await world.workspace.inputs.submit(Prompt(world.session, "go", interactive=True, yolo=True))
    await until(lambda: bool(asks.permissions))
    assert asks.permissions[0].insists
    assert scene.ran == []
    await asks.grant(asks.permissions[0].id, "allow" if action == "allow" else "deny")
    await until(lambda: bool(asks.questions) and not asks.permissions)
    assert scene.ran == ([run.run_id] if action == "allow" else [])
    await world.close()


async def test_an_unattended_run_is_refused() -> None:
    scene, world = await opened()
    world.workspace.approvals.skips = True
    await world.workspace.inputs.submit(Prompt(world.session, "go", interactive=False, yolo=True))
    await world.quiet()
    assert scene.ran == []
    assert not world.workspace.approvals.permissions
    assert WHY in str(await world.messages())
    await world.close()
