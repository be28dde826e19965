"""R7: every stored conversation is converted to one that all providers accept."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import PLAIN, called, ended, got, message, request_of, results_of, said, texts_of, thought
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

SEEING = ModelInfo("test", "seeing", supports_images=True)
ASK = message("user", said("and now?"), id="ask")


def sent(*messages: Message, info: ModelInfo = PLAIN, summary: str = "", note: str = "") -> tuple[Message, ...]:
    """The conversation a provider gets, with a new prompt at its end."""
    out = conversation((*messages, ASK), info, summary=MessageId(summary) or None, note=note)
    assert problems_of_request(request_of(out)) == []
    return out


def shape(messages: tuple[Message, ...]) -> list[str]:
    return [item.role for item in messages]


def image(data: bytes = b"x", mime_type: str = "image/png", path: str = "a.png") -> BinaryPart:
    return BinaryPart(Binary(path, mime_type, data))


# Calls and results.


def test_a_plain_turn_passes_unchanged() -> None:
    answer = message("assistant", thought("hm", finished_at=2), said("hello"))
    out = sent(message("user", said("hi")), answer)
    assert out[0].parts == (said("hi"),)
    assert out[1] == answer


@pytest.mark.parametrize(
    ("provider", "model", "is_kept"),
    [("test", "plain", True), ("test", "other", False), ("other", "plain", False), ("", "", False)],
)
def test_a_signature_goes_to_the_model_that_made_it(provider: str, model: str, *, is_kept: bool) -> None:
    """Others refuse a request with reasoning that they have not signed or encrypted themselves."""
    sealed = ReasoningPart(Reasoning("hm", "signature", 1, 2, ("block",)))
    answer = msgspec.structs.replace(message("assistant", sealed, said("hello")), provider=provider, model=model)
    (_, out, _) = sent(message("user", said("hi")), answer)
    assert out.parts == (sealed if is_kept else thought("hm", finished_at=2), said("hello"))


def test_two_answers_that_are_sent_as_one_keep_only_signatures_of_this_model() -> None:
    """The prompt between them is gone."""
    sealed = ReasoningPart(Reasoning("hm", "signature", 1, 2, ("block",)))
    own, other = (
        msgspec.structs.replace(message("assistant", sealed, said(name), id=name), provider="test", model=name)
        for name in ("plain", "other")
    )
    (_, out, _) = sent(message("user", said("hi")), own, other)
    assert out.parts == (sealed, said("plain"), thought("hm", finished_at=2), said("other"))


def test_each_call_is_followed_by_its_result() -> None:
    out = sent(
        message("user", said("hi")),
        message("assistant", called("a"), called("b"), ended("tool_use"), id="m2"),
        message("tool", got("b", "second"), ended("stop"), id="m3"),
        message("tool", got("a", "first"), ended("stop"), id="m4"),
    )
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert [result.content for result in results_of(out)] == ["first", "second"]
    assert len({item.id for item in out}) == len(out)


def test_a_shell_command_during_a_call_follows_its_result() -> None:
    """It is stored when it happens, between call and result; no provider takes anything there."""
    out = sent(
        message("user", said("hi")),
        message("assistant", called("a"), called("b"), ended("tool_use"), id="m2"),
        message("user", ShellCommandPart(ShellCommand("ls", "a.txt", 0)), id="m3"),
        message("tool", got("a", "first"), got("b", "second"), ended("stop"), id="m4"),
    )
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert texts_of(out, "user")[-2:] == ["$ ls\na.txt\n(exit code 0)", "and now?"]


def test_a_call_without_a_result_gets_an_error_result() -> None:
    """Behaviour of an interrupted call: the model is told that it may have had effects."""
    out = sent(message("user", said("hi")), message("assistant", called("a", name="bash")))
    (result,) = results_of(out)
    assert (result.tool_call_id, result.name, result.is_error) == ("a", "bash", True)
    assert "effects" in result.content


def test_the_first_of_two_results_counts() -> None:
    out = sent(
        message("user", said("hi")), message("assistant", called("a")), message("tool", got("a", "1"), got("a", "2"))
    )
    assert [result.content for result in results_of(out)] == ["1"]


def test_a_result_without_its_call_is_dropped() -> None:
    out = sent(message("user", said("hi")), message("tool", got("ghost")), message("assistant", said("hm")))
    assert shape(out) == ["user", "assistant", "user"]


def test_the_same_id_in_two_answers_means_two_calls() -> None:
    out = sent(
        message("user", said("hi")),
        message("assistant", called("a")), message("tool", got("a", "one")),
        message("assistant", called("a")), message("tool", got("a", "two")),
        message("assistant", called("a")),
    )  # fmt: skip
    assert [result.content for result in results_of(out)][:2] == ["one", "two"]
    assert results_of(out)[2].is_error


def test_a_result_after_a_folded_prompt_is_kept() -> None:
    out = sent(
        message("user", said("hi")),
        message("assistant", called("a")),
        message("user", said("also")),
        message("tool", got("a", "late")),
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert results_of(out)[0].content == "late"


def test_an_id_that_appears_twice_in_one_answer_is_one_call() -> None:
    out = sent(message("user", said("hi")), message("assistant", called("a", name="x"), called("a", name="y")))
    assert [call.name for item in out for call in item.tool_calls] == ["x"]


@pytest.mark.parametrize("input", ["", "{", "[]", "null", "3"])
def test_arguments_are_always_an_object(input: str) -> None:
    out = sent(message("user", said("hi")), message("assistant", called("a", input, finished=False)))
    assert [call.input for item in out for call in item.tool_calls] == ["{}"]


def test_an_empty_tool_result_gets_a_text() -> None:
    out = sent(message("user", said("hi")), message("assistant", called("a")), message("tool", got("a", " \n")))
    assert results_of(out)[0].content == "(no output)"


def test_metadata_is_for_screens_only() -> None:
    result = msgspec.structs.replace(got("a").data, metadata='{"secret":1}')
    out = sent(message("user", said("hi")), message("assistant", called("a")), message("tool", ToolResultPart(result)))
    assert results_of(out)[0].metadata == ""


# Empty turns and order.


@pytest.mark.parametrize("parts", [(), (ended("canceled"),), (thought("hm"), ended("canceled")), (said(" \n"),)])
def test_an_empty_response_is_omitted(parts: tuple[Part, ...]) -> None:
    out = sent(message("user", said("hi")), message("assistant", *parts))
    assert shape(out) == ["user"]
    assert texts_of(out, "user") == ["hi", "and now?"]


def test_prompts_without_an_answer_become_one_message() -> None:
    out = sent(message("user", said("one")), message("user", said("two")), message("user", said(" ")))
    assert shape(out) == ["user"]
    assert texts_of(out, "user") == ["one", "two", "and now?"]


def test_answers_without_a_prompt_between_become_one_message() -> None:
    """The prompt between them was deleted, or had nothing to send."""
    out = sent(
        message("user", said("hi")),
        message("assistant", said("one"), id="m1"),
        message("user", said(" ")),
        message("assistant", said("two"), called("a"), id="m2"),
        message("tool", got("a")),
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert texts_of(out, "assistant") == ["one", "two"]


def test_a_conversation_begins_with_the_user() -> None:
    out = sent(message("tool", got("a")), message("assistant", said("lost"), called("a")), message("user", said("hi")))
    assert texts_of(out, "user") == ["hi", "and now?"]


def test_parts_that_do_not_belong_are_left_out() -> None:
    stray = message("assistant", said("hm"), got("ghost"), image(), ended())
    out = sent(message("user", said("hi"), called("x"), thought("y"), ended("stop")), stray)
    assert out[0].parts == (said("hi"),)
    assert out[1].parts == (said("hm"),)


# Files.


def test_a_text_file_becomes_text() -> None:
    out = sent(message("user", said("look"), image("é".encode() + b"\xff", "text/plain; charset=utf-8", "a/b.txt")))
    assert out[0].parts[1] == said('<file path="a/b.txt">\né\ufffd\n</file>')


def test_an_image_is_sent_to_a_model_that_sees() -> None:
    assert sent(message("user", image()), info=SEEING)[0].parts[0] == image()


def test_an_image_is_named_to_a_model_that_does_not_see() -> None:
    parts = sent(message("user", image()))[0].parts
    assert not any(isinstance(part, BinaryPart) for part in parts)
    assert "image" in texts_of(sent(message("user", image())), "user")[0]


def looked_at(info: ModelInfo) -> tuple[Message, ...]:
    """A tool that answered with a picture, beside one that did not."""
    results = message("tool", got("a", data="aGk=")), message("tool", got("b"))
    return sent(message("user", said("hi")), message("assistant", called("a"), called("b")), *results, info=info)


def test_a_picture_of_a_tool_stays_where_the_provider_takes_it() -> None:
    out = looked_at(msgspec.structs.replace(SEEING, takes_media_in_results=True))
    assert [(result.data, result.mime_type) for result in results_of(out)] == [("aGk=", "image/png"), ("", "")]
    assert out[-1].parts == ASK.parts


def test_a_picture_of_a_tool_follows_the_results_where_the_provider_takes_none_in_them() -> None:
    out = looked_at(SEEING)
    assert shape(out) == ["user", "assistant", "tool", "tool", "user"]
    assert out[-1].parts == (image(b"hi", path="tool-a"), *ASK.parts)
    assert [result.data for result in results_of(out)] == ["", ""]


def test_a_picture_of_a_tool_is_named_to_a_model_that_does_not_see() -> None:
    out = looked_at(PLAIN)
    assert "image" in results_of(out)[0].content
    assert out[-1].parts == ASK.parts


# Summaries.


def test_with_a_summary_the_conversation_begins_there() -> None:
    out = sent(
        message("user", said("old"), id="m1"),
        message("assistant", said("older"), id="m2"),
        message("assistant", thought("hm"), said("in short"), ended(), id="m3", is_summary=True),
        message("assistant", called("a"), id="m4"),
        summary="m3",
        note="go on",
    )
    assert shape(out) == ["user", "assistant", "tool", "user"]
    assert out[0].parts == (said("in short\n\ngo on"),)
    assert out[1].tool_calls[0].id == "a"


def test_a_summary_that_failed_is_not_sent() -> None:
    out = sent(
        message("user", said("hi")),
        message("assistant", said("half of a summ"), ended("error"), id="m2", is_summary=True),
    )
    assert texts_of(out, "user") == ["hi", "and now?"]
    assert shape(out) == ["user"]


def test_a_summary_that_is_gone_changes_nothing() -> None:
    assert texts_of(sent(message("user", said("hi")), summary="gone"), "user") == ["hi", "and now?"]


def test_a_conversation_that_was_built_can_be_built_again() -> None:
    """A second summary is written from what the first one left."""
    once = conversation(
        (
            message("user", said("old"), id="m1"),
            message("assistant", said("in short"), ended(), id="m2", is_summary=True),
            message("user", said("new"), id="m3"),
            message("assistant", said("sure"), called("a"), id="m4"),
            message("tool", got("a", "x"), id="m5"),
        ),
        PLAIN,
        summary=MessageId("m2"),
    )
    again = conversation((*once, ASK), PLAIN)
    assert texts_of(again, "user") == ["in short", "new", "and now?"]
    assert again[:-1] == once


# Anything.

_words = st.sampled_from(["", " ", "\n", "x", "hello"])
_ids = st.sampled_from(["a", "b", "c"])
_inputs = st.sampled_from(["{}", '{"a":1}', "", "{", "[]", "null"])
_user_parts = st.one_of(
    _words.map(said),
    st.builds(image, st.binary(max_size=3), st.sampled_from(["text/plain", "image/png", "application/pdf"])),
)
_assistant_parts = st.one_of(
    _words.map(said),
    _words.map(thought),
    st.builds(lambda id, input, done: called(id, input, finished=done), _ids, _inputs, st.booleans()),
    st.just(ended()),
)
_tool_parts = st.builds(got, _ids, _words)
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
@given(_messages(), st.sampled_from([PLAIN, SEEING]), st.integers(-6, 12))
def test_any_conversation_becomes_acceptable(messages: list[Message], info: ModelInfo, summary: int) -> None:
    """R7, and nothing a user wrote since the summary is lost."""
    place = summary if 0 <= summary < len(messages) and messages[summary].is_summary_message else -1
    out = sent(*messages, info=info, summary=f"m{place}" if place >= 0 else "")
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
def test_every_answer_with_words_after_a_prompt_is_kept(messages: list[Message]) -> None:
    first = message("user", said("hi"), id="first")
    plain = [item for item in messages if not item.is_summary_message]
    out = sent(first, *plain)
    assert texts_of(out, "assistant") == [text for text in texts_of(plain, "assistant") if text.strip()]


@settings(deadline=None)
@given(_messages())
def test_building_twice_is_building_once(messages: list[Message]) -> None:
    once = sent(*messages)
    assert conversation(once, PLAIN) == once


# Small things.


def test_messages_with_user_text() -> None:
    assert has_user_text([message("assistant", said("x")), message("user", said("hi"))])
    assert not has_user_text([message("assistant", said("x")), message("user", said(" ")), message("user", image())])


def test_size_counts_the_text_for_the_model() -> None:
    parts = (said("ab"), thought("cde"), called("id", '{"a":1}', name="view"), got("id", "done"), image(), ended())
    assert size_of([message("assistant", *parts)]) == 2 + 3 + 4 + 7 + 4


def test_long_conversations_build_quickly() -> None:
    """Twenty thousand messages; a conversation that looked back for each would take minutes."""
    turn = [
        message("user", said("hi")),
        message("assistant", called("a"), called("b")),
        message("tool", got("a")),
        message("tool", got("b")),
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
            message("user", said("hi")),
            message("assistant", *map(called, names)),
            *(message("tool", got(name)) for name in names),
        ],
        PLAIN,
    )
    assert time.process_time() - before < 2


def test_a_text_beside_a_message_is_its_first_part() -> None:
    """Also when it becomes known after tools have run: the order of roles stays the same."""
    messages = [
        message("user", said("hi"), id="m1"),
        message("assistant", called("a"), ended("tool_use"), id="m2"),
        message("tool", got("a", "first"), ended("stop"), id="m3"),
    ]
    plain = conversation(messages, PLAIN)
    beside = conversation(messages, PLAIN, beside={MessageId("m1"): "state"})
    assert beside[0].parts == (said("state"), said("hi"))
    assert beside[1:] == plain[1:]
    assert problems_of_request(request_of(beside)) == []
