"""`holdfast run`: one prompt, one answer on stdout, an exit code that can be relied on."""

import os
import stat
import sys
import time
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from holdfast.cli.common import REFUSED, sentences, where_options
from holdfast.cli.speak import Mode, Speaker, complain, conclude
from holdfast.domain.ids import RunId, is_valid_run_id
from holdfast.domain.runs import Attachment, Delivery

if TYPE_CHECKING:
    from holdfast.cli.link import Link
    from holdfast.cli.signals import Signals
    from holdfast.protocol.bodies import AgentMessage

__all__ = ["Asked", "command"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, as it was given."""

    prompt: tuple[str, ...]
    session: str | None
    continues: bool
    is_quiet: bool
    is_verbose: bool
    as_json: bool
    streams: bool
    timeout: float | None
    delivery: Delivery
    attach: tuple[str, ...]
    run_id: str | None
    detach: bool
    yolo: bool
    model: str | None
    small_model: str | None
    cwd: str
    data_dir: str | None
    host: str | None


def _seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < 1e9:
        raise click.BadParameter("give a number of seconds above 0.")
    return value


def _run_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not is_valid_run_id(value) or value in {".", ".."}):
        raise click.BadParameter("1 to 128 letters, digits, dots, underscores or dashes.")
    return value


@click.command("run", context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@click.option("-s", "--session", metavar="ID", help="Go on in this session.")
@click.option("-c", "--continue", "continues", is_flag=True, help="Go on in the session used last.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Say on stderr what happens, line by line.")
@click.option("--json", "as_json", is_flag=True, help="Events instead of text, one JSON object a line.")
@click.option("--stream", "streams", is_flag=True, help="Text as it comes, also into a pipe or file.")
@click.option("--timeout", metavar="SECONDS", type=float, callback=_seconds, help="Then cancel, and exit with 124.")
@click.option(
    "--delivery",
    type=click.Choice(get_args(Delivery)),
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
@click.option("--run-id", metavar="ID", callback=_run_id, help="A name of your own: the same one twice asks once.")
@click.option("--detach", is_flag=True, help="Print the run id and leave as soon as the prompt is stored.")
@click.option("--yolo", is_flag=True, help="Allow every tool without asking, in this workspace while it is open.")
@click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Choose the model of this workspace.")
@click.option("--small-model", metavar="PROVIDER/MODEL", help="Choose its small model, for titles and the like.")
@where_options
def command(**given: object) -> None:
    """Send a prompt and print the answer.

    What comes on stdin stands before the arguments. Ctrl-C cancels the run; a second one leaves at once. A closed
    terminal leaves the run to the server.

    \b
      holdfast run "What does this project do?"
      git diff | holdfast run "Review this change" > review.md
      holdfast run --continue "And the tests?"
      holdfast run --detach "Fix the build"         prints a run id
      holdfast runs wait ID                         prints its answer

    \b
    Exit codes: 0 answered, 1 failed, 2 usage, 3 interrupted by the end of the server,
    4 no server or refused, 124 timed out, 130 cancelled.
    """
    asked = msgspec.convert(given, Asked)
    if asked.session is not None and not asked.session.strip():
        raise click.UsageError("--session is empty: give the id of a session, or leave it out for a new one.")
    if asked.session and asked.continues:
        raise click.UsageError("Give either --session or --continue.")
    try:
        text = _prompt(asked)
    except KeyboardInterrupt:
        sys.exit(130)
    if not text.strip() and not asked.attach:
        raise click.UsageError(
            'There is no prompt: write one behind the command, as in holdfast run "…", or pipe it in.'
        )
    sys.exit(_execute(asked, text))


def _prompt(asked: Asked) -> str:
    """Stdin, if it is a pipe or a file, then the arguments."""
    pieces = [" ".join(asked.prompt).encode("utf-8", "replace").decode()]
    if _is_fed():
        pieces.insert(0, sys.stdin.buffer.read().decode("utf-8", "replace").strip("\r\n"))
    return "\n\n".join(piece for piece in pieces if piece)


def _is_fed() -> bool:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _execute(asked: Asked, text: str) -> int:
    from holdfast.cli.link import Link
    from holdfast.cli.signals import Signals
    from holdfast.client.errors import TimedOut
    from holdfast.client.locate import locate

    deadline = None if asked.timeout is None else time.monotonic() + asked.timeout
    attachments = tuple(_attachment(path) for path in asked.attach)
    signals = Signals()
    signals.install()
    with sentences():
        link = Link(locate(asked.host, asked.data_dir), asked.cwd, yolo=asked.yolo)
        link.deadline = deadline
        try:
            link.enter(signals.wait)
            message = _message(link, asked, text, attachments)
            if asked.is_verbose:
                complain(f"run {message.run_id}, session {message.session_id}")
            return _send(link, signals, asked, message)
        except TimedOut as late:
            if deadline is None or time.monotonic() < deadline:
                raise
            complain(f"holdfast: timed out. {late}")
            return 124


def _message(link: "Link", asked: Asked, text: str, attachments: tuple[Attachment, ...]) -> "AgentMessage":
    from holdfast.cli.link import new_id
    from holdfast.cli.setting import choose_models, session_for
    from holdfast.protocol.bodies import AgentMessage

    choose_models(link, asked.model, asked.small_model)
    return AgentMessage(
        session_id=session_for(link, text, asked.session, continues=asked.continues),
        prompt=text,
        run_id=RunId(asked.run_id or new_id()),
        attachments=attachments or None,
        delivery=asked.delivery,
        client_id=link.client_id,
        interactive=False,
    )


def _send(link: "Link", signals: "Signals", asked: Asked, message: "AgentMessage") -> int:
    """Send the prompt, and wait for its end unless it is left to the server."""
    from holdfast.cli.conduct import Conduct, Gone, post
    from holdfast.cli.detached import remember
    from holdfast.cli.signals import DETACHED
    from holdfast.cli.watch import Watch

    if asked.detach:
        post(link, message, signals)
        remember(link.where.data_dir, message.run_id, asked.cwd)
        _leave(asked, message.run_id, message.session_id)
        return 0
    speaker = Speaker(_mode(asked), is_quiet=asked.is_quiet, is_verbose=asked.is_verbose)
    watch = Watch(message.run_id, message.session_id, speaker)
    conduct = Conduct(link, signals, speaker, watch)
    try:
        end = conduct.run(link.deadline, lambda: post(link, message, signals) or asked.run_id is not None)
    except SystemExit as leaving:
        if leaving.code == DETACHED:
            remember(link.where.data_dir, message.run_id, asked.cwd)
        raise
    except Gone as gone:
        complain(f"holdfast: {gone}")
        return 124 if conduct.is_overdue else 130 if signals.stops else REFUSED
    return conclude(end, watch.said(end.message_id), speaker, is_overdue=conduct.is_overdue)


def _leave(asked: Asked, run: str, session: str) -> None:
    text = f"{run}\n"
    if asked.as_json:
        text = msgspec.json.encode({"run_id": run, "session_id": session}).decode() + "\n"
    Speaker("stream").write(text)


def _mode(asked: Asked) -> Mode:
    if asked.as_json:
        return "json"
    return "stream" if asked.streams or os.isatty(1) else "final"


def _attachment(path: str) -> Attachment:
    from mimetypes import guess_type

    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}.") from None
    kind = guess_type(path)[0] or ("application/octet-stream" if b"\0" in content[:4096] else "text/plain")
    return Attachment(content, os.path.abspath(path), os.path.basename(path), kind)
