"""`holdfast` without a command: the terminal app."""

import os
import sys
from importlib.util import find_spec
from urllib.parse import urlencode

import click

from holdfast.cli.common import Failure, sentences, server_options, where_options
from holdfast.cli.fast_import import undisturbed
from holdfast.cli.server_connection import ServerConnection, environment_of
from holdfast.client.errors import Unreachable
from holdfast.client.locate import locate
from holdfast.distribution import install_command
from holdfast.protocol.bodies import WebAsk, WebLink

__all__ = ["acp_command", "tui_command", "web_command"]


@click.command("tui")
@click.option("--session", "-s", default="", help="Open this session.")
@click.option("--continue", "-C", "continues", is_flag=True, help="Open the session used last.")
@click.option("--yolo", is_flag=True, help="Let tools act without asking.")
@where_options
def tui_command(*, session: str, continues: bool, yolo: bool, **where: str | None) -> None:
    """Open the terminal app in this directory.

    \b
      holdfast
      holdfast --continue
    """
    with sentences():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Failure('The terminal app needs a terminal. In a script, use holdfast run "…".')
        # If set, they would fix the size, and resizing the window would have no effect.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        with undisturbed():
            from holdfast.tui.app import HoldfastApp

        app = HoldfastApp(
            locate(where["host"], where["data_dir"]),
            os.path.abspath(where["cwd"] or "."),
            session=session or ("last" if continues else ""),
            yolo=yolo,
        )
        sys.exit(app.run() or 0)


# `holdfast web`: opens the web page in the browser.


@click.command("web")
@click.option("--port", type=click.IntRange(1, 65_535), help="Where the page is served; any free port.")
@click.option("--no-open", is_flag=True, help="Only print the link.")
@click.option("--close", "closes", is_flag=True, help="Let no page in any more, and cut off those that are open.")
@where_options
def web_command(*, port: int | None, no_open: bool, closes: bool, cwd: str, **where: str | None) -> None:
    """Open this directory's workspace in the browser.

    Prints a link, too: it works once, within a minute, on this machine. The server serves the page, so nothing has to
    stay open here.

    \b
      holdfast web
      holdfast web --no-open --port 7437    for a tunnel: ssh -L 7437:127.0.0.1:7437 HOST
      holdfast web --close                  when no page should get in any more
    """
    with sentences():
        link = ServerConnection(locate(where["host"], where["data_dir"]), "" if closes else cwd)
        if closes:
            _close(link)
            return
        link.enter()
        ask = WebAsk(port or 0, tuple(environment_of(os.environ)))
        made = link.ask(WebLink, "POST", "/v1/web", body=ask)
    address = f"{made.url}#{urlencode({'code': made.code, 'dir': cwd})}"
    has_opened = not no_open and _open(address)
    click.echo(address)
    if sys.stdout.isatty():
        told = "Opened in your browser. If it does not come up, follow the link" if has_opened else "Follow the link"
        click.echo(f"{told}: it works once, within {made.seconds} seconds.", err=True)


def _close(link: ServerConnection) -> None:
    try:
        link.connect(can_start=False)
    except Unreachable:
        click.echo("No server runs, so no page is open.")
        return
    link.send("DELETE", "/v1/web", can_repeat=True)
    click.echo("Closed: pages that were open need a new link.")


def _open(address: str) -> bool:
    """Open a graphical browser. A text browser would take over the terminal."""
    known = os.environ
    if sys.platform == "linux" and not any(known.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


# `holdfast acp`: the bridge for editors.


@click.command("acp")
@server_options
def acp_command(*, data_dir: str | None, host: str | None) -> None:
    """Serve the Agent Client Protocol on stdin and stdout. Editors start this command; see docs/editors.md.

    \b
      holdfast acp
      holdfast acp --host ssh://me@workshop
    """
    if sys.stdin.isatty():
        raise Failure("This is for editors, which talk to it through pipes. In a terminal, start holdfast.")
    with sentences():
        if find_spec("acp") is None:
            raise Failure(f"This needs the package agent-client-protocol: {install_command('acp')}.")
        from holdfast.acp.editor_connection import serve_editor

        serve_editor(locate(host, data_dir))
