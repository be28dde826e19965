"""Attach, prompt, stream, cancel: `python client.py` in any directory. A server is found, or started."""

import asyncio
import os

from holdfast.client.client import Client
from holdfast.client.locate import find_or_start, locate
from holdfast.client.view import View
from holdfast.domain.messages import text_of
from holdfast.protocol.bodies import AgentMessage


async def main() -> None:
    with find_or_start(locate()) as found:
        address = found.address
    async with Client(address) as client:
        workspace = (await client.create_workspace(os.getcwd())).id
        session = (await client.create_session(workspace, "An example")).id
        run = (await client.send_prompt(workspace, AgentMessage(session, "words=500 pause=20"))).run_id
        view = View()
        view.load(await client.snapshot(workspace, session), session)
        async with client.events(workspace, since=view.cursor) as events:
            async for item in events:
                view.apply(item)
                said = "".join(text_of(message) for message in view.messages(session) if message.role == "assistant")
                if "word9" in said and view.runs[run].state == "active":
                    await client.cancel_run(workspace, run)
                if view.runs[run].outcome:
                    print(said, view.runs[run].outcome, sep="\n")
                    break


asyncio.run(main())
