"""The `download` tool: saves a file from the web."""

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
from holdfast.tools.file_edit import MAX_FILE_BYTES, record_change, record_new_file, resolve_location
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.safe_open import Digest, FileLocation, status_of
from holdfast.workspace.web_client import WebClient, WebResponse, parse_target

__all__ = ["Download", "DownloadArguments"]

_SECONDS = 300
_MAX_SECONDS = 600
_MAX_BYTES = 512 * 1024 * 1024
_BUFFER = 1 << 20
_PAUSE = 1.0


class DownloadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `download`."""

    url: Annotated[str, Meta(description="The complete address, with http:// or https://.")]
    file_path: Annotated[str, Meta(description="The path of the new file, absolute or relative to the workspace.")]
    timeout: Annotated[int, Meta(description="Seconds, 600 at most.")] = _SECONDS


class Download(BaseTool[DownloadArguments]):
    """The tool `download`: saves a file from the web."""

    name = "download"
    arguments = DownloadArguments

    def __init__(self, web: WebClient | None = None, most: Callable[[], int] = lambda: _MAX_BYTES) -> None:
        super().__init__()
        self._web = web or WebClient()
        self._most = most

    async def act(self, context: ToolContext, arguments: DownloadArguments) -> ToolOutcome:
        """Request permission and save the file."""
        target = parse_target(arguments.url)
        location = await resolve_location(context, arguments.file_path)
        if await asyncio.to_thread(status_of, location) is not None:
            raise ToolError(f"{location.name} exists already. Choose another name, or remove it first.")
        seconds = whole_seconds(arguments.timeout, _SECONDS, _MAX_SECONDS)
        params: dict[str, object] = {"url": target.url, "file_path": location.path, "timeout": seconds}
        request_permission = permit_web(context, self.name, "download", location.path, params)
        await request_permission(target)
        write, digest = AtomicWrite(location, None), Digest()
        deadline = asyncio.timeout(seconds)
        try:
            consent = without_clock(deadline, request_permission)
            async with deadline, self._web.get(target, consent, context.environment) as answer:
                if answer.status != 200:
                    raise ToolError(f"{target.host} answered with status {answer.status}; nothing was saved.")
                begin = await self._save(context, location, write, answer, digest)
            # No await between the last chunk and this: a cancel takes effect before it, or finds the file complete.
            write.publish()
        except TimeoutError:
            raise ToolError(f"The download took longer than {seconds} s and was aborted.") from None
        finally:
            write.discard()
        await record_change(write, None, record_new_file(context, location, digest, begin))
        kind = answer.content_type or "an unknown type"
        return ToolOutcome(f"Saved {write.size:,} bytes ({kind}) from {answer.url} as {location.name}.")

    async def _save(
        self, context: ToolContext, location: FileLocation, write: AtomicWrite, answer: WebResponse, digest: Digest
    ) -> bytes:
        """Save the body. Returns its beginning: the whole content unless it is too large for the history."""
        most = self._most()
        if answer.length is not None and answer.length > most:
            raise ToolError(f"The file has {answer.length:,} bytes; at most {most:,} are saved.")
        await asyncio.to_thread(write.open)
        buffer, begin = bytearray(), bytearray()
        reported_at = time.monotonic()
        async for piece in answer.chunks():
            buffer += piece
            begin += piece[: MAX_FILE_BYTES - len(begin)]
            digest.add(piece)
            if digest.size > most:
                raise ToolError(f"The file is larger than {most:,} bytes and was not saved as {location.name}.")
            if len(buffer) >= _BUFFER:
                await asyncio.to_thread(write.add, bytes(buffer))
                buffer.clear()
            if time.monotonic() - reported_at > _PAUSE:
                reported_at = time.monotonic()
                total = f" of {answer.length:,}" if answer.length else ""
                context.publish_output(f"{digest.size:,}{total} bytes\n")
        await asyncio.to_thread(write.add, bytes(buffer))
        await asyncio.to_thread(write.finish)
        return bytes(begin)
