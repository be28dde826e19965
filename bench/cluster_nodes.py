"""A cluster under test: PostgreSQL with its files on disk, and server processes that share one volume."""

import asyncio
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from bench.forwarder import Forwarder
from bench.raw_client import RawClient
from bench.repositories import temporary_directory
from bench.servers import Provider, ServerProcess, served
from holdfast.client.server_address import ServerAddress

if TYPE_CHECKING:
    from postgres_server import PostgresServer

__all__ = ["Cluster", "Database", "Node", "cluster", "wait", "wait_until"]

T = TypeVar("T")
PLACE = "bench"
_SETTINGS = {
    "autovacuum_naptime": "1min",
    "max_connections": "200",
    "max_wal_senders": "4",
    "max_wal_size": "1GB",
    "shared_buffers": "128MB",
    "track_functions": "pl",
    "wal_level": "replica",
}
_NODE_TIMEOUT = 20.0


def wait(seconds: float) -> None:
    """Leave the processor to the others for some time."""
    select.select([], [], [], seconds)


def wait_until(condition: Callable[[], bool], seconds: float = _NODE_TIMEOUT) -> float:
    """Return the time at which a condition was seen to be true. Fails after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        wait(0.002)
    return time.monotonic()


class Database:
    """Bare asyncpg connections to the database of the cluster, for limits and for facts about the cluster."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._dsn = dsn
        self.connection: Any = self.run(self.connect())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of these connections."""
        return self._runner.run(work)

    async def connect(self) -> Any:  # noqa: ANN401
        """Return another connection."""
        import asyncpg  # noqa: PLC0415 - an extra

        return await asyncpg.connect(self._dsn)

    def reconnect(self) -> None:
        """Connect again after an outage."""
        self.connection = self.run(self.connect())

    def value(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401
        """Return the first value of the first row."""
        return self.run(self.connection.fetchval(statement, *arguments))

    def rows(self, statement: str, *arguments: object) -> list[Any]:
        """Return the rows of a query."""
        return list(self.run(self.connection.fetch(statement, *arguments)))

    def execute(self, statement: str) -> None:
        """Execute a statement."""
        self.run(self.connection.execute(statement))

    def close(self) -> None:
        """Close the connection and the event loop."""
        self.connection.terminate()
        self._runner.close()


class Node:
    """One server process of the cluster. `forwarder` is between it and PostgreSQL, if it can be cut off."""

    def __init__(self, server: ServerProcess, member: str, forwarder: Forwarder | None) -> None:
        self.server = server
        self.member = member
        """Its id in the database when it joined."""
        self.forwarder = forwarder

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server process."""
        self.server.process.send_signal(number)

    def kill(self) -> None:
        """Kill the server process, also one that is stopped."""
        self.server.process.kill()
        self.server.process.wait()


class Cluster:
    """PostgreSQL and the running nodes. Workspaces are directories below `projects`."""

    def __init__(self, postgres: "PostgresServer", provider: Provider, projects: Path, stack: ExitStack) -> None:
        self.postgres = postgres
        self.provider = provider
        self.database = Database(postgres.dsn())
        self.nodes: list[Node] = []
        self._projects = projects
        self._stack = stack
        self._numbers = count(1)

    def start(self, *, can_be_cut: bool = False) -> Node:
        """Start a node and wait until it is a member."""
        forwarder = None
        dsn = self.postgres.dsn()
        if can_be_cut:
            forwarder = self._stack.enter_context(Forwarder(self.postgres.directory / ".s.PGSQL.5432"))
            dsn = f"postgresql://postgres@127.0.0.1:{forwarder.port}/postgres?sslmode=disable"
        known = set(self.members())
        settings = f'{self.provider.settings}\n[storage]\nurl = "{dsn}"\n'
        options = ("--label", f"place={PLACE}", "--drain-timeout", "0")
        server = self._stack.enter_context(served(settings=settings, options=options))
        # The files of its home are removed at the end, when it has been killed: draining would only take time.
        self._stack.callback(server.process.kill)
        server.wait_for_answer()
        wait_until(lambda: bool(set(self.members()) - known))
        node = Node(server, (set(self.members()) - known).pop(), forwarder)
        self.nodes.append(node)
        return node

    def ensure(self, number: int) -> list[Node]:
        """Start nodes until there are so many, or stop the last ones. Return them."""
        while len(self.nodes) < number:
            self.start()
        while len(self.nodes) > number:
            self.stop(self.nodes[-1])
        return self.nodes

    def stop(self, node: Node) -> None:
        """Kill a node, and wait until another one, or this function, has removed it."""
        self.nodes.remove(node)
        node.kill()
        if self.nodes:
            wait_until(lambda: node.member not in self.members())
        else:
            self.database.execute("UPDATE holdfast.workspaces SET owner = NULL; DELETE FROM holdfast.nodes")

    def restart(self, number: int) -> list[Node]:
        """Kill all nodes, and start as many new ones with no workspace open."""
        for node in self.nodes:
            node.kill()
        self.nodes.clear()
        if self.members():
            self.database.execute(
                "UPDATE holdfast.workspaces SET owner = NULL, wanted = false, epoch = epoch + 1,"
                " hinted_nodes = '{}', hinted_heartbeats = '{}'; DELETE FROM holdfast.nodes"
            )
        return self.ensure(number)

    def members(self) -> list[str]:
        """Return the ids of the nodes in the database."""
        if self.database.value("SELECT to_regclass('holdfast.nodes')") is None:
            return []
        return [row["id"] for row in self.database.rows("SELECT id FROM holdfast.nodes")]

    def owner(self, workspace: str) -> Node | None:
        """Return the node that owns a workspace."""
        found = self.database.value("SELECT owner FROM holdfast.workspaces WHERE id = $1", workspace)
        return next((node for node in self.nodes if node.member == found), None)

    def owners(self) -> Mapping[str, Node | None]:
        """Return the node of each workspace."""
        nodes = {node.member: node for node in self.nodes}
        rows = self.database.rows("SELECT id, owner FROM holdfast.workspaces")
        return {row["id"]: nodes.get(row["owner"]) for row in rows}

    def new_directory(self) -> str:
        """Return a new, empty directory for a workspace."""
        path = self._projects / f"w{next(self._numbers)}"
        path.mkdir()
        return str(path)

    def owned_workspace(self) -> tuple[RawClient, Node, Node]:
        """Open a new workspace and wait for its owner. Return a client, the owner, and another node."""
        client = RawClient(self.nodes[0].server, path=self.new_directory())
        wait_until(lambda: self.owner(client.workspace) is not None)
        owner = self.owner(client.workspace)
        assert owner is not None
        return client, owner, next(node for node in self.nodes if node is not owner)

    def postgres_processor(self) -> float:
        """Return the seconds of processor time of PostgreSQL so far, with those of ended connections."""
        return self._postgres_process().processor()

    def connection_memory(self) -> float:
        """Return the memory of a connection of a node in MiB, without what processes share: the mean."""
        query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'"
        found = []
        for row in self.database.rows(query):
            lines = Path(f"/proc/{row['pid']}/smaps_rollup").read_text().splitlines()
            private = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
            found.append(sum(private) / 1024)
        return mean(found)

    def connections(self) -> float:
        """Return the mean number of connections of a node."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'"
        return float(self.database.value(query)) / len(self.nodes)

    def _postgres_process(self) -> ServerProcess:
        directory = self.postgres.directory
        return ServerProcess(directory, self.postgres.process, 0.0, ServerAddress(path=str(directory)))

    @contextmanager
    def synchronous_standby(self) -> Iterator[None]:
        """Let each commit wait for a standby."""
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from postgres_server import PostgresServer, binaries  # noqa: PLC0415 - the path is set above

        directory = self.postgres.directory.with_name("standby")
        directory.mkdir()
        standby = PostgresServer(directory, _SETTINGS)
        source = ["-h", str(self.postgres.directory), "-U", "postgres"]
        command = [*self.postgres.privileges(), str(binaries() / "pg_basebackup"), "--no-sync", "-c", "fast", "-R"]
        subprocess.run([*command, *source, "-D", str(standby.data)], check=True, cwd=directory)
        with (standby.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = 'host={self.postgres.directory} user=postgres application_name=standby'\n")
        standby.start()
        try:
            self.database.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self.database.execute("SELECT pg_reload_conf()")
            query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            wait_until(lambda: self.database.value(query) == 1)
            yield
        finally:
            self.database.execute("ALTER SYSTEM RESET synchronous_standby_names")
            self.database.execute("SELECT pg_reload_conf()")
            standby.stop(signal.SIGQUIT)
            shutil.rmtree(directory)


@contextmanager
def cluster(provider: Provider) -> Iterator[Cluster]:
    """Start PostgreSQL and no node. Its files are on the disk of TMPDIR."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from postgres_server import PostgresServer  # noqa: PLC0415 - the path is set above

    with tempfile.TemporaryDirectory(prefix="hf", dir=temporary_directory(), ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o711)
        directory, projects = Path(place) / "p", Path(place) / "projects"
        directory.mkdir()
        projects.mkdir()
        postgres = PostgresServer(directory, _SETTINGS)
        postgres.create()
        with (postgres.data / "pg_hba.conf").open("a") as file:
            file.write("local replication all trust\n")
        postgres.start()
        try:
            with ExitStack() as stack:
                running = Cluster(postgres, provider, projects, stack)
                stack.callback(running.database.close)
                yield running
        finally:
            postgres.stop(signal.SIGQUIT)
