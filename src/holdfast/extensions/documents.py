"""Helpers shared by skills, commands and agents for Markdown files with front matter. Pure."""

from collections.abc import Iterable

from holdfast.config.problems import Problem
from holdfast.extensions.frontmatter import Document, parse
from holdfast.extensions.shelves import MarkdownFile

__all__ = ["document_of", "first_error", "model_problems", "problem_in", "text_in"]


def document_of(file: MarkdownFile) -> Document | Problem:
    """Parse the file, or return the first problem that prevents parsing."""
    if file.trouble:
        return problem_in(file, 0, file.trouble)
    try:
        document = parse(file.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        return problem_in(file, line, "expected UTF-8, found other bytes.")
    return document if document.problem is None else problem_in(file, *document.problem)


def problem_in(file: MarkdownFile, line: int, text: str, key: str = "") -> Problem:
    """Return a problem that makes the file unusable."""
    return Problem("error", file.path, line, key, text)


def text_in(document: Document, key: str) -> str:
    """Return the text of a key, or an empty string if it is not a text."""
    value = document.fields.get(key, "")
    return value.strip() if isinstance(value, str) else ""


def model_problems(file: MarkdownFile, document: Document) -> tuple[Problem, ...]:
    """Return a warning if the model is not a text."""
    if isinstance(document.fields.get("model", ""), str):
        return ()
    text = "expected the name of one: until then the usual one is asked."
    return (Problem("warning", file.path, document.lines["model"], "model", text),)


def first_error(problems: Iterable[Problem]) -> str:
    """Return the first error as text, or an empty string if there is none."""
    for problem in problems:
        if problem.severity == "error":
            where = [f"line {problem.line}"] if problem.line else []
            return ": ".join([*where, *([problem.key] if problem.key else []), problem.text])
    return ""
