"""The commands without requests, with every option: exit codes, output, and contents of the files afterwards.

`test_command_table.py` checks that no option is missing here.
"""

import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.click_group import holdfast

KEY = "sk-0123456789abcdef0123456789abcdef"


class Row(msgspec.Struct, frozen=True):
    """A command line in a project with settings. `user` and `project` are the new contents of changed files."""

    line: str
    code: int = 0
    out: str = ""
    err: str = ""
    stdin: str = ""
    keys: str = ""
    without: str = ""
    user: dict[str, Any] | None = None
    project: dict[str, Any] | None = None


USER: dict[str, Any] = {"options": {"max_steps": 7}, "mcp": {"mine": {"command": "true"}}}
PROJECT: dict[str, Any] = {"models": {"large": {"model": "m"}}, "mcp": {"theirs": {"command": "false"}}}


def user(**mcp: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {**USER, "mcp": {**USER["mcp"], **mcp}}


def project(**mcp: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {**PROJECT, "mcp": {**PROJECT["mcp"], **mcp}}


RUNS_X = {"type": "stdio", "command": "x", "args": []}
AT_H = {"type": "http", "url": "http://h/"}

ROWS = (
    # Settings
    Row("config show", out='options.max_steps = 7\nmcp.mine.command = "true"', without="config.toml"),
    Row("config", out="options.max_steps = 7\n", err="no effect until it is trusted"),
    Row("config show --origin", out="/config.toml:2\n"),
    Row("config show --all", out="\noptions.data_directory = "),
    Row("config show --json", keys="options mcp models"),
    Row("config show --json --origin", keys="key value origin"),
    Row("config get options.max_steps", out="7\n"),
    Row("config get models.large.model", out="m\n", without='"'),
    Row("config get models.large.model --json", out='"m"\n'),
    Row("config get nothing.at.all", 4, err="is not a known key"),
    Row(
        "config set options.max_steps 9", err="options.max_steps is set in", user={**USER, "options": {"max_steps": 9}}
    ),
    Row(
        "config set options.max_steps -",
        stdin="11\n",
        err="is set",
        user={**USER, "options": {"max_steps": 11}},
    ),
    Row(
        "config set --project options.max_steps 9",
        err="is set",
        project={**PROJECT, "options": {"max_steps": 9}},
    ),
    Row("config set options.max_steps many", 4, err="options.max_steps"),
    Row("config unset options.max_steps", err="no longer set", user={**USER, "options": {}}),
    Row("config unset --project models.large", err="no longer set", project={"mcp": PROJECT["mcp"]}),
    Row("config unset options.debug", 4, err="is not set"),
    Row("config edit", 4, err="no-editor cannot be started"),
    Row("config edit --project", 4, err="no-editor cannot be started"),
    Row("config check", err="2 files, no problems."),
    Row("config check --json", out="[]"),
    Row("config schema", keys="$schema $ref $defs title"),
    Row("config path", out="* project "),
    Row("config path --project", out="/w/holdfast.toml\n", without="*"),
    Row("config path --user", out="/.config/holdfast/config.toml\n", without="*"),
    Row("config path --json", keys="path kind is_there"),
    # Trust
    Row("trust --show", err="is not trusted."),
    Row("trust", 2, err="Use --yes"),
    Row("trust --yes", err="is trusted, until"),
    Row("trust --revoke", err="was not trusted."),
    Row("trust . --show", out='! mcp.theirs.command = "false"'),
    Row("trust --show --yes", 2, err="cannot be combined"),
    Row("trust --revoke --yes", 2, err="cannot be combined"),
    Row("trust --show --revoke", 2, err="cannot be combined"),
    # Servers of tools
    Row("mcp add new -- x", err="new is set in", user=user(new=RUNS_X)),
    Row("mcp add new -- x -a b", err="new is set", user=user(new={**RUNS_X, "args": ["-a", "b"]})),
    Row("mcp add new --project -- x", err="no effect until this project is trusted", project=project(new=RUNS_X)),
    Row("mcp add new --url http://h/", err="new is set", user=user(new=AT_H)),
    Row("mcp add new --url http://h/ --type sse", err="is set", user=user(new={**AT_H, "type": "sse"})),
    Row("mcp add new --type stdio -- x", err="is set", user=user(new=RUNS_X)),
    Row("mcp add new --type stdio --url http://h/", 2, err="a URL has the type http or sse"),
    Row("mcp add new --type http -- x", 2, err="A command has the type stdio"),
    Row(
        "mcp add new --env A=1 --env B=a=b -- x", err="is set", user=user(new={**RUNS_X, "env": {"A": "1", "B": "a=b"}})
    ),
    Row("mcp add new --env =1 -- x", 2, err="--env takes NAME=VALUE."),
    Row("mcp add new --header A --url http://h/", 2, err="--header takes NAME=VALUE."),
    Row("mcp add new --header A=b --url http://h/", err="is set", user=user(new={**AT_H, "headers": {"A": "b"}})),
    Row("mcp add new --tool a --tool b -- x", err="is set", user=user(new={**RUNS_X, "enabled_tools": ["a", "b"]})),
    Row("mcp add new --timeout 3 -- x", err="is set", user=user(new={**RUNS_X, "timeout": 3})),
    Row("mcp add new --timeout 0 -- x", 2, err="0 is not in the range"),
    Row(f"mcp add new --env A_KEY={KEY} -- x", 4, err="A key on a command line"),
    Row(f"mcp add new --header Authorization={KEY} --url http://h/", 4, err="A key on a command line"),
    Row(f"mcp add new --url http://h/?api_key={KEY}", 4, err="A key on a command line"),
    Row(f"mcp add new -- x --api-key={KEY}", 4, err="A key on a command line"),
    Row("mcp add new --env 'A_KEY=$OTHER' -- x", err="is set", user=user(new={**RUNS_X, "env": {"A_KEY": "$OTHER"}})),
    Row("mcp add mine -- x", 4, err="mine is already set in"),
    Row("mcp add theirs -- x", err="theirs is set in", user=user(theirs=RUNS_X)),
    Row(f"mcp add {'n' * 40} -- x", err="is set", user=user(**{"n" * 40: RUNS_X})),
    Row(f"mcp add {'n' * 41} -- x", 4, err="at most 40"),
    Row("mcp add a-b_c1 -- x", err="is set", user=user(**{"a-b_c1": RUNS_X})),
    Row("mcp add a.b -- x", 4, err="letters, digits"),
    Row("mcp add é -- x", 4, err="letters, digits"),
    Row("mcp disable mine", err="disabled in", user=user(mine={"command": "true", "disabled": True})),
    Row("mcp enable mine", err="enabled in", user=user(mine={"command": "true", "disabled": False})),
    Row("mcp disable mine --project", 0, err="disabled", project=project(mine={"disabled": True})),
    Row(
        "mcp enable theirs --project", err="is enabled", project=project(theirs={"command": "false", "disabled": False})
    ),
    Row("mcp enable nobody", 4, err="There is no server nobody. Configured: mine."),
    Row("mcp disable nobody --project", 4, err="There is no server nobody."),
    Row("mcp remove mine", err="mine is no longer in", user={"options": USER["options"]}),
    Row("mcp remove theirs", 4, err="(--project)."),
    Row("mcp remove theirs --project", err="no longer in", project={"models": PROJECT["models"]}),
    # Keys
    Row("login", 2, err="Give a provider"),
    Row("login openai", stdin=f"{KEY}\n", err="The key of openai is stored in"),
    Row("login openai", 4, err="No key was given"),
    Row(f"login openai {KEY}", 2, err="A key on a command line", without=KEY),
    Row("login --list", err="No provider has a key yet"),
    Row("login --json", out="[]\n"),
    Row("logout openai", 4, err="No key of openai is stored"),
    # Models
    Row("models", err="models.large: There is no model m."),
    Row("models --json", keys="providers problem"),
    Row("models --all", out="anthropic"),
    Row("models sonnet", out="sonnet"),
    Row("models nothing-is-called-so", 1, err="No model matches nothing-is-called-so."),
    # Output
    Row("prompt", out="/w"),
    Row("prompt --json", keys="directory platform date git context notes trailer"),
    Row("dirs", out="settings  "),
    Row("dirs --json", keys="settings keys data database config log server"),
    Row("completion bash", out="_HOLDFAST_COMPLETE=bash_complete"),
    Row("completion zsh", out="_HOLDFAST_COMPLETE=zsh_complete"),
    Row("completion fish", out="_HOLDFAST_COMPLETE=fish_complete"),
    Row("completion csh", 2, err="'csh' is not one of"),
    Row("logs", out="line 3\n", without="line 2\n"),
    Row("logs -n 1", out="line 102\n", without="line 101\n"),
    Row("logs -n 0", without="line"),
    Row("logs --lines 1000", out="line 1\nline 2\n"),
)
LOCAL = tuple(row.line for row in ROWS)


class Home:
    """A home and a project with one of everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "w"
        self.user_file = root / ".config/holdfast/config.toml"
        self.project_file = self.work / "holdfast.toml"
        hidden = ("_API_KEY", "_TOKEN")
        named = ("AWS_", "XDG_", "GOOGLE_", "HOLDFAST", "EDITOR", "VISUAL", "NO_COLOR")
        self.environment: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(named) or name.endswith(hidden)
        }
        self.environment |= {
            "HOME": str(root),
            "XDG_RUNTIME_DIR": str(root / "r"),
            "HOLDFAST_DATA_DIR": str(root / "d"),
            "HOLDFAST_KEYRING": "0",
            "OLLAMA_HOST": "127.0.0.1:9",
            "EDITOR": "no-editor",
        }
        for file, text in (
            (self.user_file, '[options]\nmax_steps = 7\n[mcp.mine]\ncommand = "true"\n'),
            (self.project_file, '[models.large]\nmodel = "m"\n[mcp.theirs]\ncommand = "false"\n'),
            (root / "d/logs/server.log", "".join(f"line {number}\n" for number in range(1, 103))),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def files(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return tomllib.loads(self.user_file.read_text()), tomllib.loads(self.project_file.read_text())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    made = Home(tmp_path)
    monkeypatch.chdir(made.work)
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.line)
def test_a_command_with_its_options(row: Row, home: Home) -> None:
    done = CliRunner().invoke(
        holdfast, shlex.split(row.line), input=row.stdin, env=home.environment, prog_name="holdfast"
    )
    assert done.exit_code == row.code, done.output
    assert row.out in done.stdout
    assert row.err in done.stderr
    assert not row.without or row.without not in done.output
    assert home.files() == (row.user or USER, row.project or PROJECT)
    if row.user is not None:
        assert home.user_file.stat().st_mode & 0o777 == 0o600
    if row.project is not None:
        assert home.project_file.stat().st_mode & 0o777 == 0o644
    if row.keys:
        reported = json.loads(done.stdout)
        assert set(reported[0] if isinstance(reported, list) else reported) == set(row.keys.split())
