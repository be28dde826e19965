"""Several servers on one PostgreSQL, on this machine. Started by `scripts/cluster`.

Without options the servers run until Ctrl-C. `--break` is a demonstration: a prompt is sent to one server, executed by
a second one, which is killed, and watched on a third one. Its result is checked with the rules of the trials
(`tests/trials/client_log_rules.py`); the exit code is 0 only if they hold.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cluster_processes import Lateness, NodeProcess, node_that_executes, poll_until, running_nodes
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.domain.events import MessageDeltaEvent, MessagePartEvent, RunCompleteEvent, RunEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import TextPart
from holdfast.protocol.bodies import AgentMessage
from holdfast.tasks import TaskOwner
from postgres_server import PostgresServer, postgres_server
from scratch import scratch_directory, session_directory
from trials.client_log_rules import Accepted, ClientLog, Fault, Received, ToolWrite, broken_rules, seconds_of
from trials.cluster_clients import MARKS, marking_prompt

USAGE = "usage: scripts/cluster [N] | scripts/cluster --break"
MAX_NODES = 8
RESTART_SECONDS = 5.0
TIMEOUT = 30.0
POLL_SECONDS = 0.2
OUTCOME_STYLES = {"completed": "green", "cancelled": "yellow", "interrupted": "magenta", "failed": "red"}
HOLDFAST = Path(sys.executable).with_name("holdfast")


@asynccontextmanager
async def started(console: Console, count: int) -> AsyncIterator[tuple[PostgresServer, list[NodeProcess]]]:
    """Start PostgreSQL and the nodes; end and remove them."""
    with postgres_server() as server:
        began = time.monotonic()
        async with running_nodes([server.dsn()] * count) as nodes:
            console.print(
                f"PostgreSQL and {count} servers are ready after {time.monotonic() - began:.1f} s.", style="dim"
            )
            yield server, nodes


# Servers to attach to


async def keep_running(count: int) -> int:
    """Run until SIGINT or SIGTERM. A server that was killed is started again after some seconds."""
    console = Console(highlight=False)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with started(console, count) as (server, nodes):
        print_commands(console, server, nodes)
        tasks = TaskOwner()
        for node in nodes:
            tasks.start(keep_alive(console, node), name=node.name)
        await stopping.wait()
        tasks.cancel_all()
        await tasks.drain()
    console.print("\nStopped, and everything was removed.", style="dim")
    return 0


async def keep_alive(console: Console, node: NodeProcess) -> None:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        if node.is_running:
            continue
        console.print(f"[red]●[/] {node.name} has ended: another server takes over its workspaces.")
        await asyncio.sleep(RESTART_SECONDS)
        node.start()
        await node.wait_ready()
        console.print(f"[green]●[/] {node.name} runs again, process {process_of(node)}.")


def print_commands(console: Console, server: PostgresServer, nodes: list[NodeProcess]) -> None:
    """Print how to attach."""

    def line(text: str) -> None:
        console.print(Text(f"  {text}"), soft_wrap=True)

    console.print()
    console.print(Rule("[bold]Attach to any of them[/]", align="left", style="cyan"))
    for node in nodes:
        console.print(f"[dim]{node.name}, process {process_of(node)}[/]")
        line(f"HOLDFAST_HOST=unix://{node.socket} {HOLDFAST}")
    console.print()
    console.print(Rule("[bold]Try[/]", align="left", style="cyan"))
    first, last = nodes[0], nodes[-1]
    console.print("[dim]Open the same directory on two servers, in two terminals, then prompt in one of them:[/]")
    line("words=200 pause=50")
    console.print("[dim]or without the terminal app:[/]")
    line(f'HOLDFAST_HOST=unix://{last.socket} {HOLDFAST} run --stream "words=200 pause=50"')
    console.print("[dim]Kill one meanwhile. Another one takes over, and the killed one is started again:[/]")
    line(f"kill -9 {process_of(first)}")
    console.print("[dim]The database:[/]")
    line(f"psql -h {server.directory} -U postgres")
    console.print("\n[dim]The model is scripted. Ctrl-C stops and removes everything.[/]")


def process_of(node: NodeProcess) -> int:
    assert node.process is not None
    return node.process.pid


# The demonstration


class Screen:
    """Prints the demonstration, with pauses on a terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._pause = 1.0 if self.console.is_terminal else 0.0
        self._column = 0

    async def section(self, title: str, text: str) -> None:
        """Print the heading of a section."""
        await asyncio.sleep(self._pause)
        self.end_line()
        self.console.print()
        self.console.print(Rule(f"[bold]{title}[/]", align="left", style="cyan"))
        self.console.print(f"[dim]{text}[/]")

    def note(self, word: str, text: str, *, style: str = "cyan") -> None:
        """Print a labelled line."""
        self.end_line()
        self.console.print(Text.assemble("  ", (f"{word:<9}", style), " ", text))

    def stream(self, word: str, text: str) -> None:
        """Print streamed text after its label, on lines that fit the terminal."""
        if self._column + len(text) >= min(self.console.width, 90):
            self.end_line()
        if not self._column:
            self.console.print(Text.assemble("  ", (f"{word:<9}", "dim"), " "), end="")
            self._column, text = 12, text.lstrip()
        self.console.print(Text(text, style="dim"), end="", soft_wrap=True)
        self._column += len(text)

    def end_line(self) -> None:
        """End a line that has been begun."""
        if self._column:
            self.console.print()
        self._column = 0


class Demonstration:
    """One workspace with watchers on all nodes."""

    def __init__(self, screen: Screen, nodes: list[NodeProcess], directory: Path) -> None:
        self.screen = screen
        self.nodes = nodes
        self.log = ClientLog()
        self.prompts: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.words = 0
        self.lateness = Lateness()
        self.shown: NodeProcess | None = None
        self.killed_at = 0.0
        self._directory = directory
        self._clients = {node.name: Client(node.address, seconds=TIMEOUT) for node in nodes}
        self._tasks = TaskOwner()
        self._active: set[str] = set()
        self._workspace = WorkspaceId("")
        self._sessions: list[SessionId] = []

    async def open(self) -> None:
        """Open the directory on every node, and follow its events there."""
        for client in self._clients.values():
            self._workspace = (await client.create_workspace(str(self._directory))).id
        for _ in range(2):
            session = await self._clients[self.nodes[0].name].create_session(self._workspace)
            self._sessions.append(session.id)
        self._tasks.start(self.lateness.measure(), name="lateness")
        for node in self.nodes:
            self._tasks.start(self._watch(node), name=f"watch {node.name}")

    async def close(self) -> None:
        """Close the streams and connections."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        for client in self._clients.values():
            await client.close()

    async def prompt(self, node: NodeProcess, run: str, text: str, shown: str, *, session: int = 0) -> None:
        """Send a prompt and print that it was accepted."""
        self.prompts[run] = shown
        message = AgentMessage(self._sessions[session], text, run_id=RunId(run), yolo=True, delivery="queue")
        began = time.perf_counter()
        await self._clients[node.name].send_prompt(self._workspace, message)
        took = 1000 * (time.perf_counter() - began)
        self.log.accepted.append(Accepted("w", run, node.name, time.time()))
        self.screen.end_line()
        self.screen.console.print(f"[bold blue]❯[/] {shown}")
        self.screen.note("accepted", f"by {node.name}: stored and synced after {took:.1f} ms")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds. Raises `TimeoutError`."""

        async def holds() -> bool:
            return condition()

        if not await poll_until(holds, TIMEOUT):
            raise TimeoutError

    def marks(self) -> list[ToolWrite]:
        """Return the lines that the tool has written."""
        with suppress(FileNotFoundError):
            lines = [line.split() for line in (self._directory / MARKS).read_text().splitlines()]
            return [ToolWrite("w", line[0], float(line[1])) for line in lines if len(line) == 2]
        return []

    def newest(self, node: NodeProcess) -> int:
        """Return the number of the last event that the watcher of a node has received."""
        stream = self.log.streams.get(("w", node.name))
        return stream[-1].item.number or 0 if stream else 0

    def forget(self, node: NodeProcess) -> None:
        """Drop the record of a watcher whose node was killed: it does not reconnect elsewhere here."""
        self.log.streams.pop(("w", node.name), None)

    async def _watch(self, node: NodeProcess) -> None:
        received = self.log.streams.setdefault(("w", node.name), [])
        with suppress(ClientError):
            async with self._clients[node.name].events(self._workspace, since=0) as stream:
                async for item in stream:
                    if item.number is not None:
                        received.append(Received(time.time(), item))
                    if node is self.shown:
                        self._show(node, item.event)
                    if isinstance(item.event, RunCompleteEvent):
                        self.ends.setdefault(item.event.change.object.run_id, item.event.change.object.outcome)

    def _show(self, node: NodeProcess, event: object) -> None:
        if isinstance(event, MessageDeltaEvent) and event.payload.session_id == self._sessions[0]:
            self._show_text(node, event.payload.text)
        elif isinstance(event, MessagePartEvent) and isinstance(event.payload.content, TextPart):
            # The first words of an answer; later, a slow reader would receive the whole part again.
            text = event.payload.content.data.text
            if event.payload.session_id == self._sessions[0] and len(text.split()) == 1:
                self._show_text(node, text)
        elif isinstance(event, RunEvent) and event.change.object.state == "active":
            run = event.change.object.run_id
            if run not in self._active:
                self.screen.note(node.name, f"{self.prompts[run]}: active{self._since_kill()}")
            self._active.add(run)
        elif isinstance(event, RunCompleteEvent):
            end = event.change.object
            style = OUTCOME_STYLES[end.outcome]
            self.screen.note(node.name, f"{self.prompts[end.run_id]}: {end.outcome}{self._since_kill()}", style=style)

    def _since_kill(self) -> str:
        return f", {time.time() - self.killed_at:.2f} s after the kill" if self.killed_at else ""

    def _show_text(self, node: NodeProcess, text: str) -> None:
        self.words += len(text.split())
        self.screen.stream(node.name, text)


async def demonstrate() -> int:
    """Play the demonstration. Returns the exit code."""
    screen = Screen()
    screen.console.print()
    screen.console.print("[bold cyan]Holdfast[/] [dim]— three servers, one PostgreSQL, and a kill -9[/]")
    screen.console.print("[dim]The model is scripted. Servers, database, tools and the kill are real.[/]")
    with scratch_directory() as directory:
        async with started(screen.console, 3) as (_, nodes):
            demonstration = Demonstration(screen, nodes, directory)
            try:
                await demonstration.open()
                fault = await play(demonstration)
            except TimeoutError:
                screen.end_line()
                screen.console.print(f"[red]✘ The expected events did not arrive within {TIMEOUT:.0f} s.[/]")
                return 1
            finally:
                await demonstration.close()
    return print_result(demonstration, fault)


async def play(demonstration: Demonstration) -> Fault:
    """Prompt, kill the owner, and wait for all ends. Returns the fault."""
    screen, nodes = demonstration.screen, demonstration.nodes
    await screen.section(
        "1 · Prompt on one server, watch on another",
        "Any server accepts prompts and shows every workspace. One of them, the owner, executes.",
    )
    await demonstration.prompt(nodes[0], "tool", marking_prompt("tool", 1500), "tool that writes a file", session=1)
    await demonstration.until(lambda: bool(demonstration.marks()))
    owner = node_that_executes(nodes, f"{MARKS}; read")
    assert owner is not None, "a node executes it"
    sender, watcher = (node for node in nodes if node is not owner)
    screen.note("owner", f"{owner.name}, process {process_of(owner)}, executes the tool")
    demonstration.shown = watcher
    await demonstration.prompt(sender, "long", "words=400 pause=25", "long answer")
    await demonstration.prompt(sender, "next", "words=12 pause=25", "answer that waits for it")
    await demonstration.until(lambda: demonstration.words >= 60)

    await screen.section(
        f"2 · kill -9 {process_of(owner)}",
        "The owner dies in the middle of an answer and a tool. Another one takes over.",
    )
    fault, lateness = Fault("kill", time.time(), owner.name, "w", "long"), demonstration.lateness.seconds
    owner.kill()
    demonstration.killed_at = fault.at
    demonstration.forget(owner)
    demonstration.log.faults.append(fault)
    screen.note("killed", f"{owner.name}, after {demonstration.words} words of the long answer", style="red")
    await demonstration.prompt(sender, "late", "words=5 pause=25", "prompt without an owner", session=1)
    await demonstration.until(lambda: "long" in demonstration.ends)
    fault.delay = demonstration.lateness.seconds - lateness
    await demonstration.until(lambda: len(demonstration.ends) == len(demonstration.prompts))
    await demonstration.until(lambda: demonstration.newest(sender) == demonstration.newest(watcher))
    demonstration.log.writes = demonstration.marks()
    return fault


def print_result(demonstration: Demonstration, fault: Fault) -> int:
    """Print what holds. Returns the exit code."""
    console, log = demonstration.screen.console, demonstration.log
    violations = broken_rules(log)
    expected = {"tool": "interrupted", "long": "interrupted", "next": "completed", "late": "completed"}
    violations += [
        f"{run} is {demonstration.ends.get(run)}, not {outcome}"
        for run, outcome in expected.items()
        if demonstration.ends.get(run) != outcome
    ]
    demonstration.screen.end_line()
    console.print()
    console.print(Rule("[bold]3 · Every prompt has exactly one end[/]", align="left", style="cyan"))
    table = Table(box=None, padding=(0, 1, 0, 2), header_style="dim")
    for column in ("prompt", "accepted by", "end", *(name for _, name in log.streams)):
        table.add_column(column)
    for accepted in log.accepted:
        outcome = demonstration.ends.get(accepted.run, "none")
        counts = [f"{_count_ends(stream, accepted.run)} end" for stream in log.streams.values()]
        style = OUTCOME_STYLES.get(outcome, "red")
        table.add_row(demonstration.prompts[accepted.run], accepted.node, Text(outcome, style=style), *counts)
    console.print(table)
    console.print()
    if (seconds := seconds_of(log, fault)) is not None:
        console.print(f"  takeover        [bold]{seconds:.2f} s[/] from kill -9 to the end of the interrupted answer")
    readers = " and ".join(name for _, name in log.streams)
    newest = max((len(stream) for stream in log.streams.values()), default=0)
    console.print(f"  events          1 to {newest}, each once and in this order, on {readers}")
    taken_over = log.ends("w").get("tool", 0.0)
    late = sum(write.at > taken_over for write in log.writes)
    console.print(f"  tool            {len(log.writes)} lines written, {late} of them after the takeover")
    console.print()
    for violation in violations:
        console.print(Text(f"✘ {violation}", style="red"))
    if not violations:
        console.print("[green]✔[/] Nothing was lost, and nothing happened twice.")
        console.print("[dim]Try it yourself: scripts/cluster   More: docs/cluster.md, docs/testing.md[/]")
    return 1 if violations else 0


def _count_ends(stream: list[Received], run: str) -> int:
    events = (received.item.event for received in stream)
    return sum(isinstance(event, RunCompleteEvent) and event.change.object.run_id == run for event in events)


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    work: Coroutine[object, object, int]
    match arguments:
        case ["--break"]:
            work = demonstrate()
        case []:
            work = keep_running(3)
        case [count] if count.isdigit() and 2 <= int(count) <= MAX_NODES:
            work = keep_running(int(count))
        case _:
            sys.stderr.write(f"{USAGE}   (N: 2 to {MAX_NODES})\n")
            return 2
    with session_directory():
        # The user of PostgreSQL may be another one.
        os.chdir("/")
        return asyncio.run(work)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except AssertionError as error:
        # A program is missing, or a process has ended with this log.
        sys.exit(f"Error: {error}")
