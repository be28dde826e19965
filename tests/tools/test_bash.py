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
from holdfast.workspace.process.guard import Guard
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.shell_call import Shell
from trials.hostile_commands import new_token, survivors

GRACE = 0.2
LONG, SOON = 3_600.0, 0.05


class Asked(Bash):
    """bash, with a place where somebody is asked before it acts."""

    permits: Sequence[Permit] = ()
    gate: Gate

    async def act(self, context: ToolContext, arguments: BashArguments) -> ToolOutcome:
        return await super().act(_Asking(context, self), arguments)


class _Asking:
    def __init__(self, context: ToolContext, tool: Asked) -> None:
        self._context = context
        self._tool = tool

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._context, name)

    async def permit(self, permit: Permit) -> None:
        self._tool.permits = (*self._tool.permits, permit)
        await self._tool.gate()


class Desk:
    """A directory, a session that works in it, and its jobs."""

    def __init__(self, root: Path, guard: Guard, times: BashTimes, limits: JobLimits) -> None:
        self.root = root
        processes = Processes(guard, root.parent / "spills", grace=GRACE)
        self.jobs = Jobs(lambda: 1_000, limits=limits)
        self.bash = Asked(Shell(processes), self.jobs, times)
        self.bash.gate = Gate(is_open=True)
        self._next: tuple[Call, ...] = ()
        self._worlds: list[Harness] = []

    async def open(self) -> "Desk":
        tools = (self.bash, JobOutputTool(self.jobs), JobKill(self.jobs))
        settings = EngineSettings(titles=False, grace=GRACE, margin=30)
        model = ScriptedModel(self._script)
        parts: dict[str, Any] = {"completion_error": self.jobs.fault_of, "cleanup": self.jobs.end_run}
        self._worlds = [await Harness.open(model, tools=tools, settings=settings, path=str(self.root), **parts)]
        return self

    @property
    def harness(self) -> Harness:
        return self._worlds[0]

    def _script(self, request: ModelRequest) -> Step:
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step(self._next)

    async def begin(self, run: str, *calls: tuple[str, dict[str, object]]) -> None:
        self._next = tuple(Call(tool, json.dumps(arguments)) for tool, arguments in calls)
        await self.harness.prompt("go", run)

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """What the tool answers, in a run of its own."""
        await self.begin("", (tool, arguments))
        await self.harness.quiet()
        return results_of(await self.harness.messages())[-1]

    async def run(self, command: str, **arguments: object) -> ToolResult:
        return await self.call("bash", command=command, description="try it", **arguments)

    def heard(self) -> str:
        """What watchers were told live, checked for holes."""
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
async def desk(tmp_path: Path, times: BashTimes) -> AsyncIterator[Desk]:
    root = tmp_path / "project"
    root.mkdir()
    guard = Guard()
    await guard.ready()
    yield await Desk(root, guard, times, JobLimits(max_jobs=2, grace=GRACE)).open()
    await guard.close()


def seen(result: ToolResult) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(result.metadata)
    return metadata


# Results


async def test_a_workspace_that_is_gone_is_called_gone(desk: Desk) -> None:
    desk.root.rename(desk.root.with_name("moved"))
    for place in ("", "b"):
        result = await desk.run("pwd", working_dir=place)
        assert result.is_error
        assert result.content.startswith(f"The directory of this workspace, {desk.root}, is gone")


async def test_output_exit_code_and_directory(desk: Desk) -> None:
    result = await desk.run("echo out; echo err >&2; exit 3")
    assert result.content == f"out\nerr\nExit code 3\n\n<cwd>{desk.root}</cwd>"
    assert not result.is_error
    metadata = seen(result)
    assert metadata.pop("end_time") > metadata.pop("start_time") > 1_000_000_000_000
    assert metadata == {
        "output": "out\nerr\nExit code 3",
        "description": "try it",
        "working_directory": str(desk.root),
    }


async def test_no_output(desk: Desk) -> None:
    result = await desk.run("true")
    assert result.content == "no output"
    assert seen(result)["output"] == ""


async def test_each_stream_is_cut(desk: Desk) -> None:
    result = await desk.run("seq 100000; seq 100000 >&2")
    assert result.content.count("lines truncated] ...") == 2
    assert result.content.count("view that file") == 2
    assert len(result.content) < 62_000


async def test_nothing_carries_over(desk: Desk) -> None:
    (desk.root / "sub dir").mkdir()
    assert "sub dir</cwd>" in (await desk.run("pwd; export A=1; cd /", working_dir="sub dir")).content
    assert (await desk.run("echo $PWD [$A]")).content.startswith(f"{desk.root} []\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"command": "  "}, "empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "true", "working_dir": "nothing"}, "not a directory"),
        ({}, "command"),
        ({"command": "true", "surprise": 1}, "surprise"),
    ],
)
async def test_invalid_arguments_are_explained(desk: Desk, arguments: dict[str, object], told: str) -> None:
    result = await desk.call("bash", **arguments)
    assert result.is_error
    assert told in result.content


async def test_processes_left_running_are_stopped_and_reported(desk: Desk) -> None:
    """C-53: also if it holds stdout in a session of its own."""
    token = new_token()
    result = await desk.run(f"setsid sleep {token} & echo started")
    assert result.content.startswith("started\n[Processes that the command had left running were stopped.")
    assert not survivors(token)


async def test_who_watches_hears_it_live(desk: Desk) -> None:
    await desk.begin("r1", ("bash", {"command": "echo öne; until [ -e go ]; do sleep 0.01; done; echo two"}))
    await until(lambda: "öne" in desk.heard())
    (desk.root / "go").touch()
    await desk.harness.quiet()
    assert desk.heard() == "öne\ntwo\n"


# Permission and cancel


async def test_it_asks_before_anything_is_started(desk: Desk) -> None:
    desk.bash.gate.shut()
    await desk.begin("r1", ("bash", {"command": "touch here", "description": "make a file"}))
    await desk.bash.gate.reached.wait()
    assert not (desk.root / "here").exists()
    [permit] = desk.bash.permits
    assert (permit.tool, permit.action, permit.path, permit.command) == (
        "bash",
        "execute",
        str(desk.root),
        "touch here",
    )
    assert permit.description == "Execute command: touch here"
    assert permit.params == {
        "description": "make a file",
        "command": "touch here",
        "working_dir": str(desk.root),
        "run_in_background": False,
        "auto_background_after": 0,
    }
    desk.bash.gate.open()
    await desk.harness.quiet()
    assert (desk.root / "here").exists()


async def test_a_directory_that_becomes_a_link_while_asking_starts_nothing(desk: Desk, tmp_path: Path) -> None:
    """What was allowed in one directory is not done in another."""
    for folder in (desk.root / "d", tmp_path / "outside"):
        folder.mkdir()
        (folder / "f.txt").write_text(f"from {folder.name}")
    desk.bash.gate = Gate()
    await desk.begin("r1", ("bash", {"command": "cat f.txt", "working_dir": "d"}))
    await desk.bash.gate.reached.wait()
    (desk.root / "d").rename(desk.root / "was d")
    (desk.root / "d").symlink_to(tmp_path / "outside")
    desk.bash.gate.open()
    await desk.harness.quiet()
    result = results_of(await desk.harness.messages())[-1]
    assert (result.is_error, "was replaced by another one" in result.content) == (True, True)


async def test_a_cancel_while_asking_starts_nothing(desk: Desk) -> None:
    """C-45."""
    desk.bash.gate.shut()
    await desk.begin("r1", ("bash", {"command": "touch here"}), ("bash", {"command": "touch there"}))
    await desk.bash.gate.reached.wait()
    await desk.harness.cancel()
    desk.bash.gate.open()
    await desk.harness.quiet()
    assert desk.harness.end_of("r1").outcome == "cancelled"
    assert not list(desk.root.iterdir())


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancel_in_the_moment_of_the_answer_leaves_nothing(desk: Desk, turns: int) -> None:
    """C-45: the command may have begun; when the run has ended it is gone."""
    token = new_token()
    desk.bash.gate.shut()
    await desk.begin(
        "r1", ("bash", {"command": f"setsid sleep {token} & sleep {token}"}), ("bash", {"command": "touch x"})
    )
    await desk.bash.gate.reached.wait()
    desk.bash.gate.open()
    for _ in range(turns):
        await asyncio.sleep(0)
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert desk.harness.end_of("r1").outcome == "cancelled"
    assert not survivors(token)
    assert not list(desk.root.iterdir())


async def test_when_a_cancelled_run_has_ended_its_tree_is_gone(desk: Desk) -> None:
    """R4, R5, C-45: and the next call of the step is not begun."""
    token = new_token()
    line = f"setsid sleep {token} & trap '' INT TERM; touch up; while :; do sleep {token}; done"
    await desk.begin("r1", ("bash", {"command": line}), ("bash", {"command": "touch there"}))
    await until((desk.root / "up").exists)
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert not survivors(token)
    assert desk.harness.end_of("r1").outcome == "cancelled"
    assert not (desk.root / "there").exists()
    await desk.harness.assert_valid()


KILLS_ITS_SUPERVISORS = (
    "read -r _ _ _ guard _ </proc/$PPID/stat; setsid sleep {token} & touch up; kill -9 -- -$guard; wait"
)


@pytest.fixture
async def tree_desk(tmp_path: Path, times: BashTimes) -> AsyncIterator[Desk]:
    """Without a PID namespace: a command can reach its supervisors."""
    root = tmp_path / "project"
    root.mkdir()
    guard = Guard("tree")
    await guard.ready()
    yield await Desk(root, guard, times, JobLimits(max_jobs=2, grace=GRACE)).open()
    await guard.close()


async def test_a_run_whose_command_killed_its_supervisors_fails(tree_desk: Desk) -> None:
    """R4: what it started is killed, the result names it, and the run is not called completed."""
    token = new_token()
    command = KILLS_ITS_SUPERVISORS.format(token=token)
    await tree_desk.begin("r1", ("bash", {"command": command}))
    await tree_desk.harness.quiet()
    assert not survivors(token)
    end = tree_desk.harness.end_of("r1")
    assert (end.outcome, "killed the processes that supervise it" in end.error) == ("failed", True)
    result = results_of(await tree_desk.harness.messages())[-1]
    assert "killed the processes that supervise it" in result.content
    assert result.is_error
    await tree_desk.harness.assert_valid()


async def test_a_job_that_kills_its_supervisors_later_fails_its_run(tree_desk: Desk) -> None:
    """The run goes on after the call; its end tells what became of the job."""
    token = new_token()
    command = f"until [ -e go ]; do sleep 0.01; done; {KILLS_ITS_SUPERVISORS.format(token=token)}"
    wait: dict[str, object] = {"command": "touch go; until [ -e up ]; do sleep 0.01; done; sleep 9999"}
    await tree_desk.begin("r1", ("bash", {"command": command, "run_in_background": True}), ("bash", wait))
    await tree_desk.harness.quiet()
    assert not survivors(token)
    assert tree_desk.harness.end_of("r1").outcome == "failed"


async def test_a_cancelled_run_whose_command_kills_its_supervisors_is_cancelled(tree_desk: Desk) -> None:
    token = new_token()
    kills = KILLS_ITS_SUPERVISORS.format(token=token)
    line = f"kill_all() {{ {kills}; }}; trap kill_all INT; touch ready; sleep {token} & wait"
    await tree_desk.begin("r1", ("bash", {"command": line}))
    await until((tree_desk.root / "ready").exists)
    await tree_desk.harness.cancel()
    await tree_desk.harness.quiet()
    assert not survivors(token)
    assert tree_desk.harness.end_of("r1").outcome == "cancelled"


# Jobs


async def test_a_job_in_the_background(desk: Desk) -> None:
    result = await desk.run("echo up; until [ -e go ]; do sleep 0.01; done; echo down; exit 4", run_in_background=True)
    assert "job 001" in result.content
    assert (seen(result)["background"], seen(result)["shell_id"]) == (True, "001")
    running = await desk.call("job_output", shell_id="001")
    assert running.content.startswith("Status: running\n\n")
    assert seen(running) == {
        "shell_id": "001",
        "command": "echo up; until [ -e go ]; do sleep 0.01; done; echo down; exit 4",
        "description": "try it",
        "done": False,
        "working_directory": str(desk.root),
    }
    (desk.root / "go").touch()
    done = await desk.call("job_output", shell_id="001", wait=True)
    assert done.content == "Status: completed\n\nup\ndown\nExit code 4"
    assert seen(done)["done"] is True


async def test_a_job_that_fails_at_once_is_reported_at_once(desk: Desk) -> None:
    desk.bash._times = BashTimes(early=LONG)
    result = await desk.run("echo broken >&2; exit 2", run_in_background=True)
    assert result.content == f"broken\nExit code 2\n\n<cwd>{desk.root}</cwd>"
    assert "background" not in seen(result)
    assert desk.jobs.list() == ()


@pytest.mark.parametrize("times", [BashTimes(auto_background=SOON)])
async def test_what_takes_long_goes_on_in_the_background(desk: Desk) -> None:
    token = new_token()
    result = await desk.run(f"sleep {token}")
    assert "job 001" in result.content
    await until(lambda: survivors(token))
    assert (await desk.call("job_output", shell_id="001")).content.startswith("Status: running")
    killed = await desk.call("job_kill", shell_id="001")
    assert killed.content == "Job 001 was stopped."
    assert seen(killed) == {"shell_id": "001", "command": f"sleep {token}", "description": "try it"}
    assert not survivors(token)
    again = await desk.call("job_kill", shell_id="001")
    assert again.is_error
    assert "There are none" in again.content


async def test_the_caller_says_how_long_is_long(desk: Desk) -> None:
    token = new_token()
    result = await desk.run(f"echo begun; sleep {token}", auto_background_after=1)
    assert seen(result)["shell_id"] == "001"
    assert "So far it has said:\nbegun\n" in result.content
    assert (await desk.call("job_kill", shell_id="001")).content == "Job 001 was stopped.\n\nIt had said:\nbegun"
    assert not survivors(token)


@pytest.mark.parametrize("times", [BashTimes(auto_background=SOON, early=SOON)])
async def test_without_room_a_long_command_stays_in_the_foreground(desk: Desk) -> None:
    for _ in range(2):
        await desk.run("sleep 1000", run_in_background=True)
    refused = await desk.run("touch never", run_in_background=True)
    assert refused.is_error
    assert "001, 002" in refused.content
    assert not (desk.root / "never").exists()
    assert (await desk.run("sleep 0.3; echo done")).content.startswith("done\n")
    await desk.jobs.close()


async def test_a_cancel_while_a_job_is_watched_stops_it(desk: Desk) -> None:
    desk.bash._times = BashTimes(early=LONG)
    token = new_token()
    await desk.begin("r1", ("bash", {"command": f"touch up; sleep {token}", "run_in_background": True}))
    await until((desk.root / "up").exists)
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert not survivors(token)
    assert desk.jobs.list() == ()


async def test_a_cancel_while_waiting_for_a_job_ends_the_wait(desk: Desk) -> None:
    await desk.run("touch up; sleep 1000", run_in_background=True)
    await desk.begin("r2", ("job_output", {"shell_id": "001", "wait": True}))
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert [info.state for info in desk.jobs.list()] == ["running"]
    [job] = desk.jobs.list()
    assert job.run_id != RunId("r2")
    await desk.jobs.end_run(job.run_id)
    assert [info.state for info in desk.jobs.list()] == ["killed"]


async def test_a_hundred_commands_and_jobs_use_up_nothing(desk: Desk) -> None:
    """C-57, in small: finished jobs keep nobody from starting another."""
    desk.bash._times = BashTimes(early=0.0)
    for _ in range(8):
        await desk.run("true", run_in_background=True)
        await until(lambda: not desk.jobs.is_busy)
    assert (await desk.run("echo fine")).content.startswith("fine")


async def test_another_session_does_not_see_a_job(desk: Desk) -> None:
    await desk.run("sleep 1000", run_in_background=True)
    other = await desk.harness.workspace.sessions.create("Other")
    desk._next = (Call("job_output", '{"shell_id": "001"}'),)
    await desk.harness.prompt("go", session=other.id)
    await desk.harness.workspace.engine.wait_until_idle(other.id)
    [result] = results_of(await desk.harness.messages(other.id))
    assert result.is_error
    assert "There are none" in result.content
    await desk.jobs.close()
