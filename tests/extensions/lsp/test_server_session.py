"""Messages between a workspace and a running language server: files, registrations, requests of both sides."""

from pathlib import Path
from typing import Any

import pytest

from extensions.lsp.in_memory_lsp import SILENT, LspFixture, Program, now, run_scenario
from extensions.lsp.test_server_launch import ERROR, READY
from holdfast.domain.extensions import NEVER
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE, ON_REQUEST
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]
WATCHED = "workspace/didChangeWatchedFiles"


async def _ready(fixture: LspFixture) -> str:
    await fixture.touch_file()
    await fixture.wait_for_state(READY)
    await elapse(0.1)
    return str(fixture.file)


async def _send_request(fixture: LspFixture, method: str, params: object) -> Json:
    """Send a request of the server. Returns the response of the workspace."""
    number = 1_000 + len(fixture.last.received)
    fixture.last.send(id=number, method=method, params=params)
    await fixture.wait_until(
        lambda: [item for item in fixture.last.received if item.get("id") == number and "method" not in item]
    )
    return next(item for item in fixture.last.received if item.get("id") == number and "method" not in item)


def _registration(method: str, options: object = None, id: str = "1") -> Json:
    return {"id": id, "method": method, "registerOptions": options}


# Files


def test_removed_file_is_closed_and_has_no_diagnostics(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        path = await _ready(fixture)
        other = fixture.place.project / "b.txt"
        other.write_text("two\n")
        for name in (path, str(other)):
            asking = start(fixture.manager.request_diagnostics(name, AFTER_CHANGE))
            await fixture.wait_until(lambda name=name: fixture.manager.servers[0].session.documents.open.get(name))  # type: ignore[union-attr, misc]
            fixture.last.publish(name, "wrong")
            await asking
        assert fixture.info().diagnostic_count == 2
        other.unlink()
        await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        await elapse(1)
        assert fixture.last.params("textDocument/didClose") == [{"textDocument": {"uri": file_uri(str(other))}}]
        assert fixture.info().diagnostic_count == 1
        assert fixture.manager.diagnostics(path)[1] == []

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("version", "counts"), [(None, True), (1, False), (2, True), (3, True)])
def test_only_diagnostics_of_current_version_are_an_answer(tmp_path: Path, version: int | None, counts: bool) -> None:
    async def scenario(fixture: LspFixture) -> None:
        path = await _ready(fixture)
        asking = start(fixture.manager.request_diagnostics(path, AFTER_CHANGE))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/didOpen"))
        fixture.last.publish(path, version=1)
        await asking
        await elapse(10)
        fixture.file.write_text("changed")
        began = now()
        asking = start(fixture.manager.request_diagnostics(path, AFTER_CHANGE))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/didChange"))
        fixture.last.publish(path, "wrong", version=version)
        assert list((await asking).values()) == [counts]
        assert now() - began == pytest.approx(0.3 if counts else 1.0, abs=0.05)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(
    ("sync", "saved"),
    [
        (1, []),
        ({"change": 1}, []),
        ({"change": 1, "save": True}, [{}]),
        ({"change": 1, "save": {"includeText": True}}, [{"text": "changed"}]),
        ({"change": 1, "save": {}}, [{}]),
    ],
)
def test_saves_are_sent_to_servers_that_want_them(tmp_path: Path, sync: object, saved: list[Json]) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.capabilities = {"textDocumentSync": sync}
        path = await _ready(fixture)
        fixture.file.write_text("changed")
        await fixture.manager.request_diagnostics(path, ON_REQUEST)
        published = [{"textDocument": {"uri": file_uri(path)}, **more} for more in saved]
        assert fixture.last.params("textDocument/didSave") == published

    run_scenario(tmp_path, scenario)


def test_additional_folder_is_sent_once(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.capabilities = {"workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}}}
        files = []
        for name in ("one", "two"):
            folder = fixture.place.project / name
            folder.mkdir()
            (folder / "mark.json").write_text("{}")
            (folder / "b.txt").write_text("x")
            files.append(str(folder / "b.txt"))
        for _ in range(2):
            for path in files:
                await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        one, two = (file_uri(str(Path(path).parent)) for path in files)
        (published,) = fixture.last.params("workspace/didChangeWorkspaceFolders")
        assert [item["uri"] for item in published["event"]["added"]] == [two]
        folders = await _send_request(fixture, "workspace/workspaceFolders", None)
        assert [item["uri"] for item in folders["result"]] == [one, two]
        assert len(fixture.programs) == 1

    run_scenario(tmp_path, scenario, root_markers=["mark.json"])


# Registrations


def test_registration_lasts_until_unregistered(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        path = await _ready(fixture)
        watching = _registration(WATCHED, {"watchers": [{"globPattern": "*.cfg"}]}, "w")
        pulling = _registration("textDocument/diagnostic", {"interFileDependencies": True}, "d")
        fixture.methods["textDocument/diagnostic"] = lambda *_: {"result": {"kind": "full", "items": []}}
        counts = []
        for method in ("client/registerCapability", "client/unregisterCapability"):
            key = "registrations" if method.startswith("client/reg") else "unregisterations"
            assert "error" not in await _send_request(fixture, method, {key: [watching, pulling]})
            (fixture.place.project / f"{key}.cfg").write_text("x")
            fixture.file.write_text(key)
            await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
            counts.append((fixture.last.count(WATCHED), fixture.last.count("textDocument/diagnostic")))
        assert counts == [(1, 1), (1, 1)]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(
    ("provider", "others"),
    [({"interFileDependencies": True}, 1), ({"interFileDependencies": False}, 0), ({}, 0)],
)
def test_related_open_files_are_pulled_if_files_depend_on_each_other(
    tmp_path: Path, provider: Json, others: int
) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.capabilities = {"diagnosticProvider": provider}
        fixture.methods["textDocument/diagnostic"] = lambda *_: {"result": {"kind": "full", "items": []}}
        path = await _ready(fixture)
        other = fixture.place.project / "b.txt"
        other.write_text("x")
        await fixture.manager.request_diagnostics(str(other), AFTER_CHANGE)
        before = fixture.last.count("textDocument/diagnostic")
        fixture.file.write_text("changed")
        await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        await elapse(1)
        asked = [item["textDocument"]["uri"] for item in fixture.last.params("textDocument/diagnostic")[before:]]
        assert asked == [file_uri(path), file_uri(str(other))][: 1 + others]

    run_scenario(tmp_path, scenario)


def test_pull_request_is_cancelled_with_its_waiter(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.capabilities = {"diagnosticProvider": {}}
        fixture.methods["textDocument/diagnostic"] = lambda *_: SILENT
        path = await _ready(fixture)
        asking = start(fixture.manager.request_diagnostics(path, AFTER_CHANGE))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/diagnostic"))
        asking.cancel()
        await elapse(0.1)
        (asked,) = (item for item in fixture.last.received if item.get("method") == "textDocument/diagnostic")
        assert fixture.last.params("$/cancelRequest") == [{"id": asked["id"]}]

    run_scenario(tmp_path, scenario)


# Requests of the server


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("workspace/applyEdit", {"applied": False, "failureReason": "Files are changed by tools only."}),
        ("window/showDocument", {"success": False}),
        ("window/workDoneProgress/create", None),
        ("window/showMessageRequest", None),
        ("workspace/diagnostic/refresh", None),
    ],
)
def test_requests_of_server_are_answered(tmp_path: Path, method: str, result: object) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await _ready(fixture)
        answer = await _send_request(fixture, method, {"edit": {}, "uri": "x", "token": 1, "message": "m"})
        assert answer == {"jsonrpc": "2.0", "id": answer["id"], "result": result}
        unknown = await _send_request(fixture, "something/else", {})
        assert unknown["error"]["code"] == -32601

    run_scenario(tmp_path, scenario)


# Shutdown


@pytest.mark.parametrize("how", ["stop", "close"])
def test_shutdown_request_precedes_kill(tmp_path: Path, how: str) -> None:
    async def scenario(fixture: LspFixture) -> None:
        output: list[str] = []

        def receive(program: Program, message: Json) -> object:
            output.append(message["method"])
            return {"result": None}

        fixture.methods["shutdown"] = receive
        await _ready(fixture)
        assert fixture.info().connected_at != NEVER
        program = fixture.last
        if how == "stop":
            fixture.manager.stop()
            await elapse(1)
            assert fixture.info().connected_at == NEVER
        else:
            await fixture.manager.close()
        assert [item["method"] for item in program.received if item.get("method") in ("shutdown", "exit")] == [
            "shutdown",
            "exit",
        ]
        assert program.is_closed

    run_scenario(tmp_path, scenario)


def test_failed_server_is_not_retried_when_no_longer_needed(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = lambda *_: {"error": {"code": 1, "message": "no"}}
        await fixture.touch_file()
        await fixture.wait_for_state(ERROR)
        await fixture.manager.close()
        await elapse(120)
        assert len(fixture.programs) == 1

    run_scenario(tmp_path, scenario)
