"""Arguments of `holdfast run`, and a fast parser for them.

Importing click takes longer than a whole run should. The fast parser knows the same options and accepts only command
lines that are clearly valid; it leaves everything else to click, which also prints help and errors.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from holdfast.domain.ids import is_valid_run_id

__all__ = [
    "FLAGS",
    "REPEATABLE",
    "VALUES",
    "DeliveryMode",
    "RunArgs",
    "find_conflict",
    "is_usable_run_id",
    "is_valid_timeout",
    "parse_fast",
]

DeliveryMode: TypeAlias = Literal["steer", "queue", "reject", "interrupt"]


class RunArgs(NamedTuple):
    """The command line, as it was given."""

    cwd: str
    prompt: tuple[str, ...] = ()
    session: str | None = None
    continues: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    as_json: bool = False
    streams: bool = False
    is_raw: bool = False
    timeout: float | None = None
    delivery: DeliveryMode = "queue"
    attach: tuple[str, ...] = ()
    run_id: str | None = None
    detach: bool = False
    yolo: bool = False
    model: str | None = None
    small_model: str | None = None
    data_dir: str | None = None
    host: str | None = None


FLAGS = {
    "-c": "continues",
    "--continue": "continues",
    "-q": "is_quiet",
    "--quiet": "is_quiet",
    "-v": "is_verbose",
    "--verbose": "is_verbose",
    "--json": "as_json",
    "--stream": "streams",
    "--raw": "is_raw",
    "--detach": "detach",
    "--yolo": "yolo",
}
VALUES = {
    "-s": "session",
    "--session": "session",
    "-m": "model",
    "--model": "model",
    "--small-model": "small_model",
    "--timeout": "timeout",
    "--delivery": "delivery",
    "--run-id": "run_id",
    "--cwd": "cwd",
    "--host": "host",
    "--data-dir": "data_dir",
}
REPEATABLE = {"--attach": "attach"}


def is_valid_timeout(seconds: float) -> bool:
    """Return True for a usable number of seconds."""
    return 0 < seconds < 1e9


def is_usable_run_id(text: str) -> bool:
    """Return True for a valid run id that is also a valid path segment."""
    return is_valid_run_id(text) and text not in {".", ".."}


def find_conflict(args: RunArgs) -> str:
    """Return an error message for options that cannot be combined, else an empty string."""
    if args.session and args.continues:
        return "--session and --continue cannot be combined."
    if args.detach and args.timeout is not None:
        return "--detach and --timeout cannot be combined. Use options.max_minutes to limit detached runs."
    if args.is_quiet and args.is_verbose:
        return "--quiet and --verbose cannot be combined."
    return ""


def parse_fast(arguments: Sequence[str]) -> RunArgs | None:
    """Parse the arguments. Returns None if click is needed: for help, an error, or an unclear command line."""
    values: dict[str, Any] = {}
    prompt: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            prompt += rest
        elif not argument.startswith("-") or argument == "-":
            prompt.append(argument)
        elif argument in FLAGS:
            values[FLAGS[argument]] = True
        elif not _parse_value(values, argument, rest):
            return None
    args = RunArgs(values.pop("cwd", os.curdir), tuple(prompt), **values)
    return _validate(args)


def _parse_value(values: dict[str, Any], argument: str, rest: Any) -> bool:  # noqa: ANN401 - an iterator of strings
    name, equals, value = argument.partition("=")
    if not equals or not name.startswith("--"):
        name, value = argument, next(rest, "-")
    if value.startswith("-"):
        return False
    if name in REPEATABLE:
        values[REPEATABLE[name]] = (*values.get(REPEATABLE[name], ()), value)
    elif name in VALUES:
        values[VALUES[name]] = value
    else:
        return False
    return True


def _validate(args: RunArgs) -> RunArgs | None:
    """Convert the values to their types; None if one is invalid."""
    timeout = None
    if args.timeout is not None:
        try:
            timeout = float(args.timeout)
        except ValueError:
            return None
        if not is_valid_timeout(timeout):
            return None
    is_good = (
        args.delivery in get_args(DeliveryMode)
        and (args.run_id is None or is_usable_run_id(args.run_id))
        and (args.session is None or bool(args.session.strip()))
        and not find_conflict(args)
        and os.path.isdir(args.cwd)
        and all(os.path.isfile(path) and os.access(path, os.R_OK) for path in args.attach)
    )
    if not is_good or not os.access(args.cwd, os.R_OK):
        return None
    try:
        return args._replace(timeout=timeout, cwd=os.path.realpath(args.cwd))
    except FileNotFoundError:
        # The current directory was removed.
        return None
