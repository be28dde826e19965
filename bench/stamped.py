"""`python -m bench.stamped`: a server whose model says when it said each token. For `bench/crowd.py`."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import uvloop

from holdfast.client.server_launcher import locate
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart, TextDelta
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.server.serve import ServerOptions, serve

__all__ = ["StampedModels"]


class StampedModels:
    """Answers the prompt `COUNT PAUSE` with so many tokens, so many seconds apart. A token is the time it was said."""

    def __init__(self) -> None:
        self._small = ScriptedModel(lambda _: Step((Say("bench"),)))

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("bench", "stamped", context_window=200_000)

    async def large(self) -> "StampedModels":
        return self

    async def small(self) -> ScriptedModel:
        return self._small

    async def renewed(self, _: object) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        count, pause = text_of(request.messages[-1]).split()
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(int(count)):
            due += float(pause)
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield TextDelta(f"{time.monotonic():.6f} ")
        async for part in ScriptedModel([Step(())]).stream(request):
            yield part


def main() -> None:
    where = locate()
    options = ServerOptions(Path(where.data_dir), Path(where.address.path), settings=EngineSettings(titles=False))
    uvloop.run(serve(options, StampedModels()))


if __name__ == "__main__":
    main()
