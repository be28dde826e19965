"""Two stock clients at two nodes of a cluster share a session. Then the node that owns it is killed."""

import asyncio

from stock.tui import StockTui
from two_nodes import TIMEOUT, two_nodes

FINISHED = "agent_event created agent_finished"
LONG = "words=500 pause=20"


async def _see_end(*clients: StockTui) -> None:
    for tui in clients:
        await tui.see(FINISHED)
        assert not tui.is_busy()
    assert len({tuple(tui.screen.text("assistant")) for tui in clients}) == 1


async def test_two_stock_clients_at_two_nodes_share_a_session() -> None:
    async with two_nodes() as nodes, asyncio.timeout(TIMEOUT):
        one, two = (StockTui(node.socket, nodes.work) for node in (nodes.first, nodes.second))
        await one.start()
        await one.send("words=2")
        await _see_end(one)
        await two.start(is_continued=True)
        assert (two.session_id, two.workspace["id"]) == (one.session_id, one.workspace["id"])
        # A prompt at each node: both see its messages and its end.
        for tui, words in ((one, 4), (two, 3)):
            await tui.send(f"words={words}")
            await _see_end(one, two)
            assert tui.screen.text("user")[-1] == f"words={words}"
        assert two.screen.text("assistant") == ["word1 word2", "word1 word2 word3 word4", "word1 word2 word3"]
        # A prompt of one client is cancelled by the other one.
        await one.send(LONG)
        await two.see("message created assistant")
        await two.cancel()
        await _see_end(one, two)
        assert one.screen.ends()[-1] == two.screen.ends()[-1] == "canceled"
        # The owner is killed in the middle of a turn: the other node ends it and answers the next prompt.
        await two.send(LONG)
        await two.see("message created assistant")
        two.screen.has_crashed = True
        await nodes.first.kill()
        await _see_end(two)
        await two.send("words=2")
        await _see_end(two)
        assert two.screen.text("assistant")[-1] == "word1 word2"
        assert two.screen.text("user")[-2:] == [LONG, "words=2"]
        await two.leave()
