"""A real PostgreSQL for tests: Debian's binaries, in a temporary directory, as an unprivileged user.

The server listens on a Unix socket in its own directory, and on a reserved loopback port if one is given. It ends with
the process that started it in every case: the kernel sends it SIGQUIT (an immediate shutdown) when that process dies.
"""

import asyncio
import atexit
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import quote

import asyncpg

from holdfast.storage.postgres.postgres_schema import migrate
from scratch import memory_directory

__all__ = ["PostgresServer", "binaries", "database", "new_database", "pgbouncer", "postgres_server", "shared_server"]

_SETTINGS = {
    "autovacuum_naptime": "10min",
    "dynamic_shared_memory_type": "mmap",
    "fsync": "on",
    "listen_addresses": "",
    "logging_collector": "off",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "unix_socket_permissions": "0777",
    "wal_level": "minimal",
}
"""Settings of a server for tests. Its files are in memory, so that a sync costs little although it is done."""

_HBA = "local all,replication all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


def binaries() -> Path:
    """Return the directory of the newest installed PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    assert found, "the tests need PostgreSQL: install Debian's package postgresql, or run scripts/test"
    return found[-1].parent


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user for the server if the tests run as root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


class PostgresServer:
    """One PostgreSQL with its files in `directory`."""

    def __init__(self, directory: Path, settings: Mapping[str, str], port: int | None = None) -> None:
        self.directory = directory
        self.enter: Sequence[str] = ()
        """A command that executes another one where the data directory is mounted."""
        self.data = directory / "data"
        self._settings = {**_SETTINGS, **settings}
        self._port = port
        self._user = _unprivileged_user()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        self.template: str | None = None
        """The database with the newest schema, once there is one."""
        self.give(directory)
        if port is not None:
            self._settings |= {"listen_addresses": "127.0.0.1", "port": str(port)}

    def give(self, directory: Path) -> None:
        """Let the user of the server use a directory."""
        if self._user is not None:
            os.chown(directory, self._user.pw_uid, self._user.pw_gid)
        directory.chmod(0o711)

    def create(self) -> None:
        """Create the files of an empty cluster with the superuser `postgres` and its password `secret`."""
        password = self.directory / "password"
        password.write_text("secret")
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", *options, f"--pwfile={password}", "--no-instructions", str(self.data))
        self.write("pg_hba.conf", _HBA)

    def write(self, name: str, text: str) -> None:
        """Write a file in the data directory, or remove it if the text is empty."""
        command = f'cat > "{self.data}/{name}"' if text else f'rm -f "{self.data}/{name}"'
        subprocess.run([*self.privileges(), "sh", "-c", command], input=text, text=True, check=True)

    def copy(self, primary: "PostgresServer") -> None:
        """Create the files of a standby of another server, in place of those that exist."""
        subprocess.run([*self.privileges(), "sh", "-c", f'rm -rf "{self.data}"/*'], check=True)
        options = ["-h", str(primary.directory), "-U", "postgres", "-c", "fast", "--no-sync", "--write-recovery-conf"]
        self._run("pg_basebackup", *options, "-D", str(self.data))

    def promote(self) -> None:
        """Make a standby a primary, and return when it accepts writes."""
        self._run("pg_ctl", "promote", "-D", str(self.data))

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        arguments = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(binaries() / "postgres"), "-D", str(self.data), "-k", str(self.directory), *arguments]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.privileges(), "--pdeathsig", "QUIT", *command], stdout=log, stderr=log, cwd=self.directory
            )
        ready = [str(binaries() / "pg_isready"), "--quiet", "--timeout=30", "-h", str(self.directory)]
        if self._port is not None:
            ready += ["-p", str(self._port)]
        while subprocess.run(ready, check=False).returncode != 0:
            assert self._process.poll() is None, (self.directory / "log").read_text()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT disconnects clients, SIGQUIT and SIGKILL are crashes."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running server."""
        assert self._process is not None, "the server is not running"
        return self._process

    def kill(self) -> None:
        """Kill all processes of the server, as a power failure does."""
        if self._process is not None:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            for process in (self._process.pid, *map(int, children)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    @property
    def is_running(self) -> bool:
        """Whether the server has not ended."""
        return self._process is not None and self._process.poll() is None

    def crash(self) -> None:
        """Kill the server as a crash does and start it again."""
        self.stop(signal.SIGQUIT)
        self.start()

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string for the Unix socket."""
        port = f"&port={self._port}" if self._port is not None else ""
        return f"postgresql:///{database}?host={quote(str(self.directory), safe='')}&user={user}{port}"

    def new_name(self) -> str:
        """Return an unused name for a database."""
        return f"test_{next(self._names)}"

    def log(self) -> str:
        """Return the log of the server."""
        return (self.directory / "log").read_text(errors="replace")

    def privileges(self) -> list[str]:
        """Return the command that runs another one as the user of the server."""
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "the tests need setpriv of util-linux"
        if self._user is None:
            return [*self.enter, setpriv]
        return [*self.enter, setpriv, f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self.privileges(), str(binaries() / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd=self.directory, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def postgres_server(port: int | None = None, **settings: str) -> Iterator[PostgresServer]:
    """Yield a running server in a new directory in memory, and remove it."""
    with memory_directory() as directory:
        server = PostgresServer(directory, settings, port)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@contextmanager
def pgbouncer(server: PostgresServer, mode: str) -> Iterator[Path]:
    """Yield the directory of the socket of a connection pooler in front of the server, on port 6432."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert program is not None, "the tests need pgbouncer: install it, or run scripts/test"
    with memory_directory() as directory:
        server.give(directory)
        (directory / "users").write_text('"postgres" ""\n')
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={server.directory}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\n"
            f"unix_socket_dir = {directory}\nunix_socket_mode = 0777\nauth_type = trust\n"
            f"auth_file = {directory}/users\npool_mode = {mode}\nlogfile =\n"
        )
        command = [*server.privileges(), "--pdeathsig", "QUIT", program, str(directory / "pgbouncer.ini")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            assert process.stderr is not None
            lines: list[bytes] = []
            for line in process.stderr:
                lines.append(line)
                if b"process up" in line:
                    break
            assert process.poll() is None, lines
            yield directory
        finally:
            process.kill()
            process.communicate()


@cache
def shared_server() -> PostgresServer:
    """Return the server that the tests of this process share. It is stopped at the end of the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(postgres_server())


@asynccontextmanager
async def new_database(server: PostgresServer | None = None, *, is_empty: bool = False) -> AsyncIterator[str]:
    """Yield the connection string of a new database with the newest schema, or without one, and remove it."""
    server = server or shared_server()
    if not is_empty and server.template is None:
        server.template = "template_holdfast"
        await _create_template(server)
    name = server.new_name()
    await _control(server, f"CREATE DATABASE {name} TEMPLATE {'template1' if is_empty else server.template}")
    try:
        yield server.dsn(name)
    finally:
        await _control(server, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def database() -> Iterator[str]:
    """Yield the connection string of a new database in a test without an event loop."""
    with asyncio.Runner() as runner:
        made = new_database()
        dsn = runner.run(made.__aenter__())
        try:
            yield dsn
        finally:
            runner.run(made.__aexit__(None, None, None))


async def _create_template(server: PostgresServer) -> None:
    await _control(server, f"CREATE DATABASE {server.template}")
    connection = await asyncpg.connect(server.dsn(str(server.template)))
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _control(server: PostgresServer, statement: str) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
