"""Scripted model for installations without a model. It identifies itself as scripted and reacts to keywords.

`words=N` streams N words, `pause=MS` waits between them, `think` adds reasoning, `tool=NAME {json}` calls a tool
(several are called one after the other), `fail` fails. The prompt `ask` calls a tool that needs permission, and
`tour` demonstrates everything: enough to try every feature without a key.
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
    """Plays one step per request, selected by the last prompt.

    `fallback_reason` is the reason for its use if it was not selected explicitly.
    """

    def __init__(self, fallback_reason: str = "") -> None:
        self._info = msgspec.structs.replace(TOUR, fallback_reason=fallback_reason)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Play the step for the last prompt of the request."""
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
    """Return the small model of the tour."""
    return ScriptedModel(lambda _: Step((Say("A scripted conversation"),)), info=TOUR, remembers=False)


def _last_prompt(request: ModelRequest) -> str:
    """Return the last user text. Prompts without a response are merged with the next one, as separate parts."""
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
    """Return the number of tool results since the last prompt."""
    taken = 0
    for item in reversed(request.messages):
        if item.role == "user":
            break
        taken += item.role == "tool"
    return taken


def _calls(prompt: str) -> list[Call]:
    """Return the tool calls in a prompt, each with the JSON that follows it."""
    calls: list[Call] = []
    for found in _TOOL.finditer(prompt):
        rest = prompt[found.end() :]
        arguments = "{}"
        if rest.startswith("{"):
            try:
                arguments = rest[: json.JSONDecoder().raw_decode(rest)[1]]
            except (ValueError, RecursionError):
                # Invalid JSON is passed on unchanged, to exercise the error handling of tools.
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
