"""`holdfast sessions`: the sessions of a directory."""

import sys
import time
from typing import BinaryIO

import click

from holdfast.cli.common import DefaultGroup, Failure, age, clipped, sentences, table, where_options
from holdfast.cli.console.run_output import complain, for_stdout
from holdfast.cli.console.transcript import as_markdown, as_text
from holdfast.cli.run_client.run_lookup import latest_session, session_named
from holdfast.cli.server_connection import ServerConnection, entered
from holdfast.client.terminal_text import harmless, strip_escapes
from holdfast.domain.messages import Message
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import SessionChange

__all__ = ["command"]


@click.group("sessions", cls=DefaultGroup)
def command() -> None:
    """List, read, rename, delete and export sessions.

    \b
      holdfast sessions                        those of this directory
      holdfast sessions last                   read the one used last
      holdfast sessions show 3f6c              the beginning of an id is enough
      holdfast sessions export ID > talk.md
      holdfast run --session ID "Go on"
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_sessions(*, as_json: bool, **where: str | None) -> None:
    """The sessions of this directory, latest first.

    \b
      holdfast sessions
      holdfast sessions --json | jq -r '.[].title'
      holdfast sessions --cwd ~/another/project
    """
    with sentences():
        link = entered(where)
        if as_json:
            click.echo(link.send("GET", link.path("sessions")).strip())
            return
        sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
        if not sessions:
            complain('There are no sessions here yet: begin one with holdfast run "…".')
            return
        now = time.time()
        rows = [(item.id, age(now - item.updated_at), str(item.message_count), item.title) for item in sessions]
        click.echo(table(("SESSION", "AGE", "MESSAGES", "TITLE"), rows))


@command.command()
@click.argument("session", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="The messages as JSON.")
@where_options
def show(*, session: str, as_json: bool, **where: str | None) -> None:
    """Read a session.

    \b
      holdfast sessions show 3f6c
      holdfast sessions show 3f6c --json
    """
    with sentences():
        link = entered(where)
        _show(link, session_named(link, session), as_json=as_json)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="The messages as JSON.")
@where_options
def last(*, as_json: bool, **where: str | None) -> None:
    """Read the session used last.

    \b
      holdfast sessions last | less
    """
    with sentences():
        link = entered(where)
        latest = latest_session(link)
        if latest is None:
            raise Failure('There are no sessions here yet: begin one with holdfast run "…".')
        _show(link, latest.id, as_json=as_json)


def _show(link: ServerConnection, session: str, *, as_json: bool) -> None:
    found = link.ask(Session, "GET", link.path("sessions", session))
    raw = link.send("GET", link.path("sessions", session, "messages"))
    if as_json:
        click.echo(raw.strip())
        return
    import msgspec

    click.echo(for_stdout(f"{found.title} ({found.id})\n"))
    click.echo(for_stdout(as_text(msgspec.json.decode(raw, type=tuple[Message, ...]))))


@command.command()
@click.argument("session", metavar="ID")
@click.argument("title", nargs=-1, required=True)
@where_options
def rename(*, session: str, title: tuple[str, ...], **where: str | None) -> None:
    """Give a session another title.

    \b
      holdfast sessions rename 3f6c The parser, second try
    """
    name = " ".join(title).strip()
    if not name:
        raise click.UsageError("The title is empty: give it some words.")
    with sentences():
        link = entered(where)
        link.send("PUT", link.path("sessions", session_named(link, session)), body=SessionChange(name))


@command.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@where_options
def delete(*, session: str, yes: bool, **where: str | None) -> None:
    """Remove a session and all that belongs to it.

    \b
      holdfast sessions delete 3f6c
      holdfast sessions delete --yes 3f6c      in a script
    """
    with sentences():
        link = entered(where)
        found = link.ask(Session, "GET", link.path("sessions", session_named(link, session)))
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("Say --yes to delete a session without being asked.")
            click.confirm(
                f"Delete “{clipped(found.title, 60)}” with {found.message_count} messages?", abort=True, err=True
            )
        link.send("DELETE", link.path("sessions", found.id))


@command.command()
@click.argument("session", metavar="ID")
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("-o", "--output", type=click.File("wb", atomic=True), default="-", help="A file instead of stdout.")
@where_options
def export(*, session: str, form: str, output: BinaryIO, **where: str | None) -> None:
    """Write a whole session to stdout or a file.

    \b
      holdfast sessions export 3f6c > talk.md
      holdfast sessions export 3f6c --format json --output talk.json
    """
    import msgspec

    with sentences():
        link = entered(where)
        found = link.ask(Session, "GET", link.path("sessions", session_named(link, session)))
        messages = link.ask(tuple[Message, ...], "GET", link.path("sessions", found.id, "messages"))
    if form == "json":
        output.write(msgspec.json.encode({"session": found, "messages": messages}) + b"\n")
    else:
        text = as_markdown(found, messages)
        output.write((harmless if output.isatty() else strip_escapes)(text).encode("utf-8", "replace"))
