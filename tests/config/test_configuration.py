"""The effective configuration: precedence, provenance, broken files, changes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from config.settings_files import SettingsFiles
from holdfast.atomic_files import FileUnreadable, read_file
from holdfast.config.configuration import Configuration
from holdfast.domain.settings import Settings


def steps(number: int) -> str:
    return f"[options]\nmax_steps = {number}\n"


def json_steps(number: int) -> str:
    return f'{{"options": {{"max_steps": {number}}}}}'


def test_no_files_are_a_valid_configuration(files: SettingsFiles) -> None:
    assert files.open().current() == Settings()
    assert files.open().problems == ()


def test_each_file_overrides_those_before_it(files: SettingsFiles) -> None:
    inner = files.project / "src"
    inner.mkdir()
    paths = [Path(source.path) for source in files.locations(inner).sources if source.form != "mcp"]
    configuration = files.open(inner)
    for number, file in enumerate(paths, 1000):
        files.write(file, steps(number) if file.suffix == ".toml" else json_steps(number))
        files.trust(configuration)
        assert configuration.current().options.max_steps == number, file
        assert configuration.origins["options", "max_steps"].file == str(file)
    assert configuration.problems == ()


def test_every_value_has_its_file_and_line(files: SettingsFiles) -> None:
    files.write_user("# mine\n[providers.local]\nbase_url = 'http://x'\n[[providers.local.models]]\nid = 'm'\n")
    files.write(files.data / "config.json", '{\n  "providers": {"local": {\n    "name": "Local"}}}')
    origins = files.open().origins
    assert str(origins["providers", "local", "base_url"]) == f"{files.user_file}:3"
    assert str(origins["providers", "local", "models", 0, "id"]) == f"{files.user_file}:5"
    assert str(origins["providers", "local", "name"]) == f"{files.data / 'config.json'}:3"


def test_crush_files_are_read_with_the_same_keys(files: SettingsFiles) -> None:
    files.write(
        files.home / ".config/crush/crush.json",
        '{"$schema": "x", "providers": {"g": {"type": "google"}, "v": {"type": "vertexai"}, "e": {"type": "gemini"}},'
        ' "models": {"large": {"model": "m", "provider": "g", "temperature": 1, "max_tokens": null}},'
        ' "options": {"disable_metrics": true, "attribution": {"co_authored_by": true}}}',
    )
    configuration = files.open()
    assert configuration.problems == ()
    assert configuration.settings.models.large.temperature == 1.0
    assert configuration.settings.providers["g"].type == "google"


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        ("[options]\n\nmax_steps = 'x'\n", 3, "options.max_steps", "expected a whole number of at least 0, found text"),
        ("[options]\nmax_steps = -1\n", 2, "options.max_steps", "of at least 0, found a smaller one"),
        ("[options]\nmax_steps = 1.5\n", 2, "options.max_steps", "of at least 0, found one with a point"),
        ("[options]\nmax_steps = true\n", 2, "options.max_steps", "expected a whole number"),
        ("[options]\nmax_steps = 99999999999999999999\n", 2, "options.max_steps", "expected a whole number"),
        ("[options]\nmax_cost = inf\n", 2, "options.max_cost", "expected a number"),
        ("[options]\ndebug = 'yes'\n", 2, "options.debug", "expected true or false, found text"),
        ("options = 3\n", 1, "options", "expected a table, found a number"),
        ("[options]\ncontext_paths = 'a'\n", 2, "options.context_paths", "expected a list"),
        ("[options]\ncontext_paths = ['a',\n 3]\n", 3, "options.context_paths[1]", "expected text, found a number"),
        ("[options]\nnotifications = 'loud'\n", 2, "options.notifications", 'one of "auto"'),
        ("[mcp.'a.b']\ntype = 1\n", 2, 'mcp."a.b".type', 'one of "http", "sse", "stdio"'),
        ("[[providers.x.models]]\nname = 'n'\n", 1, "providers.x.models[0]", "id is missing"),
        ("[mcp.m]\noauth_callback_port = 70000\n", 2, "mcp.m.oauth_callback_port", "from 0 to 65535"),
        ("[providers.x.extra_body]\na = 2024-01-01\n", 2, "providers.x.extra_body.a", "expected text, a number"),
        ("[hooks]\nStop = [{name = 'x'}]\n", 2, "hooks.Stop[0]", "command is missing"),
        ("a = 1\nb = = 2\n", 2, "", "this is not TOML: "),
        ("a = 1\na = 2\n", 2, "", "this is not TOML: "),
        ("a = 1\nb = [1,\n", 3, "", "this is not TOML: "),
    ],
)
def test_an_error_names_file_line_key_and_expectation(
    files: SettingsFiles, text: str, line: int, key: str, expected: str
) -> None:
    files.write_user(text)
    problems = [problem for problem in files.open().problems if problem.severity == "error"]
    assert [(problem.file, problem.line, problem.key) for problem in problems] == [(str(files.user_file), line, key)]
    assert expected in problems[0].text


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ('{"options": \n{"debug": 1}}', 2, "options.debug: expected true or false"),
        ('{"options":\n {,}}', 2, "this is not JSON: "),
        ("[1]", 1, "expected an object"),
        ('{"a": "', 1, "expected JSON"),
    ],
)
def test_error_in_json_names_line_and_key(files: SettingsFiles, text: str, line: int, expected: str) -> None:
    file = files.write(files.home / ".config/crush/crush.json", text)
    [problem] = [found for found in files.open().problems if found.severity == "error"]
    assert (problem.file, problem.line) == (str(file), line)
    assert expected in str(problem)


def test_unknown_key_is_a_warning(files: SettingsFiles) -> None:
    files.write_user("[options]\nmax_step = 3\nmax_steps = 4\n[providers.x]\ntype = 'antropic'\n")
    configuration = files.open()
    assert configuration.settings.options.max_steps == 4
    unknown, kind = configuration.problems
    assert (unknown.severity, unknown.line) == ("warning", 2)
    assert "did you mean max_steps?" in unknown.text
    assert "did you mean anthropic?" in kind.text


def test_warning_for_an_unknown_table_has_a_line(files: SettingsFiles) -> None:
    files.write_user("[options]\nmax_steps = 4\n\n[modles.large]\nmodel = 'x'\n")
    [unknown] = files.open().problems
    assert (unknown.key, unknown.line) == ("modles", 4)
    assert "did you mean models?" in unknown.text


def test_many_problems_are_summarised(files: SettingsFiles) -> None:
    files.write_user("".join(f"k{number} = 1\n" for number in range(5000)))
    problems = files.open().problems
    assert len(problems) == 51
    assert problems[-1].text.startswith("4950 more")


@pytest.mark.parametrize("broken", ["[options", "[options]\nmax_steps = 'x'\n", b"\xff\xfe", "x = " + "[" * 5000])
def test_the_last_good_configuration_stays_in_force(files: SettingsFiles, broken: str | bytes) -> None:
    files.write_user(steps(7))
    configuration = files.open()
    assert configuration.current().options.max_steps == 7
    files.write(files.user_file, broken)
    files.write_project("[models.large]\nmodel = 'new'\n")
    now = configuration.current()
    assert now.options.max_steps == 7, "valid settings stay"
    assert now.models.large.model == "new", "other files go on"
    assert [problem.severity for problem in configuration.problems] == ["error"]
    files.write_user(steps(8))
    assert configuration.current().options.max_steps == 8
    assert configuration.problems == ()


def test_file_broken_from_the_start_yields_its_valid_settings(files: SettingsFiles) -> None:
    files.write_user("[options]\nmax_steps = 'x'\nmax_cost = 3\n")
    settings = files.open().current()
    assert (settings.options.max_steps, settings.options.max_cost) == (500, 3.0)


def test_broken_file_is_doubtful_until_a_valid_version_is_known(files: SettingsFiles) -> None:
    """Not a file that was valid once, nor a project file."""
    files.write_user("[models.large\n")
    files.write_project("[models.large\n")
    configuration = files.open()
    assert [(problem.file, problem.line) for problem in configuration.unresolved_errors()] == [
        (str(files.user_file), 1)
    ]
    files.write_user("[models.large]\nmodel = 'a'\nprovider = 5\nmodl = 'b'\n")
    configuration.current()
    assert [problem.key for problem in configuration.unresolved_errors()] == ["models.large.provider"]
    files.write_user("")
    configuration.current()
    assert configuration.unresolved_errors() == ()
    files.write_user("[models.large\n")
    configuration.current()
    assert configuration.unresolved_errors() == ()


def test_settings_of_a_deleted_file_are_dropped(files: SettingsFiles) -> None:
    files.write_user(steps(7))
    configuration = files.open()
    files.user_file.unlink()
    assert configuration.current() == Settings()


def test_a_change_of_the_same_size_and_time_is_seen(files: SettingsFiles) -> None:
    files.write_user(steps(7))
    configuration = files.open()
    before = files.user_file.stat()
    files.write_user(steps(8))
    os.utime(files.user_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert configuration.current().options.max_steps == 8


def test_unchanged_file_is_not_read_again(files: SettingsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_user(steps(7))
    configuration = files.open()

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("holdfast.config.configuration.load", refuse)
    monkeypatch.setattr("holdfast.config.configuration.merge", refuse)
    first = configuration.snapshot()
    assert configuration.snapshot() is first


def _loop(path: Path) -> None:
    path.symlink_to(path)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a pipe without a writer": os.mkfifo,
    "a link to itself": _loop,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "ten megabytes": lambda path: path.write_bytes(b"a = 1\n" * 1_700_000),
    "a terminal's bytes": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "deep arrays": lambda path: path.write_text("a = " + "[" * 90_000),
    "deep keys": lambda path: path.write_text(".".join("a" * 90_000) + " = 1"),
    "a huge number": lambda path: path.write_text("a = " + "1" * 90_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", ["holdfast.toml", "crush.json"])
def test_hostile_files_are_reported(files: SettingsFiles, kind: str, name: str) -> None:
    HOSTILE[kind](files.project / name)
    files.write_user(steps(7))
    configuration = files.open()
    assert configuration.current().options.max_steps == 7
    [problem] = configuration.problems
    assert problem.severity == "error"
    assert problem.file == str(files.project / name)
    assert len(str(problem)) < 400


def test_unreadable_file_is_reported(files: SettingsFiles) -> None:
    files.write_project("[options]").chmod(0)
    uid = os.geteuid()
    try:
        if uid == 0:
            os.seteuid(65_534)  # root may read everything
        with pytest.raises(FileUnreadable, match="cannot be read: permission denied"):
            read_file(str(files.project_file))
    finally:
        os.seteuid(uid)


def test_oversized_file_is_not_read(files: SettingsFiles) -> None:
    files.write_user(steps(7) + "# nothing\n" * 30_000)
    configuration = files.open()
    assert configuration.settings == Settings()
    assert "larger than 256 KiB" in configuration.problems[0].text


def test_byte_order_marks_and_crlf_are_accepted(files: SettingsFiles) -> None:
    files.write(files.user_file, b"\xef\xbb\xbf[options]\r\nmax_steps = 7\r\ndebug = 3\r\n")
    configuration = files.open()
    assert configuration.settings.options.max_steps == 7
    assert configuration.problems[0].line == 3


def test_dangling_link_is_ignored(files: SettingsFiles) -> None:
    files.project_file.symlink_to(files.project / "nowhere.toml")
    assert files.open().problems == ()


def test_values_are_expanded_with_the_trust_of_their_file(files: SettingsFiles) -> None:
    files.environment["KEY"] = "k1"
    files.write_user(
        "[providers.p]\napi_key = '$KEY'\nbase_url = '${HOST:-http://h}/v1'\n"
        "extra_headers = {A = '$(echo made)', B = '${NONE:-}', C = '$NONE'}\n"
    )
    files.write(files.data / "config.json", '{"providers": {"p": {"extra_body": {"x": "$(echo no)"}}}}')
    provider, problems = files.open().provider("p")
    assert (provider.id, provider.api_key, provider.base_url) == ("p", "k1", "http://h/v1")
    assert provider.extra_headers == {"A": "made"}, "an empty or failed expansion is not sent"
    assert sorted(problem.key for problem in problems) == ["providers.p.extra_body.x", "providers.p.extra_headers.C"]
    assert "NONE" in next(problem.text for problem in problems if problem.key.endswith("C"))


def test_variables_set_in_the_settings_are_expanded(files: SettingsFiles) -> None:
    files.environment["HOST"] = "h"
    files.write_user("[env]\nURL = 'http://$HOST'\nBAD = '$NONE'\n[mcp.m]\nurl = '$URL/mcp'\nargs = ['$HOST', 'x']\n")
    configuration = files.open()
    server, problems = configuration.mcp("m")
    assert (server.url, server.args, problems) == ("http://h/mcp", ("h", "x"), ())
    assert configuration.environment()["URL"] == "http://h"
    assert "BAD" not in configuration.environment()


def test_variables_change_with_their_file(files: SettingsFiles) -> None:
    files.write_user("[env]\nA = '1'\n")
    configuration = files.open()
    assert configuration.environment()["A"] == "1"
    files.write_user("[env]\nA = '2'\n")
    configuration.current()
    assert configuration.environment()["A"] == "2"


def test_key_is_expanded_again_on_request(files: SettingsFiles) -> None:
    answers = iter(["one", "two"])
    files.write_user("[env]\nK = '$(next)'\n[providers.p]\napi_key = '$K'\n")
    configuration = Configuration(files.locations(), files.environment, run=lambda _command, _env: next(answers))
    assert configuration.provider("p")[0].api_key == "one"
    assert configuration.provider("p")[0].api_key == "one"
    configuration.forget()
    assert configuration.expand("$K", ("providers", "p", "api_key")) == "two"


def test_mcp_json_of_a_project_defines_only_servers(files: SettingsFiles) -> None:
    """In the format of other programs; holdfast.toml overrides it, and both need trust."""
    servers = (
        '{"mcpServers": {\n  "a": {"command": "x", "args": ["$HERE"], "autoApprove": ["t"]},\n'
        '  "b": {"url": "http://b/mcp"},\n  "c": {"type": "streamable-http", "url": "http://c"}},\n'
        ' "permissions": {"allow": ["bash"]}}'
    )
    files.write(files.project / ".mcp.json", servers)
    configuration = files.open()
    assert configuration.settings.mcp == {}
    assert [(item.path, item.line) for item in configuration.withheld] == [
        (("mcp", "a"), 2),
        (("mcp", "b"), 3),
        (("mcp", "c"), 4),
    ]
    files.write(files.project / "holdfast.toml", "[mcp.a]\ncommand = 'y'\n")
    files.trust(configuration)
    found = configuration.current().mcp
    assert {name: server.type for name, server in found.items()} == {"a": "stdio", "b": "http", "c": "http"}
    assert (found["a"].command, found["a"].args) == ("y", ("$HERE",))
    assert configuration.problems == ()
    assert configuration.settings.permissions.allow == ()
    files.write(files.project / ".mcp.json", servers.replace('"x"', '"z"'))
    assert configuration.current().mcp == {}, "a changed file is no longer trusted"
    files.write(files.project / ".mcp.json", '{"mcpServers": {"a": {"command": 7}, "b": []}}')
    assert {problem.key for problem in files.open().problems} == {"mcp.a.command", "mcp.b"}


def test_deny_and_ask_rules_are_in_force_beside_other_mistakes(files: SettingsFiles) -> None:
    """The other settings of the file keep their last valid values; its deny rules apply before the correction."""
    files.write_user("options.max_steps = 1\npermissions.deny = ['bash(rm *)']\n")
    configuration = files.open()
    assert configuration.current().permissions.deny == ("bash(rm *)",)
    files.write_user("options.max_steps = 'x'\n\npermissions.deny = ['bash(dd *)']\npermissions.allow = ['bash']\n")
    settings = configuration.current()
    assert (settings.options.max_steps, settings.permissions.allow) == (1, ())
    assert settings.permissions.deny == ("bash(rm *)", "bash(dd *)")
    assert configuration.origins["permissions", "deny", 1].line == 3
    files.write_user("options.max_steps = 2\npermissions.deny = ['bash(dd *)', 'bahs']\n")
    settings = configuration.current()
    assert (settings.options.max_steps, settings.permissions.deny) == (2, ("bash(dd *)",))
    assert [problem.hides_denial for problem in configuration.problems] == [True]


def test_unreadable_deny_rule_is_found_among_any_number_of_problems(files: SettingsFiles) -> None:
    files.write_user("".join(f"key{number} = 1\n" for number in range(200)) + "permissions.deny = ['bahs']\n")
    assert [problem.line for problem in files.open().problems if problem.hides_denial] == [201]


def test_duplicate_json_key_is_reported(files: SettingsFiles) -> None:
    text = '{"options": {"debug": true},\n "options": {},\n "permissions": {"deny": ["bash"],\n "deny": []}}'
    files.write(files.home / ".config/crush/crush.json", text)
    found = [(item.severity, item.line, item.key, item.hides_denial) for item in files.open().problems]
    assert found == [("warning", 2, "options", False), ("error", 4, "permissions.deny", True)]


def test_a_change_is_announced_only_if_the_settings_differ(files: SettingsFiles) -> None:
    path = files.write_user('[env]\nA = "1"\n')
    changes: list[int] = []
    configuration = files.open()
    configuration.on_change = lambda: changes.append(1)
    configuration.current()
    files.write_user('[env]\nA = "1"\n\n')
    configuration.current()
    assert changes == [], "an empty line at the end"
    files.write_user('[env]\nA = "2"\n')
    configuration.current()
    configuration.current()
    assert changes == [1]
    path.unlink()
    configuration.current()
    assert changes == [1, 1]


def test_variables_of_clients_and_of_the_settings(files: SettingsFiles) -> None:
    """Settings override the environment of the client; one that joins later adds its variables."""
    files.write_user('[env]\nA = "settings"\nB = "$C"\n')
    files.environment |= {"A": "client", "C": "client"}
    configuration = files.open()
    assert {name: configuration.environment().get(name) for name in "ABC"} == {
        "A": "settings",
        "B": "client",
        "C": "client",
    }
    versions = [configuration.environment_version]
    for variables in ({"C": "client"}, {"C": "later", "A": "later"}, {"C": "later"}):
        configuration.add_environment(variables)
        versions.append(configuration.environment_version - versions[0])
    assert versions[1:] == [0, 1, 1]
    assert {name: configuration.environment().get(name) for name in "ABC"} == {
        "A": "settings",
        "B": "later",
        "C": "later",
    }


def test_sections_of_the_files_alone(files: SettingsFiles) -> None:
    """Without the settings that clients have saved."""
    files.write_user('[options]\ntui = {compact_mode = true}\n[env]\nA = "user"\n')
    files.write_project('[env]\nB = "project"\n')
    files.write(files.data / "config.json", '{"env": {"A": "saved", "C": "saved"}}')
    configuration = files.open()
    files.trust(configuration)
    assert configuration.snapshot().tree["env"]["C"] == "saved"
    assert configuration.settings_from_files("env") == {"A": "user", "B": "project"}
    assert configuration.settings_from_files("absent") == {}
