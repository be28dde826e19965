"""Every command that reads or writes files of the user, in every state of these files: exit code, output and the files
that it changed, whole.

`local_states.txt` has the expected texts.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.recorded_outputs import NOW, Desk, Recording
from holdfast.cli import config, models, trust

RECORDING = Recording(Path(__file__).with_name("local_states.txt"))
KEY = "sk-0123456789abcdef0123456789abcdef"
USER, PROJECT = ".config/holdfast/config.toml", "work/holdfast.toml"


class Case(msgspec.Struct, frozen=True):
    """Commands in a home with these files. `name` is added if the lines are not unique."""

    lines: str
    name: str
    files: dict[str, str] = {}
    stdin: str = ""
    environment: dict[str, str] = {}
    is_terminal: bool = False
    shows_color: bool = False
    edited: str = ""
    """What the editor writes; `code` is its exit code."""
    code: int = 0
    modes: dict[str, int] = {}

    @property
    def label(self) -> str:
        return f"{self.lines} | {self.name}"


STEPS = "[options]\nmax_steps = 7\n"
LARGE = '[models.large]\nmodel = "m"\n'
SERVER = '[mcp.{}]\ncommand = "true"\n'
BROKEN = "[options\n"
ODD = '[options]\nmax_steps = "many"\nno_such_key = 1\n'
FILES: dict[str, dict[str, str]] = {
    "no files": {},
    "user": {USER: STEPS},
    "project": {PROJECT: LARGE},
    "withheld": {PROJECT: LARGE + SERVER.format("theirs")},
    "withheld twice": {PROJECT: SERVER.format("theirs") + SERVER.format("more")},
    "both": {USER: STEPS + SERVER.format("mine"), PROJECT: LARGE + SERVER.format("theirs") + STEPS},
    "broken user": {USER: BROKEN},
    "broken project": {PROJECT: BROKEN, USER: STEPS},
    "odd": {USER: ODD},
    "escapes": {USER: '[mcp.x]\ncommand = "\\u001b[31m"\n', PROJECT: '[mcp.y]\ncommand = "\\u001b[31m"\n'},
    "secrets": {USER: f'[providers.openai]\napi_key = "{KEY}"\n[mcp.x]\ncommand = "x"\nenv = {{ A_KEY = "{KEY}" }}\n'},
    "templates": {
        USER: '[providers.openai]\napi_key = "$NO_SUCH"\n[mcp.x]\ncommand = "$NONE"\n[lsp.y]\ncommand = "$NIL"\n'
    },
    "disabled templates": {
        USER: '[providers.openai]\ndisable = true\napi_key = "$NO"\n[mcp.x]\ndisabled = true\ncommand = "$NONE"\n'
        '[lsp.y]\ndisabled = true\ncommand = "$NIL"\n'
    },
}
HOOKS = '{"hooks": {"PreToolUse": [{"matcher": "bash", "hooks": [{"type": "command", "command": "./check"}]}]}}'
COMMAND_FILE = "---\ndescription: d\nallowed-tools: bash(ls)\nmodel: m\n---\nText\n"
AGENT_FILE = "---\nname: a\ndescription: d\ntools: bash\n---\nText\n"
TRUSTABLE: dict[str, dict[str, str]] = {
    "hooks": {"work/.claude/settings.json": HOOKS},
    "command": {"work/.holdfast/commands/c.md": COMMAND_FILE},
    "agent": {"work/.holdfast/agents/a.md": AGENT_FILE},
    "all": {
        "work/.claude/settings.json": HOOKS,
        "work/.holdfast/commands/c.md": COMMAND_FILE,
        PROJECT: LARGE + SERVER.format("theirs"),
    },
    "long": {PROJECT: LARGE + "".join(SERVER.format(f"s{number}") for number in range(201))},
}


def config_cases() -> Iterator[Case]:
    for line in ("config show", "config check"):
        for name, files in FILES.items():
            yield Case(line, name, files)
    for line in ("config show --origin", "config show --json"):
        for name in ("no files", "both", "secrets"):
            yield Case(line, name, FILES[name])
    for name in ("no files", "odd"):
        yield Case("config check --json", name, FILES[name])
    for line in ("config show", "config show --origin", "config check"):
        for name in ("both", "odd"):
            yield Case(line, f"{name}, colours", FILES[name], shows_color=True)
    yield Case("config show --json --origin", "both", FILES["both"])
    for key in (
        "models.large.model", "models.large", "options.max_steps", "mcp.mine.command", "mcp.none", "options.none",
        "models.large.model.more", "providers", '"', "mcp.theirs.command",
    ):  # fmt: skip
        yield Case(f"config get '{key}'", "both", FILES["both"])
    yield Case("config get models.large.model --json", "both", FILES["both"])
    for key, value in (
        ("options.max_steps", "9"), ("models.large.model", "n"), ("mcp.theirs.command", "x"),
        ("mcp.theirs.disabled", "true"), ("options.none", "1"), ("options.disabled_tools", '["fetch"]'),
    ):  # fmt: skip
        for option in ("", " --project"):
            yield Case(f"config set{option} {key} '{value}'", "both", FILES["both"])
            yield Case(f"config set{option} {key} '{value}'", "no files")
            yield Case(f"config unset{option} {key}", "both", FILES["both"])
    for key in ("providers.openai.api_key", "mcp.x.env.A_KEY", "mcp.x.headers.Authorization", "providers.x.base_url"):
        for value in (KEY, "'$MY_KEY'", "-"):
            yield Case(f"config set {key} {value}", "secret", stdin=f"{KEY}\n\n")


def file_cases() -> Iterator[Case]:
    for option in ("", " --project"):
        yield Case(f"config edit{option}", "creates", edited=STEPS)
        yield Case(
            f"config edit{option}", "keeps the mode", FILES["both"], modes={USER: 0o640, PROJECT: 0o640}, edited=STEPS
        )
        yield Case(f"config edit{option}", "breaks", FILES["both"], edited=BROKEN)
        yield Case(f"config edit{option}", "fails", FILES["both"], code=3)
    for name, environment in (
        ("visual", {"VISUAL": "v -w 'a b'", "EDITOR": "e"}),
        ("empty visual", {"VISUAL": "", "EDITOR": "e"}),
        ("neither", {"EDITOR": ""}),
        ("bad quotes", {"EDITOR": "e '"}),
    ):
        yield Case("config edit", name, environment=environment, edited=STEPS)
    for line in (
        "config path",
        "config path --json",
        "config path --user",
        "config path --project",
        "config path --user --project",
    ):
        yield Case(line, "both", FILES["both"])
    for mode in (0o600, 0o640, 0o604, 0o610):
        yield Case("config check", f"secrets {mode:o}", FILES["secrets"], modes={USER: mode})
        yield Case("config check", f"plain {mode:o}", FILES["user"], modes={USER: mode})
    for name, files in FILES.items():
        if "templates" in name:
            yield Case("login openai;config check", name, files, stdin=KEY)
            yield Case("config check", f"{name}, set", files, environment={"NO_SUCH": KEY, "NONE": "x", "NIL": "x"})


def trust_cases() -> Iterator[Case]:
    projects = {name: files for name, files in FILES.items() if PROJECT in files or not files} | TRUSTABLE
    for name, files in projects.items():
        yield Case("trust --show", name, files)
        if name == "long":
            continue
        yield Case("trust", name, files)
        is_whole = name in ("no files", "all")
        rest = ";trust;trust --show;trust --revoke;trust --revoke;trust --show" if is_whole else ";trust --revoke"
        yield Case(f"trust --yes{rest}", name, files)
    for name in ("withheld", "hooks", "no files"):
        files = projects[name]
        for answer in ("y", "n"):
            yield Case("trust", f"{name}, {answer}", files, stdin=f"{answer}\n", is_terminal=True)
        yield Case("trust --show", f"{name}, colours", files, shows_color=True)


def server_cases() -> Iterator[Case]:
    mine, theirs = SERVER.format("a"), SERVER.format("a")
    states = {
        "nowhere": {},
        "user": {USER: mine},
        "project": {PROJECT: theirs},
        "both": {USER: mine, PROJECT: "\n" + theirs},
        "others": {USER: SERVER.format("x") + SERVER.format("b"), PROJECT: SERVER.format("c")},
    }
    lines = ("add{} a -- x", "remove{} a", "disable{} a", "enable{} a")
    for state, files in states.items():
        for line in lines:
            for option in ("", " --project"):
                yield Case("mcp " + line.format(option), state, files)
    for state in ("project", "both"):
        for line in lines:
            yield Case("trust --yes;mcp " + line.format(""), state, states[state])
            yield Case("trust --yes;mcp " + line.format(" --project"), state, states[state])
    disabled = {USER: mine, PROJECT: "[mcp.a]\ndisabled = true\n"}
    for line in ("mcp enable a", "mcp disable a", "trust --yes;mcp enable a"):
        yield Case(line, "overridden", disabled)
    for words in (
        "", "--url http://h/ -- x", "--url http://h/ --tool t --timeout 2 --header A=", "--env A=1 --env A=2 -- x y",
        "--env A -- x", "--header =v -- x",
    ):  # fmt: skip
        yield Case(f"mcp add a {words}".rstrip(), "nowhere")


def key_cases() -> Iterator[Case]:
    for provider in ("openai", "OpenAI", "google", "nobody", "opnai", "mine"):
        settings = {USER: '[providers.mine]\nbase_url = "http://h/"\n'}
        line = f"login {provider};login --list;login --json;logout {provider};login --list;logout {provider}"
        yield Case(line, "", settings, stdin=f"  {KEY} \n")
    for text in ("", " \n"):
        yield Case("login openai", repr(text), stdin=text)
    keyed = {USER: f'[providers.openai]\napi_key = "{KEY}"\n[providers.x]\napi_key = "$A_B"\nbase_url = "http://h/"\n'}
    variables = {"ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY, "GOOGLE_API_KEY": KEY}
    for line in ("login --list", "login --json", "login openai;login --list;logout openai"):
        yield Case(line, "settings and variables", keyed, stdin=KEY, environment=variables)
    yield Case("login;logout nobody;logout openai", "nothing")


CASES = [case for table in (config_cases, file_cases, trust_cases, server_cases, key_cases) for case in table()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_command_in_a_state(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch)
    desk.stdin, desk.shows_color = case.stdin, case.shows_color
    desk.environment |= case.environment
    for path, text in case.files.items():
        desk.write(path, text, case.modes.get(path, 0o644))
    for module in (config, trust, models):
        monkeypatch.setattr(module, "uses_color", lambda: case.shows_color)
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: case.is_terminal), exit=sys.exit)
    monkeypatch.setattr(trust, "sys", terminal)
    monkeypatch.setattr(trust, "time", SimpleNamespace(time=lambda: NOW))
    started: list[str] = []

    def edit(words: list[str], *, check: bool) -> Any:  # noqa: ANN401
        started.append("* " + desk.shown(" ".join(words)) + " check" * check)
        if case.environment.get("EDITOR") == "no-editor":
            raise FileNotFoundError
        if case.edited:
            Path(words[-1]).write_text(case.edited)
        return SimpleNamespace(returncode=case.code)

    monkeypatch.setattr(subprocess, "run", edit)
    before = desk.files()
    found = [desk.call(line) for line in case.lines.split(";")]
    after = desk.files()
    found += started
    # The digests of trusted files are recorded where trust is the subject.
    left_out = "trust.json" if ";mcp" in case.lines else None
    found += [text for path, text in after.items() if before.get(path) != text and Path(path).name != left_out]
    found += [f"= ~/{Path(path).relative_to(tmp_path)} is gone" for path in before if path not in after]
    text = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", "\n".join(found)).replace(KEY, "<key>")
    RECORDING.check(case.label, re.sub("\n\n+", "\n", text))


def test_names_are_unique() -> None:
    labels = [case.label for case in CASES]
    assert sorted({label for label in labels if labels.count(label) > 1}) == []
    assert set(RECORDING.expected) == set(labels), "texts without a row"
