"""Hooks that hang, flood, fail to start or do not read, in virtual time; and the events that run them."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from config.settings_files import SettingsFiles
from holdfast.config.credentials import Credentials
from holdfast.config.trust import content_digest
from holdfast.domain.errors import ToolError
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.runs import Run
from holdfast.domain.tools import ToolOutcome
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.extensions.hooks.hook_process import run_hook
from holdfast.extensions.hooks.hooks import Hooks
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse, in_virtual_time
from holdfast.workspace.process.guard_client import CannotStart

Json = dict[str, Any]
Behaviour = Callable[["Process"], None]


class _Stdin:
    def __init__(self, process: "Process") -> None:
        self._process = process
        self.is_closed = False

    def write(self, data: bytes) -> None:
        if self._process.breaks:
            raise BrokenPipeError
        self._process.received += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self.is_closed = True


class Process:
    """A hook in memory."""

    def __init__(self, shell: "Shell", command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command[-1]
        self.environment = dict(environment)
        self.received = b""
        self.breaks = shell.breaks
        self.error = shell.error
        self.stdin = _Stdin(self)
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.stopped_at: float | None = None
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int = 0, out: str = "", err: str = "") -> None:
        if not self._ended.done():
            for stream, text in ((self.stdout, out), (self.stderr, err)):
                if text:
                    stream.feed_data(text.encode())
                stream.feed_eof()
            self._ended.set_result(code)

    async def wait(self) -> int:
        if self.error:
            raise CannotStart(self.error)
        return await asyncio.shield(self._ended)

    async def stop(self, grace: float) -> None:
        assert grace == 0
        self.stopped_at = asyncio.get_running_loop().time()
        self.end(137)


class Shell:
    """Starts hooks. `does` maps a word of their command to a behaviour."""

    def __init__(self, **does: Behaviour) -> None:
        self.does = does
        self.processes: list[Process] = []
        self.refuses: Exception | None = None
        self.breaks = False
        self.error = ""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> Process:
        assert has_input
        if self.refuses is not None:
            raise self.refuses
        process = Process(self, arguments, environment)
        self.processes.append(process)
        for word, does in self.does.items():
            if word in process.command:
                asyncio.get_running_loop().call_soon(does, process)
        return process

    @property
    def commands(self) -> list[str]:
        return [process.command for process in self.processes]


def _run(shell: Shell, seconds: float = 30.0) -> Any:  # noqa: ANN401
    hook = Hook("PreToolUse", "x", timeout=seconds)
    return run_hook(hook, b"{}", spawn=cast(Any, shell), bash="/bin/bash", directory="/", environment={"A": "b"})


@pytest.mark.parametrize("seconds", [30.0, 7.0])
def test_hanging_hook_is_killed_at_timeout(seconds: float) -> None:
    async def main() -> None:
        shell = Shell()
        output = await _run(shell, seconds)
        assert output.error == f"took longer than {seconds:g} seconds and was ended."
        assert shell.processes[0].stopped_at == seconds

    in_virtual_time(main)


def test_hook_that_closes_output_and_stays_is_killed() -> None:
    async def main() -> None:
        def close(process: Process) -> None:
            process.stdout.feed_eof()
            process.stderr.feed_eof()

        shell = Shell(x=close)
        assert "took longer" in (await _run(shell)).error
        assert shell.processes[0].stopped_at == 30.0

    in_virtual_time(main)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_flooding_hook_is_killed_at_once(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        shell = Shell(x=lambda process: getattr(process, stream).feed_data(b"ab"))
        assert (await _run(shell)).error == "printed more than 1 bytes and was ended."
        assert shell.processes[0].stopped_at == 0.0

    monkeypatch.setattr("holdfast.extensions.hooks.hook_process._MAX_OUTPUT", 1)
    in_virtual_time(main)


def test_output_at_limit_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        output = await _run(Shell(x=lambda process: process.end(2, err="n")))
        assert (output.decision, output.reason) == ("deny", "n")

    monkeypatch.setattr("holdfast.extensions.hooks.hook_process._MAX_OUTPUT", 1)
    in_virtual_time(main)


def test_output_of_hook_that_does_not_read_is_used() -> None:
    async def main() -> None:
        shell = Shell(x=lambda process: process.end(2, err="no"))
        shell.breaks = True
        assert (await _run(shell)).decision == "deny"
        assert shell.processes[0].stdin.is_closed

    in_virtual_time(main)


@pytest.mark.parametrize("refusal", [ToolError("gone"), OSError(2, "no such file")])
def test_hook_that_cannot_be_spawned_is_ignored(refusal: Exception) -> None:
    async def main() -> None:
        shell = Shell()
        shell.refuses = refusal
        assert (await _run(shell)).error.startswith("could not be started: ")

    in_virtual_time(main)


def test_hook_that_never_ran_is_ignored() -> None:
    async def main() -> None:
        shell = Shell(x=lambda process: process.end())
        shell.error = "no such program"
        assert "could not be started" in (await _run(shell)).error
        assert shell.processes[0].stopped_at is not None

    in_virtual_time(main)


def test_cancelled_caller_kills_hook() -> None:
    async def main() -> None:
        shell = Shell()
        waiting = start(_run(shell))
        await elapse(3)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert shell.processes[0].stopped_at == 3.0

    in_virtual_time(main)


# Events that run hooks


class HookFixture:
    """A workspace with hooks in the user's settings and in project files."""

    def __init__(self, top: Path, shell: Shell, *, settings: Json | None = None) -> None:
        self.place = SettingsFiles(top)
        self.shell = shell
        if settings is not None:
            self.place.write(self.place.home / ".config/holdfast/config.toml", "")
            self.place.write(self.place.data / "config.json", json.dumps({"hooks": settings}))
        self.configuration = self.place.open()
        ground = ExtensionContext(
            str(self.place.project),
            self.place.data,
            self.configuration,
            Credentials(str(top / "c.toml"), {"HOLDFAST_KEYRING": "0"}),
            cast(Any, shell),
            {"PATH": "/usr/bin:/bin", "WITHHELD": "x", "OTHER": "key-value", "CRUSH_EVENT": "of the client"},
            lambda _: None,
            lambda: (("WITHHELD",), ("key-value",)),
        )
        self.hooks = Hooks(ground, self.place.environment)

    def claude(self, file: str, **tree: object) -> Path:
        return self.place.write(self.place.project / f".claude/{file}", json.dumps(tree))

    def trust(self, path: Path) -> None:
        self.configuration.trust.trust_files({str(path): content_digest(path.read_bytes())}, at=1.0)

    def commands(self) -> list[str]:
        return [hook.command for hook in self.hooks.current()]


def group(command: str, matcher: str = "") -> list[Json]:
    return [{"matcher": matcher, "hooks": [{"type": "command", "command": command}]}]


def end_of(run: str, session: str = "s") -> RunComplete:
    return RunComplete(SessionId(session), MessageId("m"), RunId(run), "completed", text="done", error="")


def run_of(session: str) -> Run:
    return Run(RunId("r"), SessionId(session), "active", "queue", 0)


def run_scenario(
    top: Path, scenario: Callable[[HookFixture], Coroutine[Any, Any, None]], shell: Shell, settings: Json
) -> None:
    async def main() -> None:
        fixture = HookFixture(top, shell, settings=settings)
        try:
            await scenario(fixture)
        finally:
            await fixture.hooks.close()

    in_virtual_time(main)


def test_project_hooks_run_when_current_file_is_trusted(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        fixture.place.write(
            fixture.place.home / ".claude/settings.json", json.dumps({"hooks": {"PreToolUse": group("user")}})
        )
        shared = fixture.claude("settings.json", hooks={"PreToolUse": group("shared")})
        local = fixture.claude("settings.local.json", hooks={"PreToolUse": group("local")})
        assert fixture.commands() == ["own", "user"]
        fixture.trust(shared)
        assert fixture.commands() == ["own", "user", "shared"]
        fixture.trust(local)
        assert fixture.commands() == ["own", "user", "shared", "local"]
        fixture.claude("settings.json", hooks={"PreToolUse": group("changed command")})
        assert fixture.commands() == ["own", "user", "local"], "a change takes it back"
        local.unlink()
        assert fixture.commands() == ["own", "user"]

    run_scenario(tmp_path, scenario, Shell(), {"PreToolUse": [{"command": "own"}]})


def test_a_file_that_disables_hooks_disables_those_of_its_kind_when_it_is_trusted(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        fixture.place.write(
            fixture.place.home / ".claude/settings.json", json.dumps({"hooks": {"PreToolUse": group("user")}})
        )
        local = fixture.claude("settings.local.json", disableAllHooks=True)
        assert fixture.commands() == ["own", "user"]
        fixture.trust(local)
        assert fixture.commands() == ["own"]

    run_scenario(tmp_path, scenario, Shell(), {"PreToolUse": [{"command": "own"}]})


def test_input_of_tool_hooks(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        use = ToolUse(SessionId("s"), RunId("r"), ToolCallId("c"), "bash", {"command": "ls", "file_path": "/f"})
        before = await fixture.hooks.before_tool(use)
        assert before.decision == "deny"
        after = await fixture.hooks.after_tool(use, ToolOutcome("out", is_error=True))
        assert after.decision == ""
        first, second = fixture.shell.processes
        reported = json.loads(first.received)
        assert reported == {
            "event": "PreToolUse",
            "hook_event_name": "PreToolUse",
            "cwd": str(fixture.place.project),
            "session_id": "s",
            "run_id": "r",
            "tool_name": "bash",
            "tool_use_id": "c",
            "tool_input": {"command": "ls", "file_path": "/f"},
        }
        assert json.loads(second.received)["tool_response"] == {"content": "out", "is_error": True}
        wanted = {
            "EVENT": "PreToolUse",
            "SESSION_ID": "s",
            "RUN_ID": "r",
            "CWD": str(fixture.place.project),
            "PROJECT_DIR": str(fixture.place.project),
            "TOOL_NAME": "bash",
            "TOOL_INPUT_COMMAND": "ls",
            "TOOL_INPUT_FILE_PATH": "/f",
        }
        given = {f"{prefix}_{name}": value for prefix in ("HOLDFAST", "CRUSH") for name, value in wanted.items()}
        assert first.environment.items() >= given.items()
        assert first.environment["CLAUDE_PROJECT_DIR"] == str(fixture.place.project)
        assert not {"WITHHELD", "OTHER"} & first.environment.keys()
        other = await fixture.hooks.before_tool(ToolUse(SessionId("s"), RunId("r"), ToolCallId("c"), "view", {}))
        assert other == HookOutcome()
        assert len(fixture.shell.processes) == 2

    shell = Shell(before=lambda process: process.end(2, err="no"), after=lambda process: process.end())
    run_scenario(
        tmp_path,
        scenario,
        shell,
        {
            "PreToolUse": [{"command": "before", "matcher": "^bash$"}],
            "PostToolUse": [{"command": "after", "matcher": "^bash$"}],
        },
    )


@pytest.mark.parametrize(
    ("command", "is_passed"), [("x" * 65_536, True), ("x" * 65_537, False), ("a\0b", False), (5, False)]
)
def test_input_that_fits_no_variable_is_only_in_the_event(tmp_path: Path, command: object, is_passed: bool) -> None:
    async def scenario(fixture: HookFixture) -> None:
        await fixture.hooks.before_tool(
            ToolUse(SessionId("s"), RunId("r"), ToolCallId("c"), "bash", {"command": command})
        )
        (process,) = fixture.shell.processes
        assert ("HOLDFAST_TOOL_INPUT_COMMAND" in process.environment) == is_passed
        assert json.loads(process.received)["tool_input"] == {"command": command}

    run_scenario(
        tmp_path, scenario, Shell(before=lambda process: process.end()), {"PreToolUse": [{"command": "before"}]}
    )


def test_names_in_the_dialect_of_a_hook(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        hooks = {name: group(f"theirs {name}") for name in ("PreToolUse", "UserPromptSubmit", "Stop")}
        fixture.place.write(fixture.place.home / ".claude/settings.json", json.dumps({"hooks": hooks}))
        await fixture.hooks.before_tool(ToolUse(SessionId("s"), RunId("r"), ToolCallId("c"), "view", {}))
        await fixture.hooks.before_prompt(run_of("s"), "x", is_first=False)
        fixture.hooks.after_run(end_of("r"))
        await elapse(1)
        received = [json.loads(process.received) for process in fixture.shell.processes]
        assert [(facts["event"], facts["hook_event_name"], facts.get("tool_name")) for facts in received] == [
            ("PreToolUse", "PreToolUse", "view"),
            ("PreToolUse", "PreToolUse", "Read"),
            ("UserPromptSubmit", "UserPromptSubmit", None),
            ("RunEnd", "Stop", None),
        ]

    shell = Shell(ours=lambda process: process.end(), theirs=lambda process: process.end())
    run_scenario(tmp_path, scenario, shell, {"PreToolUse": [{"command": "ours"}]})


def test_a_session_that_begins_adds_its_context_without_a_hook_for_prompts(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        first = await fixture.hooks.before_prompt(run_of("a"), "hello", is_first=True)
        assert first == HookOutcome(context="from the start")

    shell = Shell(begins=lambda process: process.end(0, "from the start"))
    run_scenario(tmp_path, scenario, shell, {"SessionStart": [{"command": "begins"}]})


def test_session_start_runs_once_and_prompt_hook_for_each_prompt(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        first = await fixture.hooks.before_prompt(run_of("a"), "hello", is_first=True)
        assert first.context == "from the start\nfrom the prompt"
        again = await fixture.hooks.before_prompt(run_of("a"), "again", is_first=False)
        assert again.context == "from the prompt"
        resumed = await fixture.hooks.before_prompt(run_of("b"), "back", is_first=False)
        assert resumed.context == "from the prompt", "its matcher is about a start"
        assert fixture.shell.commands == ["begins", "prompts", "prompts", "prompts"]
        assert json.loads(fixture.shell.processes[0].received)["source"] == "startup"
        assert json.loads(fixture.shell.processes[1].received)["prompt"] == "hello"

    shell = Shell(
        begins=lambda process: process.end(0, "from the start"),
        prompts=lambda process: process.end(0, "from the prompt"),
    )
    run_scenario(
        tmp_path,
        scenario,
        shell,
        {
            "SessionStart": [{"command": "begins", "matcher": "startup"}],
            "UserPromptSubmit": [{"command": "prompts"}],
        },
    )


def test_started_sessions_are_remembered_up_to_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: HookFixture) -> None:
        for session in ("a", "b", "b", "a"):
            await fixture.hooks.before_prompt(run_of(session), "x", is_first=False)
        assert len(fixture.shell.processes) == 3, "a was forgotten for b"

    monkeypatch.setattr("holdfast.extensions.hooks.hooks._MAX_SESSIONS", 1)
    run_scenario(
        tmp_path, scenario, Shell(begins=lambda process: process.end()), {"SessionStart": [{"command": "begins"}]}
    )


def test_the_oldest_session_is_forgotten_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: HookFixture) -> None:
        for session in ("a", "b", "c", "c", "b", "a"):
            await fixture.hooks.before_prompt(run_of(session), "x", is_first=False)
        begun = [json.loads(process.received)["session_id"] for process in fixture.shell.processes]
        assert begun == ["a", "b", "c", "a"]

    monkeypatch.setattr("holdfast.extensions.hooks.hooks._MAX_SESSIONS", 2)
    run_scenario(
        tmp_path, scenario, Shell(begins=lambda process: process.end()), {"SessionStart": [{"command": "begins"}]}
    )


def test_hooks_for_ends_run_concurrently_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: HookFixture) -> None:
        for run in ("one", "two", "three"):
            fixture.hooks.after_run(end_of(run))
        await elapse(1)
        assert [json.loads(process.received)["run_id"] for process in fixture.shell.processes] == ["one", "two"]

    monkeypatch.setattr("holdfast.extensions.hooks.hooks._MAX_CONCURRENT", 2)
    run_scenario(tmp_path, scenario, Shell(), {"RunEnd": [{"command": "ends"}]})


def test_run_end_hooks_run_in_background_with_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: HookFixture) -> None:
        fixture.hooks.after_run(end_of("helper", "m$$c"))
        for run in ("one", "two", "three"):
            fixture.hooks.after_run(end_of(run))
        await elapse(1)
        assert [json.loads(process.received)["run_id"] for process in fixture.shell.processes] == ["one"]
        fixture.shell.processes[0].end()
        await elapse(1)
        fixture.hooks.after_run(end_of("four"))
        fixture.shell.processes[-1].end()
        await elapse(1)
        reported = [json.loads(process.received) for process in fixture.shell.processes]
        assert [facts["run_id"] for facts in reported] == ["one", "two", "four"], "the third found no room"
        assert (reported[0]["outcome"], reported[0]["text"], reported[0]["error"]) == ("completed", "done", "")
        assert fixture.shell.processes[0].environment["HOLDFAST_OUTCOME"] == "completed"
        fixture.shell.processes[-1].end()

    monkeypatch.setattr("holdfast.extensions.hooks.hooks._MAX_QUEUED_ENDS", 2)
    monkeypatch.setattr("holdfast.extensions.hooks.hooks._MAX_CONCURRENT", 1)
    run_scenario(tmp_path, scenario, Shell(), {"RunEnd": [{"command": "ends"}]})


def test_close_waits_briefly_and_kills_remaining_hooks(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        fixture.hooks.after_run(end_of("one"))
        await elapse(0.5)
        await fixture.hooks.close()
        assert asyncio.get_running_loop().time() == 1.5
        assert fixture.shell.processes[0].stopped_at == 1.5

    run_scenario(tmp_path, scenario, Shell(), {"RunEnd": [{"command": "ends"}]})


def test_close_waits_for_hooks_that_end_in_time(tmp_path: Path) -> None:
    async def scenario(fixture: HookFixture) -> None:
        fixture.hooks.after_run(end_of("one"))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        loop.call_later(0.9, fixture.shell.processes[0].end)
        await fixture.hooks.close()
        assert asyncio.get_running_loop().time() == 0.9

    run_scenario(tmp_path, scenario, Shell(), {"RunEnd": [{"command": "ends"}]})
