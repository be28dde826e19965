"""The scripted model that answers when no real one is set up. It says what it is, and does small tricks on request.

`words=N` streams N words, `pause=MS` waits between them, `think` reasons first, `tool=NAME {json}` calls a tool, one
after the other if there are several, `fail` breaks. The prompt `ask` does something that needs permission, and `tour`
shows all of it: enough to try every feature without a key.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from holdfast.domain.messages import TextPart
from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.usage import Usage
from holdfast.providers.scripted import Act, Call, Fail, Say, ScriptedModel, Step, Think

__all__ = ["TOUR", "TourModel", "tour_titles"]

TOUR = ModelInfo(
    provider="demo",
    model="tour",
    context_window=200_000,
    max_output_tokens=4_096,
    name="Scripted tour (no model)",
    can_reason=True,
    is_scripted=True,
)
_MOST_WORDS = 100_000
_NUMBER = re.compile(r"\b(words|pause)=(\d{1,6})\b")
_TOOL = re.compile(r"\btool=(\w+)\s*")
_HELLO = (
    "This is Holdfast's built-in scripted model: no language model is set up, so nobody is thinking here. "
    "Everything around it is real. Say tour to see what it can do, or try words=200 pause=50, and cancel it. "
    "For a real model set a key (holdfast login), or start Ollama; holdfast models lists what there is."
)
_ASKED = Call(
    "write",
    '{"file_path": "holdfast-tour.txt", "content": "The scripted tour of Holdfast wrote this. Delete it freely.\\n"}',
)
_END = (
    "That was the tour. You saw reasoning, streamed text, a tool, and a question before anything was changed. "
    "While something runs you may steer it with another prompt, cancel it, or close the terminal: it goes on."
)


class TourModel:
    """Plays a step for each request, by what the last prompt says.

    `fallback_reason` says why it was chosen, if nothing selects it.
    """

    def __init__(self, fallback_reason: str = "") -> None:
        self._info = msgspec.structs.replace(TOUR, fallback_reason=fallback_reason)

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        prompt = _last_prompt(request)
        numbers = {name: int(value) for name, value in _NUMBER.findall(prompt)}
        pause = min(numbers.get("pause", 0), 10_000) / 1000
        model = ScriptedModel([_step(request, prompt, numbers.get("words", 0))], info=self._info)
        async with aclosing(model.stream(request)) as parts:
            async for part in parts:
                yield part
                if pause:
                    await asyncio.sleep(pause)


def tour_titles() -> ScriptedModel:
    """The small model that goes with the tour."""
    return ScriptedModel(lambda _: Step((Say("A scripted conversation"),)), info=TOUR, remembers=False)


def _last_prompt(request: ModelRequest) -> str:
    """Prompts that got no answer come joined with the next one, a part each: the last counts."""
    texts = [
        part.data.text
        for item in request.messages
        if item.role == "user"
        for part in item.parts
        if isinstance(part, TextPart)
    ]
    return texts[-1] if texts else ""


def _step(request: ModelRequest, prompt: str, words: int) -> Step:
    called = _steps_taken(request)
    usage = Usage(len(prompt) // 4 + 1, 20)
    if request.tools and prompt.strip().lower() in _SHOWS:
        return Step(_SHOWS[prompt.strip().lower()](called), usage)
    acts: list[Act] = []
    if re.search(r"\bthink\b", prompt):
        acts.append(Think("I pretend to think about it."))
    calls = list(_calls(prompt)) if request.tools else []
    if re.search(r"\bfail\b", prompt):
        acts.append(Fail("The scripted model was asked to fail."))
    elif called < len(calls):
        acts.append(calls[called])
    elif words:
        acts.append(Say(" ".join(f"word{number}" for number in range(1, min(words, _MOST_WORDS) + 1))))
    else:
        acts.append(Say(_HELLO))
    return Step(tuple(acts), usage)


def _steps_taken(request: ModelRequest) -> int:
    """How many answers with tools there were since the last prompt."""
    taken = 0
    for item in reversed(request.messages):
        if item.role == "user":
            break
        taken += item.role == "tool"
    return taken


def _calls(prompt: str) -> list[Call]:
    """The tools a prompt names, with the JSON behind each."""
    calls: list[Call] = []
    for found in _TOOL.finditer(prompt):
        rest = prompt[found.end() :]
        arguments = "{}"
        if rest.startswith("{"):
            try:
                arguments = rest[: json.JSONDecoder().raw_decode(rest)[1]]
            except (ValueError, RecursionError):
                # Nonsense is passed on as it is: a tool has to cope with that, too.
                arguments = rest[: rest.find("}") + 1] or rest
        calls.append(Call(found[1], arguments))
    return calls


def _tour(taken: int) -> tuple[Act, ...]:
    match taken:
        case 0:
            return (
                Think("I pretend to think: first I look around, then I ask before I change anything."),
                Say("I am a script, and this is a short tour. First I look at your files."),
                Call("ls"),
            )
        case 1:
            return (Say("Now I want to write a file called holdfast-tour.txt. You are asked first."), _ASKED)
        case _:
            return (Say(_END),)


def _ask(taken: int) -> tuple[Act, ...]:
    return (Say("May I?"), _ASKED) if taken == 0 else (Say("Thank you. That was all."),)


_SHOWS = {"tour": _tour, "ask": _ask}
