"""The contract of documents, as files and in PostgreSQL, and what only the shared ones can meet."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.atomic_files import FILES
from holdfast.config.saved_settings import ConfigStore
from holdfast.domain.documents import STORE_PREFIX, Documents
from holdfast.domain.errors import BadRequest, StorageUnavailable, StorageUnknown
from holdfast.testing.gates import start
from shared_documents import DocumentNodes, shared_nodes

NAME = f"{STORE_PREFIX}settings"


@pytest.fixture
def nodes() -> Iterator[DocumentNodes]:
    with shared_nodes() as made:
        yield made


@pytest.fixture(params=["files", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Documents, Documents]:
    """A name, and the documents of two processes or nodes."""
    if request.param == "files":
        return str(tmp_path / "settings"), FILES, FILES
    nodes: DocumentNodes = request.getfixturevalue("nodes")
    return NAME, nodes.node(), nodes.node()


def test_contract_of_documents(pair: tuple[str, Documents, Documents]) -> None:
    name, documents, _ = pair
    assert documents.signature(name) is None
    assert not documents.has_changed(name, None)
    with pytest.raises(FileNotFoundError):
        documents.read(name)
    documents.update(name, lambda present: None)
    assert documents.signature(name) is None
    documents.update(name, lambda present: b"1" if present is None else b"wrong")
    first = documents.signature(name)
    assert documents.read(name) == (b"1", first)
    documents.update(name, lambda present: (present or b"") + b"2")
    assert documents.has_changed(name, first)
    assert documents.read(name)[0] == b"12"

    def refuse(_: bytes | None) -> bytes:
        raise BadRequest("no")

    with pytest.raises(BadRequest):
        documents.update(name, refuse)
    assert documents.read(name)[0] == b"12"


def test_concurrent_changes_are_all_kept(pair: tuple[str, Documents, Documents]) -> None:
    name, *both = pair
    began = threading.Barrier(8)

    def add(number: int) -> None:
        began.wait()
        for turn in range(5):
            ConfigStore(name, name, both[number % 2]).set(0, f"n{number}_{turn}", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    both[0].update(name, lambda present: present)
    assert len(ConfigStore(name, name, both[0]).read_scope(0)) == 40


def test_change_is_seen_by_the_next_read_of_another_node(nodes: DocumentNodes) -> None:
    mine, other = nodes.node(), nodes.node()
    heard: list[int] = []
    other.listeners.append(lambda: heard.append(1))
    mine.on_update = lambda: heard.append(0)
    mine.update(NAME, lambda _: b"new")
    assert heard == [0]
    with pytest.raises(FileNotFoundError):
        other.read(NAME)
    assert nodes.run(other.refresh())
    assert other.read(NAME)[0] == b"new"
    assert not nodes.run(other.refresh())
    assert heard == [0, 1]


def test_change_of_an_outdated_copy_is_made_from_the_newest_content(nodes: DocumentNodes) -> None:
    mine, other = nodes.node(), nodes.node()
    mine.update(NAME, lambda _: b"a")
    other.update(NAME, lambda present: (present or b"") + b"b")
    assert other.read(NAME)[0] == b"ab"
    seen: list[bytes | None] = []

    def keep(present: bytes | None) -> None:
        seen.append(present)

    mine.update(NAME, keep)
    assert seen == [b"a", b"ab"], "nothing to change is decided on the newest content, too"


def test_revisions_of_two_documents_are_read_completely(nodes: DocumentNodes) -> None:
    """A node that has changed one document still reads an earlier change of another one."""
    mine, other = nodes.node(), nodes.node()
    other.update(f"{STORE_PREFIX}first", lambda _: b"1")
    mine.update(f"{STORE_PREFIX}second", lambda _: b"2")
    nodes.run(mine.refresh())
    assert mine.read(f"{STORE_PREFIX}first")[0] == b"1"


@pytest.mark.parametrize("is_stored", [True, False])
def test_unknown_outcome_is_looked_up(
    nodes: DocumentNodes, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    mine, other = nodes.node(), nodes.node()
    write: Callable[..., object] = mine._pool.write

    async def lose_answer(*arguments: object) -> None:
        if is_stored:
            await write(*arguments)  # type: ignore[misc]
        raise StorageUnknown

    monkeypatch.setattr(mine._pool, "write", lose_answer)
    if is_stored:
        mine.update(NAME, lambda _: b"new")
        assert mine.read(NAME)[0] == b"new"
    else:
        with pytest.raises(StorageUnknown):
            mine.update(NAME, lambda _: b"new")
    assert nodes.run(other.refresh()) is is_stored


def test_outage_is_an_error_and_changes_nothing(nodes: DocumentNodes) -> None:
    mine = nodes.node()
    mine.update(NAME, lambda _: b"old")
    mine._pool.terminate()
    with pytest.raises(StorageUnavailable):
        mine.update(NAME, lambda _: b"new")
    assert mine.read(NAME)[0] == b"old"


def test_exclusive_block_excludes_other_nodes_and_sees_the_newest(nodes: DocumentNodes) -> None:
    mine, other = nodes.node(), nodes.node()
    order: list[str] = []

    async def both() -> None:
        async with mine.exclusive("x"):
            order.append("in")
            waiting = start(enter())
            row = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not (await mine._pool.fetch(row))[0][0]:
                pass
            await mine._update(NAME, lambda _: b"new")
            order.append("out")
        await waiting

    async def enter() -> None:
        async with other.exclusive("x"):
            order.append(other.read(NAME)[0].decode())

    nodes.run(both())
    assert order == ["in", "out", "new"]
