"""What skills, commands and agents share: a Markdown file with front matter, or what is wrong with it. Pure."""

from collections.abc import Iterable

from holdfast.config.problems import Problem
from holdfast.extensions.frontmatter import Document, parse
from holdfast.extensions.shelves import MarkdownFile

__all__ = ["document_of", "first_error", "model_problems", "problem_in", "text_in"]


def document_of(file: MarkdownFile) -> Document | Problem:
    """The file taken apart, or the first thing that keeps it from being read."""
    if file.trouble:
        return problem_in(file, 0, file.trouble)
    try:
        document = parse(file.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        return problem_in(file, line, "expected UTF-8, found other bytes.")
    return document if document.problem is None else problem_in(file, *document.problem)


def problem_in(file: MarkdownFile, line: int, text: str, key: str = "") -> Problem:
    """One that keeps the file from being used."""
    return Problem("error", file.path, line, key, text)


def text_in(document: Document, key: str) -> str:
    """What stands at a key; empty if that is no text."""
    value = document.fields.get(key, "")
    return value.strip() if isinstance(value, str) else ""


def model_problems(file: MarkdownFile, document: Document) -> tuple[Problem, ...]:
    if isinstance(document.fields.get("model", ""), str):
        return ()
    text = "expected the name of one: until then the usual one is asked."
    return (Problem("warning", file.path, document.lines["model"], "model", text),)


def first_error(problems: Iterable[Problem]) -> str:
    """Why something cannot be used; empty if it can."""
    for problem in problems:
        if problem.severity == "error":
            where = [f"line {problem.line}"] if problem.line else []
            return ": ".join([*where, *([problem.key] if problem.key else []), problem.text])
    return ""
