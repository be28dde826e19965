"""`holdfast acp`: the bridge for editors."""

import sys
from importlib.util import find_spec

import click

from holdfast.cli.common import Failure, sentences, server_options
from holdfast.client.locate import locate
from holdfast.distribution import install_command

__all__ = ["command"]


@click.command("acp")
@server_options
def command(*, data_dir: str | None, host: str | None) -> None:
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
        from holdfast.acp.stdio import speak

        speak(locate(host, data_dir))
