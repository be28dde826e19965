"""Keys: storage, renewal, and confidentiality."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.cli_environment import CliEnvironment, WatchedWorkspace, cli_environment, model_requests, text
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import ToolOutputEvent
from holdfast.protocol.routes import PREFIX, ROUTES
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest
from server.helpers import RawStream, exchange, raw_request, read_until, run_ended

CANARY = "canary-7f3a9c51d0"
OK = Reply((Say(("All is well.",)),))

COMMANDS = (
    ("config", "show"), ("config", "show", "--json", "--origin", "--all"), ("config", "check"),
    ("config", "get", "providers"), ("models", "--json", "--all"), ("login", "--list"), ("prompt", "--json"),
    ("sessions", "list", "--json"), ("runs", "list", "--json"),
    ("trust", "--show"), ("run", "refuse"), ("run", "-m", "sdk/n", "refuse"),
    ("run", "--timeout", "1", "-m", "named/n", "refuse"),
)  # fmt: skip


def used(cli_env: CliEnvironment) -> list[str]:
    return [asked.headers["authorization"].removeprefix("Bearer ") for asked in model_requests(cli_env.provider)]


async def test_1_key_is_stored_and_removed() -> None:
    """`login` reads it from a pipe and stores it in a private file; the running server uses it at once."""
    async with cli_environment([OK]) as cli_env:
        cli_env.settings.write_text(
            cli_env.settings.read_text().replace('api_key = "a-walking-key"', 'api_key = "$NOT_SET"')
        )
        place = await cli_env.open_workspace()
        with pytest.raises(ServerProblem, match="NOT_SET"):
            await place.send("hi")
        done = await cli_env.call("login", "local", stdin=f"{CANARY}\n")
        assert done.code == 0
        assert CANARY not in done.out + done.err
        file = cli_env.root / "c/holdfast/credentials.toml"
        assert file.stat().st_mode & 0o777 == 0o600
        assert (await place.send_and_wait("hi"))[0].text == "All is well."
        assert used(cli_env) == [CANARY]
        listed = await cli_env.stdout_of("login", "--list")
        assert "local" in listed
        assert CANARY not in listed
        await cli_env.stdout_of("logout", "local")
        with pytest.raises(ServerProblem, match="holdfast login local"):
            await place.send("hi")


async def test_2_client_may_set_key() -> None:
    """It is stored in a private file, used for the next prompt, and never returned."""
    async with cli_environment([OK]) as cli_env:
        place = await cli_env.open_workspace()
        body = {"scope": 0, "provider_id": "local", "kind": "string", "api_key": CANARY}
        await place.client.config_provider_key(place.id, body)
        await place.send_and_wait("hi")
        assert used(cli_env) == [CANARY]
        assert (cli_env.data / "config.json").stat().st_mode & 0o777 == 0o600
        assert CANARY not in json.dumps(await place.client.get_config(place.id))
        with pytest.raises(ServerProblem) as caught:
            await place.client.config_provider_key(place.id, {"scope": 0, "provider_id": "local", "api_key": 5})
        assert caught.value.status == 400


async def test_7_variable_set_later_is_used() -> None:
    """The workspace is open, without the key or with an old one; the next command supplies the right one."""
    async with cli_environment([OK]) as cli_env:
        cli_env.settings.write_text(cli_env.settings.read_text().replace("a-walking-key", "$LATE_KEY"))
        place = await cli_env.open_workspace()
        with pytest.raises(ServerProblem, match="LATE_KEY"):
            await place.send("hi")
        cli_env.environment["LATE_KEY"] = "late-key-1"
        assert await cli_env.stdout_of("run", "hi") == "All is well."
        cli_env.environment["LATE_KEY"] = "late-key-2"
        assert await cli_env.stdout_of("run", "hi") == "All is well."
        assert used(cli_env) == ["late-key-1", "late-key-2"]


def token_script(asked: RecordedRequest) -> Reply:
    return OK if asked.headers["authorization"] == "Bearer fresh-token" else Reply(status=401, body=b"{}")


def sign_in(cli_env: CliEnvironment, refresh: str = "refresh-me") -> None:
    cli_env.settings.write_text(cli_env.settings.read_text().replace('api_key = "a-walking-key"', ""))
    file = cli_env.root / "c/holdfast/credentials.toml"
    file.write_text(
        f'[tokens.local]\naccess_token = "stale-token"\nrefresh_token = "{refresh}"\n'
        f'token_url = "{cli_env.provider.root}/token"\nclient_id = "holdfast"\n'
    )
    file.chmod(0o600)


async def test_3_refused_token_is_refreshed() -> None:
    """Once, during the run; the new token is stored and used by the next run."""
    async with cli_environment(token_script) as cli_env:
        sign_in(cli_env)
        cli_env.provider.pages["/token"] = {"access_token": "fresh-token", "expires_in": 3600}
        place = await cli_env.open_workspace()
        end, _ = await place.send_and_wait("hi")
        assert (end.text, end.error) == ("All is well.", "")
        (form,) = (asked for asked in cli_env.provider.requests if asked.path == "/token")
        assert b"grant_type=refresh_token" in form.body
        assert b"refresh_token=refresh-me" in form.body
        await place.send_and_wait("again")
        assert used(cli_env) == ["stale-token", "fresh-token", "fresh-token"]
        assert "fresh-token" in (cli_env.root / "c/holdfast/credentials.toml").read_text()


async def test_4_expired_login_is_reported() -> None:
    async with cli_environment(token_script) as cli_env:
        sign_in(cli_env)
        cli_env.provider.pages["/token"] = {"error": "invalid_grant"}
        place = await cli_env.open_workspace()
        end, seen = await place.send_and_wait("hi")
        assert "holdfast login local" in end.error
        assert any(b"re_authenticate" in msgspec.json.encode(item.event) for item in seen)


async def test_5_client_may_refresh_token() -> None:
    async with cli_environment(token_script) as cli_env:
        place = await cli_env.open_workspace()
        with pytest.raises(ServerProblem) as caught:
            await place.client.config_refresh_oauth(place.id, {"scope": 0, "provider_id": "local"})
        assert caught.value.status == 400
        sign_in(cli_env)
        cli_env.provider.pages["/token"] = {"access_token": "fresh-token"}
        await place.client.config_refresh_oauth(place.id, {"scope": 0, "provider_id": "local"})
        await place.send_and_wait("hi")
        assert used(cli_env) == ["fresh-token"]
        cli_env.provider.pages["/token"] = {"error": "invalid_grant"}
        with pytest.raises(ServerProblem, match="no longer valid") as caught:
            await place.client.config_refresh_oauth(place.id, {"scope": 0, "provider_id": "local"})
        assert caught.value.status == 400


async def test_5_source_of_key_is_returned() -> None:
    """As its template, or that there is one; a URL without its credentials."""
    async with cli_environment() as cli_env:
        with cli_env.settings.open("a") as file:
            file.write('[providers.named]\nbase_url = "http://me:secret@127.0.0.1:9/v1"\napi_key = "${MY_KEY:-x}"\n')
            file.write('extra_headers = { X-Key = "secret" }\n[[providers.named.models]]\nid = "n"\n')
        place = await cli_env.open_workspace()
        for config in (await place.client.get_config(place.id), (await place.client.get_workspace(place.id)).config):
            assert config is not None
            local, named = config["providers"]["local"], config["providers"]["named"]
            assert (local["api_key"], local["base_url"]) == ("set", cli_env.provider.base_url())
            assert (named["api_key"], named["base_url"]) == ("${MY_KEY:-set}", "http://set@127.0.0.1:9/v1")
            assert named["extra_headers"] == {"X-Key": "set"}
            assert named["models"][0]["supports_attachments"] is False, "described whole"


def leaky(asked: RecordedRequest) -> Reply:
    """A provider that echoes the key, and a model that searches for it."""
    messages: Any = asked.json["messages"]
    prompt = text(next(item for item in reversed(messages) if item["role"] == "user"))
    if prompt.endswith("refuse"):
        body = {"error": {"message": f"Your key {CANARY}-1 is not known", "headers": asked.headers}}
        return Reply(status=403, body=msgspec.json.encode(body))
    if prompt.endswith("env") and messages[-1]["role"] == "user" and "tools" in asked.json:
        return Reply((CallTool("c1", "bash", ('{"command":"env; cat gate","description":"look"}',)),))
    return OK


async def test_6_keys_are_never_disclosed() -> None:
    """Keys from files, the environment, a login, the API: in no response, event, log, error or process list."""
    async with cli_environment(leaky) as cli_env:
        cli_env.environment |= {"GROQ_API_KEY": f"{CANARY}-2", "MY_KEY": f"{CANARY}-3"}
        cli_env.settings.write_text(cli_env.settings.read_text().replace("a-walking-key", f"{CANARY}-1"))
        with cli_env.settings.open("a") as file:
            file.write(
                f'[providers.named]\nbase_url = "http://user:{CANARY}-4@127.0.0.1:9/v1"\napi_key = "$MY_KEY"\n'
                f'extra_headers = {{ X-Key = "{CANARY}-5" }}\ndiscover_models = false\n'
                f'[[providers.named.models]]\nid = "n"\n[mcp.m]\ncommand = "x"\nargs = ["--token", "{CANARY}-6"]\n'
                f'[providers.sdk]\ntype = "openai-chat"\nbase_url = "{cli_env.provider.base_url()}?key={CANARY}-10"\n'
                f'api_key = "{CANARY}-11"\n[[providers.sdk.models]]\nid = "n"\n'
                f'[env]\nA_TOKEN = "{CANARY}-7"\n'
            )
        output = [await cli_env.call("login", "stored", stdin=f"{CANARY}-8\n")]
        server = await cli_env.serve_again("--verbose")
        place = await cli_env.open_workspace({})
        whole = await place.whole_stream()
        key = {"scope": 0, "provider_id": "other", "kind": "string", "api_key": f"{CANARY}-9"}
        await place.client.config_provider_key(place.id, key)
        await place.client.set_skip(place.id, skip=True)
        for prompt in ("hello", "refuse"):
            end, seen = await place.send_and_wait(prompt)
            assert CANARY not in repr(seen) + repr(end)
            assert not end.error or prompt == "refuse"
        assert CANARY not in await while_a_command_runs(cli_env, place, server)
        output += [await cli_env.call(*command) for command in COMMANDS]
        output += [await cli_env.call("sessions", "show", place.session)]
        assert CANARY not in "".join(done.out + done.err for done in output)
        for path in every_path(place.id, place.session):
            answer = await exchange(place.client.address, raw_request(path))
            assert CANARY.encode() not in remove_env(answer.body), path
        assert whole_is_clean(whole)
        whole.close()
        await cli_env.stop(signal.SIGKILL)
        await cli_env.serve()
        assert CANARY not in cli_env.log
        assert CANARY not in cli_env.stored()


@pytest.mark.parametrize(
    "broken",
    [
        f'[providers.local]\napi_key = "{CANARY}\n',
        f'[providers.local]\napi_key = ["{CANARY}"]\n',
        f'[providers.local]\nextra_headers = "{CANARY}"\n',
        f"[providers.local]\napi_key = {CANARY}\n",
        '[providers.local]\napi_key = "$(cat ~/key; cat ~/key >&2; exit 3)"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[models.large]\nprovider = "local"\nmodel = "big"\n',
    ],
)
async def test_8_error_of_invalid_file_contains_no_secret(broken: str) -> None:
    """The error is reported without quoting the file."""
    async with cli_environment() as cli_env:
        cli_env.settings.write_text(broken)
        (cli_env.root / "key").write_text(CANARY)
        place = await cli_env.open_workspace()
        reported = repr(await place.client.config_problems(place.id))
        for command in (("config", "check"), ("config", "show"), ("run", "--timeout", "5", "hi")):
            done = await cli_env.call(*command)
            reported += done.out + done.err
        assert str(cli_env.settings) in reported or "local" in reported
        assert CANARY not in reported + cli_env.log


def every_path(workspace: str, session: str) -> list[str]:
    paths = [route.path for route in ROUTES if route.method == "GET" and not route.streams]
    filled = [path.replace("{id}", workspace).replace("{sid}", session) for path in paths]
    return [PREFIX + path for path in filled if "{" not in path]


def remove_env(body: bytes) -> bytes:
    """A client's own variables are returned to it over its socket, as it sent them."""
    try:
        reported = json.loads(body)
    except ValueError:
        return body
    for item in reported if isinstance(reported, list) else [reported]:
        for thing in (item, item.get("workspace")) if isinstance(item, dict) else ():
            if isinstance(thing, dict):
                thing.pop("env", None)
    return json.dumps(reported).encode()


def whole_is_clean(stream: RawStream) -> bool:
    return CANARY.encode() not in stream.raw


async def while_a_command_runs(cli_env: CliEnvironment, place: WatchedWorkspace, server: int) -> str:
    """Check the environment of the model's command, the text about it, and the public output of `ps`."""
    gate = cli_env.project / "gate"
    os.mkfifo(gate)
    async with place.watching() as events:
        run = await place.send("print env")
        seen = await read_until(events, lambda item: isinstance(item.event, ToolOutputEvent))
        # Returns when the command has opened the other end: closed earlier, it would wait for a writer forever.
        held = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
        lists = process_lists()
        os.close(held)
        seen += await read_until(events, run_ended(run))
    assert "PATH=" in repr(seen)
    assert "serve" in lists[server]
    assert any("cat gate" in line for line in lists.values())
    return repr(seen) + repr(lists)


def process_lists() -> dict[int, str]:
    """Return the command lines of all processes but this one."""
    found: dict[int, str] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and place.name != str(os.getpid()):
            with suppress(OSError):
                found[int(place.name)] = (place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return found
