"""`NodeWorkspace` follows every change of its ownership, whatever moment it comes at."""

import asyncio
from typing import Any, cast

from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.runtime.node_workspace import NodeWorkspace
from holdfast.testing.gates import until


async def test_a_grant_that_ends_while_the_last_change_completes_is_noticed() -> None:
    """The task that applied the grant has looked at the state for the last time, but is not removed yet. A node whose
    workspace stayed open this way never joined again.
    """
    absent: Any = None
    node = NodeWorkspace(WorkspaceRecord(WorkspaceId("w"), "/project", 1, 0, 0), absent, absent, absent, absent)

    async def step() -> None:
        node._epoch = node.grant
        if node.grant is not None:
            # Runs after this task has ended, and before the callbacks of its end.
            asyncio.get_running_loop().call_soon(node.set_grant, None)

    cast(Any, node)._step = step
    node.set_grant(7)
    await until(lambda: node._epoch == 7)
    await until(lambda: node._epoch is None)
    await node.dropped(7)
