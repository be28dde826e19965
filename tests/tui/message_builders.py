"""Builds messages of a conversation, and renders their blocks."""

from rich.console import Console

from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Finish, FinishPart, Message, Part, Role, ToolResult
from holdfast.tui.block_render import render_block
from holdfast.tui.blocks import Block, MessageContext, blocks_of
from holdfast.tui.themes import DARK

__all__ = ["CALL", "DONE", "drawn", "message", "shown"]

CALL = ToolCallId("c1")
DONE = FinishPart(Finish("end_turn", 1))


def message(role: Role, *parts: Part, id: str = "m1") -> Message:
    return Message(parts, MessageId(id), role, SessionId("s1"), "", "", 1, 1, run_id=RunId("r1"))


def shown(item: Message, **results: ToolResult) -> list[Block]:
    return list(blocks_of(item, MessageContext({ToolCallId(name): result for name, result in results.items()})))


def drawn(block: Block, width: int = 60, *, is_unfolded: bool = False) -> list[str]:
    console = Console(width=width, color_system=None)
    lines = console.render_lines(render_block(block, DARK, is_unfolded=is_unfolded), console.options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]
