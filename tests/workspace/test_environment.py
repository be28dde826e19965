"""The environment of a command, tested with real processes."""

import os
from pathlib import Path

import pytest

from holdfast.workspace.process.shell_launch import Shell, command_environment
from workspace.commands import guarded

CANARY = "canary-4f1d2c"


def test_only_needed_server_variables_are_passed() -> None:
    server = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HOME": "/h",
        "HOLDFAST_TOKEN": CANARY,
        "ANTHROPIC_API_KEY": CANARY,
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "DATABASE_URL": CANARY,
    }
    env = command_environment(server, {}, cwd="/w")
    assert {"PATH": "/bin", "LC_ALL": "C", "HOME": "/h", "PWD": "/w"}.items() <= env.items()
    assert CANARY not in str(env)


@pytest.mark.parametrize("path", [".:/bin", "/bin:", ":/bin", "node_modules/.bin:/bin", "/bin::./x"])
def test_path_excludes_project_directories(path: str) -> None:
    assert command_environment({"PATH": "/usr/bin"}, {"PATH": path}, cwd="/w")["PATH"] == "/bin"
    assert command_environment({}, {"PATH": "."}, cwd="/w")["PATH"].startswith("/usr/")


def test_client_variables_are_passed_except_withheld_ones() -> None:
    client = {
        "PATH": "/client",
        "DATABASE_URL": "postgres://mine",
        "HOLDFAST_SOCKET": CANARY,
        "HOLDFAST_DATA_DIR": "/data",
        "HOLDFAST_RUN": "forged",
        "OPENAI_API_KEY": CANARY,
        "OTHER_NAME": f"prefix {CANARY} suffix",
        "FORCE_COLOR": "1",
    }
    env = command_environment({}, client, cwd="/w", withheld={"OPENAI_API_KEY"}, secrets=[CANARY])
    assert env["PATH"] == "/client"
    assert env["DATABASE_URL"] == "postgres://mine"
    assert CANARY not in str(env)
    assert not {"FORCE_COLOR", "HOLDFAST_DATA_DIR", "HOLDFAST_SOCKET", "HOLDFAST_RUN"} & env.keys()


def test_a_short_secret_does_not_empty_the_environment() -> None:
    assert command_environment({}, {"A": "banana"}, cwd="/", secrets=["", "a"])["A"] == "banana"


@pytest.mark.parametrize("name", ["BASH_ENV", "ENV", "BASH_FUNC_git%%", "IFS", "SHELLOPTS", "PS4", "A=B", ""])
def test_variables_that_change_shell_semantics_are_dropped(name: str) -> None:
    assert name not in command_environment({name: "x"}, {name: "x"}, cwd="/")


def test_programs_neither_prompt_nor_page() -> None:
    env = command_environment({}, {"PAGER": "less", "GIT_EDITOR": "vi", "TERM": "xterm"}, cwd="/")
    reported = {"HOLDFAST": "1", "AGENT": "holdfast", "AI_AGENT": "holdfast", "PAGER": "cat", "GIT_PAGER": "cat"}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "TERM": "dumb", "NO_COLOR": "1"}
    assert (reported | quiet).items() <= env.items()
    assert env["PATH"]


async def test_r12_secrets_do_not_reach_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: neither through its environment nor through that of its visible ancestors."""
    monkeypatch.setenv("HOLDFAST_TOKEN", CANARY)
    monkeypatch.setenv("SOME_PROVIDER_KEY", CANARY)
    (tmp_path / "rc").write_text(f"echo {CANARY}\n")
    client = {"HOLDFAST_SOCKET": CANARY, "KEY": CANARY, "MINE": "yes", "BASH_ENV": str(tmp_path / "rc"), **os.environ}
    async with guarded(tmp_path / "spills") as processes:
        shell = Shell(processes, lambda: (["SOME_PROVIDER_KEY"], [CANARY]))
        line = "env; cat /proc/$PPID/environ /proc/1/environ /proc/$PPID/cmdline | tr '\\0' '\\n'"
        result = await shell.call(line, str(tmp_path), client)
    assert "MINE=yes" in result.output
    assert "HOLDFAST_RUN=" in result.output
    assert CANARY not in result.output
