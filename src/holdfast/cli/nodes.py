"""`holdfast nodes`: the servers of a cluster."""

import sys
from collections.abc import Mapping, Sequence

import click

from holdfast.cli.common import CommandError, DefaultGroup, age, clip, report_errors, server_options, table
from holdfast.cli.console.run_output import print_stderr
from holdfast.cli.run_client.run_lookup import expand_id
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.errors import Unreachable
from holdfast.client.server_launcher import locate
from holdfast.client.terminal_text import printable
from holdfast.protocol.bodies import NodeBody, NodeList

__all__ = ["command"]

_ALONE = "This server stores in SQLite: it is the only node."
_NOT_RUNNING = "No server is running. Commands start one when needed, and so does holdfast server start."
_OWN_PLACE_LENGTH = 32
"""Length of the id of a place without a label."""
_PLACES_WIDTH = 16
_WARNING = """Evict only a node that hangs: one that is dead is evicted by the others within seconds.
If this one is alive, its active runs ({runs}) end as interrupted, and its tools are killed."""


class _NodesGroup(DefaultGroup):
    default = "list"


@click.group("nodes", cls=_NodesGroup)
def command() -> None:
    """List the servers of a cluster, drain one, or declare one dead.

    \b
      holdfast nodes                 all servers that share the store
      holdfast nodes drain 3f6c      before its machine is restarted
      holdfast nodes evict 3f6c      if it hangs
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
def list_nodes(*, as_json: bool, **location: str | None) -> None:
    """List the servers that share the store, oldest first. An asterisk marks the one that answered.

    \b
      holdfast nodes
      holdfast nodes --json | jq '.nodes[] | select(.state != "ready")'
    """
    with report_errors():
        connection = _connect(location)
        if as_json:
            click.echo(connection.send("GET", "/v1/nodes").strip())
            return
        found = _nodes(connection)
    if not found.is_cluster:
        print_stderr(f"{_ALONE} docs/cluster.md describes several servers on one PostgreSQL.")
        return
    click.echo(_table(found.nodes))


@command.command()
@click.argument("node", metavar="[NODE]", required=False)
@server_options
def drain(*, node: str | None, **location: str | None) -> None:
    """Let a server finish its active runs, release its workspaces, and exit. Default: the server that answers.

    Idle workspaces move at once. Active runs may continue for the --drain-timeout of that server. A prefix of the id
    is sufficient.

    \b
      holdfast nodes drain
      holdfast nodes drain 3f6c
    """
    with report_errors():
        connection = _connect(location)
        found = _find(_nodes(connection), node)
        connection.send("POST", f"/v1/nodes/{found.id}/drain", can_repeat=True)
        runs = "one active run" if found.runs == 1 else f"{found.runs} active runs"
        click.echo(f"{_short(found)} drains, with {runs}: it has finished when holdfast nodes no longer lists it.")


@command.command()
@click.argument("node", metavar="NODE")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@server_options
def evict(*, node: str, yes: bool, **location: str | None) -> None:
    """Declare a server dead: the others take over its workspaces.

    If it is alive, it kills its tools, its active runs end as interrupted, and it joins again as another node. A prefix
    of the id is sufficient.

    \b
      holdfast nodes evict 3f6c
      holdfast nodes evict --yes 3f6c      in a script
    """
    with report_errors():
        connection = _connect(location)
        found = _find(_nodes(connection), node)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("Use --yes to evict a node without a confirmation.")
            print_stderr(_WARNING.format(runs=found.runs))
            click.confirm(f"Evict {_short(found)}?", abort=True, err=True)
        connection.send("POST", f"/v1/nodes/{found.id}/evict")
        click.echo(f"{_short(found)} is evicted: other nodes of its place take over its workspaces.")


def _connect(location: Mapping[str, str | None]) -> ServerConnection:
    """Connect to a running server: one that is started for this would join the cluster."""
    connection = ServerConnection(locate(location["host"], location["data_dir"]))
    try:
        connection.connect(can_start=False)
    except Unreachable:
        if location["host"]:
            raise
        raise CommandError(_NOT_RUNNING) from None
    return connection


def _nodes(connection: ServerConnection) -> NodeList:
    return connection.request(NodeList, "GET", "/v1/nodes")


def _find(found: NodeList, prefix: str | None) -> NodeBody:
    """Return the node whose id begins with the prefix; without a prefix, the node that answered."""
    if not found.is_cluster:
        raise CommandError(f"{_ALONE} Stop it with holdfast server stop.")
    if prefix is None:
        chosen = [node for node in found.nodes if node.is_self]
        problem = "This server joins the cluster now: try again in a moment."
    else:
        full = expand_id(prefix, [node.id for node in found.nodes]) if prefix else ""
        chosen = [node for node in found.nodes if node.id == full]
        problem = f"There is no node {clip(prefix, 40)}: holdfast nodes lists them."
    if not chosen:
        raise CommandError(problem)
    return chosen[0]


def _short(node: NodeBody) -> str:
    return f"Node {node.id[:8]}"


def _table(nodes: Sequence[NodeBody]) -> str:
    length = 8
    while len({node.id[:length] for node in nodes}) < len(nodes):
        length += 1
    names = ("NODE", "STATE", "UP", "PLACE", "WORKSPACES", "RUNS", "CLIENTS", "VERSION", "ADDRESS")
    return table(names, [_row(node, length) for node in nodes])


def _row(node: NodeBody, length: int) -> tuple[str, ...]:
    places = ("own disk" if len(place) == _OWN_PLACE_LENGTH else place for place in node.places)
    return (
        f"{node.id[:length]}{'*' if node.is_self else ''}",
        node.state,
        age(node.uptime),
        clip(", ".join(places), _PLACES_WIDTH),
        str(node.workspaces),
        str(node.runs),
        str(node.clients),
        printable(node.version),
        printable(node.address.removeprefix("http://")) or "-",
    )
