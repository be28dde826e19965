"""The scripted model that answers when no real one is set up. It says what it is, and does small tricks on request.

`words=N` streams N words, `pause=MS` waits between them, `think` reasons first, `tool=NAME {json}` calls a tool,
`fail` breaks: enough to try streaming, cancel, tools and failures without a key.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.domain.messages import TextPart
from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.usage import Usage
from holdfast.providers.scripted import Act, Call, Fail, Say, ScriptedModel, Step, Think

__all__ = ["TourModel"]

_INFO = ModelInfo(provider="demo", model="tour", context_window=200_000, max_output_tokens=4_096)
_MOST_WORDS = 100_000
_NUMBER = re.compile(r"\b(words|pause)=(\d{1,6})\b")
_TOOL = re.compile(r"\btool=(\w+)(?:\s+(\{.*?\}))?")
_HELLO = (
    "This is Holdfast's built-in scripted model: no language model is set up, so nobody is thinking here. "
    "Everything around it is real. Try a prompt with words=200 pause=50, and cancel it."
)


class TourModel:
    @property
    def info(self) -> ModelInfo:
        return _INFO

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        prompt = _last_prompt(request)
        numbers = {name: int(value) for name, value in _NUMBER.findall(prompt)}
        pause = min(numbers.get("pause", 0), 10_000) / 1000
        model = ScriptedModel([_step(request, prompt, numbers.get("words", 0))], info=_INFO)
        async with aclosing(model.stream(request)) as parts:
            async for part in parts:
                yield part
                if pause:
                    await asyncio.sleep(pause)


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
    acts: list[Act] = []
    if re.search(r"\bthink\b", prompt):
        acts.append(Think("I pretend to think about it."))
    has_called = request.messages[-1].role == "tool"
    if re.search(r"\bfail\b", prompt):
        acts.append(Fail("The scripted model was asked to fail."))
    elif (tool := _TOOL.search(prompt)) and request.tools and not has_called:
        acts.append(Call(tool[1], tool[2] or "{}"))
    elif words:
        acts.append(Say(" ".join(f"word{number}" for number in range(1, min(words, _MOST_WORDS) + 1))))
    else:
        acts.append(Say(_HELLO))
    return Step(tuple(acts), Usage(len(prompt) // 4 + 1, 20))
