"""Attach, prompt, stream, cancel: `python client.py` in any directory. A server is found, or started."""

import asyncio
import os

from holdfast.client.client import Client
from holdfast.client.server_launcher import find_or_start, locate
from holdfast.domain.events import MessageDeltaEvent, RunCompleteEvent
from holdfast.protocol.bodies import AgentMessage


async def main() -> None:
    with find_or_start(locate()) as found:
        client = Client(found.address)
    async with client:
        workspace = (await client.create_workspace(os.getcwd())).id
        session = (await client.create_session(workspace, "An example")).id
        async with client.events(workspace, since=0) as events:
            run = (await client.send_prompt(workspace, AgentMessage(session, "words=500 pause=20"))).run_id
            async for item in events:
                match item.event:
                    case MessageDeltaEvent(payload=delta) if "word9" in delta.text:
                        await client.cancel_run(workspace, run)
                    case RunCompleteEvent(change=end) if end.object.run_id == run:
                        return print(end.object.text, end.object.outcome, sep="\n")


asyncio.run(main())
