"""`holdfast login` and `logout`: a key is stored and never printed."""

import os
import pty
import subprocess
from pathlib import Path

import msgspec
import pytest

from config.commands import Commands
from holdfast.config.credentials import Credentials

CANARY = "hunter2canaryhunter2"


@pytest.fixture
def place(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def stored(place: Commands, provider: str) -> str | None:
    return Credentials(place.locations().credentials_file, {"HOLDFAST_KEYRING": "0"}).get(provider)


def test_a_key_from_a_pipe(place: Commands) -> None:
    done = place.call("login", "openai", stdin=f"  {CANARY}\n")
    assert done.exit_code == 0
    assert "is stored in" in done.stderr
    assert CANARY not in done.output
    assert stored(place, "openai") == CANARY
    place.call_ok("logout", "openai")
    assert stored(place, "openai") is None
    assert place.call("logout", "openai").exit_code == 4


def test_a_key_is_not_an_argument(place: Commands) -> None:
    done = place.call("login", "openai", CANARY)
    assert done.exit_code == 2
    assert CANARY not in done.output + done.stderr
    assert stored(place, "openai") is None


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("", "No key was given"),
        (" \n", "No key was given"),
        ("two words", "A key is one word"),
        ("x\ny", "A key is one word"),
    ],
)
def test_an_invalid_key_is_refused(place: Commands, key: str, printed: str) -> None:
    done = place.call("login", "openai", stdin=key)
    assert done.exit_code == 4
    assert printed in done.stderr


def test_a_provider_is_found_by_its_aliases(place: Commands) -> None:
    for name, id in (("OpenAI", "openai"), ("google", "gemini")):
        assert f"The key of {id} is stored" in place.call("login", name, stdin=CANARY).stderr
        assert stored(place, id) == CANARY
        place.call_ok("logout", name)
        assert stored(place, id) is None
    place.write_user("[providers.OpenAI]\nbase_url = 'http://x'\n")
    place.call("login", "OpenAI", stdin=CANARY)
    assert stored(place, "OpenAI") == CANARY


def test_an_unknown_provider_gets_a_hint(place: Commands) -> None:
    assert "providers.mine" in place.call("login", "mine", stdin=CANARY).stderr
    assert "Did you mean anthropic?" in place.call("login", "antropic", stdin=CANARY).stderr
    place.write_user("[providers.mine]\nbase_url = 'http://x'\n")
    assert "No provider" not in place.call("login", "mine", stdin=CANARY).stderr


def test_the_list_shows_the_origin_of_keys(place: Commands) -> None:
    assert "No provider has a key yet" in place.call("login", "--list").stderr
    place.environment["ANTHROPIC_API_KEY"] = CANARY
    place.write_user(f"[providers.one]\napi_key = '{CANARY}'\n[providers.two]\napi_key = '$ANTHROPIC_API_KEY'\n")
    place.call_ok("login", "openai", stdin=CANARY)
    shown = place.call_ok("login", "--list")
    assert CANARY not in shown
    found = {
        (row["provider"], row["where"], row["name"])
        for row in msgspec.json.decode(place.call_ok("login", "--list", "--json"))
    }
    assert found == {
        ("anthropic", "variable", "ANTHROPIC_API_KEY"),
        ("one", "settings", f"{place.user_file}:2"),
        ("two", "template", f"{place.user_file}:4"),
        ("openai", "file", place.locations().credentials_file),
    }


def test_logout_reports_other_keys(place: Commands) -> None:
    place.environment["OPENAI_API_KEY"] = CANARY
    place.call_ok("login", "openai", stdin=CANARY)
    assert "variable OPENAI_API_KEY" in place.call("logout", "openai").stderr


def test_the_provider_is_required(place: Commands) -> None:
    done = place.call("login")
    assert (done.exit_code, "Give a provider" in done.stderr) == (2, True)


def test_typed_keys_are_not_echoed(place: Commands) -> None:
    """On a real terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        place.arguments("login", "openai"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=place.project,
        env=place.variables(),
    )
    os.close(theirs)
    screen = b""
    try:
        while b"Key of openai" not in screen:
            screen += os.read(ours, 1000)
        os.write(ours, f"{CANARY}\n".encode())
        while b"is stored in" not in screen:
            screen += os.read(ours, 1000)
        process.wait(60)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    assert CANARY.encode() not in screen
    assert stored(place, "openai") == CANARY


def test_the_key_is_not_in_the_process_list(place: Commands) -> None:
    """While it is read from a pipe, and while a command of the settings is run with it in its environment."""
    look = place.write(
        place.home / "look.sh", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' > \"$LIST\"\necho k\n"
    )
    place.environment |= {"LIST": str(place.home / "list"), "SECRET": CANARY}
    place.write_user(
        f"[providers.p]\napi_key = '$(sh {look})'\nextra_headers = {{X = '{CANARY}'}}\n[env]\nA = '{CANARY}'\n"
    )
    assert place.open().provider("p")[0].api_key == "k"
    listed = (place.home / "list").read_text(errors="replace")
    assert "look.sh" in listed
    assert CANARY not in listed

    process = subprocess.Popen(
        place.arguments("login", "openai"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place.project,
        env=place.variables(),
    )
    assert process.stdin is not None
    process.stdin.write(CANARY.encode())
    process.stdin.flush()
    assert CANARY not in Path(f"/proc/{process.pid}/cmdline").read_text()
    process.communicate(timeout=60)
    assert stored(place, "openai") == CANARY
