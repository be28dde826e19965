"""Prompts and runs: the delivery of a prompt, the identity of requests, and the wire format of a run."""

from collections.abc import Iterator
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import RUN, SESSION, json_of
from holdfast.domain.ids import MessageId, RunId, SessionId, is_valid_run_id
from holdfast.domain.runs import Attachment, AttachmentInfo, Delivery, Prompt, Run
from holdfast.engine.inputs import body_hash


def attachment(content: bytes = b"x", path: str = "/a", name: str = "a", mime_type: str = "text/plain") -> Attachment:
    return Attachment(content, path, name, mime_type)


def test_without_a_delivery_the_run_id_decides() -> None:
    """A caller that names its run id gets a turn of its own; a follow-up without one steers."""
    assert Prompt(SESSION, "x").effective_delivery == "steer"
    assert Prompt(SESSION, "x", run_id=RUN).effective_delivery == "queue"


@pytest.mark.parametrize("delivery", ["steer", "queue", "reject", "interrupt"])
@pytest.mark.parametrize("run_id", ["", "r1"])
def test_explicit_delivery_is_kept(delivery: Delivery, run_id: str) -> None:
    assert Prompt(SESSION, "x", run_id=RunId(run_id), delivery=delivery).effective_delivery == delivery


def different() -> Iterator[Prompt]:
    """Return prompts of which no two are the same request."""
    yield Prompt(SESSION, "x")
    yield Prompt(SessionId("s2"), "x")
    yield Prompt(SESSION, "y")
    yield Prompt(SESSION, "")
    yield Prompt(SESSION, "x", delivery="queue")
    yield Prompt(SESSION, "x", delivery="reject")
    yield Prompt(SESSION, "", delivery="reject", kind="summary")
    yield Prompt(SESSION, "", delivery="reject")
    yield Prompt(SessionId("s1x"), "")
    yield Prompt(SessionId("s"), "1x")
    yield Prompt(SESSION, "x", (attachment(),))
    yield Prompt(SESSION, "x", (attachment(b"y"),))
    yield Prompt(SESSION, "x", (attachment(path="/b"),))
    yield Prompt(SESSION, "x", (attachment(mime_type="text/html"),))
    yield Prompt(SESSION, "x", (attachment(), attachment()))
    yield Prompt(SESSION, "x", (attachment(b"ab", path="c"),))
    yield Prompt(SESSION, "x", (attachment(b"a", path="bc"),))


def test_the_hash_distinguishes_requests() -> None:
    for one, other in combinations(different(), 2):
        assert body_hash(one) != body_hash(other), (one, other)


def test_the_hash_ignores_irrelevant_fields() -> None:
    """A repeated request: from any client, with an explicit or a default delivery."""
    once = Prompt(SESSION, "x", (attachment(),), run_id=RUN)
    again = Prompt(SESSION, "x", (attachment(name="b"),), RUN, delivery="queue", client_id="other", interactive=True)
    assert body_hash(once) == body_hash(again)
    assert len(body_hash(once)) == 32


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_hash_separates_the_fields(session: str, prompt: str) -> None:
    moved = Prompt(SessionId(session + prompt), "")
    kept = Prompt(SessionId(session), prompt)
    assert (body_hash(moved) == body_hash(kept)) == (prompt == "")


def test_a_run_omits_default_values() -> None:
    run = Run(RUN, SESSION, "accepted", "queue", 5)
    assert json_of(run) == ('{"run_id":"r1","session_id":"s1","state":"accepted","delivery":"queue","accepted_at":5}')


def test_a_full_run_has_every_field() -> None:
    run = Run(
        RUN, SESSION, "ended", "steer", 5, "do it", 2, 9, "summary", (AttachmentInfo("a", "text/plain", 3),), "c",
        interactive=True, parent_run_id=RunId("r0"), started_at=6, step=4, cancel_requested=True, cancelled_by="me",
        folded_into=RunId("r9"), ended_at=7, outcome="failed", error="boom", message_id=MessageId("m1"),
    )  # fmt: skip
    wire = (
        '{"run_id":"r1","session_id":"s1","state":"ended","delivery":"steer","accepted_at":5,"prompt":"do it",'
        '"position":2,"number":9,"kind":"summary","attachments":[{"file_name":"a","mime_type":"text/plain","size":3}],'
        '"client_id":"c","interactive":true,"parent_run_id":"r0","started_at":6,"step":4,"cancel_requested":true,'
        '"cancelled_by":"me","folded_into":"r9","ended_at":7,"outcome":"failed","error":"boom","message_id":"m1"}'
    )
    assert json_of(run) == wire
    assert msgspec.json.decode(wire, type=Run) == run


def test_a_prompt_survives_the_wire() -> None:
    prompt = Prompt(SESSION, "x", (attachment(b"\x00\xff"),), RUN, "interrupt", "c", interactive=False)
    wire = json_of(prompt)
    assert wire == (
        '{"session_id":"s1","prompt":"x","attachments":[{"content":"AP8=","file_path":"/a","file_name":"a",'
        '"mime_type":"text/plain"}],"run_id":"r1","delivery":"interrupt","client_id":"c","interactive":false}'
    )
    assert msgspec.json.decode(wire, type=Prompt) == prompt
    assert json_of(Prompt(SESSION, "x")) == '{"session_id":"s1","prompt":"x"}'


@pytest.mark.parametrize("text", ["a", "A-9._", "x" * 128])
def test_valid_run_ids_are_accepted(text: str) -> None:
    assert is_valid_run_id(text)


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a/b", "é", "a\n", "a$"])
def test_invalid_run_ids_are_refused(text: str) -> None:
    assert not is_valid_run_id(text)
