"""Behaviour of the guard and its supervisors with real commands: few guards, many small commands."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Bounds, Command, Containment, Guard, Tree, TreeEnd
from trials.hostile_commands import new_token, survivors
from workspace.commands import line

LONG = 3_000.0
"""Seconds: longer than any test."""


@pytest.fixture(params=["namespace", "tree"])
async def guard(request: pytest.FixtureRequest) -> AsyncIterator[Guard]:
    containment: Containment = request.param
    guard = Guard(containment)
    assert await guard.ready() == containment
    yield guard
    await guard.close()


class Commands:
    """Runs lines with bash and returns their output."""

    def __init__(self, guard: Guard, spills: Path) -> None:
        self.guard = guard
        self.processes = Processes(guard, spills)

    async def run_text(self, text: str, bounds: Bounds = Bounds(), cwd: str = "/") -> tuple[str, TreeEnd]:  # noqa: B008
        class Bound:
            def confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
                return launch, bounds

            def watch(self) -> type[str]:
                return str

        self.processes.sandbox = Bound() if bounds != Bounds() else None
        running, end = await self.processes.run(line(text, cwd))
        return running.stdout.excerpt() + running.stderr.excerpt(), end

    async def start_line(self, text: str, *, linger: float | None = 0.25) -> Tree:
        """Start a line and wait until it has printed that it is ready."""
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        env = {"PATH": os.environ["PATH"]}
        tree = self.guard.spawn(Command(("/bin/bash", "-c", text), "/", env, linger), null, writing, null)
        os.close(writing)
        os.close(null)
        assert b"ready" in await asyncio.to_thread(os.read, reading, 100)
        os.close(reading)
        return tree


@pytest.fixture
def commands(guard: Guard, tmp_path: Path) -> Commands:
    return Commands(guard, tmp_path / "spills")


async def test_initial_state_of_command(commands: Commands) -> None:
    """No signal is ignored or blocked, it leads a session and a group of its own, and three descriptors are open."""
    output, end = await commands.run_text(
        "grep -E 'Sig(Ign|Blk)|NoNewPrivs' /proc/self/status; cut -d' ' -f1,5,6 /proc/$$/stat; echo $$;"
        " ls /proc/$$/fd; readlink /proc/$$/fd/0; pwd; yes | head -n 1; echo ${PIPESTATUS[0]}"
    )
    lines = output.split("\n")
    assert [text.split()[1].strip("0") for text in lines[:3]] == ["", "", ""]
    process, group, session = lines[3].split()
    assert process == group == session == lines[4]
    assert lines[5:8] == ["0", "1", "2"]
    assert lines[-5:] == ["/dev/null", "/", "y", "141", ""]
    assert (end.code, end.was_killed, end.is_lost, end.error) == (0, False, False, "")


async def test_a_grace_can_only_become_shorter(commands: Commands) -> None:
    """Neither a later stop with a longer grace nor a request to keep the rest delays a stop."""
    deaf = "trap '' INT TERM; echo ready; while :; do read -t 1000 <> <(:); done"
    for later in ("stop", "keep"):
        tree = await commands.start_line(deaf)
        tree.stop(0.05)
        if later == "stop":
            tree.stop(LONG)
        else:
            tree.set_linger(None)
        async with asyncio.timeout(20):
            end = await tree.gone
        assert (end.code, end.was_killed) == (137, True)


async def test_paused_processes_are_resumed_and_ended(commands: Commands) -> None:
    tree = await commands.start_line("trap '' INT; trap 'exit 5' TERM; echo ready; kill -STOP $$; read -t 1000 <> <(:)")
    tree.stop(3.0)
    async with asyncio.timeout(20):
        assert (await tree.gone).code == 5


async def test_lifetime_of_remaining_processes(commands: Commands) -> None:
    """From each state: before the end of the command, after it, and again."""
    token = new_token()
    text = f"sleep {token} & echo ready; exit 3"
    # Nothing is kept.
    end = await (await commands.start_line(text, linger=0)).gone
    assert (end.code, end.was_killed) == (3, True)
    # Kept from the start, and released on request after the end of the command.
    tree = await commands.start_line(text, linger=None)
    assert await tree.exited == 3
    assert not tree.gone.done()
    tree.set_linger(0.01)
    assert (await tree.gone).was_killed
    # A tree about to be killed is kept, also if its command has ended.
    tree = await commands.start_line(text, linger=LONG)
    assert await tree.exited == 3
    tree.set_linger(None)
    tree.set_linger(LONG)
    tree.set_linger(0)
    assert (await tree.gone).was_killed
    # A stop ends the tree although the rest is kept.
    tree = await commands.start_line(text, linger=None)
    assert await tree.exited == 3
    tree.stop(0)
    end = await tree.gone
    assert (end.code, end.was_killed) == (3, True)
    assert not survivors(token)


async def test_disconnected_tree_is_killed(commands: Commands) -> None:
    token = new_token()
    tree = await commands.start_line(f"setsid sleep {token} & echo ready; sleep {token}")
    tree.kill_now()
    assert (await tree.gone).was_killed
    # The same guard starts the next command; the supervisor of the previous one kills on its own.
    async with asyncio.timeout(20):
        while survivors(token):
            await commands.run_text("true")


async def test_private_network(commands: Commands) -> None:
    """Only the loopback device, which is up: a connection is refused, not unreachable."""
    output, _ = await commands.run_text(
        "tail -n +3 /proc/net/dev | cut -d: -f1; exec 3<>/dev/tcp/127.0.0.1/9", Bounds(network=False)
    )
    assert output.split()[0] == "lo"
    assert "eth" not in output
    assert "Connection refused" in output
    whole, _ = await commands.run_text("readlink /proc/self/ns/net")
    assert whole.strip() == os.readlink("/proc/self/ns/net")


async def test_mounts_have_their_attributes(commands: Commands, tmp_path: Path) -> None:
    """Every operation once, as the kernel lists it."""
    base = tmp_path
    for name in ("empty", "sealed", "source", "bound", "read"):
        (base / name).mkdir()
    for name in ("source/inner", "source/frozen", "masked"):
        (base / name).write_text("content")
    mounts = (
        ("tmpfs", f"{base}/empty", ""),
        ("tmpfs", f"{base}/sealed", ""),
        ("bind", f"{base}/bound", f"{base}/source"),
        ("read", f"{base}/read", f"{base}/source"),
        ("bind", f"{base}/sealed/new/place", f"{base}/source"),
        ("read", f"{base}/sealed/file", f"{base}/source/inner"),
        ("mask", f"{base}/masked", ""),
        ("freeze", f"{base}/bound/frozen", ""),
        ("seal", f"{base}/sealed", ""),
    )
    output, end = await commands.run_text(
        f"cat /proc/self/mountinfo; echo; ls /dev; ls {base}/sealed; cat {base}/masked; cat {base}/read/inner; echo;"
        f"touch {base}/empty/x {base}/bound/x && echo written;"
        f"touch {base}/x {base}/sealed/x {base}/read/x {base}/bound/frozen;"
        "readlink /proc/self/ns/ipc; readlink /dev/fd /dev/stdin /dev/stdout /dev/stderr /dev/ptmx;"
        "stat -Lc %a:%n /dev /dev/ptmx /dev/shm /dev/null",
        Bounds(mounts=mounts),
    )
    assert end.error == ""
    listing, _, rest = output.partition("\n\n")
    found: dict[str, tuple[set[str], str]] = {}
    for text in listing.split("\n"):
        fields = text.split()
        found[fields[4]] = set(fields[5].split(",")), text.rpartition(" - ")[2].split()[0]
    expected = {
        "/": {"ro"},
        f"{base}/empty": {"rw", "nosuid", "nodev"},
        f"{base}/sealed": {"ro", "nosuid", "nodev"},
        f"{base}/bound": {"rw", "nosuid", "nodev"},
        f"{base}/read": {"ro", "nosuid", "nodev"},
        f"{base}/sealed/new/place": {"rw", "nosuid", "nodev"},
        f"{base}/sealed/file": {"ro", "nosuid", "nodev"},
        f"{base}/masked": {"ro", "nodev"},
        f"{base}/bound/frozen": {"ro"},
        "/dev": {"rw", "nosuid", "noexec"},
        "/dev/pts": {"rw", "nosuid", "noexec"},
        "/dev/shm": {"rw", "nosuid", "nodev"},
        "/proc": {"ro", "nosuid", "nodev", "noexec"},
    }
    for place, options in expected.items():
        assert options <= found[place][0], (place, found[place])
    for place in (f"{base}/empty", f"{base}/sealed", "/dev", "/dev/shm"):
        assert found[place][1] == "tmpfs"
    words = rest.split()
    assert {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stdin", "tty", "urandom", "zero"} <= set(words)
    assert "file\nnew\ncontent\nwritten\n" in rest
    assert rest.count("Read-only file system") + rest.count("cannot touch") >= 4
    assert os.readlink("/proc/self/ns/ipc") not in rest
    links = ["/proc/self/fd", *(f"/proc/self/fd/{number}" for number in range(3)), "pts/ptmx"]
    assert [word for word in words if word in links] == links
    # Every user may open a terminal and create files of its own in shared memory.
    assert "755:/dev\n666:/dev/ptmx\n1777:/dev/shm\n666:/dev/null\n" in rest
    assert sorted(os.listdir(base / "source")) == ["frozen", "inner", "x"]
    assert sorted(os.listdir(base)) == [
        "bound", "empty", "masked", "read", "sealed", "source",
    ]  # fmt: skip


async def test_a_mount_that_is_unknown_is_an_error(commands: Commands) -> None:
    _, end = await commands.run_text("true", Bounds(mounts=(("other", "/mnt", ""),)))
    assert "unknown mount operation other" in end.error or "could not be confined" in end.error
    # The guard continues.
    assert (await commands.run_text("echo again"))[0] == "again\n"


async def test_active_containment() -> None:
    """Root gets a namespace unless another containment is requested."""
    kinds: dict[str, str] = {}
    wanted: tuple[Containment, ...] = ("auto", "groups", "tree")
    for containment in wanted:
        guard = Guard(containment)
        assert guard.containment == containment
        assert guard.process_id == 0
        kinds[containment] = await guard.ready()
        assert guard.containment == kinds[containment]
        assert guard.process_id > 0
        await guard.close()
    is_root = os.geteuid() == 0
    assert kinds["auto"] == "namespace" if is_root else kinds["auto"] in ("tree", "groups")
    assert kinds["tree"] == "tree"
    assert kinds["groups"] in ("tree", "groups")


async def test_every_command_has_tag_of_its_guard(commands: Commands) -> None:
    marks = [(await commands.run_text("echo $HOLDFAST_RUN"))[0].strip() for _ in range(2)]
    stems = {mark.rpartition(".")[0] for mark in marks}
    assert len(stems) == 1
    assert [int(mark.rpartition(".")[2]) for mark in marks] == [1, 2]
    assert len(stems.pop()) == 16


async def test_command_with_changed_directory_is_not_started(commands: Commands, tmp_path: Path) -> None:
    base = tmp_path
    (base / "real").mkdir()
    os.symlink("real", base / "link")
    for cwd, is_real, error in (("real", True, ""), ("link", False, ""), ("link", True, "was replaced")):
        launch = CommandLaunch(("/bin/true",), str(base / cwd), {}, is_real=is_real)
        commands.processes.sandbox = None
        _, end = await commands.processes.run(launch)
        assert error in end.error if error else (end.error, end.code) == ("", 0), cwd
