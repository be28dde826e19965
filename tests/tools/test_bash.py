"""bash, job_output and job_kill with real processes, each call through a real run."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.helpers import results_of
from holdfast.domain.events import ToolOutputEvent
from holdfast.domain.ids import RunId
from holdfast.domain.messages import ToolResult
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, until
from holdfast.testing.harness import Harness
from holdfast.tools.bash import Bash, BashArguments, BashTimes
from holdfast.tools.jobs import JobKill, JobOutputTool
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.shell_launch import Shell
from trials.hostile_commands import new_token, survivors

GRACE = 0.2
LONG, SOON = 3_600.0, 0.05


class GatedBash(Bash):
    """bash whose permission requests are recorded and held at a gate."""

    permits: Sequence[Permit] = ()
    gate: Gate

    async def act(self, context: ToolContext, arguments: BashArguments) -> ToolOutcome:
        return await super().act(_GatedContext(context, self), arguments)


class _GatedContext:
    def __init__(self, context: ToolContext, tool: GatedBash) -> None:
        self._context = context
        self._tool = tool

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._context, name)

    async def permit(self, permit: Permit) -> None:
        self._tool.permits = (*self._tool.permits, permit)
        await self._tool.gate()


class BashRunner:
    """Runs bash and the job tools in a session of a real workspace."""

    def __init__(self, root: Path, guard: Guard, times: BashTimes, limits: JobLimits) -> None:
        self.root = root
        processes = Processes(guard, root.parent / "spills", grace=GRACE)
        self.jobs = Jobs(lambda: 1_000, limits=limits)
        self.bash = GatedBash(Shell(processes), self.jobs, times)
        self.bash.gate = Gate(is_open=True)
        self._next: tuple[Call, ...] = ()
        self._harnesses: list[Harness] = []

    async def open(self) -> "BashRunner":
        tools = (self.bash, JobOutputTool(self.jobs), JobKill(self.jobs))
        settings = EngineSettings(titles=False, grace=GRACE, margin=30)
        model = ScriptedModel(self._script)
        parts: dict[str, Any] = {"completion_error": self.jobs.fault_of, "cleanup": self.jobs.end_run}
        self._harnesses = [await Harness.open(model, tools=tools, settings=settings, path=str(self.root), **parts)]
        return self

    @property
    def harness(self) -> Harness:
        return self._harnesses[0]

    def _script(self, request: ModelRequest) -> Step:
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step(self._next)

    async def start(self, run: str, *calls: tuple[str, dict[str, object]]) -> None:
        self._next = tuple(Call(tool, json.dumps(arguments)) for tool, arguments in calls)
        await self.harness.prompt("go", run)

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """Run the tool in a run of its own and return its result."""
        await self.start("", (tool, arguments))
        await self.harness.wait_until_idle()
        return results_of(await self.harness.messages())[-1]

    async def run(self, command: str, **arguments: object) -> ToolResult:
        return await self.call("bash", command=command, description="try it", **arguments)

    def live_output(self) -> str:
        """Return the output published live; its offsets must have no gap."""
        outputs = [event.payload for _, event in self.harness.published.events if isinstance(event, ToolOutputEvent)]
        text = ""
        for output in outputs:
            assert output.offset == len(text)
            text += output.text
        return text


@pytest.fixture
def times() -> BashTimes:
    return BashTimes(auto_background=LONG, early=SOON)


@pytest.fixture
async def runner(tmp_path: Path, times: BashTimes) -> AsyncIterator[BashRunner]:
    root = tmp_path / "project"
    root.mkdir()
    guard = Guard()
    await guard.ready()
    yield await BashRunner(root, guard, times, JobLimits(max_jobs=2, grace=GRACE)).open()
    await guard.close()


def metadata_of(result: ToolResult) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(result.metadata)
    return metadata


# Results


async def test_deleted_workspace_directory_is_reported(runner: BashRunner) -> None:
    runner.root.rename(runner.root.with_name("moved"))
    for place in ("", "b"):
        result = await runner.run("pwd", working_dir=place)
        assert result.is_error
        assert result.content.startswith(f"The directory of this workspace, {runner.root}, is gone")


async def test_output_exit_code_and_directory(runner: BashRunner) -> None:
    result = await runner.run("echo out; echo err >&2; exit 3")
    assert result.content == f"out\nerr\nExit code 3\n\n<cwd>{runner.root}</cwd>"
    assert not result.is_error
    metadata = metadata_of(result)
    assert metadata.pop("end_time") > metadata.pop("start_time") > 1_000_000_000_000
    assert metadata == {
        "output": "out\nerr\nExit code 3",
        "description": "try it",
        "working_directory": str(runner.root),
    }


async def test_no_output(runner: BashRunner) -> None:
    result = await runner.run("true")
    assert result.content == "no output"
    assert metadata_of(result)["output"] == ""


async def test_each_stream_is_cut(runner: BashRunner) -> None:
    result = await runner.run("seq 100000; seq 100000 >&2")
    assert result.content.count("lines truncated] ...") == 2
    assert result.content.count("view that file") == 2
    assert len(result.content) < 62_000


async def test_no_shell_state_is_kept_between_calls(runner: BashRunner) -> None:
    (runner.root / "sub dir").mkdir()
    assert "sub dir</cwd>" in (await runner.run("pwd; export A=1; cd /", working_dir="sub dir")).content
    assert (await runner.run("echo $PWD [$A]")).content.startswith(f"{runner.root} []\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"command": "  "}, "empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "true", "working_dir": "nothing"}, "not a directory"),
        ({}, "command"),
        ({"command": "true", "surprise": 1}, "surprise"),
    ],
)
async def test_invalid_arguments_are_explained(runner: BashRunner, arguments: dict[str, object], expected: str) -> None:
    result = await runner.call("bash", **arguments)
    assert result.is_error
    assert expected in result.content


async def test_processes_left_running_are_stopped_and_reported(runner: BashRunner) -> None:
    """C-53: including a process that holds stdout in a session of its own."""
    token = new_token()
    result = await runner.run(f"setsid sleep {token} & echo started")
    assert result.content.startswith("started\n[Processes that the command had left running were stopped.")
    assert not survivors(token)


async def test_output_is_published_live(runner: BashRunner) -> None:
    await runner.start("r1", ("bash", {"command": "echo öne; until [ -e go ]; do sleep 0.01; done; echo two"}))
    await until(lambda: "öne" in runner.live_output())
    (runner.root / "go").touch()
    await runner.harness.wait_until_idle()
    assert runner.live_output() == "öne\ntwo\n"


# Permission and cancel


async def test_approval_is_requested_before_the_command_starts(runner: BashRunner) -> None:
    runner.bash.gate.shut()
    await runner.start("r1", ("bash", {"command": "touch here", "description": "make a file"}))
    await runner.bash.gate.reached.wait()
    assert not (runner.root / "here").exists()
    [permit] = runner.bash.permits
    assert (permit.tool, permit.action, permit.path, permit.command) == (
        "bash",
        "execute",
        str(runner.root),
        "touch here",
    )
    assert permit.description == "Execute command: touch here"
    assert permit.params == {
        "description": "make a file",
        "command": "touch here",
        "working_dir": str(runner.root),
        "run_in_background": False,
        "auto_background_after": 0,
    }
    runner.bash.gate.open()
    await runner.harness.wait_until_idle()
    assert (runner.root / "here").exists()


async def test_command_is_not_started_when_its_directory_becomes_a_link_during_the_approval(
    runner: BashRunner, tmp_path: Path
) -> None:
    """An approval for one directory does not cover another."""
    for folder in (runner.root / "d", tmp_path / "outside"):
        folder.mkdir()
        (folder / "f.txt").write_text(f"from {folder.name}")
    runner.bash.gate = Gate()
    await runner.start("r1", ("bash", {"command": "cat f.txt", "working_dir": "d"}))
    await runner.bash.gate.reached.wait()
    (runner.root / "d").rename(runner.root / "was d")
    (runner.root / "d").symlink_to(tmp_path / "outside")
    runner.bash.gate.open()
    await runner.harness.wait_until_idle()
    result = results_of(await runner.harness.messages())[-1]
    assert (result.is_error, "was replaced by another one" in result.content) == (True, True)


async def test_cancel_during_the_approval_starts_nothing(runner: BashRunner) -> None:
    """C-45."""
    runner.bash.gate.shut()
    await runner.start("r1", ("bash", {"command": "touch here"}), ("bash", {"command": "touch there"}))
    await runner.bash.gate.reached.wait()
    await runner.harness.cancel()
    runner.bash.gate.open()
    await runner.harness.wait_until_idle()
    assert runner.harness.end_of("r1").outcome == "cancelled"
    assert not list(runner.root.iterdir())


@pytest.mark.parametrize("turns", range(8))
async def test_cancel_concurrent_with_the_answer_leaves_no_process(runner: BashRunner, turns: int) -> None:
    """C-45: the command may have started; it is gone once the run has ended."""
    token = new_token()
    runner.bash.gate.shut()
    await runner.start(
        "r1", ("bash", {"command": f"setsid sleep {token} & sleep {token}"}), ("bash", {"command": "touch x"})
    )
    await runner.bash.gate.reached.wait()
    runner.bash.gate.open()
    for _ in range(turns):
        await asyncio.sleep(0)
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert runner.harness.end_of("r1").outcome == "cancelled"
    assert not survivors(token)
    assert not list(runner.root.iterdir())


async def test_process_tree_is_gone_when_a_cancelled_run_has_ended(runner: BashRunner) -> None:
    """R4, R5, C-45: the next call of the step is not started either."""
    token = new_token()
    line = f"setsid sleep {token} & trap '' INT TERM; touch up; while :; do sleep {token}; done"
    await runner.start("r1", ("bash", {"command": line}), ("bash", {"command": "touch there"}))
    await until((runner.root / "up").exists)
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert not survivors(token)
    assert runner.harness.end_of("r1").outcome == "cancelled"
    assert not (runner.root / "there").exists()
    await runner.harness.assert_valid()


KILLS_ITS_SUPERVISORS = (
    "read -r _ _ _ guard _ </proc/$PPID/stat; setsid sleep {token} & touch up; kill -9 -- -$guard; wait"
)


@pytest.fixture
async def runner_without_namespace(tmp_path: Path, times: BashTimes) -> AsyncIterator[BashRunner]:
    """Without a PID namespace, so that a command can reach its supervisors."""
    root = tmp_path / "project"
    root.mkdir()
    guard = Guard("tree")
    await guard.ready()
    yield await BashRunner(root, guard, times, JobLimits(max_jobs=2, grace=GRACE)).open()
    await guard.close()


async def test_a_run_whose_command_killed_its_supervisors_fails(runner_without_namespace: BashRunner) -> None:
    """R4: its processes are killed, the result names them, and the run does not complete."""
    token = new_token()
    command = KILLS_ITS_SUPERVISORS.format(token=token)
    await runner_without_namespace.start("r1", ("bash", {"command": command}))
    await runner_without_namespace.harness.wait_until_idle()
    assert not survivors(token)
    end = runner_without_namespace.harness.end_of("r1")
    assert (end.outcome, "killed the processes that supervise it" in end.error) == ("failed", True)
    result = results_of(await runner_without_namespace.harness.messages())[-1]
    assert "killed the processes that supervise it" in result.content
    assert result.is_error
    await runner_without_namespace.harness.assert_valid()


async def test_a_job_that_kills_its_supervisors_later_fails_its_run(runner_without_namespace: BashRunner) -> None:
    """The run continues after the call; its end reports the end of the job."""
    token = new_token()
    command = f"until [ -e go ]; do sleep 0.01; done; {KILLS_ITS_SUPERVISORS.format(token=token)}"
    wait: dict[str, object] = {"command": "touch go; until [ -e up ]; do sleep 0.01; done; sleep 9999"}
    await runner_without_namespace.start(
        "r1", ("bash", {"command": command, "run_in_background": True}), ("bash", wait)
    )
    await runner_without_namespace.harness.wait_until_idle()
    assert not survivors(token)
    assert runner_without_namespace.harness.end_of("r1").outcome == "failed"


async def test_a_cancelled_run_whose_command_kills_its_supervisors_is_cancelled(
    runner_without_namespace: BashRunner,
) -> None:
    token = new_token()
    kills = KILLS_ITS_SUPERVISORS.format(token=token)
    line = f"kill_all() {{ {kills}; }}; trap kill_all INT; touch ready; sleep {token} & wait"
    await runner_without_namespace.start("r1", ("bash", {"command": line}))
    await until((runner_without_namespace.root / "ready").exists)
    await runner_without_namespace.harness.cancel()
    await runner_without_namespace.harness.wait_until_idle()
    assert not survivors(token)
    assert runner_without_namespace.harness.end_of("r1").outcome == "cancelled"


# Jobs


async def test_background_job_can_be_read_and_killed(runner: BashRunner) -> None:
    result = await runner.run(
        "echo up; until [ -e go ]; do sleep 0.01; done; echo down; exit 4", run_in_background=True
    )
    assert "job 001" in result.content
    assert (metadata_of(result)["background"], metadata_of(result)["shell_id"]) == (True, "001")
    running = await runner.call("job_output", shell_id="001")
    assert running.content.startswith("Status: running\n\n")
    assert metadata_of(running) == {
        "shell_id": "001",
        "command": "echo up; until [ -e go ]; do sleep 0.01; done; echo down; exit 4",
        "description": "try it",
        "done": False,
        "working_directory": str(runner.root),
    }
    (runner.root / "go").touch()
    done = await runner.call("job_output", shell_id="001", wait=True)
    assert done.content == "Status: completed\n\nup\ndown\nExit code 4"
    assert metadata_of(done)["done"] is True


async def test_a_job_that_fails_at_once_is_reported_at_once(runner: BashRunner) -> None:
    runner.bash._times = BashTimes(early=LONG)
    result = await runner.run("echo broken >&2; exit 2", run_in_background=True)
    assert result.content == f"broken\nExit code 2\n\n<cwd>{runner.root}</cwd>"
    assert "background" not in metadata_of(result)
    assert runner.jobs.list() == ()


@pytest.mark.parametrize("times", [BashTimes(auto_background=SOON)])
async def test_long_command_continues_in_the_background(runner: BashRunner) -> None:
    token = new_token()
    result = await runner.run(f"sleep {token}")
    assert "job 001" in result.content
    await until(lambda: survivors(token))
    assert (await runner.call("job_output", shell_id="001")).content.startswith("Status: running")
    killed = await runner.call("job_kill", shell_id="001")
    assert killed.content == "Job 001 was stopped."
    assert metadata_of(killed) == {"shell_id": "001", "command": f"sleep {token}", "description": "try it"}
    assert not survivors(token)
    again = await runner.call("job_kill", shell_id="001")
    assert again.is_error
    assert "There are none" in again.content


async def test_caller_sets_the_background_threshold(runner: BashRunner) -> None:
    token = new_token()
    result = await runner.run(f"echo begun; sleep {token}", auto_background_after=1)
    assert metadata_of(result)["shell_id"] == "001"
    assert "Output so far:\nbegun\n" in result.content
    assert (await runner.call("job_kill", shell_id="001")).content == "Job 001 was stopped.\n\nIts output:\nbegun"
    assert not survivors(token)


@pytest.mark.parametrize("times", [BashTimes(auto_background=SOON, early=SOON)])
async def test_long_command_stays_in_the_foreground_when_no_job_slot_is_free(runner: BashRunner) -> None:
    for _ in range(2):
        await runner.run("sleep 1000", run_in_background=True)
    refused = await runner.run("touch never", run_in_background=True)
    assert refused.is_error
    assert "001, 002" in refused.content
    assert not (runner.root / "never").exists()
    assert (await runner.run("sleep 0.3; echo done")).content.startswith("done\n")
    await runner.jobs.close()


async def test_cancel_stops_a_job_whose_output_is_followed(runner: BashRunner) -> None:
    runner.bash._times = BashTimes(early=LONG)
    token = new_token()
    await runner.start("r1", ("bash", {"command": f"touch up; sleep {token}", "run_in_background": True}))
    await until((runner.root / "up").exists)
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert not survivors(token)
    assert runner.jobs.list() == ()


async def test_a_cancel_while_waiting_for_a_job_ends_the_wait(runner: BashRunner) -> None:
    await runner.run("touch up; sleep 1000", run_in_background=True)
    await runner.start("r2", ("job_output", {"shell_id": "001", "wait": True}))
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert [info.state for info in runner.jobs.list()] == ["running"]
    [job] = runner.jobs.list()
    assert job.run_id != RunId("r2")
    await runner.jobs.end_run(job.run_id)
    assert [info.state for info in runner.jobs.list()] == ["killed"]


async def test_a_hundred_commands_and_jobs_leave_no_resources_in_use(runner: BashRunner) -> None:
    """C-57 in small: finished jobs free their slots."""
    runner.bash._times = BashTimes(early=0.0)
    for _ in range(8):
        await runner.run("true", run_in_background=True)
        await until(lambda: not runner.jobs.is_busy)
    assert (await runner.run("echo fine")).content.startswith("fine")


async def test_another_session_does_not_see_a_job(runner: BashRunner) -> None:
    await runner.run("sleep 1000", run_in_background=True)
    other = await runner.harness.workspace.sessions.create("Other")
    runner._next = (Call("job_output", '{"shell_id": "001"}'),)
    await runner.harness.prompt("go", session=other.id)
    await runner.harness.workspace.engine.wait_until_idle(other.id)
    [result] = results_of(await runner.harness.messages(other.id))
    assert result.is_error
    assert "There are none" in result.content
    await runner.jobs.close()
