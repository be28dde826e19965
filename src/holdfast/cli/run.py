"""`holdfast run`: one prompt, its answer on stdout, a reliable exit code."""

import sys
from typing import Any, get_args

import click

from holdfast.cli.common import location_options
from holdfast.cli.run_client.run_arg_parser import (
    DeliveryMode,
    RunArgs,
    find_conflict,
    is_usable_run_id,
    is_valid_timeout,
)
from holdfast.cli.run_client.run_command import UsageError, execute

__all__ = ["command", "print_usage_error"]


def _seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not is_valid_timeout(value):
        raise click.BadParameter("a number of seconds greater than 0 is required.")
    return value


def _run_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_usable_run_id(value):
        raise click.BadParameter("1 to 128 letters, digits, dots, underscores or dashes.")
    return value


class _Run(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; the error for an unknown option explains prompts that begin with a dash."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            hint = "Put -- before a prompt that begins with a dash, as in: holdfast run -- -5 + 3"
            raise click.UsageError(f"{error.message} {hint}", ctx) from None


@click.command("run", cls=_Run, context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@click.option("-s", "--session", metavar="ID", help="Continue this session.")
@click.option("-c", "--continue", "continues", is_flag=True, help="Continue the session used last.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Print every activity on stderr, one per line.")
@click.option("--json", "as_json", is_flag=True, help="Print events instead of text, one JSON object per line.")
@click.option("--stream", "streams", is_flag=True, help="Print text as it arrives, also to a pipe or file.")
@click.option("--raw", "is_raw", is_flag=True, help="Keep terminal control sequences in the answer.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    callback=_seconds,
    help="Cancel the run after this time and exit with 124.",
)
@click.option(
    "--delivery",
    type=click.Choice(get_args(DeliveryMode)),
    default="queue",
    show_default=True,
    help="How the prompt is handled if the session is busy.",
)
@click.option(
    "--attach",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Attach a file; can be repeated.",
)
@click.option(
    "--run-id",
    metavar="ID",
    callback=_run_id,
    help="Idempotency key: resubmitting the same id does not start a second run.",
)
@click.option("--detach", is_flag=True, help="Print the run id and exit as soon as the prompt is stored.")
@click.option("--yolo", is_flag=True, help="Allow all tool calls of this run without approval.")
@click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Select the large model of this workspace.")
@click.option("--small-model", metavar="PROVIDER/MODEL", help="Select the small model, which is used for titles.")
@location_options
def command(**options: Any) -> None:  # noqa: ANN401 - values of many types, made by click
    """Send a prompt and print the answer.

    Text on stdin is placed before the arguments. Ctrl-C cancels the run; a second Ctrl-C exits at once. If the
    terminal is closed, the run continues on the server.

    \b
      holdfast run "What does this project do?"
      git diff | holdfast run "Review this change" > review.md
      holdfast run --attach screen.png "What is wrong here?"
      holdfast run --continue "And the tests?"
      holdfast run --yolo --timeout 600 "Make the tests pass"
      holdfast run --detach "Fix the build"         prints a run id
      holdfast runs wait ID                         prints its answer

    \b
    Exit codes: 0 answered, 1 failed, 2 usage error, 3 interrupted because the server stopped,
    4 no server, no usable or reachable model, or refused, 124 timed out, 130 cancelled.
    """
    args = RunArgs(**options)
    if args.session is not None and not args.session.strip():
        raise click.UsageError("--session is empty: give the id of a session, or leave it out for a new one.")
    if message := find_conflict(args):
        raise click.UsageError(message)
    try:
        sys.exit(execute(args))
    except UsageError as error:
        raise click.UsageError(str(error)) from None


def print_usage_error(cause: UsageError) -> int:
    """Print a usage error for the path without click. Returns the exit code."""
    context = command.make_context("holdfast run", [], resilient_parsing=True)
    error = click.UsageError(str(cause), context)
    error.show()
    return error.exit_code
