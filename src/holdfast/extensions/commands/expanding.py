"""Expansion of slash commands to prompts. Pure.

`$ARGUMENTS` is replaced by all text after the command name, `$1` to `$9` by single words (quoted words count as one),
and names in capitals by values given as `NAME=value`. In a command with named placeholders only, the remaining words
are assigned in order. A name without a value is left unchanged, because it may be a shell variable.

Claude Code executes !`command` itself. Here the model is instructed to run it, so that it is shown, checked against the
permissions, and ends with the run like any other command.
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
    """Return the command name and the text after it, or None. Paths such as `/etc/hosts` are not commands."""
    found = _INVOCATION.match(prompt.lstrip())
    return None if found is None else (found[1], (found[2] or "").strip())


def split_words(text: str) -> list[str]:
    """Split as a shell does. Text with an unclosed quote is split at white space."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expanded(body: str, arguments: str, given: Mapping[str, str] | None = None) -> str:
    """Return the text of a command with its arguments inserted; `given` are additional named arguments."""
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
    """Return the agents that the prompt mentions with an `@`, without duplicates."""
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
    """Assign a word to each name; the last name receives all remaining words."""
    if not names or not words:
        return {}
    first = dict(zip(names[:-1], words, strict=False))
    rest = words[len(names) - 1 :]
    return {**first, names[-1]: " ".join(rest)} if rest else first
