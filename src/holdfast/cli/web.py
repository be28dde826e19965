"""`holdfast web`: opens the web page in the browser."""

import os
import sys
from urllib.parse import urlencode

import click

from holdfast.cli.common import sentences, where_options
from holdfast.cli.link import Link, environment_of
from holdfast.client.errors import Unreachable
from holdfast.client.locate import locate
from holdfast.protocol.bodies import WebAsk, WebLink

__all__ = ["command"]


@click.command("web")
@click.option("--port", type=click.IntRange(1, 65_535), help="Where the page is served; any free port.")
@click.option("--no-open", is_flag=True, help="Only print the link.")
@click.option("--close", "closes", is_flag=True, help="Let no page in any more, and cut off those that are open.")
@where_options
def command(*, port: int | None, no_open: bool, closes: bool, cwd: str, **where: str | None) -> None:
    """Open this directory's workspace in the browser.

    Prints a link, too: it works once, within a minute, on this machine. The server serves the page, so nothing has to
    stay open here.

    \b
      holdfast web
      holdfast web --no-open --port 7437    for a tunnel: ssh -L 7437:127.0.0.1:7437 HOST
      holdfast web --close                  when no page should get in any more
    """
    with sentences():
        link = Link(locate(where["host"], where["data_dir"]), "" if closes else cwd)
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


def _close(link: Link) -> None:
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
