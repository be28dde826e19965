"""Requested summaries: the response is sent when the summary is stored, and only then."""

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.testing.gates import start
from server.helpers import FeedModel, in_process_server, read_until, run_ended, send_prompt, server_directory


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_cancelled_summary_is_not_a_summary(is_cancelled: bool) -> None:
    async with server_directory() as directory:
        model = FeedModel()
        async with in_process_server(directory, model) as server:
            client, workspace = await server.open_workspace()
            session = (await client.create_session(workspace)).id
            model.words.put_nowait(None)
            async with client.events(workspace, since=0) as events:
                run = await send_prompt(client, workspace, session, "hello")
                await read_until(events, run_ended(run.run_id))
                model.asked.clear()
                asked = start(client.summarize(workspace, session))
                await model.asked.wait()
                if is_cancelled:
                    await client.cancel_session(workspace, session)
                    with pytest.raises(ServerProblem) as refused:
                        await asked
                    assert refused.value.status == 409
                else:
                    model.words.put_nowait("short")
                    model.words.put_nowait(None)
                    await asked
            known = await client.get_session(workspace, session)
            assert bool(known.summary_message_id) is not is_cancelled
