"""Renewed credentials during retries: the failure count starts again, and partial output is withdrawn at once."""

import msgspec

from engine.helpers import PATIENT
from holdfast.domain.errors import Trouble
from holdfast.domain.messages import text_of
from holdfast.engine.retries import RetryPolicy
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import settle_down
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.seeded_loop import elapse, in_virtual_time


def failing(trouble: Trouble) -> Step:
    return Step((Say("half"), Fail(f"it is {trouble}", trouble=trouble)))


def test_failures_before_a_renewal_do_not_count_after_it() -> None:
    async def main() -> None:
        settings = msgspec.structs.replace(PATIENT, retries=RetryPolicy(most=2, first=1.0))
        old = ScriptedModel([failing("busy"), failing("busy"), failing("credentials")])
        new = ScriptedModel([failing("busy"), failing("busy"), Step((Say("at last"),))])
        harness = await Harness.open(FixedModels(old, renewed=new), settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert (harness.end_of("r1").outcome, harness.end_of("r1").text) == ("completed", "at last")
        await harness.close()

    in_virtual_time(main)


def test_partial_output_is_withdrawn_before_the_wait_for_the_next_attempt() -> None:
    async def main() -> None:
        settings = msgspec.structs.replace(PATIENT, retries=RetryPolicy(most=2, first=50.0))
        harness = await Harness.open(
            FixedModels(ScriptedModel([failing("busy"), Step((Say("whole"),))])), settings=settings
        )
        await harness.prompt("go", "r1")
        await elapse(10.0)
        await settle_down()
        assert [text_of(message) for message in await harness.messages() if message.role == "assistant"] == [""]
        await harness.wait_until_idle()
        assert harness.end_of("r1").text == "whole"
        await harness.close()

    in_virtual_time(main)
