"""A PostgreSQL with a synchronous standby, on volumes of a limited size where the system permits it.

A volume is a tmpfs in a mount namespace of its own: root needs nothing else, and an ordinary user a user namespace. The
namespace exists as long as its holder, so that the files survive the end of the server.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg

from postgres_server import PostgresServer
from scratch import memory_directory

__all__ = ["PostgresPair", "Volume", "can_limit_volumes", "postgres_pair"]

_SETTINGS = {
    "max_wal_senders": "4",
    "max_wal_size": "48MB",
    "min_wal_size": "32MB",
    "wal_level": "replica",
    "wal_retrieve_retry_interval": "100ms",
}
_COMMIT = "SELECT pg_logical_emit_message(true, 'trial', '')"
"""A transaction that writes. With a synchronous standby it returns when the standby has it."""
_VOLUME_MEGABYTES = 160
_START_ATTEMPTS = 50
_FILLER = "filler"


class Volume:
    """A tmpfs at a directory, seen only by programs that are started with `enter`."""

    def __init__(self, directory: Path) -> None:
        owner = directory.stat()
        options = f"size={_VOLUME_MEGABYTES}m,mode=700"
        if os.geteuid() == 0:
            options += f",uid={owner.st_uid},gid={owner.st_gid}"
        mount = f'mount -t tmpfs -o {options} tmpfs "{directory}" && echo ready && exec sleep infinity'
        setpriv = shutil.which("setpriv") or "setpriv"
        self._holder = subprocess.Popen(
            [setpriv, "--pdeathsig", "KILL", *_unshare(), "sh", "-c", mount],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        spaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--mount", "--preserve-credentials"]
        self.enter = ["nsenter", "--target", str(self._holder.pid), *spaces]

    def close(self) -> None:
        """Discard the files."""
        self._holder.kill()
        self._holder.communicate()


def _unshare() -> list[str]:
    if os.geteuid() == 0:
        return ["unshare", "--mount"]
    return ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]


def can_limit_volumes() -> bool:
    """Return whether this system lets this user mount a tmpfs."""
    mount = 'mount -t tmpfs tmpfs "$0"'
    with memory_directory() as directory:
        tried = subprocess.run([*_unshare(), "sh", "-c", mount, str(directory)], check=False, capture_output=True)
    return tried.returncode == 0


class PostgresPair:
    """The primary and its synchronous standby, which exchange their roles."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby = standby
        self._hosts = (primary, standby)

    def dsn(self) -> str:
        """Return a connection string with both hosts."""
        hosts = ",".join(quote(str(server.directory), safe="") for server in self._hosts)
        return f"postgresql:///postgres?host={hosts}&user=postgres&target_session_attrs=read-write"

    async def attach_standby(self) -> None:
        """Copy the primary to the standby, and require the standby for each commit."""
        self.standby.copy(self.primary)
        self.standby.start()
        await self._execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        connection = await asyncpg.connect(self.primary.dsn())
        try:
            while await connection.fetchval("SELECT sync_state FROM pg_stat_replication") != "sync":
                assert self.standby.is_running, self.standby.log()
        finally:
            await connection.close()

    async def restart_primary(self) -> None:
        """Start the primary again, and return when it commits. Its shared memory may be in use for another moment."""
        for _ in range(_START_ATTEMPTS):
            try:
                await asyncio.to_thread(self.primary.start)
            except AssertionError:
                continue
            return await self._execute(_COMMIT)
        raise AssertionError(self.primary.log())

    async def fail_over(self) -> None:
        """Kill the primary, promote the standby, and return when it commits."""
        self.primary.kill()
        self.primary, self.standby = self.standby, self.primary
        await asyncio.to_thread(self.primary.promote)
        await self._execute(_COMMIT)

    def fill(self) -> None:
        """Fill the disk of the primary."""
        command = [*self.primary.privileges(), "dd", "if=/dev/zero", f"of={self.primary.data}/{_FILLER}", "bs=64k"]
        subprocess.run(command, check=False, capture_output=True)

    def free(self) -> None:
        """Free the space again."""
        self.primary.write(_FILLER, "")

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.primary.dsn())
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def postgres_pair(*, is_limited: bool) -> Iterator[PostgresPair]:
    """Yield two servers, of which only the primary runs. With `is_limited`, each has a volume of its own."""
    with ExitStack() as stack:
        pair = PostgresPair(_new_server(stack, is_limited), _new_server(stack, is_limited))
        stack.callback(pair.primary.kill)
        stack.callback(pair.standby.kill)
        pair.primary.create()
        pair.primary.start()
        yield pair


def _new_server(stack: ExitStack, is_limited: bool) -> PostgresServer:
    directory = stack.enter_context(memory_directory())
    data = directory / "data"
    data.mkdir()
    server = PostgresServer(directory, _SETTINGS)
    server.give(data)
    data.chmod(0o700)
    if is_limited:
        volume = Volume(data)
        stack.callback(volume.close)
        server.enter = volume.enter
    return server
