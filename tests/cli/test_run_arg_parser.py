"""The fast parser of a command line: it returns the same result as click, or leaves the command line to click."""

from pathlib import Path
from typing import Any, get_args

import click
import pytest

from holdfast.cli import run, serve, server
from holdfast.cli.run_client import run_arg_parser
from holdfast.cli.run_client.run_arg_parser import DeliveryMode, RunArgs, parse_fast
from holdfast.domain.runs import Delivery

PLAIN: list[list[str]] = [
    ["hello"],
    ["two", "words", "-"],
    [""],
    ["-q", "x", "--json", "--stream", "y"],
    ["-v", "x"],
    ["--session", "s1", "x"],
    ["-s", "s1", "--session=s2", "x"],
    ["-c", "x"],
    ["--timeout", "2.5", "x"],
    ["--timeout=1e3", "x"],
    ["--delivery", "steer", "x"],
    ["--run-id", "r.1-x_Y", "--detach", "x"],
    ["-m", "a/b", "--small-model=c/d", "--yolo", "x"],
    ["--host", "unix:///x", "--data-dir", "d", "x"],
    ["x", "--", "-q", "--json"],
    ["--attach", "FILE", "--attach=FILE", "x"],
    ["--cwd", "DIRECTORY", "x"],
    ["a=b", "--model=x=y"],
]
DOUBTFUL: list[list[str]] = [
    ["--help"],
    ["-qv", "x"],
    ["-sX", "x"],
    ["--no-such", "x"],
    ["--json=1", "x"],
    ["--session"],
    ["--session", "-q", "x"],
    ["--session", " ", "x"],
    ["--session", "s", "--continue", "x"],
    ["-q", "x", "-v"],
    ["--detach", "--timeout", "3", "x"],
    ["--timeout", "0", "x"],
    ["--timeout", "soon", "x"],
    ["--timeout", "nan", "x"],
    ["--delivery", "never", "x"],
    ["--run-id", "..", "x"],
    ["--run-id", "a b", "x"],
    ["--attach", "nothing", "x"],
    ["--attach", "DIRECTORY", "x"],
    ["--cwd", "FILE", "x"],
    ["-x"],
]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "file").write_text("x")
    return {"FILE": str(tmp_path / "file"), "DIRECTORY": str(tmp_path)}


def _by_click(arguments: list[str]) -> RunArgs:
    return RunArgs(**run.command.make_context("run", list(arguments)).params)


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_the_fast_parser_agrees_with_click(arguments: list[str], places: dict[str, str]) -> None:
    given = [
        places.get(item, item.replace("=FILE", f"={places['FILE']}")) if "FILE" in item or item in places else item
        for item in arguments
    ]
    assert parse_fast(given) == _by_click(given)


@pytest.mark.parametrize("arguments", DOUBTFUL, ids=" ".join)
def test_the_fast_parser_leaves_unclear_command_lines_to_click(arguments: list[str], places: dict[str, str]) -> None:
    assert parse_fast([places.get(item, item) for item in arguments]) is None


def _options(command: click.Command) -> dict[str, dict[str, str]]:
    """Every spelling of every option with its name, by kind."""
    found: dict[str, dict[str, Any]] = {"flags": {}, "values": {}, "many": {}}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            kind = "flags" if parameter.is_flag else "many" if parameter.multiple else "values"
            found[kind] |= dict.fromkeys(parameter.opts, parameter.name)
    return found


def test_the_fast_parser_knows_every_option() -> None:
    assert _options(run.command) == {
        "flags": run_arg_parser.FLAGS,
        "values": run_arg_parser.VALUES,
        "many": run_arg_parser.REPEATABLE,
    }
    assert _options(server.serve_command) == {"flags": serve.FLAGS, "values": serve.VALUES, "many": {}}
    assert get_args(DeliveryMode) == get_args(Delivery)


@pytest.mark.parametrize("arguments", [["--help"], ["x"], ["--host"], ["--host", "--verbose"], ["--verbose=1"]])
def test_an_unclear_command_line_starts_no_server(arguments: list[str]) -> None:
    assert serve.serve_fast(arguments) is None
