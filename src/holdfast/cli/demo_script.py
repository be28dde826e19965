"""Responses of the scripted model in the demonstration."""

from holdfast.domain.messages import TextPart
from holdfast.domain.models import ModelRequest
from holdfast.domain.usage import Usage
from holdfast.providers.scripted import Act, Call, Say, Step, Think

__all__ = ["COUNT", "HELLO", "LOOK", "NOTES", "STORY", "TIDE", "script"]

LOOK = "What is in this directory? Add a line to notes.txt that says hello."
STORY = "Tell me a long story about a lighthouse."
HELLO = "Are you still there?"
COUNT = "Count the waves, slowly."
TIDE = "When you are done: when is high tide?"

NOTES = "Things to remember:\n- the tide\n"

_TALE = (
    "Once there was a lighthouse at the end of a long spit of sand. Its keeper lit the lamp each evening, and each "
    "evening the same ship went by without ever landing. The keeper wrote it down in a book: the hour, the wind, the "
    "colour of the sails. Years went by, and the book grew thick, and one night the lamp went out and the ship"
)
_WAVES = ", ".join(f"wave {number}" for number in range(1, 60)) + ", and the last wave."

_ANSWERS = {
    STORY: _TALE,
    HELLO: "Yes. The cancel covered what was asked before it, and nothing after it.",
    COUNT: _WAVES,
    TIDE: "High tide is at six. You asked before the crash; the question was on disk, so here is the answer.",
}


def script(request: ModelRequest) -> Step:
    """Return the response to the last prompt."""
    asked = [part.data.text for message in request.messages for part in message.parts if isinstance(part, TextPart)]
    results = 0
    for message in reversed(request.messages):
        if message.role == "user":
            break
        results += message.role == "tool"
    prompt = next((text for text in reversed(asked) if text in _ANSWERS or text == LOOK), "")
    acts = _looking(results) if prompt == LOOK else (Say(_ANSWERS.get(prompt, "I only know my script.")),)
    return Step(acts, Usage(120 + 40 * results, 60))


def _looking(results: int) -> tuple[Act, ...]:
    if results == 0:
        return (Think("I should look before I change anything."), Say("Let me look around."), Call("ls"))
    if results == 1:
        return (Call("view", '{"file_path": "notes.txt"}'),)
    if results == 2:
        text = (NOTES + "- hello from Holdfast\n").replace("\n", "\\n")
        return (Say("Now I add the line."), Call("write", f'{{"file_path": "notes.txt", "content": "{text}"}}'))
    return (Say("Done: there is one file, notes.txt, and it has one line more than before."),)
