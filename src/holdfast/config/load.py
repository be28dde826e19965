"""One file, read and held against the types: its tree, the lines of its keys, and what is wrong with it."""

import re
import tomllib
from typing import Any

import msgspec

from holdfast.config.checks import hides_denial, is_separate
from holdfast.config.files import Signature, Unreadable, contents, signature
from holdfast.config.fit import fit
from holdfast.config.lines import DEEPEST, KeyPath, TooDeep, json_duplicates, json_lines, toml_lines
from holdfast.config.locations import Form, Source
from holdfast.config.mcpjson import as_settings
from holdfast.config.problems import Problem, dotted

__all__ = ["Loaded", "load", "parse"]

_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_JSON_PLACE = re.compile(r"\s*\(byte (\d+)\)$")


class Loaded(msgspec.Struct, frozen=True):
    """What a file says. Without data it is not there, or cannot be read."""

    seen: Signature = None
    data: bytes | None = None
    tree: dict[str, Any] = {}
    lines: dict[KeyPath, int] = {}
    problems: tuple[Problem, ...] = ()

    def __repr__(self) -> str:
        return f"Loaded({len(self.data or b'')} bytes, {len(self.problems)} problems)"

    @property
    def is_good(self) -> bool:
        return not any(problem.severity == "error" and not is_separate(problem.key) for problem in self.problems)


def load(source: Source) -> Loaded:
    """Never raises: whatever is wrong is a problem of the file."""
    # Before it is read: a change in between is then seen the next time.
    before = signature(source.path)
    try:
        data, seen = contents(source.path)
    except FileNotFoundError:
        if before is None:
            return Loaded()
        return Loaded(seen=before)
    except Unreadable as error:
        text = str(error).removeprefix(f"{source.path} ")
        return Loaded(seen=before, problems=(Problem("error", source.path, 0, "", text, source.form != "mcp"),))
    tree, lines, problem = parse(data, source.form, source.path)
    if problem is not None:
        # Only a file without the word can be known to have held no deny rule.
        hides = source.form != "mcp" and b"deny" in data.lower()
        return Loaded(seen=seen, problems=(msgspec.structs.replace(problem, hides_denial=hides),))
    twice = _twice(data, source) if source.form == "json" else ()
    if source.form == "mcp":
        tree, lines = as_settings(tree, lines)
    fitted = fit(tree, source.path, lines)
    return Loaded(seen, data, fitted.tree, lines, (*twice, *fitted.problems))


def _twice(data: bytes, source: Source) -> tuple[Problem, ...]:
    """Of a key that is written twice a parser of JSON keeps the last value only."""
    text = "is written twice: only the last one counts. Join them."
    return tuple(
        Problem("error" if hides_denial(path) else "warning", source.path, line, dotted(path), text, hides_denial(path))
        for path, line in json_duplicates(data.decode("utf-8-sig"))
    )


def parse(data: bytes, form: Form, file: str) -> tuple[dict[str, Any], dict[KeyPath, int], Problem | None]:
    """The tree and the lines of its keys, or the first thing that keeps the file from being read."""

    def broken(line: int, text: str) -> tuple[dict[str, Any], dict[KeyPath, int], Problem]:
        return {}, {}, Problem("error", file, line, "", text)

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return broken(data.count(b"\n", 0, error.start) + 1, "expected UTF-8, found other bytes.")
    try:
        if form == "toml":
            lines = toml_lines(text)
            return tomllib.loads(text), lines, None
        if not text.strip():
            return {}, {}, None
        lines = json_lines(text)
        return msgspec.json.decode(text, type=dict[str, Any]), lines, None
    except (TooDeep, RecursionError) as error:
        line = error.line if isinstance(error, TooDeep) else 0
        return broken(line, f"expected at most {DEEPEST} levels, found more.")
    except msgspec.ValidationError:
        return broken(1, "expected an object, in braces.")
    except msgspec.DecodeError as error:
        return broken(*_json_place(str(error), text))
    except ValueError as error:
        return broken(*_toml_place(str(error), text))


def _toml_place(message: str, text: str) -> tuple[int, str]:
    found = _TOML_PLACE.search(message)
    what = _TOML_PLACE.sub("", message) if found else "a value that cannot be read"
    line = int(found[1]) if found and found[1] else (text.count("\n") + 1 if found else 0)
    return line, f"this is not TOML: {what[:1].lower()}{what[1:]}."


def _json_place(message: str, text: str) -> tuple[int, str]:
    found = _JSON_PLACE.search(message)
    what = _JSON_PLACE.sub("", message).removeprefix("JSON is malformed: ")
    if found is None:
        return text.count("\n") + 1, "expected JSON, found the end of the file."
    place = int(found[1])
    line = text.encode("utf-8", "surrogatepass")[:place].count(b"\n") + 1
    return line, f"this is not JSON: {what}."
