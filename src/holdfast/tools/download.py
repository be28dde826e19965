"""Save a file from the web."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool
from holdfast.tools.fetch import permit_web, whole_seconds, without_clock
from holdfast.tools.file_edit import MOST_BYTES, place_of, record_new, recorded
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.open_files import Digest, FileLocation, look
from holdfast.workspace.web_client import WebClient, WebResponse, checked

__all__ = ["Download", "DownloadArguments"]

_SECONDS = 300
_MOST_SECONDS = 600
_MOST_BYTES = 512 * 1024 * 1024
_BUFFER = 1 << 20
_PAUSE = 1.0


class DownloadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(description="The whole address, with http:// or https://.")]
    file_path: Annotated[str, Meta(description="The new file, absolute or from the workspace's directory.")]
    timeout: Annotated[int, Meta(description="Seconds, 600 at most.")] = _SECONDS


class Download(BaseTool[DownloadArguments]):
    name = "download"
    arguments = DownloadArguments

    def __init__(self, web: WebClient | None = None, most: Callable[[], int] = lambda: _MOST_BYTES) -> None:
        super().__init__()
        self._web = web or WebClient()
        self._most = most

    async def act(self, context: ToolContext, arguments: DownloadArguments) -> ToolOutcome:
        target = checked(arguments.url)
        place = await place_of(context, arguments.file_path)
        if await asyncio.to_thread(look, place) is not None:
            raise ToolError(f"{place.name} exists already. Choose another name, or remove it first.")
        seconds = whole_seconds(arguments.timeout, _SECONDS, _MOST_SECONDS)
        params: dict[str, object] = {"url": target.url, "file_path": place.path, "timeout": seconds}
        ask = permit_web(context, self.name, "download", place.path, params)
        await ask(target)
        draft, digest = AtomicWrite(place, None), Digest()
        deadline = asyncio.timeout(seconds)
        try:
            consent = without_clock(deadline, ask)
            async with deadline, self._web.get(target, consent, context.environment) as answer:
                if answer.status != 200:
                    raise ToolError(f"{target.host} answered with status {answer.status}; nothing was saved.")
                begin = await self._save(context, place, draft, answer, digest)
            # Nothing waits between the last piece and this: a cancel has come before, or it comes too late.
            draft.put()
        except TimeoutError:
            raise ToolError(f"The download took longer than {seconds} s and was given up.") from None
        finally:
            draft.give_up()
        async with recorded(draft, None):
            await record_new(context, place, digest, begin)
        kind = answer.content_type or "an unknown type"
        return ToolOutcome(f"Saved {draft.size:,} bytes ({kind}) from {answer.url} as {place.name}.")

    async def _save(
        self, context: ToolContext, place: FileLocation, draft: AtomicWrite, answer: WebResponse, digest: Digest
    ) -> bytes:
        """Answers what the file begins with: all of it, if it is not too large for the history."""
        most = self._most()
        if answer.length is not None and answer.length > most:
            raise ToolError(f"The file has {answer.length:,} bytes; at most {most:,} are saved.")
        await asyncio.to_thread(draft.open)
        buffer, begin = bytearray(), bytearray()
        told = time.monotonic()
        async for piece in answer.pieces():
            buffer += piece
            begin += piece[: MOST_BYTES - len(begin)]
            digest.add(piece)
            if digest.size > most:
                raise ToolError(f"The file is larger than {most:,} bytes and was not saved as {place.name}.")
            if len(buffer) >= _BUFFER:
                await asyncio.to_thread(draft.add, bytes(buffer))
                buffer.clear()
            if time.monotonic() - told > _PAUSE:
                told = time.monotonic()
                whole = f" of {answer.length:,}" if answer.length else ""
                context.say(f"{digest.size:,}{whole} bytes\n")
        await asyncio.to_thread(draft.add, bytes(buffer))
        await asyncio.to_thread(draft.finish)
        return bytes(begin)
