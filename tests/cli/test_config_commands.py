"""`holdfast config`: output, changes and refusals."""

import stat
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cli.isolated_home import IsolatedHome
from config.commands import SCRIPT, Commands
from holdfast.cli.server_connection import ServerConnection

CANARY = "hunter2canaryhunter2"


@pytest.fixture
def place(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def test_show_names_every_setting_and_its_origin(place: Commands) -> None:
    place.write_user("[options]\nmax_steps = 7\n")
    place.write_project("[models.large]\nmodel = 'm'\n")
    assert place.call_ok("config", "show") == 'options.max_steps = 7\nmodels.large.model = "m"\n'
    lines = place.call_ok("config", "show", "--origin").splitlines()
    assert lines[0] == f"options.max_steps = 7  # {place.user_file}:2"
    assert lines[1] == f'models.large.model = "m"  # {place.project_file}:2'
    assert msgspec.json.decode(place.call_ok("config", "show", "--json")) == {
        "options": {"max_steps": 7},
        "models": {"large": {"model": "m"}},
    }
    first, _ = msgspec.json.decode(place.call_ok("config", "show", "--json", "--origin"))
    assert first == {"key": "options.max_steps", "value": 7, "origin": f"{place.user_file}:2"}


def test_show_all_includes_defaults(place: Commands) -> None:
    shown = place.call_ok("config", "show", "--all", "--origin")
    assert "options.max_steps = 500  # default\n" in shown


def test_no_settings_are_reported(place: Commands) -> None:
    done = place.call("config", "show")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "No settings are set here" in done.stderr


def test_settings_of_clients_override_files(place: Commands) -> None:
    place.write_user("[options]\nmax_steps = 7\n")
    place.write(place.data / "config.json", '{"options": {"max_steps": 8}}')
    done = place.call("config", "set", "options.max_steps", "9")
    assert f"{place.data / 'config.json'}:1 overrides it" in done.stderr
    assert place.call_ok("config", "get", "options.max_steps") == "8\n"


def test_workspace_settings_of_a_client_are_shown(alone: IsolatedHome) -> None:
    """The server's own files, found by the id that it gave the directory."""
    alone.serve()
    alone.stdout_of("sessions", "list")
    with closing(ServerConnection(alone.where, str(alone.work))) as connection:
        connection.open()
        connection.send(
            "POST", connection.path("config", "set"), body={"scope": 1, "key": "options.max_steps", "value": 41}
        )
    script = [sys.executable, "-c", SCRIPT, "holdfast.cli.config", "command", "show", "--origin"]
    done = subprocess.run(script, capture_output=True, text=True, check=True, cwd=alone.work, env=alone.environment)
    assert f"\noptions.max_steps = 41  # {alone.home}/d/workspaces/" in done.stdout


def test_get(place: Commands) -> None:
    place.write_user("[providers.'a.b']\nbase_url = 'http://x'\napi_key = 'k'\nmodels = [{id = 'm'}]\n")
    assert place.call_ok("config", "get", 'providers."a.b".base_url') == "http://x\n"
    assert place.call_ok("config", "get", 'providers."a.b".models[0].id') == "m\n"
    assert place.call_ok("config", "get", 'providers."a.b".api_key') == "set\n"
    assert place.call_ok("config", "get", "options.max_steps", "--json") == "500\n"
    assert msgspec.json.decode(place.call_ok("config", "get", "models.large"))["model"] == ""


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("options.nope", "options.nope is not a known key"),
        ("mcp.none", "mcp.none is not set"),
        ("models.large.temperature", "is not set"),
        ("a b", "A key is a path"),
        ("options.max_steps.x", "not a known key"),
    ],
)
def test_get_an_unknown_key(place: Commands, key: str, says: str) -> None:
    done = place.call("config", "get", key)
    assert done.exit_code != 0
    assert says in done.stderr


def test_set_and_unset(place: Commands) -> None:
    place.call_ok("config", "set", "options.disabled_tools", '["fetch"]')
    place.call_ok("config", "set", "models.large.model", "gpt-5")
    place.call_ok("config", "set", "models.small.model", "-", stdin="tiny\n")
    assert tomllib.loads(place.user_file.read_text()) == {
        "options": {"disabled_tools": ["fetch"]},
        "models": {"large": {"model": "gpt-5"}, "small": {"model": "tiny"}},
    }
    assert stat.S_IMODE(place.user_file.stat().st_mode) == 0o600
    place.call_ok("config", "unset", "models.large")
    assert place.call("config", "unset", "models.large").exit_code != 0
    assert "gpt-5" not in place.user_file.read_text()


def test_set_for_the_project(place: Commands) -> None:
    done = place.call("config", "set", "--project", "models.large.model", "m")
    assert place.project_file.read_text() == '[models.large]\nmodel = "m"\n'
    assert stat.S_IMODE(place.project_file.stat().st_mode) == 0o644
    assert "no effect" not in done.stderr
    done = place.call("config", "set", "--project", "env.A", "b")
    assert "no effect until this project is trusted" in done.stderr
    assert "1 setting of this project has no effect" in place.call("config", "show").stderr


def test_an_invalid_value_changes_nothing(place: Commands) -> None:
    place.write_user("# mine\n")
    done = place.call("config", "set", "options.max_steps", "many")
    assert done.exit_code == 4
    assert "expected a whole number of at least 0, found text. Nothing was changed." in done.stderr
    assert place.user_file.read_text() == "# mine\n"


def test_a_secret_on_the_command_line_is_refused(place: Commands) -> None:
    done = place.call("config", "set", "providers.openai.api_key", CANARY)
    assert done.exit_code != 0
    assert "holdfast login openai" in done.stderr
    assert CANARY not in done.output
    assert not place.user_file.exists()
    place.call_ok("config", "set", "providers.openai.api_key", "$OPENAI_API_KEY")
    assert place.call_ok("config", "get", "providers.openai.api_key") == "$OPENAI_API_KEY\n"


def test_check_lists_all_problems(place: Commands) -> None:
    assert place.call("config", "check").exit_code == 0
    place.write_user(
        "[options]\nmax_steps = 'x'\nnope = 1\n[providers.p]\napi_key = '$NOT_THERE'\nbase_url = '$(false)'\n"
    )
    place.write_project("[env\n")
    done = place.call("config", "check")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"error: {place.user_file}:2: options.max_steps: expected a whole number")
    assert lines[1].startswith(f"warning: {place.user_file}:3: options.nope: is not a known key")
    assert lines[2].startswith(f"error: {place.project_file}:1: this is not TOML")
    assert "NOT_THERE is not set" in lines[3]
    assert len(lines) == 4, "a command is not run for a check"
    found = msgspec.json.decode(place.call("config", "check", "--json").stdout)
    assert [problem["severity"] for problem in found] == [line.partition(":")[0] for line in lines]


def test_a_stored_key_replaces_a_variable(place: Commands) -> None:
    place.write_user("[providers.p]\napi_key = '$NOT_THERE'\n")
    assert place.call("config", "check").exit_code == 1
    place.call_ok("login", "p", stdin=CANARY)
    assert place.call("config", "check").exit_code == 0


def test_check_warns_about_readable_key_files(place: Commands) -> None:
    place.write_user(f"[providers.p]\napi_key = '{CANARY}'\n").chmod(0o644)
    done = place.call("config", "check")
    assert (
        done.stdout
        == f"warning: {place.user_file}: contains keys and is readable by other users: chmod 600 {place.user_file}\n"
    )
    place.user_file.chmod(0o600)
    assert place.call("config", "check").exit_code == 0


def test_an_unwritable_file_is_a_one_line_error(place: Commands) -> None:
    place.write(place.home / ".config", "a file where a directory should be")
    done = place.call("config", "set", "options.debug", "true")
    assert (done.exit_code, "No file can be written in" in done.stderr) == (4, True)
    done = place.call("login", "openai", stdin=CANARY)
    assert (done.exit_code, "No file can be written in" in done.stderr) == (4, True)


def test_schema_and_paths(place: Commands) -> None:
    assert msgspec.json.decode(place.call_ok("config", "schema"))["$ref"] == "#/$defs/Settings"
    place.write_user("")
    lines = place.call_ok("config", "path").splitlines()
    assert f"* user    {place.user_file}" in lines
    assert f"  project {place.project_file}" in lines
    files = msgspec.json.decode(place.call_ok("config", "path", "--json"))
    assert [f"{'*' if file['is_there'] else ' '} {file['kind']:<8}{file['path']}" for file in files] == lines
    assert place.call_ok("config", "path", "--project") == f"{place.project_file}\n"
    assert place.call_ok("config", "path", "--user") == f"{place.user_file}\n"


def test_edit_opens_the_file_and_checks_it(place: Commands) -> None:
    editor = place.write(place.home / "edit.sh", "#!/bin/sh\necho '[options]\nmax_steps = 3' > \"$2\"\n")
    editor.chmod(0o755)
    place.environment["EDITOR"] = f"{editor} --wait"
    done = place.process("config", "edit")
    assert (done.returncode, done.stderr) == (0, "")
    assert place.call_ok("config", "get", "options.max_steps") == "3\n"
    assert stat.S_IMODE(place.user_file.stat().st_mode) == 0o600
    place.write(editor, "#!/bin/sh\necho '[options' > \"$2\"\n")
    done = place.process("config", "edit")
    assert (done.returncode, "this is not TOML" in done.stdout) == (1, True)
    place.environment["EDITOR"] = "/no/such/editor"
    assert "set EDITOR" in place.process("config", "edit").stderr


def test_project_settings_cannot_control_the_terminal(place: Commands) -> None:
    place.write(
        place.project / "crush.json", '{"models": {"large": {"model": "a\\u001b[2Jb\\u202ec"}}, "\\u001b[2J": 1}'
    )
    for arguments in (("show", "--origin"), ("get", "models.large.model"), ("check",)):
        done = place.call("config", *arguments)
        assert "\x1b" not in done.output
        assert "\u202e" not in done.output


EVERYWHERE = f"""
[providers.p]
api_key = "{CANARY}"
base_url = "https://user:{CANARY}@host/v1?key={CANARY}"
extra_headers = {{Authorization = "Bearer {CANARY}"}}
[mcp.m]
args = ["--token", "{CANARY}"]
env = {{A = "{CANARY}", B = "$SECRET"}}
[env]
A = "{CANARY}"
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "--origin"),
        ("show", "--json"),
        ("show", "--json", "--origin"),
        ("show", "--all"),
        ("check",),
        ("get", "providers"),
        ("get", "providers.p.api_key"),
        ("get", "mcp.m.args"),
        ("get", "env"),
        ("unset", "providers.p.api_key"),
    ],
)
def test_no_key_is_ever_printed(place: Commands, arguments: tuple[str, ...]) -> None:
    place.write_user(EVERYWHERE).chmod(0o600)
    place.write_project(EVERYWHERE)
    place.environment["SECRET"] = CANARY
    place.environment["OPENAI_API_KEY"] = CANARY
    done = place.call("config", *arguments)
    assert CANARY not in done.output
    assert done.exit_code == 0


def test_a_real_process_prints_a_one_line_error(place: Commands) -> None:
    """Without a terminal no colours; a broken file is a sentence, not a traceback."""
    place.write_user("[options\n")
    done = place.process("config", "show")
    assert done.returncode == 0
    assert "1 error in these files" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


def test_rules_and_hooks_that_have_no_effect_are_named_with_file_and_line(place: Commands) -> None:
    place.write_user(
        "[permissions]\nallow = ['bash(make *)',\n 'bash(x']\ndeny = [\n 'bahs(touch *)',\n 'Bash(touch:*)']\n"
        "[[hooks.PreToolUs]]\ncommand = 'x'\n[[hooks.PreToolUse]]\ncommand = 'x'\nmatcher = 'Bahs'\n"
        "[tools.grep]\ntimeuot = 3\n[options.tui]\nthem = 'x'\n[options]\ndisabled_tools = ['bahs']\nmax_stps = 1\n"
    )
    done = place.call("config", "check", "--json")
    assert done.exit_code == 1
    found = [(item["line"], item["key"], item["hides_denial"]) for item in msgspec.json.decode(done.stdout)]
    assert found == [
        (3, "permissions.allow[1]", False),
        (5, "permissions.deny[0]", True),
        (7, "hooks.PreToolUs", False),
        (11, "hooks.PreToolUse[0].matcher", False),
        (13, "tools.grep.timeuot", False),
        (15, "options.tui.them", False),
        (17, "options.disabled_tools[0]", False),
        (18, "options.max_stps", False),
    ]
    shown = place.call("config", "check").stdout
    for guess in ("did you mean bash?", "did you mean PreToolUse?", "did you mean timeout?", "did you mean theme?"):
        assert guess in shown


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("permissions.deny", '["bahs(touch *)"]', "did you mean bash"),
        ("permissions.deny", '["bash(touch *"]', "bash(command *)"),
        ("permissions.deny", "bash(touch *)", "expected a list"),
        ("permissions.dney", '["bash"]', "did you mean deny"),
        ("permissions.allow", '["bash(a; b)"]', "one rule is about one command"),
        ("tools.grep.timeuot", "3", "did you mean timeout"),
        ("hooks.PreToolUs", "[{command = 'x'}]", "did you mean PreToolUse"),
        ("options.disabled_tools", '["bahs"]', "did you mean bash"),
    ],
)
def test_set_refuses_values_without_effect(place: Commands, key: str, value: str, expected: str) -> None:
    place.write_user("[options]\nmax_steps = 7\n")
    done = place.call("config", "set", key, value)
    assert done.exit_code != 0
    assert expected in done.stderr
    assert place.user_file.read_text() == "[options]\nmax_steps = 7\n"
