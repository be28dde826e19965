"""Real servers for stock clients: one in this process with a model that can be held, one as a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.providers.scripted_model import Act, Call, Fail, Say, ScriptedModel, Step
from holdfast.server.serve import ServerOptions, serve
from holdfast.testing.gates import start, until
from stock.wire import TIMEOUT, Pool

__all__ = ["HeldModel", "Process", "running"]


class HeldModel:
    """Answers `echo: ` and the prompt, word by word. While it is held, `release_words` passes single words."""

    def __init__(self) -> None:
        self._model = ScriptedModel(_answer)
        self._words = asyncio.Semaphore(0)
        self.is_held = False
        self.held = asyncio.Event()
        """Set when a response waits for its next word."""
        self.at_once = 0
        self.most_at_once = 0

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async with aclosing(self._model.stream(request)) as parts:
                async for part in parts:
                    if self.is_held:
                        if self._words.locked():
                            self.held.set()
                        await self._words.acquire()
                    yield part
        finally:
            self.at_once -= 1

    async def release_words(self, words: int) -> None:
        """Release this many words, and wait until the next one is due."""
        self.held.clear()
        for _ in range(words):
            self._words.release()
        async with asyncio.timeout(TIMEOUT):
            await self.held.wait()

    def release(self) -> None:
        self.is_held = False
        self._words.release()

    async def large(self) -> "HeldModel":
        return self

    async def small(self) -> ScriptedModel:
        return ScriptedModel(lambda _: Step((Say("A talk with a stranger"),)))

    async def renewed(self, _: object) -> None:
        return None


def _answer(request: ModelRequest) -> Step:
    prompt = next(text_of(item) for item in reversed(request.messages) if item.role == "user")
    acts: list[Act] = [Say("echo: " + " ".join(prompt.split()))]
    if "break down" in prompt:
        acts.append(Fail("The model broke down."))
    if "look around" in prompt and request.messages[-1].role == "user":
        acts.append(Call("ls", '{"path":"."}'))
    if prompt.startswith("use ") and request.messages[-1].role == "user":
        # `use NAME {…}`: the model calls that tool.
        _, name, arguments = prompt.split(" ", 2)
        acts.append(Call(name, arguments))
    return Step(tuple(acts))


@asynccontextmanager
async def running(place: Path, model: HeldModel) -> AsyncIterator[Path]:
    """Run a server in this process. Yields its socket."""
    socket = place / "s" / "h.sock"
    server = start(serve(ServerOptions(place / "data", socket), model))
    await until(socket.exists)
    try:
        yield socket
    finally:
        pool = Pool(socket)
        await pool.ask("POST", "/v1/control", {"command": "stop", "force": True})
        await pool.close()
        async with asyncio.timeout(TIMEOUT):
            await server


class Process:
    """`holdfast serve` in a process."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.socket = place / "s" / "h.sock"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server and wait until it listens."""
        places = {"HOME": str(self._place), "XDG_RUNTIME_DIR": str(self._place / "s")}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "serve"),
            *("--data-dir", str(self._place / "data"), "--host", f"unix://{self.socket}"),
            env={**os.environ, **places},
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            async for line in self._process.stderr:
                if b"listening at" in line:
                    return
        raise AssertionError("the server did not start")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        async with asyncio.timeout(TIMEOUT):
            await process.communicate()
