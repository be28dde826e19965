"""`holdfast run`: one prompt, its answer on stdout, a reliable exit code."""

import sys
from typing import Any, get_args

import click

from holdfast.cli.common import where_options
from holdfast.cli.run_client.run_args import HowDelivered, RunArgs, contradiction, is_good_run_id, is_good_timeout
from holdfast.cli.run_client.run_prompt import UsageError, execute

__all__ = ["command", "complain_of_usage"]


def _seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not is_good_timeout(value):
        raise click.BadParameter("give a number of seconds above 0.")
    return value


def _run_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_good_run_id(value):
        raise click.BadParameter("1 to 128 letters, digits, dots, underscores or dashes.")
    return value


class _Run(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            hint = "A prompt that begins with a dash stands behind --, as in: holdfast run -- -5 + 3"
            raise click.UsageError(f"{error.message} {hint}", ctx) from None


@click.command("run", cls=_Run, context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@click.option("-s", "--session", metavar="ID", help="Go on in this session.")
@click.option("-c", "--continue", "continues", is_flag=True, help="Go on in the session used last.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Say on stderr what happens, line by line.")
@click.option("--json", "as_json", is_flag=True, help="Events instead of text, one JSON object a line.")
@click.option("--stream", "streams", is_flag=True, help="Text as it comes, also into a pipe or file.")
@click.option("--raw", "is_raw", is_flag=True, help="Keep terminal control sequences of the answer.")
@click.option(
    "--timeout", metavar="SECONDS", type=float, callback=_seconds, help="Cancel the run after this time; exit with 124."
)
@click.option(
    "--delivery",
    type=click.Choice(get_args(HowDelivered)),
    default="queue",
    show_default=True,
    help="What happens if the session is busy.",
)
@click.option(
    "--attach",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Send a file along; can be repeated.",
)
@click.option("--run-id", metavar="ID", callback=_run_id, help="Idempotency key: the same id starts no second run.")
@click.option("--detach", is_flag=True, help="Print the run id and leave as soon as the prompt is stored.")
@click.option("--yolo", is_flag=True, help="Allow what the tools of this run would ask about.")
@click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Choose the model of this workspace.")
@click.option("--small-model", metavar="PROVIDER/MODEL", help="Choose its small model, for titles and the like.")
@where_options
def command(**given: Any) -> None:  # noqa: ANN401 - what click makes of the options
    """Send a prompt and print the answer.

    Text on stdin is placed before the arguments. Ctrl-C cancels the run; a second one leaves at once. A closed
    terminal leaves the run to the server.

    \b
      holdfast run "What does this project do?"
      git diff | holdfast run "Review this change" > review.md
      holdfast run --attach screen.png "What is wrong here?"
      holdfast run --continue "And the tests?"
      holdfast run --yolo --timeout 600 "Make the tests pass"
      holdfast run --detach "Fix the build"         prints a run id
      holdfast runs wait ID                         prints its answer

    \b
    Exit codes: 0 answered, 1 failed, 2 usage, 3 interrupted by the end of the server,
    4 no server, no usable or reachable model, or refused, 124 timed out, 130 cancelled.
    """
    asked = RunArgs(**given)
    if asked.session is not None and not asked.session.strip():
        raise click.UsageError("--session is empty: give the id of a session, or leave it out for a new one.")
    if wrong := contradiction(asked):
        raise click.UsageError(wrong)
    try:
        sys.exit(execute(asked))
    except UsageError as misuse:
        raise click.UsageError(str(misuse)) from None


def complain_of_usage(misuse: UsageError) -> int:
    """Print a usage error for the path without click. Returns the exit code."""
    context = command.make_context("holdfast run", [], resilient_parsing=True)
    error = click.UsageError(str(misuse), context)
    error.show()
    return error.exit_code
