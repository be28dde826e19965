"""Content of the card of each tool: a headline and the lines below it. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.tui.blocks import Card
from holdfast.tui.diffs import DiffLine, diff_of, parsed
from holdfast.tui.harmless import without_codes

__all__ = ["Line", "LineKind", "body_of", "change_of", "facts_of", "headline_of", "question_lines"]

LineKind = Literal["plain", "done", "doing", "todo", "error", "asked"]
Line: TypeAlias = tuple[LineKind, str]

_MOST_LINES = 2_000


def facts_of(text: str) -> dict[str, Any]:
    """Decode a JSON object; empty if it is invalid, as for a call that is still being streamed."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def headline_of(card: Card, directory: str = "") -> str:
    """Return the main argument of the call in one line."""
    asked = facts_of(card.input)
    for key in ("command", "file_path", "pattern", "url", "path", "prompt", "query", "shell_id"):
        value = asked.get(key)
        if isinstance(value, str) and value.strip():
            return _shown(value, directory) + _more(card.name, asked)
    if card.name == "todos":
        return _progress(facts_of(card.metadata) or asked)
    if card.name == "question":
        questions = asked.get("questions")
        return f"{len(questions)} questions" if isinstance(questions, list) and len(questions) > 1 else ""
    return ""


def _shown(value: str, directory: str) -> str:
    first, _, rest = value.strip().partition("\n")
    first = first.removeprefix(directory + "/") if directory else first
    return f"{first} …" if rest.strip() else first


def _more(name: str, asked: Mapping[str, Any]) -> str:
    match name:
        case "grep" | "glob" if asked.get("path"):
            return f"  in {asked['path']}"
        case "view" if asked.get("offset"):
            return f"  from line {asked['offset']}"
        case "bash" if asked.get("run_in_background"):
            return "  (in the background)"
        case _:
            return ""


def _progress(facts: Mapping[str, Any]) -> str:
    todos = facts.get("todos")
    if not isinstance(todos, list) or not todos:
        return ""
    done = sum(isinstance(todo, dict) and todo.get("status") == "completed" for todo in todos)
    return f"{done} of {len(todos)} done"


def body_of(card: Card) -> list[Line]:
    """Return the lines below the headline, up to a limit."""
    if card.state == "failed":
        return [("error", line) for line in islice(_lines(card.content), _MOST_LINES)]
    draw = _BODIES.get(card.name, _plain)
    return list(islice(draw(card), _MOST_LINES))


def _lines(text: str) -> Iterator[str]:
    if shown := text.strip("\n"):
        yield from (without_codes(line).expandtabs(4) for line in shown.split("\n"))


def _plain(card: Card) -> Iterator[Line]:
    yield from (("plain", line) for line in _lines(card.content or card.output))


def _shell(card: Card) -> Iterator[Line]:
    text = str(facts_of(card.metadata).get("output", "") or card.content or card.output)
    yield from (("plain", line) for line in _lines(text.partition("\n<cwd>")[0]))


def _nothing(_: Card) -> Iterator[Line]:
    yield from ()


def change_of(card: Card) -> list[DiffLine]:
    """Return the change of a tool that edits files, done or planned."""
    if card.name not in _CHANGES or card.state == "failed":
        return []
    facts = facts_of(card.metadata)
    diff, old, new = facts.get("diff"), facts.get("old_content"), facts.get("new_content")
    if isinstance(diff, str):
        return parsed(diff)[:_MOST_LINES]
    if isinstance(new, str):
        return diff_of(old if isinstance(old, str) else "", new)[:_MOST_LINES]
    asked = facts_of(card.input)
    if isinstance(asked.get("content"), str):
        return diff_of("", asked["content"])[:_MOST_LINES]
    if isinstance(asked.get("new_string"), str):
        return diff_of(str(asked.get("old_string", "")), asked["new_string"])[:_MOST_LINES]
    return []


_CHANGES = frozenset({"write", "edit", "multiedit"})


def question_lines(card: Card) -> Iterator[Line]:
    """Yield the questions, each followed by the user's answer."""
    found = facts_of(card.input).get("questions")
    questions = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    if not card.content:
        yield from (("asked", str(item["question"])) for item in questions if item.get("question"))
    labels: dict[str, str] = {}
    for line in _lines(card.content):
        if asked := _ASKED.match(line):
            labels = _labels(questions[int(asked[1]) - 1]) if 0 < int(asked[1]) <= len(questions) else {}
            yield "asked", asked[2]
        elif line.startswith(_SELECTED):
            yield "plain", f"→ {', '.join(labels.get(name, name) for name in _names(line.removeprefix(_SELECTED)))}"
        elif line == _SKIPPED:
            yield "plain", "→ skipped"
        elif line.strip():
            yield "plain", f"→ {_ANSWERED.sub('', line)}"


_ASKED = re.compile(r"Q(\d{1,3}): (.*)")
_ANSWERED = re.compile(r"^(User answered|User provided|Note): ")
_SELECTED = "User selected: "
_SKIPPED = "User skipped this question"
"""Wording of the result that the model receives; the card shows the labels of the choices instead."""


def _labels(question: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a question's choices by their ids."""
    choices = question.get("choices") or question.get("options")
    known = [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []
    return {str(item.get("id")): str(item.get("label") or item.get("id")) for item in known}


def _names(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return [text]


def _todos(card: Card) -> Iterator[Line]:
    todos = (facts_of(card.metadata) or facts_of(card.input)).get("todos")
    kinds: dict[str, LineKind] = {"completed": "done", "in_progress": "doing"}
    for todo in todos if isinstance(todos, list) else ():
        if isinstance(todo, dict):
            yield kinds.get(str(todo.get("status")), "todo"), str(todo.get("content", ""))


_BODIES: Mapping[str, Callable[[Card], Iterator[Line]]] = {
    "bash": _shell,
    "job_output": _plain,
    "view": _nothing,
    "write": _nothing,
    "edit": _nothing,
    "multiedit": _nothing,
    "todos": _todos,
    "question": question_lines,
}
