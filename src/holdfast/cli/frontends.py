"""`holdfast tui`, `web` and `acp`: the interactive clients.

Each command checks its environment and then starts a client: the terminal app, the web page in a browser, or the bridge
for an editor. The clients themselves are imported on demand, because they are large.
"""

import os
import sys
from importlib.util import find_spec
from urllib.parse import urlencode

import click

from holdfast.cli.common import CommandError, location_options, report_errors, server_options
from holdfast.cli.fast_msgspec_import import signals_blocked
from holdfast.cli.server_connection import ServerConnection, environment_pairs
from holdfast.client.errors import Unreachable
from holdfast.client.server_launcher import locate
from holdfast.distribution_names import install_command
from holdfast.protocol.bodies import WebLink, WebLinkRequest

__all__ = ["acp_command", "tui_command", "web_command"]


@click.command("tui")
@click.option("--session", "-s", default="", help="Open this session.")
@click.option("--continue", "-C", "continues", is_flag=True, help="Open the session used last.")
@click.option("--yolo", is_flag=True, help="Allow all tool calls without approval.")
@location_options
def tui_command(*, session: str, continues: bool, yolo: bool, **location: str | None) -> None:
    """Open the terminal app in this directory.

    \b
      holdfast
      holdfast --continue
    """
    with report_errors():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CommandError('The terminal app needs a terminal. In a script, use holdfast run "…".')
        # Textual takes the size from these variables if they are set; resizing the window would have no effect.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        with signals_blocked():
            from holdfast.tui.app import HoldfastApp

        app = HoldfastApp(
            locate(location["host"], location["data_dir"]),
            os.path.abspath(location["cwd"] or "."),
            session=session or ("last" if continues else ""),
            yolo=yolo,
        )
        sys.exit(app.run() or 0)


@click.command("web")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port of the page; default: any free port.")
@click.option("--no-open", is_flag=True, help="Only print the link.")
@click.option("--close", "closes", is_flag=True, help="Revoke access: disconnect open pages and invalidate all links.")
@location_options
def web_command(*, port: int | None, no_open: bool, closes: bool, cwd: str, **location: str | None) -> None:
    """Open the workspace of this directory in the browser.

    Also prints the link, which is valid once, for a minute, on this machine. The page is served by the server: this
    command exits at once.

    \b
      holdfast web
      holdfast web --no-open --port 7437    for a tunnel: ssh -L 7437:127.0.0.1:7437 HOST
      holdfast web --close                  revoke access of all pages
    """
    with report_errors():
        connection = ServerConnection(locate(location["host"], location["data_dir"]), "" if closes else cwd)
        if closes:
            _close_pages(connection)
            return
        connection.open()
        ask = WebLinkRequest(port or 0, tuple(environment_pairs(os.environ)))
        link = connection.request(WebLink, "POST", "/v1/web", body=ask)
    address = f"{link.url}#{urlencode({'code': link.code, 'dir': cwd})}"
    has_opened = not no_open and _open_browser(address)
    click.echo(address)
    if sys.stdout.isatty():
        hint = "Opened in your browser. If it does not appear, open the link" if has_opened else "Open the link"
        click.echo(f"{hint}: it is valid once, for {link.seconds} seconds.", err=True)


def _close_pages(connection: ServerConnection) -> None:
    try:
        connection.connect(can_start=False)
    except Unreachable:
        click.echo("No server is running, so no page is open.")
        return
    connection.send("DELETE", "/v1/web", can_repeat=True)
    click.echo("Closed. Pages that were open need a new link.")


def _open_browser(address: str) -> bool:
    """Open a graphical browser. A text browser would take over the terminal."""
    known = os.environ
    if sys.platform == "linux" and not any(known.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


@click.command("acp")
@server_options
def acp_command(*, data_dir: str | None, host: str | None) -> None:
    """Serve the Agent Client Protocol on stdin and stdout. It is started by editors; see docs/editors.md.

    \b
      holdfast acp
      holdfast acp --host ssh://me@workshop
    """
    if sys.stdin.isatty():
        raise CommandError("This command is for editors, which start it with pipes. In a terminal, use holdfast.")
    with report_errors():
        if find_spec("acp") is None:
            raise CommandError(f"This needs the package agent-client-protocol: {install_command('acp')}.")
        from holdfast.acp.editor_connection import serve_editor

        serve_editor(locate(host, data_dir))
