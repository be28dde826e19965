"""`holdfast sessions`: the sessions of a directory."""

import sys
import time
from typing import BinaryIO

import click

from holdfast.cli.common import CommandError, DefaultGroup, age, clip, location_options, report_errors, table
from holdfast.cli.console.run_output import print_stderr, sanitize_for_stdout
from holdfast.cli.console.transcript import as_markdown, as_text
from holdfast.cli.run_client.run_lookup import latest_session, resolve_session
from holdfast.cli.server_connection import ServerConnection, open_connection
from holdfast.client.terminal_text import sanitize, strip_escapes
from holdfast.domain.messages import Message
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import SessionChange

__all__ = ["command"]


@click.group("sessions", cls=DefaultGroup)
def command() -> None:
    """List, read, rename, delete and export sessions.

    \b
      holdfast sessions                        sessions of this directory
      holdfast sessions last                   read the session used last
      holdfast sessions show 3f6c              a prefix of an id is sufficient
      holdfast sessions export ID > talk.md
      holdfast run --session ID "Continue"
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_sessions(*, as_json: bool, **location: str | None) -> None:
    """List the sessions of this directory, latest first.

    \b
      holdfast sessions
      holdfast sessions --json | jq -r '.[].title'
      holdfast sessions --cwd ~/another/project
    """
    with report_errors():
        connection = open_connection(location)
        if as_json:
            click.echo(connection.send("GET", connection.path("sessions")).strip())
            return
        sessions = connection.request(tuple[Session, ...], "GET", connection.path("sessions"))
        if not sessions:
            print_stderr('There are no sessions here yet: start one with holdfast run "…".')
            return
        now = time.time()
        rows = [(item.id, age(now - item.updated_at), str(item.message_count), item.title) for item in sessions]
        click.echo(table(("SESSION", "AGE", "MESSAGES", "TITLE"), rows))


@command.command()
@click.argument("session", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print the messages as JSON.")
@location_options
def show(*, session: str, as_json: bool, **location: str | None) -> None:
    """Read a session.

    \b
      holdfast sessions show 3f6c
      holdfast sessions show 3f6c --json
    """
    with report_errors():
        connection = open_connection(location)
        _show(connection, resolve_session(connection, session), as_json=as_json)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the messages as JSON.")
@location_options
def last(*, as_json: bool, **location: str | None) -> None:
    """Read the session used last.

    \b
      holdfast sessions last | less
    """
    with report_errors():
        connection = open_connection(location)
        latest = latest_session(connection)
        if latest is None:
            raise CommandError('There are no sessions here yet: start one with holdfast run "…".')
        _show(connection, latest.id, as_json=as_json)


def _show(connection: ServerConnection, session: str, *, as_json: bool) -> None:
    found = connection.request(Session, "GET", connection.path("sessions", session))
    raw = connection.send("GET", connection.path("sessions", session, "messages"))
    if as_json:
        click.echo(raw.strip())
        return
    import msgspec

    click.echo(sanitize_for_stdout(f"{found.title} ({found.id})\n"))
    click.echo(sanitize_for_stdout(as_text(msgspec.json.decode(raw, type=tuple[Message, ...]))))


@command.command()
@click.argument("session", metavar="ID")
@click.argument("title", nargs=-1, required=True)
@location_options
def rename(*, session: str, title: tuple[str, ...], **location: str | None) -> None:
    """Change the title of a session.

    \b
      holdfast sessions rename 3f6c The parser, second try
    """
    name = " ".join(title).strip()
    if not name:
        raise click.UsageError("The title is empty.")
    with report_errors():
        connection = open_connection(location)
        connection.send(
            "PUT", connection.path("sessions", resolve_session(connection, session)), body=SessionChange(name)
        )


@command.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@location_options
def delete(*, session: str, yes: bool, **location: str | None) -> None:
    """Delete a session with its messages, runs and file history.

    \b
      holdfast sessions delete 3f6c
      holdfast sessions delete --yes 3f6c      in a script
    """
    with report_errors():
        connection = open_connection(location)
        found = connection.request(Session, "GET", connection.path("sessions", resolve_session(connection, session)))
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("Use --yes to delete a session without a confirmation.")
            click.confirm(
                f"Delete “{clip(found.title, 60)}” with {found.message_count} messages?", abort=True, err=True
            )
        connection.send("DELETE", connection.path("sessions", found.id))


@command.command()
@click.argument("session", metavar="ID")
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option(
    "-o", "--output", type=click.File("wb", atomic=True), default="-", help="Write to this file instead of stdout."
)
@location_options
def export(*, session: str, form: str, output: BinaryIO, **location: str | None) -> None:
    """Write a session to stdout or to a file.

    \b
      holdfast sessions export 3f6c > talk.md
      holdfast sessions export 3f6c --format json --output talk.json
    """
    import msgspec

    with report_errors():
        connection = open_connection(location)
        found = connection.request(Session, "GET", connection.path("sessions", resolve_session(connection, session)))
        messages = connection.request(tuple[Message, ...], "GET", connection.path("sessions", found.id, "messages"))
    if form == "json":
        # Unfiltered: JSON escapes control characters.
        output.write(msgspec.json.encode({"session": found, "messages": messages}) + b"\n")
    else:
        text = as_markdown(found, messages)
        output.write((sanitize if output.isatty() else strip_escapes)(text).encode("utf-8", "replace"))
