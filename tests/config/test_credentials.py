"""Keys and tokens: stored privately, refreshed once."""

import asyncio
import re
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config.credentials import (
    Credentials,
    InvalidKey,
    KeyringFailed,
    SignInRequired,
    Token,
    TokenRefresher,
    system_keyring,
)
from holdfast.config.sealed_documents import KeyFile, SealedDocument, SharedTokens, Unsealable
from holdfast.domain.documents import STORE_PREFIX
from holdfast.domain.errors import BadRequest, Conflict, HoldfastError, NotFound, ProviderError, StorageUnavailable
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.shared_documents import SharedDocuments
from holdfast.testing.gates import start
from postgres_server import new_database
from shared_documents import DocumentNodes, shared_nodes

KEY = "hunter2canaryhunter2"
OFF = {"HOLDFAST_KEYRING": "0"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "config" / "credentials.toml")


class MemoryKeyring:
    """A keyring in memory."""

    def __init__(self, *, works: bool = True) -> None:
        self.kept: dict[str, str] = {}
        self._works = works

    def get(self, provider: str) -> str | None:
        return self.kept.get(provider)

    def put(self, provider: str, key: str) -> None:
        if not self._works:
            raise KeyringFailed
        self.kept[provider] = key

    def remove(self, provider: str) -> None:
        self.kept.pop(provider, None)


def test_stored_key_is_returned(file: str) -> None:
    credentials = Credentials(file, OFF)
    assert credentials.get("openai") is None
    assert credentials.put("openai", KEY) == "file"
    assert credentials.put("a.b", "other") == "file"
    assert Credentials(file, OFF).get("openai") == KEY
    assert credentials.providers() == {"a.b": "file", "openai": "file"}
    assert credentials.remove("openai")
    assert not credentials.remove("openai")
    assert credentials.get("openai") is None
    assert credentials.get("a.b") == "other"


def test_credentials_file_is_private(file: str) -> None:
    Credentials(file, OFF).put("openai", KEY)
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(file).parent.stat().st_mode) == 0o700
    assert [path.name for path in Path(file).parent.iterdir()] == ["credentials.toml"]


def test_change_by_another_process_is_seen(file: str) -> None:
    mine, theirs = Credentials(file, OFF), Credentials(file, OFF)
    mine.put("openai", "one")
    assert theirs.get("openai") == "one"
    mine.put("openai", "two")
    assert theirs.get("openai") == "two"


@pytest.mark.parametrize("key", ["", " ", f"{KEY} x", f"{KEY}\n{KEY}", "sk-ü", "x" * 20_000, "a\x1bb"])
def test_invalid_key_is_refused(file: str, key: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        Credentials(file, OFF).put("openai", key)
    assert KEY not in str(caught.value)
    assert not Path(file).exists()


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 200])
def test_invalid_provider_name_is_refused(file: str, name: str) -> None:
    with pytest.raises(BadRequest, match="one word"):
        Credentials(file, OFF).put(name, KEY)


def test_available_keyring_is_used(file: str) -> None:
    drawer = MemoryKeyring()
    credentials = Credentials(file, OFF, keyring=drawer)
    assert credentials.put("openai", KEY) == "keyring"
    assert KEY not in Path(file).read_text()
    assert credentials.get("openai") == KEY
    assert credentials.providers() == {"openai": "keyring"}
    assert credentials.remove("openai")
    assert drawer.kept == {}


def test_failing_keyring_falls_back_to_the_file(file: str) -> None:
    credentials = Credentials(file, OFF, keyring=MemoryKeyring(works=False))
    assert credentials.put("openai", KEY) == "file"
    assert credentials.get("openai") == KEY


def test_key_moves_to_a_keyring_that_becomes_available(file: str) -> None:
    Credentials(file, OFF).put("openai", KEY)
    Credentials(file, OFF, keyring=MemoryKeyring()).put("openai", "newer")
    assert KEY not in Path(file).read_text()


def test_keyring_can_be_disabled() -> None:
    assert system_keyring(OFF) is None


def test_keyring_is_used_unless_disabled_or_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the value 0 disables it, and only a backend with a priority of 1 or more is usable."""
    backend = SimpleNamespace(priority=1)
    package = SimpleNamespace(get_keyring=lambda: backend)
    monkeypatch.setattr("holdfast.config.credentials.import_module", {"keyring": package}.__getitem__)
    for value, is_used in ((None, True), ("", True), ("1", True), ("00", True), ("0", False)):
        found = system_keyring({} if value is None else {"HOLDFAST_KEYRING": value})
        assert (found is not None) is is_used, value
    for priority, is_used in ((0.9, False), (1, True), (5, True)):
        backend.priority = priority
        assert (system_keyring({}) is not None) is is_used, priority


def test_keyring_package_is_used(tmp_path: Path) -> None:
    """With a test backend, in a new process; then with a backend that always fails."""
    (tmp_path / "drawer.py").write_text(
        "import keyring.backend\nkept = {}\n"
        "class Drawer(keyring.backend.KeyringBackend):\n"
        "    priority = 9\n"
        "    def get_password(self, service, name): return kept.get((service, name))\n"
        "    def set_password(self, service, name, key): kept[service, name] = key\n"
        "    def delete_password(self, service, name): del kept[service, name]\n"
    )
    script = (
        "import sys; from holdfast.config.credentials import Credentials; c = Credentials(sys.argv[1]);"
        "print(c.put('openai', 'k'), c.get('openai'), c.remove('openai'), c.get('openai'))"
    )
    reported = []
    for backend in ("drawer.Drawer", "keyring.backends.fail.Keyring"):
        environment = {"PYTHON_KEYRING_BACKEND": backend, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
        command = [sys.executable, "-c", script, str(tmp_path / "c" / "credentials.toml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        reported.append(done.stdout.strip())
    assert reported == ["keyring k True None", "file k True None"]


@pytest.mark.parametrize(
    "text", ["keys = 3", "[keys", f"[keys]\nopenai = '{KEY}", f"[keys]\nopenai = ['{KEY}']", "\x00"]
)
def test_broken_file_is_kept_and_not_quoted(file: str, text: str) -> None:
    Path(file).parent.mkdir()
    Path(file).write_text(text)
    credentials = Credentials(file, OFF)
    for act in (lambda: credentials.get("openai"), lambda: credentials.put("x", "y"), credentials.providers):
        with pytest.raises(HoldfastError, match="log in again") as caught:
            act()
        assert KEY not in str(caught.value)
    assert Path(file).read_text() == text


def test_concurrent_writes_lose_no_key(file: str) -> None:
    threads = [
        threading.Thread(target=lambda n=number: Credentials(file, OFF).put(f"p{n}", "k")) for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Credentials(file, OFF).providers()) == 12


# Tokens

OLD = Token("old", "once", expires_at=50.0, token_url="https://t", client_id="me")


class FakeTokenServer:
    """Issues tokens; each refresh token is valid once."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.answer: dict[str, Any] = {"access_token": "new", "refresh_token": "twice", "expires_in": 100}

    async def post(self, url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        self.requests.append((url, dict(form)))
        self.arrived.set()
        await self.opened.wait()
        return self.answer


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("k" * 44 + "\n")
    path.chmod(0o600)
    return path


Another = Callable[[], Awaitable[Credentials]]


@pytest.fixture(params=["file", "cluster"])
async def another(request: pytest.FixtureRequest, file: str, tmp_path: Path, key_file: Path) -> AsyncIterator[Another]:
    """Return the credentials as another process, or another node of a cluster, sees them."""
    if request.param == "file":

        async def same_file() -> Credentials:
            return Credentials(file, OFF)

        yield same_file
        return
    numbers = count()
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(new_database())

        async def new_node() -> Credentials:
            pool = Pool({"dsn": dsn})
            await pool.open()
            stack.push_async_callback(pool.close)
            documents = SharedDocuments(pool)
            await documents.refresh()
            tokens = SharedTokens(documents, KeyFile(str(key_file)))
            return Credentials(str(tmp_path / f"node{next(numbers)}" / "c.toml"), OFF, tokens=tokens)

        yield new_node


@pytest.fixture
async def credentials(another: Another) -> Credentials:
    made = await another()
    await asyncio.to_thread(made.put_token, "p", OLD)
    return made


def refresher(credentials: Credentials) -> TokenRefresher:
    return TokenRefresher(credentials, now=lambda: 1000.0)


async def test_a_token_is_kept_like_a_key(credentials: Credentials) -> None:
    assert credentials.get("p") == "old"
    assert credentials.token("p") == OLD
    assert credentials.providers() == {"p": "token"}


@pytest.mark.parametrize("used", ["old", ""])
async def test_concurrent_callers_share_one_refresh(credentials: Credentials, used: str) -> None:
    server, wheel = FakeTokenServer(), refresher(credentials)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wheel.refresh("p", server.post, used=used)) for _ in range(5)]
        await server.arrived.wait()
        server.opened.set()
    assert {task.result().access_token for task in tasks} == {"new"}
    form = {"grant_type": "refresh_token", "refresh_token": "once", "client_id": "me"}
    assert server.requests == [("https://t", form)]
    assert credentials.token("p") == Token("new", "twice", 1100.0, "https://t", "me")


async def test_a_cancelled_run_does_not_lose_the_new_token(credentials: Credentials) -> None:
    server, wheel = FakeTokenServer(), refresher(credentials)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(wheel.refresh("p", server.post, used="old"))
        await server.arrived.wait()
        task.cancel()
    server.opened.set()
    await wheel.close()
    assert credentials.get("p") == "new"


async def test_a_newer_stored_token_is_adopted(credentials: Credentials, another: Another) -> None:
    server, wheel = FakeTokenServer(), refresher(credentials)
    await asyncio.to_thread((await another()).put_token, "p", Token("theirs", expires_at=2000.0))
    assert (await wheel.refresh("p", server.post, used="old")).access_token == "theirs"
    assert server.requests == []


async def test_expired_stored_token_is_not_adopted(credentials: Credentials, another: Another) -> None:
    server, wheel = FakeTokenServer(), refresher(credentials)
    server.opened.set()
    theirs = Token("theirs", "r", expires_at=20.0, token_url="https://t")
    await asyncio.to_thread((await another()).put_token, "p", theirs)
    assert (await wheel.refresh("p", server.post, used="old")).access_token == "new"


async def test_two_processes_or_nodes_refresh_once(credentials: Credentials, another: Another) -> None:
    """Represented by two refreshers: the lock is on the file, or in the store."""
    first, second = FakeTokenServer(), FakeTokenServer()
    second.opened.set()
    other = await another()
    async with asyncio.TaskGroup() as group:
        one = group.create_task(refresher(credentials).refresh("p", first.post, used="old"))
        await first.arrived.wait()
        two = group.create_task(refresher(other).refresh("p", second.post, used="old"))
        await asyncio.sleep(0)
        first.opened.set()
    assert (one.result().access_token, two.result().access_token) == ("new", "new")
    assert second.requests == []


async def test_revoked_sign_in_explains_the_remedy(credentials: Credentials) -> None:
    server = FakeTokenServer()
    server.opened.set()
    server.answer = {"error": "invalid_grant"}
    with pytest.raises(SignInRequired, match="holdfast login p") as caught:
        await refresher(credentials).refresh("p", server.post, used="old")
    assert (caught.value.trouble, caught.value.title) == ("credentials", "Sign in again")
    assert credentials.get("p") == "old"


@pytest.mark.parametrize("answer", [{}, {"access_token": 3}, {"error": "server_error"}])
async def test_response_without_a_token_changes_nothing(credentials: Credentials, answer: dict[str, Any]) -> None:
    server = FakeTokenServer()
    server.opened.set()
    server.answer = answer
    with pytest.raises(ProviderError, match="no new token"):
        await refresher(credentials).refresh("p", server.post, used="old")
    assert credentials.token("p") == OLD


async def test_failure_does_not_quote_the_form(credentials: Credentials) -> None:
    async def post(_url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        raise RuntimeError(f"could not send {dict(form)}")

    with pytest.raises(ProviderError) as caught:
        await refresher(credentials).refresh("p", post, used="old")
    assert "once" not in str(caught.value)
    assert caught.value.trouble == "connection"
    assert caught.value.__cause__ is None


async def test_refresh_without_a_token_is_an_error(file: str) -> None:
    with pytest.raises(NotFound, match="holdfast login q"):
        await refresher(Credentials(file, OFF)).refresh("q", FakeTokenServer().post)


async def test_token_that_cannot_be_refreshed_requires_a_sign_in(file: str) -> None:
    credentials = Credentials(file, OFF)
    credentials.put_token("p", Token("only"))
    with pytest.raises(SignInRequired):
        await refresher(credentials).refresh("p", FakeTokenServer().post, used="only")


# Tokens of a cluster


@pytest.fixture
def nodes() -> Iterator[DocumentNodes]:
    with shared_nodes() as made:
        yield made


def test_token_is_encrypted_in_the_store(nodes: DocumentNodes, key_file: Path, tmp_path: Path) -> None:
    """The same content is encrypted differently each time, and names of providers are not shown."""
    documents = nodes.node()
    mine = Credentials(str(tmp_path / "a.toml"), OFF, tokens=SharedTokens(documents, KeyFile(str(key_file))))
    mine.put_token("mcp:https://h/?key=hidden", Token(KEY, "refresh-canary"))
    mine.put("openai", "plain-key")
    first = nodes.stored()
    mine.put_token("mcp:https://h/?key=hidden", Token(KEY, "refresh-canary", expires_at=1.0))
    assert nodes.stored() != first
    for secret in (KEY.encode(), b"refresh-canary", b"hidden", b"openai", b"kkkk"):
        assert secret not in first
    other = Credentials(str(tmp_path / "b.toml"), OFF, tokens=SharedTokens(nodes.node(), KeyFile(str(key_file))))
    assert other.token("mcp:https://h/?key=hidden") == Token(KEY, "refresh-canary", expires_at=1.0)
    assert other.providers() == {"mcp:https://h/?key=hidden": "token"}
    assert other.get("openai") is None, "keys belong to a node"
    assert other.remove("mcp:https://h/?key=hidden")
    assert not other.remove("mcp:https://h/?key=hidden")
    nodes.run(documents.refresh())
    assert mine.token("mcp:https://h/?key=hidden") is None


PROBLEMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "wrong": (lambda path: path.write_text("w" * 44), r"The key file .*key does not fit: .* Use the same file"),
    "missing": (lambda path: path.unlink(), "The key file .*key does not exist: create it"),
    "readable": (lambda path: path.chmod(0o644), r"can be read or changed by other users \(mode 644\)"),
    "empty": (lambda path: path.write_text("\n"), "is empty: write one with"),
    "short": (lambda path: path.write_text("k" * 31), "one word of at least 32 characters"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_key_that_does_not_fit_is_one_sentence(
    nodes: DocumentNodes, key_file: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It hides the tokens of the cluster, nothing else, and nothing is overwritten."""
    documents = nodes.node()
    mine = Credentials(str(tmp_path / "a.toml"), OFF, tokens=SharedTokens(documents, KeyFile(str(key_file))))
    mine.put_token("p", OLD)
    mine.put("openai", "plain-key")
    assert mine.problem() == ""
    before, kept = nodes.stored(), key_file.read_text()
    spoil, sentence = PROBLEMS[name]
    spoil(key_file)
    assert (mine.token("p"), mine.get("p"), mine.get("openai")) == (None, None, "plain-key")
    assert mine.token("p") is None
    assert mine.providers() == {"openai": "file"}
    assert len(caplog.records) == 1
    for text in (mine.problem(), caplog.text):
        assert re.search(sentence, text)
        assert KEY not in text
        assert "kkkk" not in text
    with pytest.raises(Unsealable, match=sentence) as caught:
        mine.put_token("p", Token("new"))
    assert caught.value.__cause__ is None
    assert not isinstance(mine.remove("openai"), Exception)
    assert nodes.stored() == before
    key_file.write_text(kept)
    key_file.chmod(0o600)
    assert mine.token("p") == OLD


def test_sealed_document_is_not_accepted_under_another_name(nodes: DocumentNodes, key_file: Path) -> None:
    documents = nodes.node()
    one, two = (SealedDocument(documents, name, KeyFile(str(key_file))) for name in ("one", "two"))
    one.update(lambda _: b"content")
    sealed = documents.read(f"{STORE_PREFIX}one")[0]
    documents.update(f"{STORE_PREFIX}two", lambda _: sealed)
    assert one.read() == b"content"
    for changed in (sealed, sealed[:-1], b"\x02" + sealed[1:], b""):
        documents.update(f"{STORE_PREFIX}two", lambda _, changed=changed: changed)  # type: ignore[misc]
        with pytest.raises(Unsealable):
            two.read()


@pytest.mark.parametrize("another", ["cluster"], indirect=True)
@pytest.mark.parametrize(("stored", "expected"), [(900.0, "new"), (5000.0, "theirs")])
async def test_token_that_lasts_longer_wins_if_nodes_were_not_excluded(
    credentials: Credentials, another: Another, stored: float, expected: str
) -> None:
    """For example, the connection with the lock broke during the exchange."""
    other = await another()
    server, wheel = FakeTokenServer(), refresher(credentials)
    refreshing = start(wheel.refresh("p", server.post, used="old"))
    await server.arrived.wait()
    await asyncio.to_thread(other.put_token, "p", Token("theirs", expires_at=stored))
    server.opened.set()
    await refreshing
    assert credentials.get("p") == expected


def read_text(path: str) -> str:
    return Path(path).read_text()


@pytest.mark.parametrize("another", ["cluster"], indirect=True)
async def test_new_token_survives_an_outage_of_the_store(
    credentials: Credentials, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credentials.shared_tokens is not None
    server = FakeTokenServer()

    async def post(url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        monkeypatch.setattr(credentials.shared_tokens, "update", fail)
        return server.answer

    def fail(_: object) -> None:
        raise StorageUnavailable

    assert (await refresher(credentials).refresh("p", post, used="old")).access_token == "new"
    assert credentials.get("p") == "new"
    monkeypatch.undo()
    assert (await another()).get("p") == "old"
    server.answer = {"access_token": "newest", "refresh_token": "thrice", "expires_in": 200}
    server.opened.set()
    await refresher(credentials).refresh("p", server.post, used="new")
    assert server.requests[0][1]["refresh_token"] == "twice"
    assert (await another()).get("p") == "newest"
    assert "new" not in read_text(credentials.path)


@pytest.mark.parametrize("another", ["cluster"], indirect=True)
async def test_no_token_is_exchanged_that_could_not_be_stored(credentials: Credentials, key_file: Path) -> None:
    PROBLEMS["readable"][0](key_file)
    server = FakeTokenServer()
    with pytest.raises(Conflict, match="chmod 600"):
        await refresher(credentials).refresh("p", server.post, used="old")
    assert server.requests == []
