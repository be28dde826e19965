"""From what somebody typed to what a model reads. Pure.

`$ARGUMENTS` stands for all that was typed after the name, `$1` to `$9` for single words, quoted ones together, and
names in capitals for what was given as `NAME=value`, or, in a command that has nothing but names, for the words in
their order. A name for which nothing was given stays as it is: it may be a variable of a shell.

What Claude Code would run itself, a model is told to run: so it is shown, judged, and ends with its run, like all else.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from holdfast.extensions.commands.reading import COMMAND_NAME, named_arguments

__all__ = ["expanded", "invocation", "mentions", "split_words"]

_INVOCATION = re.compile(rf"/({COMMAND_NAME})(?:\s+(.*))?\s*\Z", re.S)
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9]|[A-Z][A-Z0-9_]*)\b")
_NUMBERED = re.compile(r"\$(?:ARGUMENTS|[1-9])\b")
_LINES = re.compile(r"(?<!`)!`[^`\n]+`(?!`)")
_RUN_THEM = (
    "(Where !`…` stands above, the output of that command is meant. Run those commands first, with the bash tool,"
    " each as it stands there.)"
)
_MENTION = re.compile(r"(?<![\w@/.])@(?:agent-)?([A-Za-z][\w-]*)(?![\w/@]|\.\w)")


def invocation(prompt: str) -> tuple[str, str] | None:
    """The name of a command and what follows it, if the prompt looks like one. `/etc/hosts` does not."""
    found = _INVOCATION.match(prompt.lstrip())
    return None if found is None else (found[1], (found[2] or "").strip())


def split_words(text: str) -> list[str]:
    """As a shell would, where the quotes make sense."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expanded(body: str, arguments: str, given: Mapping[str, str] | None = None) -> str:
    """The text of a command with its arguments in their places; `given` are named ones, apart from the text."""
    names = named_arguments(body)
    words = split_words(arguments)
    values = {**_assigned(names, words), **(given or {})}
    if not _NUMBERED.search(body):
        rest = [word for word in words if not _is_assignment(word, names)]
        values = {**_in_order([name for name in names if name not in values], rest), **values}

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "ARGUMENTS":
            return arguments
        if name.isdigit():
            return words[int(name) - 1] if len(words) >= int(name) else ""
        return values.get(name, found[0])

    text = _PLACE.sub(value, body)
    if arguments and not _NUMBERED.search(body) and not names:
        text += f"\n\n{arguments}"
    return f"{text}\n\n{_RUN_THEM}" if _LINES.search(body) else text


def mentions(prompt: str, agents: Sequence[str]) -> tuple[str, ...]:
    """Those of the agents that the prompt names with an `@`, each once."""
    known = {name.lower(): name for name in agents}
    found = (known.get(name.lower()) for name in _MENTION.findall(prompt))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _is_assignment(word: str, names: Sequence[str]) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name in names


def _assigned(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if _is_assignment(word, names))
    return {name: value for name, _, value in pairs}


def _in_order(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """A word for each name; the last one gets all that is left."""
    if not names or not words:
        return {}
    first = dict(zip(names[:-1], words, strict=False))
    rest = words[len(names) - 1 :]
    return {**first, names[-1]: " ".join(rest)} if rest else first
