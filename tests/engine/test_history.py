"""R7: every stored conversation is converted into one that all providers accept."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import (
    PLAIN,
    call_part,
    finish_part,
    message,
    reasoning_part,
    request_of,
    result_part,
    results_of,
    text_part,
    texts_of,
)
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    ShellCommand,
    ShellCommandPart,
    ToolResultPart,
)
from holdfast.domain.model_requests import ModelInfo
from holdfast.engine.history import conversation, has_user_text, size_of
from holdfast.testing.conversation_validity import problems_of_request

VISION_MODEL = ModelInfo("test", "seeing", supports_images=True)
ASK = message("user", text_part("and now?"), id="ask")


def sent_messages(
    *messages: Message, info: ModelInfo = PLAIN, summary: str = "", note: str = ""
) -> tuple[Message, ...]:
    """Return the conversation that a provider gets, with a new prompt at its end."""
    out = conversation((*messages, ASK), info, summary=MessageId(summary) or None, note=note)
    assert problems_of_request(request_of(out)) == []
    return out


def shape(messages: tuple[Message, ...]) -> list[str]:
    return [item.role for item in messages]


def image(data: bytes = b"x", mime_type: str = "image/png", path: str = "a.png") -> BinaryPart:
    return BinaryPart(Binary(path, mime_type, data))


# Calls and results.


def test_a_plain_turn_passes_unchanged() -> None:
    answer = message("assistant", reasoning_part("hm", finished_at=2), text_part("hello"))
    out = sent_messages(message("user", text_part("hi")), answer)
    assert out[0].parts == (text_part("hi"),)
    assert out[1] == answer


@pytest.mark.parametrize(
    ("provider", "model", "is_kept"),
    [("test", "plain", True), ("test", "other", False), ("other", "plain", False), ("", "", False)],
)
def test_signature_is_sent_only_to_the_model_that_made_it(provider: str, model: str, *, is_kept: bool) -> None:
    """Other models refuse requests with reasoning that they did not sign or encrypt."""
    sealed = ReasoningPart(Reasoning("hm", "signature", 1, 2, ("block",)))
    answer = msgspec.structs.replace(message("assistant", sealed, text_part("hello")), provider=provider, model=model)
    (_, out, _) = sent_messages(message("user", text_part("hi")), answer)
    assert out.parts == (sealed if is_kept else reasoning_part("hm", finished_at=2), text_part("hello"))


def test_joined_responses_keep_only_signatures_of_this_model() -> None:
    """The prompt between them was deleted."""
    sealed = ReasoningPart(Reasoning("hm", "signature", 1, 2, ("block",)))
    own, other = (
        msgspec.structs.replace(message("assistant", sealed, text_part(name), id=name), provider="test", model=name)
        for name in ("plain", "other")
    )
    (_, out, _) = sent_messages(message("user", text_part("hi")), own, other)
    assert out.parts == (sealed, text_part("plain"), reasoning_part("hm", finished_at=2), text_part("other"))


def test_each_call_is_followed_by_its_result() -> None:
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", call_part("a"), call_part("b"), finish_part("tool_use"), id="m2"),
        message("tool", result_part("b", "second"), finish_part("stop"), id="m3"),
        message("tool", result_part("a", "first"), finish_part("stop"), id="m4"),
    )
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert [result.content for result in results_of(out)] == ["first", "second"]
    assert len({item.id for item in out}) == len(out)


def test_a_shell_command_during_a_call_follows_its_result() -> None:
    """It is stored when it happens, between call and result; no provider accepts anything there."""
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", call_part("a"), call_part("b"), finish_part("tool_use"), id="m2"),
        message("user", ShellCommandPart(ShellCommand("ls", "a.txt", 0)), id="m3"),
        message("tool", result_part("a", "first"), result_part("b", "second"), finish_part("stop"), id="m4"),
    )
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert texts_of(out, "user")[-2:] == ["$ ls\na.txt\n(exit code 0)", "and now?"]


def test_a_call_without_a_result_gets_an_error_result() -> None:
    """The result says that the interrupted call may have had effects."""
    out = sent_messages(message("user", text_part("hi")), message("assistant", call_part("a", name="bash")))
    (result,) = results_of(out)
    assert (result.tool_call_id, result.name, result.is_error) == ("a", "bash", True)
    assert "effects" in result.content


def test_the_first_of_two_results_counts() -> None:
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", call_part("a")),
        message("tool", result_part("a", "1"), result_part("a", "2")),
    )
    assert [result.content for result in results_of(out)] == ["1"]


def test_a_result_without_its_call_is_dropped() -> None:
    out = sent_messages(
        message("user", text_part("hi")), message("tool", result_part("ghost")), message("assistant", text_part("hm"))
    )
    assert shape(out) == ["user", "assistant", "user"]


def test_same_id_in_two_responses_means_two_calls() -> None:
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", call_part("a")), message("tool", result_part("a", "one")),
        message("assistant", call_part("a")), message("tool", result_part("a", "two")),
        message("assistant", call_part("a")),
    )  # fmt: skip
    assert [result.content for result in results_of(out)][:2] == ["one", "two"]
    assert results_of(out)[2].is_error


def test_a_result_after_a_folded_prompt_is_kept() -> None:
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", call_part("a")),
        message("user", text_part("also")),
        message("tool", result_part("a", "late")),
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert results_of(out)[0].content == "late"


def test_duplicate_id_in_one_response_is_one_call() -> None:
    out = sent_messages(
        message("user", text_part("hi")), message("assistant", call_part("a", name="x"), call_part("a", name="y"))
    )
    assert [call.name for item in out for call in item.tool_calls] == ["x"]


@pytest.mark.parametrize("input", ["", "{", "[]", "null", "3", pytest.param('{"a":' + "[" * 5000, id="nested")])
def test_arguments_are_always_an_object(input: str) -> None:
    """Also those that an earlier version stored: otherwise no later run of the session could call the model."""
    out = sent_messages(message("user", text_part("hi")), message("assistant", call_part("a", input, finished=False)))
    assert [call.input for item in out for call in item.tool_calls] == ["{}"]


def test_an_empty_tool_result_gets_a_text() -> None:
    out = sent_messages(
        message("user", text_part("hi")), message("assistant", call_part("a")), message("tool", result_part("a", " \n"))
    )
    assert results_of(out)[0].content == "(no output)"


def test_metadata_is_not_sent_to_the_model() -> None:
    result = msgspec.structs.replace(result_part("a").data, metadata='{"secret":1}')
    out = sent_messages(
        message("user", text_part("hi")), message("assistant", call_part("a")), message("tool", ToolResultPart(result))
    )
    assert results_of(out)[0].metadata == ""


# Empty turns and order.


@pytest.mark.parametrize(
    "parts", [(), (finish_part("canceled"),), (reasoning_part("hm"), finish_part("canceled")), (text_part(" \n"),)]
)
def test_an_empty_response_is_omitted(parts: tuple[Part, ...]) -> None:
    out = sent_messages(message("user", text_part("hi")), message("assistant", *parts))
    assert shape(out) == ["user"]
    assert texts_of(out, "user") == ["hi", "and now?"]


def test_consecutive_prompts_become_one_message() -> None:
    out = sent_messages(
        message("user", text_part("one")), message("user", text_part("two")), message("user", text_part(" "))
    )
    assert shape(out) == ["user"]
    assert texts_of(out, "user") == ["one", "two", "and now?"]


def test_consecutive_responses_become_one_message() -> None:
    """The prompt between them was deleted, or had nothing to send."""
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", text_part("one"), id="m1"),
        message("user", text_part(" ")),
        message("assistant", text_part("two"), call_part("a"), id="m2"),
        message("tool", result_part("a")),
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert texts_of(out, "assistant") == ["one", "two"]


def test_conversation_starts_with_a_user_message() -> None:
    out = sent_messages(
        message("tool", result_part("a")),
        message("assistant", text_part("lost"), call_part("a")),
        message("user", text_part("hi")),
    )
    assert texts_of(out, "user") == ["hi", "and now?"]


def test_parts_not_allowed_for_the_role_are_omitted() -> None:
    stray = message("assistant", text_part("hm"), result_part("ghost"), image(), finish_part())
    out = sent_messages(
        message("user", text_part("hi"), call_part("x"), reasoning_part("y"), finish_part("stop")), stray
    )
    assert out[0].parts == (text_part("hi"),)
    assert out[1].parts == (text_part("hm"),)


# Files.


def test_a_text_file_becomes_text() -> None:
    out = sent_messages(
        message("user", text_part("look"), image("é".encode() + b"\xff", "text/plain; charset=utf-8", "a/b.txt"))
    )
    assert out[0].parts[1] == text_part('<file path="a/b.txt">\né\ufffd\n</file>')


def test_image_is_sent_to_a_model_that_supports_images() -> None:
    assert sent_messages(message("user", image()), info=VISION_MODEL)[0].parts[0] == image()


def test_image_is_replaced_by_its_name_for_other_models() -> None:
    parts = sent_messages(message("user", image()))[0].parts
    assert not any(isinstance(part, BinaryPart) for part in parts)
    assert "image" in texts_of(sent_messages(message("user", image())), "user")[0]


def image_result(info: ModelInfo, data: str = "aGk=") -> tuple[Message, ...]:
    """Return the history of a tool that returned an image, beside one that did not."""
    results = message("tool", result_part("a", data=data)), message("tool", result_part("b"))
    return sent_messages(
        message("user", text_part("hi")), message("assistant", call_part("a"), call_part("b")), *results, info=info
    )


def test_image_result_is_kept_if_the_provider_accepts_it() -> None:
    out = image_result(msgspec.structs.replace(VISION_MODEL, takes_media_in_results=True))
    assert [(result.data, result.mime_type) for result in results_of(out)] == [("aGk=", "image/png"), ("", "")]
    assert out[-1].parts == ASK.parts


def test_image_result_follows_the_results_for_other_providers() -> None:
    out = image_result(VISION_MODEL)
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert out[-1].parts == (image(b"hi", path="tool-a"), *ASK.parts)
    assert [result.data for result in results_of(out)] == ["", ""]


@pytest.mark.parametrize("data", ["aGk", "\N{SNOWMAN}"], ids=["cut off", "not base64"])
def test_damaged_image_result_is_explained_to_the_model(data: str) -> None:
    out = image_result(VISION_MODEL, data)
    assert texts_of(out[-1:], "user")[0] == "[The image of this result is damaged.]"


def test_image_result_is_replaced_by_its_name_for_models_without_images() -> None:
    out = image_result(PLAIN)
    assert "image" in results_of(out)[0].content
    assert out[-1].parts == ASK.parts


# Summaries.


def test_conversation_starts_at_the_summary() -> None:
    out = sent_messages(
        message("user", text_part("old"), id="m1"),
        message("assistant", text_part("older"), id="m2"),
        message("assistant", reasoning_part("hm"), text_part("in short"), finish_part(), id="m3", is_summary=True),
        message("assistant", call_part("a"), id="m4"),
        summary="m3",
        note="go on",
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert out[0].parts == (text_part("in short\n\ngo on"),)
    assert out[1].tool_calls[0].id == "a"


def test_a_summary_that_failed_is_not_sent() -> None:
    out = sent_messages(
        message("user", text_part("hi")),
        message("assistant", text_part("half of a summ"), finish_part("error"), id="m2", is_summary=True),
    )
    assert texts_of(out, "user") == ["hi", "and now?"]
    assert shape(out) == ["user"]


def test_missing_summary_is_ignored() -> None:
    assert texts_of(sent_messages(message("user", text_part("hi")), summary="gone"), "user") == ["hi", "and now?"]


def test_built_conversation_can_be_built_again() -> None:
    """A second summary is written from the result of the first."""
    once = conversation(
        (
            message("user", text_part("old"), id="m1"),
            message("assistant", text_part("in short"), finish_part(), id="m2", is_summary=True),
            message("user", text_part("new"), id="m3"),
            message("assistant", text_part("sure"), call_part("a"), id="m4"),
            message("tool", result_part("a", "x"), id="m5"),
        ),
        PLAIN,
        summary=MessageId("m2"),
    )
    again = conversation((*once, ASK), PLAIN)
    assert texts_of(again, "user") == ["in short", "new", "and now?"]
    assert again[:-1] == once


# Random conversations.

_words = st.sampled_from(["", " ", "\n", "x", "hello"])
_ids = st.sampled_from(["a", "b", "c"])
_inputs = st.sampled_from(["{}", '{"a":1}', "", "{", "[]", "null"])
_user_parts = st.one_of(
    _words.map(text_part),
    st.builds(image, st.binary(max_size=3), st.sampled_from(["text/plain", "image/png", "application/pdf"])),
)
_assistant_parts = st.one_of(
    _words.map(text_part),
    _words.map(reasoning_part),
    st.builds(lambda id, input, done: call_part(id, input, finished=done), _ids, _inputs, st.booleans()),
    st.just(finish_part()),
)
_tool_parts = st.builds(result_part, _ids, _words)
_any_parts: st.SearchStrategy[Part] = st.one_of(_user_parts, _assistant_parts, _tool_parts)


@st.composite
def _messages(draw: st.DrawFn) -> list[Message]:
    out = []
    for number in range(draw(st.integers(0, 12))):
        role = draw(st.sampled_from(["user", "assistant", "tool", "system"]))
        own = {"user": _user_parts, "assistant": _assistant_parts, "tool": _tool_parts}.get(role, _any_parts)
        parts = draw(st.lists(own if draw(st.integers(0, 5)) else _any_parts, max_size=4))
        is_summary = role == "assistant" and draw(st.integers(0, 4)) == 0
        base = message("user", *parts, id=f"m{number}", is_summary=is_summary)
        out.append(msgspec.structs.replace(base, role=role))
    return out


@settings(deadline=None)
@given(_messages(), st.sampled_from([PLAIN, VISION_MODEL]), st.integers(-6, 12))
def test_any_conversation_becomes_valid(messages: list[Message], info: ModelInfo, summary: int) -> None:
    """R7; no user text since the summary is lost."""
    place = summary if 0 <= summary < len(messages) and messages[summary].is_summary_message else -1
    out = sent_messages(*messages, info=info, summary=f"m{place}" if place >= 0 else "")
    written = [text for text in texts_of(messages[place + 1 :], "user") if text.strip()]
    everything = iter(texts_of(out, "user"))
    assert all(text in everything for text in written)
    for item in out:
        kinds = {type(part).__name__ for part in item.parts}
        assert (
            kinds
            <= {
                "user": {"TextPart", "BinaryPart"},
                "assistant": {"TextPart", "ReasoningPart", "ToolCallPart"},
                "tool": {"ToolResultPart"},
            }[item.role]
        )


@settings(deadline=None)
@given(_messages())
def test_every_response_with_text_after_a_prompt_is_kept(messages: list[Message]) -> None:
    first = message("user", text_part("hi"), id="first")
    plain = [item for item in messages if not item.is_summary_message]
    out = sent_messages(first, *plain)
    assert texts_of(out, "assistant") == [text for text in texts_of(plain, "assistant") if text.strip()]


@settings(deadline=None)
@given(_messages())
def test_building_is_idempotent(messages: list[Message]) -> None:
    once = sent_messages(*messages)
    assert conversation(once, PLAIN) == once


# Details.


def test_messages_with_user_text() -> None:
    assert has_user_text([message("assistant", text_part("x")), message("user", text_part("hi"))])
    assert not has_user_text(
        [message("assistant", text_part("x")), message("user", text_part(" ")), message("user", image())]
    )


def test_size_counts_the_text_for_the_model() -> None:
    parts = (
        text_part("ab"),
        reasoning_part("cde"),
        call_part("id", '{"a":1}', name="view"),
        result_part("id", "done"),
        image(),
        finish_part(),
    )
    assert size_of([message("assistant", *parts)]) == 2 + 3 + 4 + 7 + 4


def test_long_conversations_build_quickly() -> None:
    """Twenty thousand messages; a backward search for each message would take minutes."""
    turn = [
        message("user", text_part("hi")),
        message("assistant", call_part("a"), call_part("b")),
        message("tool", result_part("a")),
        message("tool", result_part("b")),
    ]
    before = time.process_time()
    out = conversation(turn * 5_000, PLAIN)
    assert time.process_time() - before < 2
    assert len(out) == 20_000


def test_many_results_of_one_answer_build_quickly() -> None:
    names = [f"c{number}" for number in range(10_000)]
    before = time.process_time()
    conversation(
        [
            message("user", text_part("hi")),
            message("assistant", *map(call_part, names)),
            *(message("tool", result_part(name)) for name in names),
        ],
        PLAIN,
    )
    assert time.process_time() - before < 2


def test_a_text_beside_a_message_is_its_first_part() -> None:
    """Even if it becomes known after tools have run: the order of roles stays the same."""
    messages = [
        message("user", text_part("hi"), id="m1"),
        message("assistant", call_part("a"), finish_part("tool_use"), id="m2"),
        message("tool", result_part("a", "first"), finish_part("stop"), id="m3"),
    ]
    plain = conversation(messages, PLAIN)
    beside = conversation(messages, PLAIN, beside={MessageId("m1"): "state"})
    assert beside[0].parts == (text_part("state"), text_part("hi"))
    assert beside[1:] == plain[1:]
    assert problems_of_request(request_of(beside)) == []
