"""Commands that kill their supervisors, and the check that they still do not survive a cancel or the server.

A plan states which supervisors are killed, how the command hides before that, what it does afterwards, and when. All
its processes hold a FIFO open, so that the reader detects the last one's end, however briefly each exists. They end by
themselves after a while.
"""

import asyncio
import itertools
import json
import os
import random
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Guard, TreeEnd

__all__ = ["PLANS", "SERVER_PLANS", "Plan", "cancel_plan", "kill_server_of", "try_killer"]

VICTIMS = ("supervisor", "guard", "chain", "chain in reverse", "group", "all", "chain and sentinel")
COVERS = ("none", "session", "daemon", "clean", "clean daemon", "no descriptors")
LIVES = ("sleep", "fork loop", "fork loop in new sessions", "respawner", "killer")
MOMENTS = ("now", "cancel")

SOON = 0.25
"""Seconds after the end of a server within which all its processes are gone."""

_CODE = r"""
import json, os, signal, sys, time
plan = json.loads(sys.argv[1])

def stat(process):
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()

def again(**changes):
    args = [sys.executable, "-I", "-S", "-c", CODE, json.dumps({**plan, **changes})]
    os.execve(sys.executable, args, {})

def above():
    found, process = [], os.getppid()
    while process not in (0, 1, plan["server"]):
        found.append(process)
        process = int(stat(process)[1])
    return found

def line(process):
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0")
    except OSError:
        return b""

def kill(process):
    try:
        os.kill(process, 9)
    except OSError:
        pass

def like(guard):
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and line(name) == guard]

def strike(*_):
    chain, guard = plan["chain"], plan["guard"].encode("latin-1")
    if plan["victims"] == "chain and sentinel":
        for process in like(f"supervisor of process {plan['server']}".encode()):
            kill(process)
    if plan["victims"] == "chain and server":
        chain = [plan["server"], *chain]
    if plan["victims"] == "all":
        for process in like(guard):
            kill(process)
    elif plan["victims"] == "group":
        kill(-chain[-1])
    else:
        places = {"supervisor": slice(1), "guard": slice(-1, None), "chain in reverse": slice(None, None, -1)}
        for process in chain[places.get(plan["victims"], slice(None))]:
            kill(process)

def live():
    life = plan["life"]
    if life == "fork loop" or life == "fork loop in new sessions":
        while time.monotonic() < plan["until"]:
            if os.fork():
                os._exit(0)
            if life != "fork loop":
                os.setsid()
    if life == "respawner":
        while time.monotonic() < plan["until"]:
            child = os.fork()
            if child == 0:
                time.sleep(10)
                os._exit(0)
            os.waitpid(child, 0)
    guard = plan["guard"].encode("latin-1")
    while life == "killer" and time.monotonic() < plan["until"]:
        for process in like(guard):
            kill(process)
    time.sleep(10)

def hide():
    cover = plan["cover"]
    if cover == "session":
        os.fork() and os.wait() and os._exit(0)
        os.setsid()
    if "daemon" in cover:
        os.fork() and time.sleep(10) is None and os._exit(0)
        os.setsid()
        os.fork() and os._exit(0)
    if "clean" in cover:
        again(stage="strike")

if plan["stage"] == "hide":
    plan["until"] = time.monotonic() + 10
    os.set_inheritable(os.open(plan["held"], os.O_WRONLY), True)
    plan["chain"] = above()
    plan["guard"] = line(plan["chain"][-1]).decode("latin-1")
    hide()
plan["stage"] = "live"
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, strike if plan["moment"] == "cancel" else signal.SIG_IGN)
os.write(1, b"ready\n")
if plan["cover"] == "no descriptors":
    os.closerange(0, 3)
if plan["moment"] == "now":
    strike()
live()
"""


class Plan(NamedTuple):
    """One way to escape."""

    victims: str
    cover: str
    life: str
    moment: str

    @property
    def kills_all(self) -> bool:
        """Return true if neither supervisor nor guard is left to prove that the tree is gone."""
        return self.victims not in ("supervisor", "guard")

    def launch(self, held: str, server: int) -> CommandLaunch:
        """`held`: the FIFO; `server`: the process id at which the search for supervisors ends."""
        plan = {**self._asdict(), "server": server, "stage": "hide", "held": held}
        code = f"import sys; CODE = sys.orig_argv[sys.orig_argv.index('-c') + 1]\n{_CODE}"
        argv = (sys.executable, "-I", "-S", "-c", code, json.dumps(plan))
        return CommandLaunch(argv, "/", {"PATH": os.environ.get("PATH", os.defpath)}, linger=None)


SERVER_PLANS = tuple(Plan("chain and server", cover, life, "now") for cover in COVERS for life in LIVES)
"""Plans that kill the server too."""
PLANS = tuple(itertools.starmap(Plan, itertools.product(VICTIMS, COVERS, LIVES, MOMENTS)))


class _Held:
    """A FIFO that the processes of a plan hold open."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / secrets.token_hex(8))
        os.mkfifo(self.path, 0o622)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def is_free(self, seconds: float = 0.0) -> bool:
        """Return true once no process holds it, at the latest after this many seconds."""
        waiting = select.poll()
        waiting.register(self._reader, 0)
        if waiting.poll(seconds * 1_000):
            return True
        try:
            return os.read(self._reader, 1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._reader)


async def cancel_plan(processes: Processes, plan: Plan, folder: Path, grace: float = 0.05) -> TreeEnd:
    """Start a plan and cancel it as soon as it is ready. Raise `AssertionError` if a process is left."""
    held, ready = _Held(folder), asyncio.Event()
    try:
        running = processes.start(plan.launch(held.path, os.getpid()), on_output=lambda _: ready.set())
        running.ended.add_done_callback(lambda _: ready.set())
        await ready.wait()
        end = await running.stop_and_wait(grace)
        assert held.is_free(), f"{plan} survived its cancel"
        return end
    finally:
        held.close()


_SERVER = """
import asyncio, json, os, sys
from pathlib import Path
from trials.supervisor_killers import Plan
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.command_process import Processes

async def main():
    processes = Processes(Guard("tree"), Path(sys.argv[1]))
    for held, plan in json.loads(sys.argv[2]):
        processes.start(Plan(*plan).launch(held, os.getpid()), on_output=lambda text: print(text, end="", flush=True))
    await asyncio.Event().wait()

asyncio.run(main())
"""


def kill_server_of(plans: Sequence[Plan], folder: Path, *, ready: int) -> None:
    """Run plans in a process of their own, kill it as soon as `ready` of them are, and check a moment later. Raise
    `AssertionError` if a process is left.
    """
    helds = [_Held(folder) for _ in plans]
    starts = json.dumps([(held.path, plan) for held, plan in zip(helds, plans, strict=True)])
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(folder), starts], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        with server.stdout:
            for _ in range(ready):
                server.stdout.readline()
        server.kill()
        server.wait()
        until = time.monotonic() + SOON
        free = [held.is_free(max(0.0, until - time.monotonic())) for held in helds]
        left = [plan for plan, is_free in zip(plans, free, strict=True) if not is_free]
        assert not left, f"survived their server: {left}"
    finally:
        server.kill()
        server.wait()
        for held in helds:
            held.close()


def try_killer(seed: int) -> None:
    """Cancel two random plans, and kill the server of another one: for `scripts/long`."""
    chance = random.Random(seed)

    async def cancel(folder: Path) -> None:
        guard = Guard(chance.choice(("groups", "tree")))
        try:
            for plan in chance.choices(PLANS, k=2):
                await cancel_plan(Processes(guard, folder), plan, folder, chance.choice((0.0, 0.02, 0.1)))
        finally:
            await guard.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(cancel(Path(folder)))
        # All supervisors and the server at the same moment: nothing is left to react (decision 25).
        others = [plan for plan in (*PLANS, *SERVER_PLANS) if plan.victims != "chain and sentinel"]
        kill_server_of(chance.choices(others, k=1), Path(folder), ready=chance.choice((0, 1, 1)))
