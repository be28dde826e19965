"""`holdfast runs`: runs, their outcomes, and the answers of detached runs."""

import sys
import time
from typing import Any

import click

from holdfast.cli.common import DefaultGroup, Failure, age, sentences, table, where_options
from holdfast.cli.console.run_output import complain, conclude, for_stdout
from holdfast.cli.run_client.run_lookup import run_named, session_named
from holdfast.cli.server_connection import FROM_NOW, ServerConnection, path_of
from holdfast.client.locate import locate
from holdfast.domain.runs import Run

__all__ = ["command"]


@click.group("runs", cls=DefaultGroup)
def command() -> None:
    """List runs, wait for one, cancel one.

    \b
      holdfast runs                       the last runs of this directory
      holdfast runs list --session ID     those of one session
      holdfast runs wait ID > answer.md   its answer, now or when it is there
      holdfast runs cancel ID
    """


@command.command("list")
@click.option("--session", metavar="ID", help="Only those of one session.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_runs(*, session: str | None, limit: int, as_json: bool, **where: str | None) -> None:
    """The runs of this directory, newest first.

    \b
      holdfast runs
      holdfast runs list --limit 5 --json
      holdfast runs list --session 3f6c
    """
    with sentences():
        link = _link(where)
        link.enter()
        query = (("session_id", session_named(link, session) if session else None), ("limit", limit))
        if as_json:
            click.echo(link.send("GET", link.path("runs"), query=query).strip())
            return
        runs = link.ask(tuple[Run, ...], "GET", link.path("runs"), query=query)
        if not runs:
            complain('There are no runs here yet: begin with holdfast run "…".')
            return
        now = time.time()
        rows = [(run.run_id, run.outcome or run.state, age(now - run.accepted_at / 1000), run.prompt) for run in runs]
        click.echo(table(("RUN", "STATE", "AGE", "PROMPT"), rows))


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def show(*, run_id: str, as_json: bool, **where: str | None) -> None:
    """Show a run, and its text so far. The beginning of an id is enough.

    \b
      holdfast runs show 9a41
      holdfast runs show 9a41 --json | jq -r .outcome
    """
    from holdfast.cli.run_client.run_follow import complete_of

    with sentences():
        link = _link(where)
        run = _find(link, run_id)
        if as_json:
            click.echo(link.send("GET", link.path("runs", run.run_id)).strip())
            return
        click.echo(f"run      {run.run_id}\nsession  {run.session_id}\nstate    {run.outcome or run.state}")
        if run.error:
            click.echo(for_stdout(f"error    {run.error}"))
        click.echo(for_stdout(f"\n> {run.prompt}"))
        if run.message_id:
            click.echo(for_stdout(f"\n{complete_of(link, run).text}"))


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=0), help="Then exit with 124; the run goes on.")
@click.option("--stream", "streams", is_flag=True, help="Text as it comes.")
@click.option("--raw", is_flag=True, help="Keep terminal control sequences of the answer.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@where_options
def wait(*, run_id: str, timeout: float | None, streams: bool, raw: bool, quiet: bool, **where: str | None) -> None:
    """Wait for a run and print its answer, from any directory. Exit codes are those of `holdfast run`.

    Ctrl-C ends the waiting, not the run. Approvals are shown here, at a terminal; without one they are refused,
    as in `holdfast run`, unless the run is open in an interactive client.

    \b
      holdfast runs wait ID > answer.md
      holdfast runs wait --timeout 60 ID || holdfast runs cancel ID
    """
    from holdfast.cli.console.approvals import ApprovalPrompt
    from holdfast.cli.console.run_output import RunOutput
    from holdfast.cli.console.terminal import Terminal
    from holdfast.cli.run_client.run_events import RunEvents
    from holdfast.cli.run_client.run_follow import RunFollower
    from holdfast.cli.run_client.signals import Signals

    deadline = None if timeout is None else time.monotonic() + timeout
    signals = Signals()
    signals.install()
    speaker = RunOutput("stream" if streams else "final", is_quiet=quiet, is_raw=raw)
    speaker.remedy = "It is kept: the same command prints it again."
    with sentences():
        link = _link(where)
        run = _find(link, run_id)
        watch = RunEvents(run.run_id, run.session_id, speaker)
        asker = ApprovalPrompt(link, speaker, run.run_id, Terminal(opens=True), is_somebodys=run.interactive)
        conduct = RunFollower(link, signals, speaker, watch, cancels=False, asker=asker)
        end = conduct.run(link.stream(FROM_NOW), deadline, may_be_old=True)
        code = conclude(end, watch.said(end), speaker, is_overdue=False)
    sys.exit(code)


@command.command()
@click.argument("run_id", metavar="ID")
@where_options
def cancel(*, run_id: str, **where: str | None) -> None:
    """Stop one run; others of its session continue.

    \b
      holdfast runs cancel 9a41
    """
    with sentences():
        link = _link(where)
        path = link.path("runs", _find(link, run_id).run_id, "cancel")
        run = link.ask(Run, "POST", path, query=(("client_id", link.client_id),), can_repeat=True)
        click.echo(run.outcome or run.state)


def _link(where: dict[str, Any]) -> ServerConnection:
    return ServerConnection(locate(where["host"], where["data_dir"]), where["cwd"])


def _find(link: ServerConnection, run_id: str) -> Run:
    """Find a run in the open workspaces, in the recorded directory, and in the current directory. A prefix of the id is
    sufficient for runs of this directory and detached runs.
    """
    from holdfast.cli.run_client.run_lookup import noted

    path_of("runs", run_id)
    here, link.directory = link.directory, ""
    link.enter()
    found = _look(link, run_id, here)
    if found is None:
        link.directory = here
        link.enter()
        full = run_named(link, run_id, noted(link.where.data_dir))
        found = _look(link, full, here) if full != run_id else None
    if found is None:
        raise Failure(f"There is no run {run_id} in {here}: go to its directory, or name it with --cwd.")
    return found


def _look(link: ServerConnection, run_id: str, here: str) -> Run | None:
    """Find a run; the link is connected to its workspace afterwards."""
    from holdfast.cli.run_client.run_lookup import directory_of
    from holdfast.client.errors import ServerProblem
    from holdfast.protocol.bodies import WorkspaceBody

    workspaces = link.ask(tuple[WorkspaceBody, ...], "GET", "/v1/workspaces")
    directories = [item.path for item in workspaces if _in(link, item.id, run_id) is not None][:1]
    if not directories:
        # The recorded directory may be gone, or its workspace may have lost the run; try the current directory after
        # it.
        directories = [*filter(None, [directory_of(link.where.data_dir, run_id)]), here]
    for directory in dict.fromkeys(directories):
        link.directory = directory
        try:
            link.enter()
        except ServerProblem as problem:
            if directory == directories[-1] or problem.status >= 500:
                raise
            continue
        if (found := _in(link, link.workspace, run_id)) is not None:
            return found
    return None


def _in(link: ServerConnection, workspace: str, run_id: str) -> Run | None:
    from holdfast.client.errors import ServerProblem

    try:
        return link.ask(Run, "GET", path_of(workspace, "runs", run_id))
    except ServerProblem as problem:
        if problem.status != 404:
            raise
    return None
