"""What is said between a workspace and a language server that runs: files, registrations, questions of either side."""

from pathlib import Path
from typing import Any

import pytest

from extensions.lsp.in_memory import SILENT, Program, Site
from extensions.lsp.test_server_launch import ERROR, READY, now, play
from holdfast.domain.extensions import NEVER
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE, ON_REQUEST
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]
WATCHED = "workspace/didChangeWatchedFiles"


async def _ready(site: Site) -> str:
    await site.want()
    await site.stands(READY)
    await elapse(0.1)
    return str(site.file)


async def _asked(site: Site, method: str, params: object) -> Json:
    """What the workspace answers to a question of the server."""
    number = 1_000 + len(site.last.heard)
    site.last.say(id=number, method=method, params=params)
    await site.until(lambda: [item for item in site.last.heard if item.get("id") == number and "method" not in item])
    return next(item for item in site.last.heard if item.get("id") == number and "method" not in item)


def _registration(method: str, options: object = None, id: str = "1") -> Json:
    return {"id": id, "method": method, "registerOptions": options}


# Files


def test_a_file_that_is_gone_is_closed_and_nothing_is_wrong_with_it(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        path = await _ready(site)
        other = site.place.project / "b.txt"
        other.write_text("two\n")
        for name in (path, str(other)):
            asking = start(site.fleet.request_diagnostics(name, AFTER_CHANGE))
            await site.until(lambda name=name: site.fleet.servers[0].session.documents.open.get(name))  # type: ignore[union-attr, misc]
            site.last.publish(name, "wrong")
            await asking
        assert site.info().diagnostic_count == 2
        other.unlink()
        await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        await elapse(1)
        assert site.last.params("textDocument/didClose") == [{"textDocument": {"uri": file_uri(str(other))}}]
        assert site.info().diagnostic_count == 1
        assert site.fleet.diagnostics(path)[1] == []

    play(tmp_path, story)


@pytest.mark.parametrize(("version", "counts"), [(None, True), (1, False), (2, True), (3, True)])
def test_only_what_is_said_of_the_text_as_it_is_now_is_an_answer(
    tmp_path: Path, version: int | None, counts: bool
) -> None:
    async def story(site: Site) -> None:
        path = await _ready(site)
        asking = start(site.fleet.request_diagnostics(path, AFTER_CHANGE))
        await site.until(lambda: site.last.count("textDocument/didOpen"))
        site.last.publish(path, version=1)
        await asking
        await elapse(10)
        site.file.write_text("changed")
        began = now()
        asking = start(site.fleet.request_diagnostics(path, AFTER_CHANGE))
        await site.until(lambda: site.last.count("textDocument/didChange"))
        site.last.publish(path, "wrong", version=version)
        assert list((await asking).values()) == [counts]
        assert now() - began == pytest.approx(0.3 if counts else 1.0, abs=0.05)

    play(tmp_path, story)


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
def test_saves_are_told_to_those_that_want_to_hear_of_them(tmp_path: Path, sync: object, saved: list[Json]) -> None:
    async def story(site: Site) -> None:
        site.capabilities = {"textDocumentSync": sync}
        path = await _ready(site)
        site.file.write_text("changed")
        await site.fleet.request_diagnostics(path, ON_REQUEST)
        told = [{"textDocument": {"uri": file_uri(path)}, **more} for more in saved]
        assert site.last.params("textDocument/didSave") == told

    play(tmp_path, story)


def test_another_project_of_the_workspace_is_told_once(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.capabilities = {"workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}}}
        files = []
        for name in ("one", "two"):
            folder = site.place.project / name
            folder.mkdir()
            (folder / "mark.json").write_text("{}")
            (folder / "b.txt").write_text("x")
            files.append(str(folder / "b.txt"))
        for _ in range(2):
            for path in files:
                await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        one, two = (file_uri(str(Path(path).parent)) for path in files)
        (told,) = site.last.params("workspace/didChangeWorkspaceFolders")
        assert [item["uri"] for item in told["event"]["added"]] == [two]
        folders = await _asked(site, "workspace/workspaceFolders", None)
        assert [item["uri"] for item in folders["result"]] == [one, two]
        assert len(site.programs) == 1

    play(tmp_path, story, root_markers=["mark.json"])


# Registrations


def test_what_was_registered_holds_until_it_is_taken_back(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        path = await _ready(site)
        watching = _registration(WATCHED, {"watchers": [{"globPattern": "*.cfg"}]}, "w")
        pulling = _registration("textDocument/diagnostic", {"interFileDependencies": True}, "d")
        site.methods["textDocument/diagnostic"] = lambda *_: {"result": {"kind": "full", "items": []}}
        counts = []
        for method in ("client/registerCapability", "client/unregisterCapability"):
            key = "registrations" if method.startswith("client/reg") else "unregisterations"
            assert "error" not in await _asked(site, method, {key: [watching, pulling]})
            (site.place.project / f"{key}.cfg").write_text("x")
            site.file.write_text(key)
            await site.fleet.request_diagnostics(path, AFTER_CHANGE)
            counts.append((site.last.count(WATCHED), site.last.count("textDocument/diagnostic")))
        assert counts == [(1, 1), (1, 1)]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("provider", "others"),
    [({"interFileDependencies": True}, 1), ({"interFileDependencies": False}, 0), ({}, 0)],
)
def test_other_open_files_are_asked_about_where_files_depend_on_each_other(
    tmp_path: Path, provider: Json, others: int
) -> None:
    async def story(site: Site) -> None:
        site.capabilities = {"diagnosticProvider": provider}
        site.methods["textDocument/diagnostic"] = lambda *_: {"result": {"kind": "full", "items": []}}
        path = await _ready(site)
        other = site.place.project / "b.txt"
        other.write_text("x")
        await site.fleet.request_diagnostics(str(other), AFTER_CHANGE)
        before = site.last.count("textDocument/diagnostic")
        site.file.write_text("changed")
        await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        await elapse(1)
        asked = [item["textDocument"]["uri"] for item in site.last.params("textDocument/diagnostic")[before:]]
        assert asked == [file_uri(path), file_uri(str(other))][: 1 + others]

    play(tmp_path, story)


def test_a_question_about_a_file_is_taken_back_with_whoever_waits_for_it(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.capabilities = {"diagnosticProvider": {}}
        site.methods["textDocument/diagnostic"] = lambda *_: SILENT
        path = await _ready(site)
        asking = start(site.fleet.request_diagnostics(path, AFTER_CHANGE))
        await site.until(lambda: site.last.count("textDocument/diagnostic"))
        asking.cancel()
        await elapse(0.1)
        (asked,) = (item for item in site.last.heard if item.get("method") == "textDocument/diagnostic")
        assert site.last.params("$/cancelRequest") == [{"id": asked["id"]}]

    play(tmp_path, story)


# Questions of the server


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
def test_what_it_asks_is_answered(tmp_path: Path, method: str, result: object) -> None:
    async def story(site: Site) -> None:
        await _ready(site)
        answer = await _asked(site, method, {"edit": {}, "uri": "x", "token": 1, "message": "m"})
        assert answer == {"jsonrpc": "2.0", "id": answer["id"], "result": result}
        unknown = await _asked(site, "something/else", {})
        assert unknown["error"]["code"] == -32601

    play(tmp_path, story)


# The end


@pytest.mark.parametrize("how", ["stop", "close"])
def test_it_is_asked_to_end_before_it_is_killed(tmp_path: Path, how: str) -> None:
    async def story(site: Site) -> None:
        said: list[str] = []

        def hear(program: Program, message: Json) -> object:
            said.append(message["method"])
            return {"result": None}

        site.methods["shutdown"] = hear
        await _ready(site)
        assert site.info().connected_at != NEVER
        program = site.last
        if how == "stop":
            site.fleet.stop()
            await elapse(1)
            assert site.info().connected_at == NEVER
        else:
            await site.fleet.close()
        assert [item["method"] for item in program.heard if item.get("method") in ("shutdown", "exit")] == [
            "shutdown",
            "exit",
        ]
        assert program.is_closed

    play(tmp_path, story)


def test_one_that_failed_is_not_tried_again_when_it_is_not_needed_any_more(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = lambda *_: {"error": {"code": 1, "message": "no"}}
        await site.want()
        await site.stands(ERROR)
        await site.fleet.close()
        await elapse(120)
        assert len(site.programs) == 1

    play(tmp_path, story)
