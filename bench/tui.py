"""The terminal app: start, idle cost, streaming, and scrolling through a long conversation."""

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from textual.app import App, ComposeResult

from bench.figures import Figure, Goal
from bench.servers import ServerProcess, environment, served
from holdfast.domain.ids import MessageId
from holdfast.tui.blocks import AnswerBlock, Block, PromptBlock, ToolBlock
from holdfast.tui.widgets.transcript import Transcript

__all__ = ["measure"]

TIMES = 5
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAINTED = b"escribe what to do"
"""The placeholder without its first letter, which the cursor covers and which is drawn apart."""
_SIZE = struct.pack("HHHH", 40, 120, 0, 0)


class Shown:
    """The app in a separate terminal whose output is read continuously."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, began: float) -> None:
        self.process = process
        self.painted = 0.0
        self._terminal = terminal
        self._began = began
        self._is_there = threading.Event()
        self._seen = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65_536)
            except OSError:
                return
            self._seen = (self._seen + data)[-200_000:]
            if not self.painted and _PAINTED in self._seen:
                self.painted = time.perf_counter() - self._began
                self._is_there.set()

    def wait(self) -> float:
        assert self._is_there.wait(30), "nothing was painted"
        return self.painted

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def share(self, seconds: float) -> float:
        """Return its share of a processor in percent, over this many seconds."""
        before, began = self._processor(), time.perf_counter()
        threading.Event().wait(seconds)
        return 100 * (self._processor() - before) / (time.perf_counter() - began)

    def _processor(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK


@contextmanager
def _shown(server: ServerProcess) -> Iterator[Shown]:
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, _SIZE)
    known = environment(server.root) | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from holdfast.cli.frontends import tui_command; tui_command()"],
        env=known,
        cwd=server.root / "project",
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    shown = Shown(process, outside, began)
    try:
        yield shown
    finally:
        process.kill()
        process.wait()
        os.close(outside)


def _first_paint(server: ServerProcess) -> float:
    with _shown(server) as shown:
        return shown.wait() * 1e3


def _shares(server: ServerProcess) -> tuple[float, float]:
    """Return the share while idle, and while 80 words per second arrive."""
    with _shown(server) as shown:
        shown.wait()
        shown.share(3)
        idle = shown.share(5)
        shown.type("words=3000 pause=12\r")
        shown.share(2)
        return idle, shown.share(8)


class _Long(App[None]):
    def compose(self) -> ComposeResult:
        yield Transcript()


def _blocks(number: int) -> list[Block]:
    if number % 2 == 0:
        return [PromptBlock(f"Prompt {number}: what about this?")]
    code = "```python\ndef f(x):\n    return x + 1\n```"
    return [
        AnswerBlock(f"Answer {number}, with **some** words. " * 6),
        ToolBlock("ls", '{"path":"."}', "done", "a\nb\nc"),
        AnswerBlock(code),
    ]


async def _scrolled(messages: int) -> tuple[float, float]:
    """Return milliseconds until a conversation of this length is shown, and until a new page of it is drawn."""
    app = _Long()
    async with app.run_test(size=(120, 40)) as pilot:
        transcript = app.query_one(Transcript)
        began = time.perf_counter()
        for number in range(messages):
            transcript.set_blocks(MessageId(f"m{number}"), _blocks(number))
        transcript.draw_changes()
        loaded = time.perf_counter() - began
        await pilot.pause()
        pages = []
        for _ in range(40):
            began = time.perf_counter()
            transcript.scroll_to(y=transcript.scroll_offset.y - 38, animate=False, immediate=True)
            for line in range(38):
                transcript.render_line(line)
            pages.append(time.perf_counter() - began)
            await pilot.pause()
    return loaded * 1e3, median(pages) * 1e3


def measure() -> list[Figure]:
    """Return the rows. CPU shares are of one processor: other work affects the times, but not the shares."""
    with served() as server:
        server.wait_for_answer("/v1/version", over_tcp=False)
        with _shown(server) as first:
            first.wait()
        paint = median(_first_paint(server) for _ in range(TIMES))
        idle, streaming = _shares(server)
    _, short = asyncio.run(_scrolled(200))
    loaded, long = asyncio.run(_scrolled(10_000))
    return [
        Figure("terminal app: until the first paint", paint, "ms", goal=Goal(700)),
        Figure("terminal app: idle", idle, "% of a core", goal=Goal(1)),
        Figure("terminal app: 80 words a second", streaming, "% of a core", goal=Goal(30)),
        Figure("10,000 messages: shown", loaded, "ms", goal=Goal(1_500)),
        Figure("10,000 messages: a page", long, "ms", short, "200 messages", Goal(2, is_ratio=True)),
    ]
