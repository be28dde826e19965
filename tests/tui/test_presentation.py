"""Sanitised text, key encodings, themes, and the contents of lists."""

import json
from typing import Any

import pytest
from rich.console import Console
from textual import events
from textual._xterm_parser import XTermParser
from textual.theme import BUILTIN_THEMES, Theme

from holdfast.client.terminal_text import final_line
from holdfast.domain.messages import Reasoning, ReasoningPart, Text, TextPart, ToolCall, ToolCallPart
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.tui.block_render import estimate_tokens, render_block
from holdfast.tui.blocks import ToolBlock, output_lines
from holdfast.tui.key_hints import NEWLINE_KEYS, QUEUE_KEYS, key_hints, register_key_sequences
from holdfast.tui.pickers import missing_requirement, model_items
from holdfast.tui.screens.picker import PickerItem, filter_items, fit_width
from holdfast.tui.themes import DARK, LIGHT, THEMES, default_theme, derive_palette
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from tui.app_driver import drawn, open_app, running_server
from tui.message_builders import CALL, DONE, message

EVIL = "a\x1b]0;title\x07b\x9b31mc\u202ed\x08"


async def test_untrusted_text_contains_no_terminal_controls() -> None:
    command = Call("bash", json.dumps({"command": r"printf 'x\033]0;title\007y \033[31mred'"}))
    model = ScriptedModel([Step((command,)), Step((Say(f"{EVIL} `{EVIL}`"),))])
    async with running_server(model) as (_, server), open_app(server, yolo=True) as screen:
        await screen.submit(f"go {EVIL}")
        await screen.wait_until(lambda: not screen.app.connection.runs() and "◇" in screen.conversation(), "the end")
        screen.app.notify(EVIL, markup=False)
        await screen.wait_for_notice("title")
        steering = {letter for segment in drawn(screen) for letter in segment.text if not letter.isprintable()}
        assert steering <= {"\n"}
        assert "│ xy red" in screen.conversation()


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("\x1b[1;31mred\x1b[0m plain", "red plain"),
        ("\x1b]52;c;AAAA\x1b\\after", "after"),
        ("10 %\r50 %\r100 %", "100 %"),
        ("done\r", "done"),
        ("\x1b(Bq\x1b", "q"),
    ],
)
def test_command_output_is_shown_as_a_terminal_would(line: str, read: str) -> None:
    assert final_line(line) == read
    assert output_lines(ToolBlock("bash", "{}", "done", f"{line}\n\nlast")) == [
        ("plain", read),
        ("plain", ""),
        ("plain", "last"),
    ]


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        (QUEUE_KEYS, "\x1b\r"),
        (QUEUE_KEYS, "\x1b[27;3;13~"),
        (QUEUE_KEYS, "\x1b[13;3u"),
        (NEWLINE_KEYS, "\x1b[27;2;13~"),
        (NEWLINE_KEYS, "\x1b[13;2u"),
        (NEWLINE_KEYS, "\n"),
        (("enter",), "\r"),
    ],
)
def test_key_encodings_of_older_terminals(keys: tuple[str, ...], sent: str) -> None:
    register_key_sequences()
    parser = XTermParser()
    received = [item.key for item in (*parser.feed(sent), *parser.feed("")) if isinstance(item, events.Key)]
    assert len(received) == 1
    assert received[0] in keys


@pytest.mark.parametrize("theme", [*THEMES, *BUILTIN_THEMES.values()], ids=lambda theme: theme.name)
def test_every_theme_has_a_palette(theme: Theme) -> None:
    palette = derive_palette(theme.to_color_system().generate(), is_dark=theme.dark)
    assert palette.code_theme == (DARK if theme.dark else LIGHT).code_theme
    change = json.dumps({"old_content": "a\n", "new_content": "b\n"})
    assert Console(width=60).render_lines(render_block(ToolBlock("edit", "{}", "done", "", change), palette))


def test_a_light_terminal_gets_a_light_theme() -> None:
    assert default_theme({}) == default_theme({"COLORFGBG": "15;0"}) == default_theme({"COLORFGBG": "x"}) == "harbour"
    assert default_theme({"COLORFGBG": "0;15"}) == default_theme({"COLORFGBG": "0;default;7"}) == "paper"


def test_themes_differ() -> None:
    looks = {derive_palette(theme.to_color_system().generate(), is_dark=theme.dark).accent for theme in THEMES}
    assert len(looks) == len(THEMES)


PROVIDERS: list[dict[str, Any]] = [
    {
        "id": "far",
        "name": "Far",
        "api_key": "$FAR_KEY",
        "lack": "Far needs a key: set FAR_KEY.",
        "models": [{"id": "big"}],
    },
    {
        "id": "near",
        "name": "Near",
        "models": [{"id": "small", "context_window": 128_000, "cost_per_1m_in": 0.25, "cost_per_1m_out": 2}],
    },
]


def test_usable_models_are_listed_first_and_others_are_searchable() -> None:
    choices = model_items(PROVIDERS, "near/small")
    assert filter_items(choices, "") == [
        PickerItem("near/small", "small", "128k tokens · $0.25 in, $2 out", "●", "Near"),
        PickerItem("far/", "Far", "needs a key: set FAR_KEY", group="Not set up yet"),
    ]
    assert [choice.value for choice in filter_items(choices, "big")] == ["far/big"]
    assert missing_requirement(PROVIDERS, "far") == "Far needs a key: set FAR_KEY."
    assert missing_requirement(PROVIDERS, "near") == missing_requirement(PROVIDERS, "nobody") == ""


def test_list_entries_are_padded_to_the_column_width() -> None:
    assert fit_width("ab", 4) == "ab  "
    assert fit_width("abcdef", 4) == "abc…"
    assert fit_width("日本語", 4) == "日 …"


def test_key_hints_contain_keys_and_descriptions() -> None:
    line = key_hints(("enter", "send"), ("", "by the way"))
    assert line.plain == "enter send · by the way"
    assert [line.plain[span.start : span.end].strip() for span in line.spans if span.style == "bold"] == ["enter"]


def test_tokens_of_a_streaming_answer_are_estimated() -> None:
    parts = (
        ReasoningPart(Reasoning("h" * 40, "", 1)),
        TextPart(Text("w" * 400)),
        ToolCallPart(ToolCall(CALL, "ls", "x" * 40)),
    )
    assert estimate_tokens(message("assistant", *parts)) == 120
    assert (
        estimate_tokens(message("assistant", *parts, DONE))
        == estimate_tokens(message("user", *parts))
        == estimate_tokens(None)
        == 0
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_dialog_height_follows_its_content(size: tuple[int, int]) -> None:
    """For changes of any length there is nothing below the answers, and the answers are visible."""
    text = "".join(f"line {number}\n" for number in range(200))
    call = Call("write", json.dumps({"file_path": "long.txt", "content": text}))
    model = ScriptedModel([Step((call,)), Step((Say("done"),))])
    async with running_server(model) as (_, server), open_app(server, size=size) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        dialog = screen.app.screen.query_one(".request")
        assert sum(child.outer_size.height + child.styles.margin.height for child in dialog.displayed_children) <= (
            dialog.size.height
        )
        assert dialog.displayed_children[-1].region.bottom == dialog.region.bottom - 1
        assert screen.app.screen.query_one("#what").size.height >= size[1] // 3
        await screen.wait_for_picture("Once")
