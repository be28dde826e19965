"""The `fetch` tool: returns a page from the web as text, Markdown or HTML."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool
from holdfast.workspace.web_client import Consent, WebClient, WebResponse, WebTarget, parse_target

__all__ = ["Fetch", "FetchArguments", "permit_web", "read_page", "whole_seconds", "without_clock"]

Format: TypeAlias = Literal["markdown", "text", "html"]

_MAX_CONTENT = 100 * 1024
_MAX_RAW = 2 * 1024 * 1024
_SECONDS = 30
_MAX_SECONDS = 120


class FetchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `fetch`."""

    url: Annotated[str, Meta(description="The complete address, with http:// or https://.")]
    format: Annotated[Format, Meta(description="The format of the result.")] = "markdown"
    timeout: Annotated[int, Meta(description="Seconds, 120 at most.")] = _SECONDS


class Fetch(BaseTool[FetchArguments]):
    """The tool `fetch`: returns a page from the web."""

    name = "fetch"
    arguments = FetchArguments
    is_parallel = True

    def __init__(self, web: WebClient | None = None) -> None:
        super().__init__()
        self._web = web or WebClient()

    async def act(self, context: ToolContext, arguments: FetchArguments) -> ToolOutcome:
        """Request permission and return the page in the requested format."""
        target = parse_target(arguments.url)
        seconds = whole_seconds(arguments.timeout, _SECONDS, _MAX_SECONDS)
        params: dict[str, object] = {"url": target.url, "format": arguments.format, "timeout": seconds}
        ask = permit_web(context, self.name, "fetch", context.workspace_path, params)
        await ask(target)
        return await read_page(self._web, target, ask, context.environment, seconds, arguments.format)


async def read_page(
    web: WebClient,
    target: WebTarget,
    consent: Consent,
    environment: Mapping[str, str],
    seconds: int,
    form: Format = "markdown",
) -> ToolOutcome:
    """Fetch a page within the time limit. `consent` is called for every redirect."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline, web.get(target, without_clock(deadline, consent), environment) as answer:
            return await _page(answer, target, form)
    except TimeoutError:
        raise ToolError(f"{target.host} did not answer within {seconds} s. Try again, or increase timeout.") from None


def whole_seconds(given: int, default: int, most: int) -> int:
    """Return a time limit of a tool call in seconds, within its bounds."""
    return min(given, most) if given > 0 else default


def permit_web(
    context: ToolContext, tool: str, action: str, path: str, params: dict[str, object]
) -> Callable[[WebTarget], Awaitable[None]]:
    """Return a function that requests permission for an address. Private addresses are named as such."""

    async def ask(target: WebTarget) -> None:
        where = f" This is {target.note}, not the open internet." if target.note else ""
        verb = "Download" if action == "download" else "Fetch"
        shown = {**params, "url": target.url}
        what = f"{verb} {target.url}.{where}"
        await context.permit(Permit(tool, action, path, what, shown, is_agreed=target.is_agreed))

    return ask


def without_clock(
    deadline: asyncio.Timeout, ask: Callable[[WebTarget], Awaitable[None]]
) -> Callable[[WebTarget], Awaitable[None]]:
    """Return `consent` with the deadline suspended while it waits for an answer."""

    async def asked(target: WebTarget) -> None:
        loop = asyncio.get_running_loop()
        left = (deadline.when() or loop.time()) - loop.time()
        deadline.reschedule(None)
        await ask(target)
        deadline.reschedule(loop.time() + left)

    return asked


async def _page(answer: WebResponse, target: WebTarget, form: Format) -> ToolOutcome:
    if answer.status != 200:
        raise ToolError(f"{target.host} answered with status {answer.status}; nothing was fetched.")
    if not _is_text(answer.content_type):
        raise ToolError(f"This is {answer.content_type}, not text. Use download to save it.")
    raw, is_cut = await answer.read(_MAX_RAW)
    text = raw.decode(_charset(answer.charset), "replace")
    if "html" in answer.content_type or (not answer.content_type and text.lstrip()[:1] == "<"):
        text = await asyncio.to_thread(_convert_html, text, form)
    shown = text.encode("utf-8", "replace")
    if len(shown) > _MAX_CONTENT:
        text, is_cut = shown[:_MAX_CONTENT].decode("utf-8", "ignore"), True
    lines = [f"(redirected to {answer.url})\n"] if answer.url != target.url else []
    lines.append(text if text.strip() else "(the page is empty)")
    if is_cut:
        lines.append(f"\n(truncated: only the first {_MAX_CONTENT:,} bytes are shown)")
    return ToolOutcome("\n".join(lines))


def _is_text(content_type: str) -> bool:
    kinds = ("json", "xml", "javascript", "yaml", "toml", "html", "csv", "markdown", "x-sh", "sql", "graphql")
    return not content_type or content_type.startswith("text/") or any(kind in content_type for kind in kinds)


def _charset(name: str | None) -> str:
    try:
        return name if name and b"  ".decode(name, "replace") else "utf-8"
    except LookupError:
        return "utf-8"


def _convert_html(html: str, form: Format) -> str:
    if form == "html":
        return html
    library = importlib.import_module("html_to_markdown")
    kind = "plain" if form == "text" else "markdown"
    options = library.ConversionOptions(output_format=kind, inline_data_media="alt_text_only", extract_metadata=False)
    try:
        return str(library.convert(html, options).content)
    except library.ConversionError:
        # A page that cannot be converted is returned unchanged.
        return html
