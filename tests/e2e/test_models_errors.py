"""Errors on the way to a model, and their presentation to the user."""

import asyncio
import signal
from collections.abc import Sequence

import msgspec
import pytest

from e2e.cli_environment import cli_environment, model_requests
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.domain.events import AgentEvent, MessageEvent
from holdfast.domain.messages import text_of
from holdfast.testing.gates import Gate
from model_server.script import Reply, Say
from model_server.server import RecordedRequest
from server.helpers import RawStream


def error_reply(status: int, message: str, *, code: str = "", headers: Sequence[tuple[str, str]] = ()) -> Reply:
    body = {"error": {"message": message, "type": code or "error", "code": code}}
    return Reply(status=status, headers=tuple(headers), body=msgspec.json.encode(body))


def notices(seen: Sequence[StreamEvent]) -> list[tuple[str, str]]:
    reported = [item.event.change.object for item in seen if isinstance(item.event, AgentEvent)]
    return [(notice.type, notice.error) for notice in reported]


OK = Reply((Say(("All ", "is well.")),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('[models.large]\nprovider = "locl"\nmodel = "big"', ("There is no provider locl", "local")),
        ('[models.large]\nprovider = "local"\nmodel = "bgi"', ("There is no model bgi", "big")),
        ('[models.large]\nprovider = "openai"\nmodel = "gpt-5"', ("OPENAI_API_KEY", "holdfast login openai")),
    ],
)
async def test_1_unusable_model_is_refused_at_once(change: str, words: tuple[str, ...]) -> None:
    """With similar names, the variable and the command; nothing is stored, and other parts keep working."""
    async with cli_environment() as cli_env:
        rest = cli_env.settings.read_text().partition("[providers.local]")[2]
        cli_env.settings.write_text(f"{change}\n[providers.local]{rest}")
        done = await cli_env.call("run", "hi")
        assert (done.code, done.out) == (4, "")
        assert all(word in done.err for word in words), done.err
        place = await cli_env.open_workspace()
        with pytest.raises(ServerProblem) as caught:
            await place.send("hi")
        assert caught.value.status == 400
        assert await place.client.list_runs(place.id) == ()
        info = await place.client.agent_info(place.id)
        assert not info.is_ready
        assert (await place.client.get_config(place.id))["providers"]["local"]
        cli_env.write()
        assert (await place.send_and_wait("hi"))[0].text == "Hello."
        assert (await place.client.agent_info(place.id)).is_ready


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(body=b"<!doctype html><title>Welcome</title>", headers=(("content-type", "text/html"),)), ("base_url",)),
        (Reply(status=404, body=b'{"detail":"Not Found"}'), ("base_url", "/v1")),
        (error_reply(429, "You exceeded your current quota", code="insufficient_quota"), ("quota", "billing")),
        (error_reply(403, "Your key a-walking-key is not allowed here: invalid api key"), ("holdfast login local",)),
    ],
)
async def test_2_refusal_of_provider_is_explained_and_not_retried(reply: Reply, words: tuple[str, ...]) -> None:
    async with cli_environment([reply]) as cli_env:
        done = await cli_env.call("run", "hi")
        assert done.code == 1
        assert all(word in done.err for word in words), done.err
        assert "a-walking-key" not in done.err
        assert len(model_requests(cli_env.provider)) == 1


async def test_3_unreachable_provider() -> None:
    """A wrong address on this machine: the run fails at once, and its error names the address."""
    async with cli_environment() as cli_env:
        cli_env.settings.write_text(cli_env.settings.read_text().replace(cli_env.provider.root, "http://127.0.0.1:9"))
        place = await cli_env.open_workspace()
        end, seen = await place.send_and_wait("hi")
        assert (end.outcome, end.model_unreachable) == ("failed", True)
        assert "127.0.0.1:9" in end.error
        assert "retrying" not in [kind for kind, _ in notices(seen)]


async def test_4_busy_provider_is_retried_and_partial_response_withdrawn() -> None:
    """429 with `retry-after`; then a truncated response. Both forms of the stream withdraw its text."""
    cut = Reply((Say(("Never ", "mind ", "this ")),), cut_after=3)
    busy = error_reply(429, "slow down", headers=(("retry-after", "0"),))
    replies = [busy, cut, OK]

    def script(asked: RecordedRequest) -> Reply:
        return replies.pop(0) if "tools" in asked.json and len(replies) > 1 else OK

    async with cli_environment(script) as cli_env:
        place = await cli_env.open_workspace()
        whole = await place.whole_stream()
        end, seen = await place.send_and_wait("hi")
        assert (end.text, end.error) == ("All is well.", "")
        assert [kind for kind, _ in notices(seen) if kind == "retrying"] == ["retrying"] * 2
        updates = [item.event.change.object for item in seen if isinstance(item.event, MessageEvent)]
        answers = [message for message in updates if message.role == "assistant"]
        assert len({message.id for message in answers}) == 1
        assert any(not text_of(message) for message in answers[1:]), "what was said first is taken back"
        await whole.until(lambda event: b'"run_complete"' in event.data)
        assert whole_texts(whole)[-1] == "All is well."
        whole.close()
        assert len(model_requests(cli_env.provider)) == 3


async def test_4_withdrawn_response_is_streamed_again() -> None:
    """C-30: a pipe cannot be rewritten; the next attempt is printed in full, on its own line."""
    cut = Reply((Say(("Never ", "mind this")),), cut_after=2)
    replies = [cut, OK]

    def script(asked: RecordedRequest) -> Reply:
        return replies.pop(0) if "tools" in asked.json and len(replies) > 1 else OK

    async with cli_environment(script) as cli_env:
        done = await cli_env.call("run", "--stream", "hi")
        first, second = done.out.splitlines()
        assert (done.code, second) == (0, "All is well.")
        assert first
        assert "Never mind this".startswith(first)
        assert "Trying again" in done.err


def whole_texts(stream: RawStream) -> list[str]:
    found = []
    for event in stream.events:
        reported = msgspec.json.decode(event.data)
        if reported["type"] == "message" and reported["payload"]["payload"]["role"] == "assistant":
            parts = reported["payload"]["payload"]["parts"]
            found.append("".join(part["data"]["text"] for part in parts if part["type"] == "text"))
    return found


@pytest.mark.parametrize("source", ["command", "login", "file"])
async def test_5_replaced_key_is_read_again(source: str) -> None:
    """401: the source of the key is read once more during the run."""
    keys = {"old"}

    def script(asked: RecordedRequest) -> Reply:
        is_known = asked.headers["authorization"].removeprefix("Bearer ") in keys
        return OK if is_known else error_reply(401, "Incorrect API key provided")

    async with cli_environment(script) as cli_env:
        cli_env.write()
        key = cli_env.root / "key"
        key.write_text("old\n")
        line = {"command": f'api_key = "$(cat {key})"', "login": "", "file": 'api_key = "old"'}[source]
        written = cli_env.settings.read_text().replace('api_key = "a-walking-key"', line)
        cli_env.settings.write_text(written)
        if source == "login":
            await cli_env.stdout_of("login", "local", stdin="old\n")
        place = await cli_env.open_workspace()
        assert (await place.send_and_wait("one"))[0].text == "All is well."
        keys.clear()
        keys.add("new")
        if source == "command":
            key.write_text("new\n")
        elif source == "login":
            await cli_env.stdout_of("login", "local", stdin="new\n")
        else:
            cli_env.settings.write_text(written.replace('"old"', '"new"'))
        end, seen = await place.send_and_wait("two")
        assert (end.text, end.error) == ("All is well.", "")
        assert not notices([item for item in seen if notices([item]) and notices([item])[0][0] == "re_authenticate"])


async def test_6_invalid_key_requests_new_one() -> None:
    async with cli_environment([error_reply(401, "Incorrect API key provided: a-walking-key")]) as cli_env:
        place = await cli_env.open_workspace()
        end, seen = await place.send_and_wait("hi")
        assert "holdfast login local" in end.error
        assert "a-walking-key" not in end.error
        assert "re_authenticate" in [kind for kind, _ in notices(seen)]
        assert len(model_requests(cli_env.provider)) == 1


async def test_7_a_conversation_that_is_too_long_is_summarised_once() -> None:
    """Then the prompt is sent again; if it still does not fit, that is reported."""
    overflow = error_reply(400, "This model's maximum context length is 8192 tokens", code="context_length_exceeded")
    fits = ["all"]

    def script(asked: RecordedRequest) -> Reply:
        if "tools" not in asked.json:
            return Reply((Say(("Summary of it all.",)),))
        is_short = b"Summary of it all." in asked.body
        return OK if fits[0] == "all" or (fits[0] == "short" and is_short) else overflow

    async with cli_environment(script) as cli_env:
        place = await cli_env.open_workspace()
        assert (await place.send_and_wait("one"))[0].text == "All is well."
        fits[0] = "short"
        end, _ = await place.send_and_wait("two")
        assert (end.text, end.error) == ("All is well.", "")
        assert any(message.is_summary_message for message in await place.client.list_messages(place.id, place.session))
        fits[0] = "nothing"
        end, _ = await place.send_and_wait("three")
        assert "exceeds the context window" in end.error


@pytest.mark.parametrize("moment", ["before the head", "in the middle"])
@pytest.mark.parametrize("canceller", ["cancel", "SIGTERM"])
async def test_8_a_cancel_closes_the_connection(moment: str, canceller: str) -> None:
    """The provider sees it, before the first word and during a pause. So does the end of the server."""
    gate = Gate()

    def script(asked: RecordedRequest) -> Reply:
        if "tools" not in asked.json:
            return OK
        return Reply(before_head=gate) if moment == "before the head" else Reply((Say(("One ",)), gate, Say(("two",))))

    async with cli_environment(script) as cli_env:
        place = await cli_env.open_workspace()
        run = await place.send("hi")
        async with asyncio.timeout(20):
            number = 0
            while "tools" not in (asked := await cli_env.provider.request(number)).body.decode():
                number += 1
            if canceller == "cancel":
                await place.client.cancel_run(place.id, run)
            else:
                await cli_env.stop(signal.SIGTERM)
            await asked.hung_up.wait()


async def test_9_invalid_file_changes_nothing_and_is_explained() -> None:
    """File, line, key and the expected type: over the wire, by the command, in the log."""
    async with cli_environment() as cli_env:
        place = await cli_env.open_workspace()
        assert (await place.send_and_wait("one"))[0].text == "Hello."
        whole = cli_env.settings.read_text()
        cli_env.settings.write_text(whole.replace("context_window = 100000", 'context_window = "many"'))
        line = whole.split("\n").index("context_window = 100000") + 1
        assert (await place.send_and_wait("two"))[0].text == "Hello."
        (problem,) = await place.client.config_problems(place.id)
        assert (problem.severity, problem.file, problem.line) == ("error", str(cli_env.settings), line)
        assert problem.key == "providers.local.models[0].context_window"
        assert "number" in problem.text
        assert (await place.client.agent_info(place.id)).model.context_window == 100_000
        done = await cli_env.call("config", "check")
        assert done.code == 1
        assert f"{cli_env.settings}:{line}" in done.out + done.err
        assert cli_env.log.count(f"{cli_env.settings}:{line}: providers.local.models[0].context_window") == 1

        cli_env.settings.write_text("[models.large\n")
        assert (await place.send_and_wait("three"))[0].text == "Hello."
        (problem,) = await place.client.config_problems(place.id)
        assert problem.line == 1
        cli_env.settings.write_text(whole)
        assert await place.client.config_problems(place.id) == ()
