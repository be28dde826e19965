"""`holdfast run` without a usable or reachable model: programs that read its output never get the scripted model's."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, isolated_home, shown_on
from e2e.cli_environment import cli_environment, model_requests
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest

PROVIDER = '[providers.acme]\ntype = "openai-compat"\nbase_url = "http://127.0.0.1:{port}/v1"\n{rest}\n'


@pytest.fixture(scope="module")
def without_model() -> Iterator[IsolatedHome]:
    """A home in which no model is configured."""
    with isolated_home() as made:
        made.settings.unlink()
        hidden = [name for name in made.environment if name.endswith(("_API_KEY", "_TOKEN")) or name == "CI"]
        for name in hidden:
            del made.environment[name]
        made.environment["OLLAMA_HOST"] = "127.0.0.1:9"
        made.serve()
        yield made


def _at_terminal(home: IsolatedHome, *arguments: str, **more: str) -> tuple[int, str]:
    """Run a command with its stdout and stderr on a terminal; return its exit code and its output."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        cwd=home.work,
        env={**home.environment, **more},
    )
    os.close(follower)
    shown = shown_on(leader)
    return process.wait(TIMEOUT), shown.decode()


def _sessions(home: IsolatedHome) -> list[object]:
    found: list[object] = msgspec.json.decode(home.stdout_of("sessions", "list", "--json"))
    return found


def test_a_pipe_gets_an_error_and_no_text(without_model: IsolatedHome) -> None:
    before = _sessions(without_model)
    for options in ((), ("--quiet",), ("--json",), ("--stream",), ("--detach",), ("--json", "--detach")):
        done = without_model.call("run", *options, "words=3")
        assert (done.returncode, done.stdout) == (4, ""), options
        assert done.stderr.startswith("holdfast: No usable model. "), options
        assert done.stderr.count("\n") == 1, options
        assert "--model demo/tour" in done.stderr
    assert _sessions(without_model) == before, "a refused prompt leaves no session"


@pytest.mark.parametrize(("options", "more"), [(("-q",), {}), (("--json",), {}), ((), {"CI": "true"})])
def test_a_terminal_gets_an_error_where_a_program_reads_the_output(
    without_model: IsolatedHome, options: tuple[str, ...], more: dict[str, str]
) -> None:
    code, shown = _at_terminal(without_model, "run", *options, "words=3", **more)
    assert code == 4
    assert "No usable model." in shown
    assert "word1" not in shown


def test_an_interactive_terminal_gets_the_scripted_model(without_model: IsolatedHome) -> None:
    code, shown = _at_terminal(without_model, "run", "words=3")
    assert code == 0
    assert "word1 word2 word3" in shown


def test_the_scripted_model_answers_when_selected() -> None:
    with isolated_home() as home:
        home.settings.unlink()
        home.environment.pop("CI", None)
        done = home.call("run", "--model", "demo/tour", "words=3")
        assert (done.returncode, done.stdout) == (0, "word1 word2 word3\n")
        # The choice is kept for the workspace, where only a person may be answered by it without asking for it again.
        later = home.call("run", "words=3")
        assert (later.returncode, later.stdout) == (4, "")
        assert later.stderr.startswith(
            "holdfast: The built-in scripted model, which is not a language model, was selected"
        )
        code, shown = _at_terminal(home, "run", "words=3")
        assert (code, "word1 word2 word3" in shown) == (0, True)


def test_a_missing_key_is_reported(without_model: IsolatedHome) -> None:
    """A template of an unset variable, and a variable that is empty."""
    model = 'models = [{ id = "m" }]\n'
    for variable, value in (("HOLDFAST_TEST_UNSET", None), ("HOLDFAST_TEST_EMPTY", "")):
        settings = without_model.work / "holdfast.toml"
        settings.write_text(PROVIDER.format(port=9, rest=f'api_key = "${variable}"\n{model}'))
        if value is not None:
            without_model.environment[variable] = value
        try:
            without_model.call("trust", "--yes")
            done = without_model.call("run", "hi")
        finally:
            settings.unlink()
        assert (done.returncode, done.stdout) == (4, "")
        assert f"set {variable}" in done.stderr


@pytest.mark.parametrize("rest", ["", 'models = [{ id = "m" }]'])
@pytest.mark.parametrize("selection", ["", '[models.large]\nprovider = "acme"\n'])
def test_an_unreachable_configured_server_is_reported(reserved_port: int, rest: str, selection: str) -> None:
    """It is not replaced by the scripted model, also at a terminal; a refused connection is reported at once."""
    with isolated_home() as home:
        home.settings.write_text(selection + PROVIDER.format(port=reserved_port, rest=rest))
        home.environment["OLLAMA_HOST"] = "127.0.0.1:9"
        home.serve()
        done = home.call("run", "--timeout", "10", "words=3")
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert f"http://127.0.0.1:{reserved_port}/v1" in done.stderr
        assert "the connection was refused" in done.stderr
        assert "Trying again" not in done.stderr
        code, shown = _at_terminal(home, "run", "--timeout", "10", "words=3")
        assert (code, "word1" in shown) == (4, False)


async def test_a_server_that_disappears_later_is_a_failure() -> None:
    """The run has begun its work by then: exit code 1."""

    def reply(asked: RecordedRequest) -> Reply:
        if "tools" not in asked.json:
            return Reply((Say(("A title",)),))
        assert cli_env.provider._server is not None
        cli_env.provider._server.close()
        return Reply((CallTool("c1", "ls", ("{}",)),), headers=(("connection", "close"),))

    async with cli_environment(reply) as cli_env:
        done = await cli_env.call("run", "hi")
        assert (done.code, done.out) == (1, "")
        assert "the connection was refused" in done.err


async def test_a_server_that_loads_its_model_is_awaited() -> None:
    loading = msgspec.json.encode({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
    replies = [Reply(status=503, body=loading), Reply((Say(("All is well.",)),))]

    def reply(asked: RecordedRequest) -> Reply:
        return Reply((Say(("A title",)),)) if "tools" not in asked.json else replies.pop(0)

    async with cli_environment(reply) as cli_env:
        done = await cli_env.call("run", "--verbose", "hi")
        assert (done.code, done.out) == (0, "All is well.\n")
        assert "Loading model" in done.err
        assert "Trying again in 2 s (1 of 150)" in done.err
        assert len(model_requests(cli_env.provider)) == 2


async def test_the_wait_for_a_model_and_retries_are_settings() -> None:
    loading = Reply(status=503, body=b'{"error": {"message": "Loading model"}}')
    async with cli_environment([loading]) as cli_env:
        cli_env.write("[options]\nmodel_load_timeout = 0\nmax_retries = 9\n")
        done = await cli_env.call("run", "hi")
        assert (done.code, len(model_requests(cli_env.provider))) == (4, 1), done.err
        assert "loading its model" in done.err
    async with cli_environment([Reply(status=500, body=b'{"error": {"message": "Broken"}}')]) as cli_env:
        cli_env.write("[options]\nmax_retries = 0\n")
        done = await cli_env.call("run", "hi")
        assert (done.code, len(model_requests(cli_env.provider))) == (1, 1), done.err
