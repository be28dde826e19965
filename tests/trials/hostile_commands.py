"""Commands that resist termination, and the check that none survives a cancel or the end of the server.

Each shape is a line for bash. It prints `ready` when its hardest process exists, and every process of it has the token
on its command line, so that survivors can be found from outside.
"""

import asyncio
import contextlib
import os
import random
import secrets
import sys
import tempfile
from pathlib import Path

from holdfast.workspace.process.command_process import CommandLaunch, Processes, RunningCommand
from holdfast.workspace.process.guard_client import Containment, Guard, TreeEnd

__all__ = ["SHAPES", "RunningShape", "launch_of", "new_token", "start_shape", "survivors", "try_tree"]

_PYTHON = "exec '{python}' -I -S -c '{code}' {token}"

SHAPES: dict[str, str] = {
    "own session": "setsid bash -c 'echo ready; exec sleep {token}' & wait",
    "double fork": "( ( bash -c 'echo ready; exec sleep {token}' & ) & ); exec sleep {token}",
    "trapped TERM": "trap '' TERM; echo ready; while :; do sleep {token}; done",
    "deaf to all": _PYTHON.replace(
        "{code}",
        "import signal, time; "
        "[signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 17, 19)]; "
        'print("ready", flush=True); [time.sleep(99) for _ in iter(int, 1)]',
    ),
    "stopped child": "sleep {token} & kill -STOP $!; echo ready; wait",
    "stopped group": "sleep {token} & echo ready; kill -STOP 0",
    "bounded fork bomb": (
        "f() {{ if [ $1 -gt 0 ]; then f $(($1-1)) & f $(($1-1)) & wait; else exec sleep {token}; fi; }}; "
        "f 4 & echo ready; wait"
    ),
    "fork loop": _PYTHON.replace(
        "{code}", 'import os; print("ready", flush=True); [os._exit(0) for _ in iter(int, 1) if os.fork()]'
    ),
    "fork loop in new sessions": _PYTHON.replace(
        "{code}",
        'import os; print("ready", flush=True); [os._exit(0) if os.fork() else os.setsid() for _ in iter(int, 1)]',
    ),
    "respawner": (
        "setsid bash -c 'trap \"\" TERM INT HUP; echo ready; while :; do sleep {token}; done' & "
        "while :; do sleep {token}; done"
    ),
    "daemon that holds stdout": _PYTHON.replace(
        "{code}",
        "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
        'print("ready", flush=True); [time.sleep(99) for _ in iter(int, 1)]',
    ),
    "user of a PTY": _PYTHON.replace(
        "{code}",
        "import os, pty; child, terminal = pty.fork(); "
        'child or os.execvp("sleep", ["sleep", "{token}"]); print("ready", flush=True); os.read(terminal, 9)',
    ),
    "zombie parent": _PYTHON.replace(
        "{code}",
        "import os, time; [os.fork() or os._exit(0) for _ in range(5)]; "
        'print("ready", flush=True); [time.sleep(99) for _ in iter(int, 1)]',
    ),
    "nohup and disown": "nohup sleep {token} >/dev/null 2>&1 & disown; echo ready; exec sleep {token}",
    "cleaned environment": "env -i setsid bash -c 'echo ready; exec sleep {token}' & wait",
    "chain of programs": (
        "export LOOP='[ $1 -eq 20 ] && echo ready; exec bash -c \"$LOOP\" {token} $(($1+1))'; "
        'exec bash -c "$LOOP" {token} 1'
    ),
    "pauses its supervisor": (
        "trap 'kill -STOP $PPID' INT TERM; sleep {token} & kill -STOP $PPID; echo ready; "
        "while :; do sleep {token} & wait; done"
    ),
    "pauses the guard": (
        "sleep {token} & read -r _ _ _ guard _ </proc/$PPID/stat; echo ready; kill -STOP $PPID $guard; wait"
    ),
    "no descriptors": "bash -c 'exec 0<&- 1>&- 2>&-; exec sleep {token}' & echo ready; wait",
}
"""At least twelve, by name."""


def new_token() -> str:
    """Return a long duration for `sleep` that is on no other command line."""
    return f"9999.{secrets.randbits(60):020}"


def launch_of(shape: str, token: str, cwd: str = "/") -> CommandLaunch:
    # A virtual environment below /tmp does not exist in a sandbox; the interpreter it was created from does.
    line = SHAPES[shape].format(python=os.path.realpath(sys.executable), token=token)
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    return CommandLaunch(("/bin/bash", "-c", line, token), cwd, env, linger=None)


def survivors(token: str) -> list[str]:
    """Return the command lines of the processes that still run."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if token in line:
                    found.append(f"{name}: {line}")
    return found


class RunningShape:
    """A running shape. `ready` is set by its first output and by its end, so that no test waits for ever."""

    def __init__(self, processes: Processes, shape: str) -> None:
        self.token = new_token()
        self.ready = asyncio.Event()
        self.has_started = False
        self.running: RunningCommand = processes.start(launch_of(shape, self.token), on_output=self._on_output)
        self.running.ended.add_done_callback(lambda _: self.ready.set())

    def _on_output(self, text: str) -> None:
        if "ready" in text:
            self.has_started = True
            self.ready.set()

    async def stop(self, grace: float) -> TreeEnd:
        """Stop it; afterwards no process may be left."""
        end = await self.running.stop_and_wait(grace)
        left = survivors(self.token)
        assert not left, f"survivors: {left}"
        assert not end.left
        return end


async def start_shape(processes: Processes, shape: str) -> RunningShape:
    """Start a shape and return it once it is ready. Fail if it ends before that."""
    watched = RunningShape(processes, shape)
    await watched.ready.wait()
    assert watched.has_started, f"{shape!r} ended before it was ready"
    return watched


async def _try(seed: int) -> None:
    chance = random.Random(seed)
    containment: Containment = chance.choice(("namespace", "groups", "tree"))
    guard = Guard(containment)
    with tempfile.TemporaryDirectory() as spills:
        processes = Processes(guard, Path(spills))
        try:
            shapes = chance.choices(sorted(SHAPES), k=4)
            for watched in [RunningShape(processes, shape) for shape in shapes]:
                if chance.random() < 0.5:
                    await watched.ready.wait()
                else:
                    await asyncio.sleep(chance.random() / 20)
                await watched.stop(chance.choice((0.0, 0.02, 0.1)))
        finally:
            await guard.close()


def try_tree(seed: int) -> None:
    """Stop a few shapes at random moments: for `scripts/long`."""
    asyncio.run(_try(seed))
