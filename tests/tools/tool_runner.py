"""Runs real tools in a session of a real workspace, with a test double that answers permission requests."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from engine.helpers import PATIENT, results_of
from holdfast.domain.errors import PermissionDenied
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ToolResult
from holdfast.domain.model_requests import ModelInfo, ModelRequest, ToolSpec
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.engine.ports import Outlet
from holdfast.permissions.rule_decision import RuleSet
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, SystemClock, Workspace, open_workspace
from holdfast.testing.gates import Gate
from holdfast.testing.harness import FixedModels, Harness, PublishedEvents, counting_ids
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.tools.registry import BuiltinTools, ToolNeeds


class Approver:
    """Answers permission requests: records those that no rule decides and denies the ones that `denies` selects."""

    def __init__(self, root: Path) -> None:
        self.rules = RuleSet(PermissionSettings(), os.path.realpath(root), real=os.path.realpath)
        """Rules that decide before a request is made."""
        self.requests: list[Permit] = []
        self.denies: Callable[[Permit], bool] = lambda _: False
        self.gate = Gate(is_open=True)

    async def permit(self, permit: Permit) -> None:
        verdict = self.rules.judge(permit)
        if verdict.decision == "allow":
            return
        if verdict.decision == "deny":
            raise PermissionDenied(verdict.why, stops_turn=False)
        self.requests.append(permit)
        await self.gate()
        if self.denies(permit):
            raise PermissionDenied(stops_turn=False)

    def actions(self) -> list[tuple[str, str, str]]:
        return [(permit.tool, permit.action, permit.path) for permit in self.requests]


class _Context:
    """The run's own context, with the runner's approver and environment."""

    def __init__(self, context: ToolContext, runner: "ToolRunner") -> None:
        self._context = context
        self.permit = runner.approver.permit
        self.environment = runner.environment
        self.workspace_path = context.workspace_path

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)


class _WrappedTool:
    def __init__(self, tool: Tool, runner: "ToolRunner") -> None:
        self._tool, self._desk = tool, runner
        self.is_parallel = tool.is_parallel

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        return await self._tool.run(cast(ToolContext, _Context(context, self._desk)), arguments)


class _Tools:
    def __init__(self, tools: BuiltinTools, runner: "ToolRunner") -> None:
        self._tools, self._desk = tools, runner

    async def current(self) -> Sequence[Tool]:
        return [_WrappedTool(tool, self._desk) for tool in await self._tools.current()]


class ToolRunner:
    """Tool runner of one project. It uses the real clock, because file times are real."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.approver = Approver(root)
        self.environment: dict[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        self._next: tuple[Call, ...] = ()
        self._harnesses: list[Harness] = []

    async def open(
        self, needs: ToolNeeds | None = None, *, takes_images: bool = False, ledger: MemoryLedger | None = None
    ) -> "ToolRunner":
        recorded: list[PublishedEvents] = []

        def wrap_outlet(outlet: Outlet) -> Outlet:
            recorded.append(PublishedEvents(outlet))
            return recorded[0]

        ledger = ledger or MemoryLedger()
        info = ModelInfo("test", "plain", supports_images=takes_images)
        model = FixedModels(ScriptedModel(self._script, info=info))
        tools = _Tools(BuiltinTools(needs), self)
        parts = FixedServices(ledger, model, tools, PATIENT, SystemClock(), counting_ids(), wrap_outlet)
        workspace: Workspace = await open_workspace(str(self.root), parts)
        session = await workspace.sessions.create("Test")
        self._harnesses = [Harness(workspace, recorded[0], session.id, ledger)]
        return self

    @property
    def harness(self) -> Harness:
        return self._harnesses[0]

    def _script(self, request: ModelRequest) -> Step:
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step(self._next)

    async def start(self, *calls: tuple[str, dict[str, object]], run_id: str = "") -> str:
        """Start a run that calls these tools in one step and return its run id."""
        self._next = tuple(Call(tool, json.dumps(arguments)) for tool, arguments in calls)
        return (await self.harness.prompt("go", run_id)).run_id

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """Run the tool in a run of its own and return its result."""
        return await self.call_in(None, tool, arguments)

    async def call_in(self, session: SessionId | None, tool: str, arguments: dict[str, object]) -> ToolResult:
        self._next = (Call(tool, json.dumps(arguments)),)
        run = await self.harness.prompt("go", session=session)
        await self.harness.workspace.engine.wait_until_idle(session or self.harness.session)
        assert self.harness.end_of(run.run_id).outcome == "completed"
        return results_of(await self.harness.messages(session))[-1]

    async def call_ok(self, tool: str, **arguments: object) -> ToolResult:
        """Call the tool, require success and return the result."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, result.content
        return result

    async def call_error(self, tool: str, **arguments: object) -> str:
        """Call the tool, require an error and return its text."""
        result = await self.call(tool, **arguments)
        assert result.is_error, result.content
        return result.content

    async def files(self) -> Sequence[FileVersion]:
        return await self.harness.ledger.files(self.harness.workspace.record.id, self.harness.session)

    async def versions(self) -> list[tuple[str, int, str | None]]:
        """Return path, number and content of each stored version; the content is None where there was no file."""
        return [
            (file.path.removeprefix(f"{self.root}/"), file.version, None if file.is_missing else file.content)
            for file in await self.files()
        ]

    async def read_marks(self) -> Sequence[ReadMark]:
        return await self.harness.ledger.read_marks(self.harness.workspace.record.id, self.harness.session)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write_file(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def names(self) -> list[str]:
        """Return every file below the root, including temporary files that were left behind."""
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(self.root) for name in names]
        return sorted(os.path.relpath(path, self.root) for path in paths)


def metadata_of(result: ToolResult) -> dict[str, Any]:
    """Return the metadata of a result."""
    return cast(dict[str, Any], json.loads(result.metadata))
