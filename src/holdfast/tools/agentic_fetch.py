"""Tools for questions about web pages: a sub-agent fetches and reads them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import PermissionDenied, ToolError
from holdfast.domain.tools import Permit, SubagentTask, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool
from holdfast.tools.fetch import read_page
from holdfast.workspace.web_client import WebClient, WebTarget, parse_target

__all__ = ["AgenticFetch", "AgenticFetchArguments", "WebFetch", "WebFetchArguments"]

_SECONDS = 60


class AgenticFetchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The question, and the page to begin with."""

    prompt: Annotated[str, Meta(description="The question.")]
    url: Annotated[str, Meta(description="The page to begin with, if known.")] = ""


class AgenticFetch(BaseTool[AgenticFetchArguments]):
    """One approval covers all pages that the sub-agent reads, because all of them are on the public internet."""

    name = "agentic_fetch"
    is_parallel = True
    arguments = AgenticFetchArguments

    async def act(self, context: ToolContext, arguments: AgenticFetchArguments) -> ToolOutcome:
        """Request permission and let a sub-agent answer the question."""
        if not arguments.prompt.strip():
            raise ToolError("The prompt is empty: write the question.")
        params: dict[str, object] = {"prompt": arguments.prompt}
        begin = ""
        if arguments.url:
            params["url"] = parse_target(arguments.url).url
            begin = f"Begin with {params['url']}\n\n"
        what = f"Let a sub-agent read web pages: {arguments.url or arguments.prompt}"
        await context.permit(Permit(self.name, "fetch", context.workspace_path, what, params))
        return ToolOutcome(
            await context.run_subagent(SubagentTask(begin + arguments.prompt, "Fetch Analysis", "fetch"))
        )


class WebFetchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page to fetch."""

    url: Annotated[str, Meta(description="The complete address, with http:// or https://.")]


class WebFetch(BaseTool[WebFetchArguments]):
    """Fetch of an approved sub-agent. It never connects to this machine or a private network."""

    name = "web_fetch"
    is_parallel = True
    arguments = WebFetchArguments

    def __init__(self, web: WebClient | None = None) -> None:
        super().__init__()
        self._web = web or WebClient()

    async def act(self, context: ToolContext, arguments: WebFetchArguments) -> ToolOutcome:
        """Fetch the page, unless its address is private or denied."""

        async def consent(target: WebTarget) -> None:
            if target.note:
                raise PermissionDenied(
                    f"{target.host} is {target.note}: sub-agents cannot access it.", stops_turn=False
                )
            params: dict[str, object] = {"url": target.url}
            what = f"Fetch {target.url}."
            # The task was approved; rules that deny a fetch apply to sub-agents as well.
            await context.permit(Permit("fetch", "fetch", context.workspace_path, what, params, is_agreed=True))

        target = parse_target(arguments.url)
        await consent(target)
        return await read_page(self._web, target, consent, context.environment, _SECONDS)
