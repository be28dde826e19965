"""Questions through the real server: several batches at once, each answered by the ids of its questions."""

import asyncio
from typing import Any

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.approvals import QuestionRequest
from holdfast.domain.events import QuestionRequestEvent
from server.approval_client import ApprovalClient, approval_client, notices, question
from server.helpers import read_until

CHOICES = [{"id": "pg", "label": "PostgreSQL"}, {"id": "my", "label": "MySQL", "description": "old"}]


def answers(batch: QuestionRequest, *given: dict[str, Any], batch_id: str = "") -> dict[str, Any]:
    """Build a body as stock clients send it: the ids of the questions, without a batch id."""
    pairs = zip(batch.questions, given, strict=True)
    return {"batch_request_id": batch_id, "responses": [{"request_id": item.id, **answer} for item, answer in pairs]}


async def answer(one: ApprovalClient, body: dict[str, Any]) -> bool:
    return (await one.client.answer_question(one.workspace, body)).resolved


async def test_every_kind_of_question_and_answer() -> None:
    async with approval_client() as one:
        session = await one.session()
        asked = [
            question("Go on?", label="Go"),
            question("Which database?", "single_choice", choices=CHOICES),
            question("Which of these?", "multi_choice", options=CHOICES),
            question("A name?", "free_text"),
            question("Anything else?", "free_text"),
        ]
        run = await one.call_tools(session, ("question", {"questions": asked}))
        (batch,) = await one.pending_questions()
        assert [item.type for item in batch.questions] == [item["type"] for item in asked]
        assert len({item.id for item in batch.questions}) == 5
        assert [choice.id for choice in batch.questions[2].choices] == ["pg", "my"]
        assert batch.confirm_title
        given = answers(
            batch,
            {"yes": False, "notes": {"_question": "really not"}},
            {"selected_ids": ["pg"], "notes": {"pg": "version 17"}},
            {"selected_ids": ["pg", "my"], "fill_in_text": "and SQLite"},
            {"fill_in_text": "Ada"},
            {},
        )
        assert await answer(one, given)
        items = await one.events_until_end(run)
        (notice,) = notices(items)
        assert (notice.batch_id, notice.by, notice.withdrawn) == (batch.id, one.client.client_id, False)
        (result,) = await one.results(session)
        assert not result.is_error
        assert result.content.split("\n\n") == [
            "Q1: Go on?\nUser answered: no\nNote: really not",
            'Q2: Which database?\nUser selected: ["pg"]\nNote on pg: version 17',
            'Q3: Which of these?\nUser selected: ["pg", "my"]\nUser provided: and SQLite',
            "Q4: A name?\nUser provided: Ada",
            "Q5: Anything else?\nUser skipped this question",
        ]
        assert await one.finish_reasons(session) == ["tool_use", "end_turn"]


async def test_questions_may_be_json_text() -> None:
    async with approval_client() as one:
        session = await one.session()
        text = '[{"type": "yes_no", "question": "Go on?", "description": "d"}]'
        run = await one.call_tools(session, ("question", {"questions": text}))
        (batch,) = await one.pending_questions()
        assert (batch.confirm_title, batch.questions[0].question) == ("", "Go on?")
        assert await answer(one, answers(batch, {"yes": True}, batch_id=batch.id))
        await one.events_until_end(run)


async def test_c58_an_answer_resolves_its_own_batch_and_no_other() -> None:
    """C-58: two batches are open; a late answer to the first does not touch the second."""
    async with approval_client() as one:
        first, second = await one.session(), await one.session()
        one_run = await one.call_tools(first, ("question", {"questions": [question("One?")]}))
        (a,) = await one.pending_questions()
        two_run = await one.call_tools(second, ("question", {"questions": [question("Two?")]}))
        _, b = await one.pending_questions(2)
        assert not await answer(one, answers(a, {"yes": True}, batch_id=b.id))
        assert await answer(one, answers(a, {"yes": True}))
        assert not await answer(one, answers(a, {"yes": False}))
        assert await one.pending_questions(1) == (b,)
        assert not (await one.client.cancel_question(one.workspace, a.id)).resolved
        assert await answer(one, answers(b, {"yes": False}, batch_id=b.id))
        await one.events_until_end(one_run)
        await one.events_until_end(two_run)
        assert (await one.results(first))[0].content == "Q1: One?\nUser answered: yes"
        assert (await one.results(second))[0].content == "Q1: Two?\nUser answered: no"


async def test_c58_parallel_answers_and_cancels_are_all_answered() -> None:
    """C-58: many at the same moment, right, wrong and late: exactly one resolves each batch, none is a 5xx."""
    async with approval_client() as one:
        runs = []
        for number in range(4):
            session = await one.session()
            runs.append(await one.call_tools(session, ("question", {"questions": [question(f"{number}?")]})))
        batches = await one.pending_questions(4)
        calls = []
        for batch in batches:
            calls += [one.client.answer_question(one.workspace, answers(batch, {"yes": True})) for _ in range(5)]
            calls += [one.client.cancel_question(one.workspace, batch.id) for _ in range(5)]
        replies = await asyncio.gather(*calls)
        for place in range(4):
            assert sum(reply.resolved for reply in replies[10 * place : 10 * place + 10]) == 1
        for run in runs:
            await one.events_until_end(run)
        assert await one.pending_questions(0) == ()


async def test_a_cancelled_question_stops_the_turn() -> None:
    async with approval_client() as one:
        session = await one.session()
        run = await one.call_tools(session, ("question", {"questions": [question("Go on?")]}))
        await one.pending_questions()
        assert (await one.client.cancel_question(one.workspace)).resolved
        items = await one.events_until_end(run)
        assert notices(items)[0].cancelled
        (result,) = await one.results(session)
        assert (result.content, result.is_error) == ("User cancelled this question", True)
        assert await one.finish_reasons(session) == ["end_turn"]


async def test_second_cancel_without_id_cancels_nothing() -> None:
    """A user who cancels the visible form does not cancel the one that follows it."""
    async with approval_client() as one:
        sessions = [await one.session() for _ in range(2)]
        runs = [await one.call_tools(session, ("question", {"questions": [question("?")]})) for session in sessions]
        await one.pending_questions(2)
        assert (await one.client.cancel_question(one.workspace)).resolved
        assert not (await one.client.cancel_question(one.workspace)).resolved
        (left,) = await one.pending_questions(1)
        assert (await one.client.cancel_question(one.workspace, left.id)).resolved
        for run in runs:
            await one.events_until_end(run)


async def test_c47_questions_end_with_their_run() -> None:
    """C-47: listed for late clients; a cancel of the run closes them for all, and a later answer is ignored."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.call_tools(session, ("question", {"questions": [question("Go on?")]}))
        (batch,) = await one.pending_questions()
        late = await one.server.client()
        assert [item["id"] for item in (await late.snapshot(one.workspace)).questions] == [batch.id]
        async with late.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, QuestionRequestEvent))
        await one.client.cancel_session(one.workspace, session)
        items = await one.events_until_end(run)
        assert [(item.batch_id, item.withdrawn) for item in notices(items)] == [(batch.id, True)]
        assert not await answer(one, answers(batch, {"yes": True}))
        assert (await late.snapshot(one.workspace)).questions == ()


async def test_questions_without_interactive_client_return_reason_to_model() -> None:
    async with approval_client() as one:
        session = await one.session()
        await one.events_until_end(
            await one.call_tools(session, ("question", {"questions": [question("?")]}), interactive=False)
        )
        (result,) = await one.results(session)
        assert result.is_error
        assert "Questions cannot be answered" in result.content
        assert await one.finish_reasons(session) == ["tool_use", "end_turn"]


async def test_invalid_answers_are_400_and_change_nothing() -> None:
    wrong: list[dict[str, Any]] = [
        {"selected_ids": ["nosuch"]},
        {"selected_ids": ["pg", "my"]},
        {"selected_ids": ["pg", "pg"]},
        {"yes": True},
        {"selected_ids": "pg"},
        {"notes": {"pg": 5}},
    ]
    async with approval_client() as one:
        session = await one.session()
        asked = question("Which?", "single_choice", choices=CHOICES)
        run = await one.call_tools(session, ("question", {"questions": [asked]}))
        (batch,) = await one.pending_questions()
        for given in wrong:
            with pytest.raises(ServerProblem) as caught:
                await answer(one, answers(batch, given))
            assert caught.value.status == 400, given
            assert await one.pending_questions() == (batch,)
        assert await answer(one, answers(batch, {"selected_ids": ["my"]}))
        await one.events_until_end(run)


BAD: list[tuple[list[dict[str, object]], str]] = [
    ([], "1 to 5"),
    ([question("?")] * 6, "1 to 5"),
    ([question("")], "question is required"),
    ([question("x" * 241)], "240 bytes"),
    ([question("é" * 121)], "240 bytes"),
    ([question("?", description="")], "description is required"),
    ([question("?", description="x" * 601)], "600 bytes"),
    ([question("?", label="x" * 41)], "label"),
    ([question("?", choices=CHOICES)], "takes no choices"),
    ([question("?", "free_text", choices=CHOICES)], "takes no choices"),
    ([question("?", "single_choice")], "2 to 5"),
    ([question("?", "multi_choice", choices=CHOICES[:1])], "2 to 5"),
    ([question("?", "single_choice", choices=[{"id": str(n), "label": "x"} for n in range(6)])], "2 to 5"),
    ([question("?", "single_choice", choices=[CHOICES[0]] * 2)], "a unique id"),
    ([question("?", "single_choice", choices=[{"id": "", "label": "x"}, CHOICES[0]])], "a unique id"),
    ([question("?", "single_choice", choices=[{"id": "a", "label": ""}, CHOICES[0]])], "label"),
    ([question("?", "single_choice", choices=[{"id": "a", "label": "x" * 201}, CHOICES[0]])], "200 bytes"),
    ([question("?", "essay")], "Wrong arguments"),
]


async def test_bad_questions_are_explained_to_the_model() -> None:
    async with approval_client() as one:
        session = await one.session()
        for questions, wrong in BAD:
            await one.events_until_end(await one.call_tools(session, ("question", {"questions": questions})))
            result = (await one.results(session))[-1]
            assert result.is_error
            assert wrong in result.content
        assert await one.finish_reasons(session) == ["tool_use", "end_turn"] * len(BAD)
