"""Steps of handlers whose order, arguments or release no response shows, recorded by fakes of what they call."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.domain.errors import NotFound
from holdfast.domain.files import ReadMark
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message
from holdfast.domain.store_operations import MarkRead
from holdfast.protocol.bodies import AgentMessage
from holdfast.server.http.application import _read, _without_nulls
from holdfast.server.http.request import Request
from holdfast.server.routes import files, sessions, workspaces
from holdfast.workspace.files.safe_open import locate

SESSION = SessionId("s")


class Steps:
    """Records calls in order. Each attribute is a function with a prepared result."""

    def __init__(self, **results: object) -> None:
        self.done: list[tuple[object, ...]] = []
        self._results = results

    def sync(self, name: str) -> Any:  # noqa: ANN401 - a function of any signature
        def call(*given: object, **named: object) -> object:
            self.done.append((name, *given, *named.items()))
            return self._results.get(name)

        return call

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a function of any signature
        async def call(*given: object, **named: object) -> object:
            return self.sync(name)(*given, **named)

        return call


def request(**parts: object) -> Request:
    return cast(Request, SimpleNamespace(**parts))


async def test_steps_of_a_deletion() -> None:
    """The jobs end before their output is removed, and the contents leave the memory at last."""
    steps = Steps(messages=[Message((), msgspec.convert("m", str), "user", SESSION, "", "", 0, 0)])  # type: ignore[arg-type]

    async def delete(session: SessionId, clean_up: Any) -> None:  # noqa: ANN401
        steps.done.append(("delete", session))
        await clean_up((SESSION, SessionId("child")))

    handle = SimpleNamespace(
        id="w",
        services=SimpleNamespace(
            jobs=SimpleNamespace(end_session=steps.end_session),
            processes=SimpleNamespace(remove_output=steps.sync("remove_output")),
        ),
        is_local=True,
        workspace=SimpleNamespace(ledger=SimpleNamespace(messages=steps.messages)),
        owned=SimpleNamespace(
            sessions=SimpleNamespace(delete=delete),
            ledger=SimpleNamespace(messages=steps.messages),
            approvals=SimpleNamespace(forget_sessions=steps.sync("forget_sessions")),
        ),
        frame_cache=SimpleNamespace(clear=steps.sync("clear")),
    )
    await sessions.delete_session(request(handle=handle, session=SESSION))
    each = [[("end_session", name), ("messages", "w", name), ("remove_output", name, ())] for name in ("s", "child")]
    ends = [("forget_sessions", ("s", "child")), ("clear",)]
    assert steps.done == [("delete", SESSION), *each[0], *each[1], *ends]


async def test_record_of_a_read_file_is_not_synced(tmp_path: Path) -> None:
    """A lost mark costs one more view of the file."""
    steps = Steps(session=SimpleNamespace(id=SESSION))
    top = str(tmp_path)
    path = (await asyncio.to_thread(locate, top, "a")).path
    workspace = SimpleNamespace(
        id="w", path=top, clock=SimpleNamespace(now_ms=lambda: 7), recorder=SimpleNamespace(put=steps.put)
    )
    body = SimpleNamespace(session_id=SESSION, path="a")
    await sessions.mark_read(
        request(workspace=workspace, owned=workspace, body=body, ledger=steps, session=SessionId("other"))
    )
    mark = MarkRead(ReadMark(SESSION, path, 7))
    assert steps.done == [("session", "w", SESSION), ("put", mark, ("sync", False))]


async def test_listed_providers_are_those_that_can_be_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or, in a server with a fixed model, those of the configuration."""

    async def views() -> tuple[AgentMessage, ...]:
        return (AgentMessage(SESSION, "view"),)

    async def config_of(_: object) -> dict[str, Any]:
        return {"providers": {"p": {"id": "p"}, "broken": "text"}}

    monkeypatch.setattr(workspaces, "config_of", config_of)
    choice = SimpleNamespace(providers_view=views)
    asked = request(services=SimpleNamespace(selected_models=choice), handle=None)
    assert await workspaces.list_providers(asked) == [msgspec.to_builtins((await views())[0])]
    asked = request(services=SimpleNamespace(selected_models=None), handle=None)
    assert await workspaces.list_providers(asked) == [{"id": "p"}]


async def test_files_of_a_removed_directory_are_not_found(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    asked = request(workspace=SimpleNamespace(path=str(path)), services=SimpleNamespace(git=None))
    with pytest.raises(NotFound, match="cannot be read"):
        await files.list_files(asked)


def test_null_is_an_absent_key_at_every_depth() -> None:
    value = {"a": None, "b": [None, {"c": None, "d": 0}], "e": {"f": None, "g": ""}}
    assert _without_nulls(value) == {"b": [None, {"d": 0}], "e": {"g": ""}}
    text = '{"session_id": "s", "prompt": "p", "attachments": null, "delivery": null}'
    assert _read(text, AgentMessage) == AgentMessage(SESSION, "p")
    with pytest.raises(msgspec.ValidationError, match="session_id"):
        _read('{"session_id": 1, "prompt": "p"}', AgentMessage)
