"""Titles: generated in parallel to the first turn, by the small model if possible."""

import pytest

from engine.helpers import PATIENT, info, message, session_of, text_part
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import SessionEvent
from holdfast.domain.hooks import HookOutcome
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Attachment, Prompt, Run
from holdfast.domain.usage import Price, Usage
from holdfast.engine.ports import Model
from holdfast.engine.run_context import NoHooks, text
from holdfast.engine.settings import EngineSettings
from holdfast.engine.titles import FALLBACK_LENGTH, clean_title, fallback_title, generate_title
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import Gate, GatedModel, until
from holdfast.testing.harness import FixedModels, Harness

TITLED = EngineSettings(titles=True, grace=PATIENT.grace)
LONG = "please build me a boat with two masts and a cabin for six people"


def title_model(title: str, usage: Usage | None = None) -> ScriptedModel:
    return ScriptedModel(lambda _: Step((Say(title),), usage or Usage()), info=info(price=Price(output=1_000_000.0)))


def failing_model() -> ScriptedModel:
    return ScriptedModel(lambda _: Step((Fail(),)))


async def titled_harness(small: Model | Exception, large: Model | None = None, prompt: str = LONG) -> Harness:
    """Return the harness after its first turn and title."""
    harness = await Harness.open(FixedModels(large or title_model("the answer"), small), settings=TITLED)
    await harness.prompt(prompt, "r1")
    await harness.wait_until_idle()
    await until(lambda: titles(harness) != [])
    return harness


def titles(harness: Harness) -> list[str]:
    """Return the titles published since the session was created, each once."""
    published = [event.change.object.title for _, event in harness.published.events if isinstance(event, SessionEvent)]
    return list(dict.fromkeys(title for title in published if title != "Test"))


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("A boat", "A boat"),
        ("  A\nboat \n", "A boat"),
        ('"A boat"', "A boat"),
        ("`A boat'", "A boat"),
        ("<think>hm\nhm</think>A boat", "A boat"),
        ("<think>a</think>A <think>b</think>boat", "A boat"),
        ("A boat<think>cut off", "A boat"),
        ("<think>only", ""),
        ("", ""),
        ('It\'s "fine" here', 'It\'s "fine" here'),
    ],
)
def test_titles_are_cleaned(raw: str, clean: str) -> None:
    assert clean_title(raw) == clean


def test_truncated_prompt_is_the_fallback_title() -> None:
    assert fallback_title("fix\n it ") == "fix it"
    assert fallback_title("x" * FALLBACK_LENGTH) == "x" * FALLBACK_LENGTH
    cut = fallback_title("x" * 51)
    assert cut == "x" * 49 + "…"
    assert len(fallback_title(LONG)) <= FALLBACK_LENGTH


async def test_title_request_is_short() -> None:
    small = ScriptedModel([Step((Think("hm"), Say("A boat")))])
    assert await generate_title(small, message("user").session_id, message("user", text_part(LONG)), print) == "A boat"
    (request,) = small.requests
    assert (request.system, request.tools, request.max_output_tokens) == (text("title.md"), (), 40)
    assert request.messages[0].parts == (text_part(LONG),)
    assert small.open_streams == 0


@pytest.mark.parametrize("step", [Step((Say("A bo"),), finish="length"), Step((Say("A"), Fail(hangs_up=True)))])
async def test_truncated_title_is_discarded(step: Step) -> None:
    with pytest.raises(ProviderError):
        await generate_title(ScriptedModel([step]), message("user").session_id, message("user", text_part("x")), print)


async def test_small_model_generates_the_title() -> None:
    harness = await titled_harness(title_model("A boat", Usage(output_tokens=2)))
    session = await session_of(harness)
    assert session.title == "A boat"
    assert session.cost == pytest.approx(2.0)
    assert session.completion_tokens != 2, "the size of the conversation is not the title's"


@pytest.mark.parametrize("small", [failing_model(), ProviderError("none")])
async def test_large_model_is_the_fallback(small: Model | Exception) -> None:
    harness = await titled_harness(small, title_model("Large words"))
    assert titles(harness) == ["Large words"]


async def test_without_any_model_the_prompt_is_the_title() -> None:
    harness = await titled_harness(failing_model(), failing_model())
    assert titles(harness) == [fallback_title(LONG)]
    assert [notice.error for notice in harness.notices() if notice.type == "error"] == [harness.end_of("r1").error]


async def test_an_empty_title_is_replaced_by_the_prompt() -> None:
    assert titles(await titled_harness(title_model("<think>hm</think> "))) == [fallback_title(LONG)]


async def test_only_the_first_prompt_generates_a_title() -> None:
    small = title_model("A boat")
    harness = await Harness.open(FixedModels(title_model("x"), small), settings=TITLED)
    for number in (1, 2):
        await harness.prompt(LONG, f"r{number}")
        await harness.wait_until_idle()
        await until(lambda: titles(harness) == ["A boat"])
    await harness.close()
    assert len(small.requests) == 1


async def test_cancel_of_the_turn_does_not_cancel_the_title() -> None:
    small, large = GatedModel(title_model("A boat")), GatedModel(title_model("never"))
    small.before.shut()
    large.before.shut()
    harness = await Harness.open(FixedModels(large, small), settings=TITLED)
    await harness.prompt(LONG, "r1")
    await small.before.reached.wait()
    await large.before.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert titles(harness) == []
    small.before.open()
    await until(lambda: titles(harness) == ["A boat"])
    assert harness.end_of("r1").outcome == "cancelled"


class _SlowHooks(NoHooks):
    """A hook that runs before the prompt until its gate opens."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        await self.gate()
        return HookOutcome()


async def test_a_title_of_the_user_during_the_hooks_of_the_first_prompt_is_kept() -> None:
    hooks, small = _SlowHooks(), title_model("A boat")
    hooks.gate.shut()
    harness = await Harness.open(FixedModels(title_model("x"), small), settings=TITLED, hooks=hooks)
    await harness.prompt(LONG, "r1")
    await hooks.gate.reached.wait()
    await harness.workspace.sessions.rename(harness.session, "Mine")
    hooks.gate.open()
    await harness.wait_until_idle()
    await until(lambda: len(small.requests) == 1)
    await harness.close()
    assert set(titles(harness)) == {"Mine"}


async def test_closing_does_not_wait_for_a_title() -> None:
    small = GatedModel(title_model("A boat"))
    small.before.shut()
    harness = await Harness.open(FixedModels(title_model("x"), small), settings=TITLED)
    await harness.prompt(LONG, "r1")
    await small.before.reached.wait()
    await harness.wait_until_idle()
    await harness.close()
    assert titles(harness) == []


async def test_prompt_without_text_generates_no_title() -> None:
    small = title_model("A boat")
    harness = await Harness.open(FixedModels(title_model("x"), small), settings=TITLED)
    file = Attachment(b"words", "a.txt", "a.txt", "text/plain")
    await harness.workspace.inputs.submit(Prompt(harness.session, " ", (file,), RunId("r1")))
    await harness.wait_until_idle()
    await harness.close()
    assert small.requests == []


async def test_titles_can_be_disabled() -> None:
    small = title_model("A boat")
    harness = await Harness.open(FixedModels(title_model("x"), small), settings=PATIENT)
    await harness.prompt(LONG, "r1")
    await harness.wait_until_idle()
    await harness.close()
    assert small.requests == []
