"""Prompts of MCP servers as slash commands."""

import pytest

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.servers import EVERYTHING, add, needs_node
from holdfast.client.errors import ServerProblem
from holdfast.domain.extensions import McpArgument
from holdfast.domain.messages import text_of
from holdfast.extensions.mcp.extension import parse_arguments
from holdfast.protocol.bodies import AgentMessage

pytestmark = needs_node

TWO = (McpArgument("city", "city", required=True), McpArgument("state", "state"))


def test_typed_words_become_arguments() -> None:
    assert parse_arguments("", TWO) == {}
    assert parse_arguments("Oslo", TWO) == {"city": "Oslo"}
    assert parse_arguments("Oslo Norway and more", TWO) == {"city": "Oslo", "state": "Norway and more"}
    assert parse_arguments("'New York' NY", TWO) == {"city": "New York", "state": "NY"}
    assert parse_arguments("NY city='New York'", TWO) == {"city": "New York", "state": "NY"}
    assert parse_arguments("a=b it's", TWO[:1]) == {"city": "a=b it's"}
    assert parse_arguments("many words", ()) == {}


async def _text_sent_to_model(one: ToolClient, prompt: str) -> str:
    """Return the text that the model received."""
    session = await one.session()
    run = await one.client.send_prompt(one.workspace, AgentMessage(session, prompt, interactive=True))
    await one.run_end(run)
    asked = [request for request in one.model.requests if request.session_id == session and request.tools]
    return text_of(asked[-1].messages[-1])


async def test_a_prompt_of_a_server_is_a_command() -> None:
    async with tool_client() as one:
        await add(one, all=EVERYTHING)
        notes = {note.name: note for note in await one.client.list_commands(one.workspace)}
        note = notes["all:args-prompt"]
        assert (note.source, note.hint) == ("mcp", "<city> [state]")
        assert [argument.required for argument in note.arguments] == [True, False]
        assert await _text_sent_to_model(one, "/all:args-prompt Oslo") == "What's weather in Oslo?"
        assert (
            await _text_sent_to_model(one, "/all:args-prompt state=NY 'New York'") == "What's weather in New York, NY?"
        )
        assert await _text_sent_to_model(one, "/all:nothing x") == "/all:nothing x"
        with pytest.raises(ServerProblem, match="needs: city") as refused:
            await _text_sent_to_model(one, "/all:args-prompt")
        assert refused.value.status == 400
