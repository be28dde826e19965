"""`holdfast runs`: runs, their outcomes, and the answers of detached runs."""

import sys
import time
from typing import Any

import click

from holdfast.cli.common import CommandError, DefaultGroup, age, location_options, report_errors, table
from holdfast.cli.console.run_output import print_result, print_stderr, sanitize_for_stdout
from holdfast.cli.run_client.run_lookup import resolve_run, resolve_session
from holdfast.cli.server_connection import FROM_NOW, ServerConnection, resource_path
from holdfast.client.server_launcher import locate
from holdfast.domain.runs import Run

__all__ = ["command"]


@click.group("runs", cls=DefaultGroup)
def command() -> None:
    """List runs, wait for one, cancel one.

    \b
      holdfast runs                       latest runs of this directory
      holdfast runs list --session ID     runs of one session
      holdfast runs wait ID > answer.md   wait for its answer and print it
      holdfast runs cancel ID
    """


@command.command("list")
@click.option("--session", metavar="ID", help="Only runs of this session.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_runs(*, session: str | None, limit: int, as_json: bool, **location: str | None) -> None:
    """List the runs of this directory, newest first.

    \b
      holdfast runs
      holdfast runs list --limit 5 --json
      holdfast runs list --session 3f6c
    """
    with report_errors():
        connection = _connection_for(location)
        connection.open()
        query = (("session_id", resolve_session(connection, session) if session else None), ("limit", limit))
        if as_json:
            click.echo(connection.send("GET", connection.path("runs"), query=query).strip())
            return
        runs = connection.request(tuple[Run, ...], "GET", connection.path("runs"), query=query)
        if not runs:
            print_stderr('There are no runs here yet: start one with holdfast run "…".')
            return
        now = time.time()
        rows = [(run.run_id, run.outcome or run.state, age(now - run.accepted_at / 1000), run.prompt) for run in runs]
        click.echo(table(("RUN", "STATE", "AGE", "PROMPT"), rows))


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def show(*, run_id: str, as_json: bool, **location: str | None) -> None:
    """Show a run and its text so far. A prefix of the id is sufficient.

    \b
      holdfast runs show 9a41
      holdfast runs show 9a41 --json | jq -r .outcome
    """
    from holdfast.cli.run_client.run_follow import fetch_run_complete

    with report_errors():
        connection = _connection_for(location)
        run = _find_run(connection, run_id)
        if as_json:
            click.echo(connection.send("GET", connection.path("runs", run.run_id)).strip())
            return
        click.echo(f"run      {run.run_id}\nsession  {run.session_id}\nstate    {run.outcome or run.state}")
        if run.error:
            click.echo(sanitize_for_stdout(f"error    {run.error}"))
        click.echo(sanitize_for_stdout(f"\n> {run.prompt}"))
        if run.message_id:
            click.echo(sanitize_for_stdout(f"\n{fetch_run_complete(connection, run).text}"))


@command.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Exit with 124 after this time; the run continues.",
)
@click.option("--stream", "streams", is_flag=True, help="Print text as it arrives.")
@click.option("--raw", is_flag=True, help="Keep terminal control sequences in the answer.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@location_options
def wait(*, run_id: str, timeout: float | None, streams: bool, raw: bool, quiet: bool, **location: str | None) -> None:
    """Wait for a run and print its answer, from any directory. Exit codes are those of `holdfast run`.

    Ctrl-C stops waiting, not the run. Approvals are shown on a terminal; without a terminal they are refused, as in
    `holdfast run`, unless the run was started by an interactive client.

    \b
      holdfast runs wait ID > answer.md
      holdfast runs wait --timeout 60 ID || holdfast runs cancel ID
    """
    from holdfast.cli.console.approvals import ApprovalPrompt
    from holdfast.cli.console.run_output import RunOutput
    from holdfast.cli.console.terminal_keys import Terminal
    from holdfast.cli.run_client.run_events import RunEvents
    from holdfast.cli.run_client.run_follow import RunFollower
    from holdfast.cli.run_client.signals import Signals

    deadline = None if timeout is None else time.monotonic() + timeout
    signals = Signals()
    signals.install()
    output = RunOutput("stream" if streams else "final", is_quiet=quiet, is_raw=raw)
    output.remedy = "The answer is stored: the same command prints it again."
    with report_errors():
        connection = _connection_for(location)
        run = _find_run(connection, run_id)
        events = RunEvents(run.run_id, run.session_id, output)
        approvals = ApprovalPrompt(connection, output, run.run_id, Terminal(uses_tty=True), is_attended=run.interactive)
        follower = RunFollower(connection, signals, output, events, cancels=False, approvals=approvals)
        end = follower.run(connection.stream(FROM_NOW), deadline, may_be_old=True)
        code = print_result(end, events.shown_length(end), output, is_overdue=False)
    sys.exit(code)


@command.command()
@click.argument("run_id", metavar="ID")
@location_options
def cancel(*, run_id: str, **location: str | None) -> None:
    """Cancel one run. Other runs of its session continue.

    \b
      holdfast runs cancel 9a41
    """
    with report_errors():
        connection = _connection_for(location)
        path = connection.path("runs", _find_run(connection, run_id).run_id, "cancel")
        run = connection.request(Run, "POST", path, query=(("client_id", connection.client_id),), can_repeat=True)
        click.echo(run.outcome or run.state)


def _connection_for(location: dict[str, Any]) -> ServerConnection:
    return ServerConnection(locate(location["host"], location["data_dir"]), location["cwd"])


def _find_run(connection: ServerConnection, run_id: str) -> Run:
    """Find a run in the open workspaces, in the recorded directory, and in the current directory. A prefix of the id is
    sufficient for runs of this directory and detached runs.
    """
    from holdfast.cli.run_client.run_lookup import recorded_runs

    resource_path("runs", run_id)
    current_directory, connection.directory = connection.directory, ""
    connection.open()
    found = _find_in_workspaces(connection, run_id, current_directory)
    if found is None:
        connection.directory = current_directory
        connection.open()
        full = resolve_run(connection, run_id, recorded_runs(connection.location.data_dir))
        found = _find_in_workspaces(connection, full, current_directory) if full != run_id else None
    if found is None:
        raise CommandError(
            f"There is no run {run_id} in {current_directory}: change to its directory, or give it with --cwd."
        )
    return found


def _find_in_workspaces(connection: ServerConnection, run_id: str, current_directory: str) -> Run | None:
    """Find a run. The connection has its workspace open afterwards."""
    from holdfast.cli.run_client.run_lookup import recorded_directory
    from holdfast.client.errors import ServerProblem
    from holdfast.protocol.bodies import WorkspaceBody

    workspaces = connection.request(tuple[WorkspaceBody, ...], "GET", "/v1/workspaces")
    directories = [item.path for item in workspaces if _get_run(connection, item.id, run_id) is not None][:1]
    if not directories:
        # The recorded directory may be gone, or its workspace may have lost the run; try the current directory after
        # it.
        directories = [*filter(None, [recorded_directory(connection.location.data_dir, run_id)]), current_directory]
    for directory in dict.fromkeys(directories):
        connection.directory = directory
        try:
            connection.open()
        except ServerProblem as problem:
            if directory == directories[-1] or problem.status >= 500:
                raise
            continue
        if (found := _get_run(connection, connection.workspace, run_id)) is not None:
            return found
    return None


def _get_run(connection: ServerConnection, workspace: str, run_id: str) -> Run | None:
    from holdfast.client.errors import ServerProblem

    try:
        return connection.request(Run, "GET", resource_path(workspace, "runs", run_id))
    except ServerProblem as problem:
        if problem.status != 404:
            raise
    return None
