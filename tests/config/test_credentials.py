"""Keys and tokens: stored where only their owner reads them, refreshed once."""

import asyncio
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
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
from holdfast.domain.errors import BadRequest, HoldfastError, NotFound, ProviderError

KEY = "hunter2canaryhunter2"
OFF = {"HOLDFAST_KEYRING": "0"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "config" / "credentials.toml")


class Drawer:
    """A keyring."""

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


def test_a_key_comes_back(file: str) -> None:
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


def test_the_file_is_its_owners_alone(file: str) -> None:
    Credentials(file, OFF).put("openai", KEY)
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(file).parent.stat().st_mode) == 0o700
    assert [path.name for path in Path(file).parent.iterdir()] == ["credentials.toml"]


def test_a_change_by_somebody_else_is_seen(file: str) -> None:
    mine, theirs = Credentials(file, OFF), Credentials(file, OFF)
    mine.put("openai", "one")
    assert theirs.get("openai") == "one"
    mine.put("openai", "two")
    assert theirs.get("openai") == "two"


@pytest.mark.parametrize("key", ["", " ", f"{KEY} x", f"{KEY}\n{KEY}", "sk-ü", "x" * 20_000, "a\x1bb"])
def test_what_is_no_key_is_refused(file: str, key: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        Credentials(file, OFF).put("openai", key)
    assert KEY not in str(caught.value)
    assert not Path(file).exists()


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 200])
def test_what_is_no_provider_is_refused(file: str, name: str) -> None:
    with pytest.raises(BadRequest, match="one word"):
        Credentials(file, OFF).put(name, KEY)


def test_a_keyring_is_used_if_there_is_one(file: str) -> None:
    drawer = Drawer()
    credentials = Credentials(file, OFF, keyring=drawer)
    assert credentials.put("openai", KEY) == "keyring"
    assert KEY not in Path(file).read_text()
    assert credentials.get("openai") == KEY
    assert credentials.providers() == {"openai": "keyring"}
    assert credentials.remove("openai")
    assert drawer.kept == {}


def test_a_keyring_that_refuses_is_no_obstacle(file: str) -> None:
    credentials = Credentials(file, OFF, keyring=Drawer(works=False))
    assert credentials.put("openai", KEY) == "file"
    assert credentials.get("openai") == KEY


def test_a_key_moves_when_the_keyring_comes(file: str) -> None:
    Credentials(file, OFF).put("openai", KEY)
    Credentials(file, OFF, keyring=Drawer()).put("openai", "newer")
    assert KEY not in Path(file).read_text()


def test_the_keyring_can_be_switched_off() -> None:
    assert system_keyring(OFF) is None


def test_the_real_package_is_asked(tmp_path: Path) -> None:
    """With a backend of our own, in a process of its own; then with one that never works."""
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
    told = []
    for backend in ("drawer.Drawer", "keyring.backends.fail.Keyring"):
        environment = {"PYTHON_KEYRING_BACKEND": backend, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
        command = [sys.executable, "-c", script, str(tmp_path / "c" / "credentials.toml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        told.append(done.stdout.strip())
    assert told == ["keyring k True None", "file k True None"]


@pytest.mark.parametrize(
    "text", ["keys = 3", "[keys", f"[keys]\nopenai = '{KEY}", f"[keys]\nopenai = ['{KEY}']", "\x00"]
)
def test_a_broken_file_is_left_alone_and_says_nothing(file: str, text: str) -> None:
    Path(file).parent.mkdir()
    Path(file).write_text(text)
    credentials = Credentials(file, OFF)
    for act in (lambda: credentials.get("openai"), lambda: credentials.put("x", "y"), credentials.providers):
        with pytest.raises(HoldfastError, match="log in again") as caught:
            act()
        assert KEY not in str(caught.value)
    assert Path(file).read_text() == text


def test_nobodys_key_is_lost(file: str) -> None:
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


class Desk:
    """Gives tokens; each refresh token is good for one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.answer: dict[str, Any] = {"access_token": "new", "refresh_token": "twice", "expires_in": 100}

    async def post(self, url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        self.asked.append((url, dict(form)))
        self.arrived.set()
        await self.opened.wait()
        return self.answer


@pytest.fixture
def credentials(file: str) -> Credentials:
    made = Credentials(file, OFF)
    made.put_token("p", OLD)
    return made


def refresher(credentials: Credentials) -> TokenRefresher:
    return TokenRefresher(credentials, now=lambda: 1000.0)


def test_a_token_is_kept_like_a_key(credentials: Credentials) -> None:
    assert credentials.get("p") == "old"
    assert credentials.token("p") == OLD
    assert credentials.providers() == {"p": "token"}


@pytest.mark.parametrize("used", ["old", ""])
async def test_those_who_need_it_share_one_refresh(credentials: Credentials, used: str) -> None:
    desk, wheel = Desk(), refresher(credentials)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wheel.refresh("p", desk.post, used=used)) for _ in range(5)]
        await desk.arrived.wait()
        desk.opened.set()
    assert {task.result().access_token for task in tasks} == {"new"}
    form = {"grant_type": "refresh_token", "refresh_token": "once", "client_id": "me"}
    assert desk.asked == [("https://t", form)]
    assert credentials.token("p") == Token("new", "twice", 1100.0, "https://t", "me")


async def test_a_cancelled_run_does_not_lose_the_new_token(credentials: Credentials) -> None:
    desk, wheel = Desk(), refresher(credentials)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(wheel.refresh("p", desk.post, used="old"))
        await desk.arrived.wait()
        task.cancel()
    desk.opened.set()
    await wheel.close()
    assert credentials.get("p") == "new"


async def test_a_newer_token_on_disk_is_adopted(credentials: Credentials, file: str) -> None:
    desk, wheel = Desk(), refresher(credentials)
    Credentials(file, OFF).put_token("p", Token("theirs", expires_at=2000.0))
    assert (await wheel.refresh("p", desk.post, used="old")).access_token == "theirs"
    assert desk.asked == []


async def test_an_expired_one_on_disk_is_not(credentials: Credentials, file: str) -> None:
    desk, wheel = Desk(), refresher(credentials)
    desk.opened.set()
    Credentials(file, OFF).put_token("p", Token("theirs", "r", expires_at=20.0, token_url="https://t"))
    assert (await wheel.refresh("p", desk.post, used="old")).access_token == "new"


async def test_two_processes_refresh_once(credentials: Credentials, file: str) -> None:
    """Two refreshers of one file stand for them: the lock is on the file."""
    first, second = Desk(), Desk()
    second.opened.set()
    async with asyncio.TaskGroup() as group:
        one = group.create_task(refresher(credentials).refresh("p", first.post, used="old"))
        await first.arrived.wait()
        two = group.create_task(refresher(Credentials(file, OFF)).refresh("p", second.post, used="old"))
        await asyncio.sleep(0)
        first.opened.set()
    assert (one.result().access_token, two.result().access_token) == ("new", "new")
    assert second.asked == []


async def test_a_revoked_sign_in_says_what_to_do(credentials: Credentials) -> None:
    desk = Desk()
    desk.opened.set()
    desk.answer = {"error": "invalid_grant"}
    with pytest.raises(SignInRequired, match="holdfast login p") as caught:
        await refresher(credentials).refresh("p", desk.post, used="old")
    assert caught.value.trouble == "credentials"
    assert credentials.get("p") == "old"


@pytest.mark.parametrize("answer", [{}, {"access_token": 3}, {"error": "server_error"}])
async def test_an_answer_without_a_token_changes_nothing(credentials: Credentials, answer: dict[str, Any]) -> None:
    desk = Desk()
    desk.opened.set()
    desk.answer = answer
    with pytest.raises(ProviderError, match="no new token"):
        await refresher(credentials).refresh("p", desk.post, used="old")
    assert credentials.token("p") == OLD


async def test_a_failure_says_nothing_of_the_form(credentials: Credentials) -> None:
    async def post(_url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        raise RuntimeError(f"could not send {dict(form)}")

    with pytest.raises(ProviderError) as caught:
        await refresher(credentials).refresh("p", post, used="old")
    assert "once" not in str(caught.value)
    assert caught.value.trouble == "connection"
    assert caught.value.__cause__ is None


async def test_without_a_token_there_is_nothing_to_refresh(file: str) -> None:
    with pytest.raises(NotFound, match="holdfast login q"):
        await refresher(Credentials(file, OFF)).refresh("q", Desk().post)


async def test_a_token_that_cannot_be_refreshed_asks_for_a_sign_in(file: str) -> None:
    credentials = Credentials(file, OFF)
    credentials.put_token("p", Token("only"))
    with pytest.raises(SignInRequired):
        await refresher(credentials).refresh("p", Desk().post, used="only")
