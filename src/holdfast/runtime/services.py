"""What a workspace is furnished with: settings, models, tools, processes, rules.

A house is what all workspaces of a server share; an services is what one of them has for itself. Nothing here
decides anything: it hands the parts to each other.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from holdfast.config.client_settings import ConfigStore
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials, TokenRefresher
from holdfast.config.locations import locate_settings
from holdfast.config.problems import Problem
from holdfast.domain.errors import HoldfastError, ToolError
from holdfast.domain.events import LiveEvent
from holdfast.domain.ledger import WorkspaceRecord
from holdfast.domain.sessions import Todo
from holdfast.domain.settings import Options, Settings
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.engine.ports import Ledger, Models, Outlet, Tools
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.command_substitution import Substitution
from holdfast.extensions.extensions import Extensions
from holdfast.providers.http_client import close_connections, post_form
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.runtime.engine_settings import engine_settings, lookout_for
from holdfast.runtime.model_selection import SelectedModels, means_of
from holdfast.runtime.permission_rules import PermissionCheck, allows, replaces
from holdfast.runtime.workspace import App, SystemClock, WorkspaceParts
from holdfast.tools.agent import Agent
from holdfast.tools.agentic_fetch import AgenticFetch, WebFetch
from holdfast.tools.bash import Bash, BashArguments
from holdfast.tools.jobs import JobKill, JobOutputTool
from holdfast.tools.question import QuestionTool
from holdfast.tools.registry import AllTools, BuiltinTools, SomeTools, ToolNeeds
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.git.readonly_check import examined_git
from holdfast.workspace.git.status_scan import GitScan
from holdfast.workspace.process.child_process import GuardedSpawn
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard import Guard
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.program_lookup import ProgramFiles
from holdfast.workspace.process.shell_call import Shell, command_environment
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxPolicy, SandboxState, find_bubblewrap
from holdfast.workspace.web_client import WebClient

__all__ = ["ServerServices", "ServiceOverrides", "WorkspaceServices", "open_app"]

_log = logging.getLogger("holdfast.server")

_SIGN_IN = 300.0
"""How many seconds the command may take that renews a machine's own credentials: somebody may have to click."""
CLOSE_SECONDS = 15.0
"""How long one part of a workspace may take to close."""
_LOOKING = frozenset({"glob", "grep", "ls", "view"})
_KNOWING = frozenset({"lsp_call_hierarchy", "lsp_definition", "lsp_references", "lsp_symbols"})


class _ConfinedBash(Bash):
    """Never starts before the sandbox is what the settings say."""

    def __init__(self, services: "WorkspaceServices") -> None:
        super().__init__(services.shell, services.jobs)
        self._services = services

    async def act(self, context: ToolContext, arguments: BashArguments) -> ToolOutcome:
        await self.prepare()
        path, shell = self._services.record.path, self._services.shell
        async with examined_git(path, shell, context.environment, arguments.command):
            return await super().act(context, arguments)

    async def prepare(self) -> None:
        """Also after somebody was asked: the settings may be others by then."""
        await self._services.confine()


class ServiceOverrides(msgspec.Struct, frozen=True):
    """What is decided before the first workspace. With `models` none are chosen, with `tools` there are no others."""

    settings: EngineSettings = EngineSettings()
    models: Models | None = None
    tools: Tools | None = None
    listen: Callable[[str, Outlet], Outlet] | None = None
    """Listens in on what the workspace of a directory says."""
    socket: Path | None = None
    """Where the server listens: no command in a sandbox may reach it."""
    warms_guard: bool = True
    """Whether the guard of processes is started with the first workspace, not with the first command."""


class ServerServices:
    """Of one server: who guards processes, who knows local models, where keys are."""

    def __init__(self, data_dir: Path, ledger: Ledger, given: ServiceOverrides) -> None:
        self.data_dir = data_dir
        self.ledger = ledger
        self.settings = given.settings
        self.models = given.models
        self.tools = given.tools
        self.listen = given.listen
        self.socket = given.socket
        self.warms_guard = given.warms_guard
        self.guard = Guard()
        self.discovery = ModelDiscovery()
        self.web = WebClient()
        self.git = PrivateGit(str(data_dir / "git"))

    def furnish(self, record: WorkspaceRecord, environment: Mapping[str, str]) -> "WorkspaceServices":
        """For a workspace that was just opened, by somebody who had set these variables."""
        if self.warms_guard:
            self.guard.ensure_started()
        return WorkspaceServices(self, record, environment)

    async def close(self) -> None:
        """Close each part, also if another cannot be closed."""
        parts = (self.guard.close, self.discovery.close, close_connections, lambda: asyncio.to_thread(self.git.close))
        await _close_each(parts, None)


def open_app(data_dir: Path, given: ServiceOverrides | None = None) -> App:
    """The application of a server."""
    return App(data_dir, lambda ledger: ServerServices(data_dir, ledger, given or ServiceOverrides()))


class WorkspaceServices:
    """Of one workspace."""

    def __init__(self, house: ServerServices, record: WorkspaceRecord, environment: Mapping[str, str]) -> None:
        self._house = house
        self.record = record
        self.environment = environment
        """The client's, which commands get beside a few variables of the server; nothing if a client gave nothing."""
        self.data_dir = house.data_dir / "workspaces" / record.id
        # Whose files count as the user's own is the server's to know: what they hold may run commands.
        places = locate_settings(record.path, os.environ, data_dir=str(house.data_dir), workspace_id=record.id)
        self.spawn = GuardedSpawn(house.guard)
        self.git = house.git
        self.scan = GitScan(house.git, self.spawn, record.path, environment or os.environ)
        self.configuration = Configuration(places, environment or os.environ, run=Substitution(self.spawn))
        self.store = ConfigStore(house.data_dir / "config.json", self.data_dir / "config.json")
        self.credentials = Credentials(places.credentials_file, os.environ)
        self.refresher = TokenRefresher(self.credentials)
        self.on_settings: Callable[[], None] = lambda: None
        """Called when the settings have become others, whoever changed them."""
        self.publish: Callable[[LiveEvent], None] = lambda _: None
        """To everybody who is attached; set when the workspace is open."""
        self._complaints: frozenset[Problem] = frozenset()
        self._complain()
        self.configuration.on_change = self._changed
        self.choice: SelectedModels | None = None
        if house.models is None:
            means = means_of(self.configuration, self.credentials, house.data_dir)
            means = msgspec.structs.replace(means, new_token=self._new_token, sign_in=self._sign_in)
            self.choice = SelectedModels(means, house.discovery)
        grace = house.settings.grace
        self.jobs = Jobs(SystemClock().now_ms, limits=JobLimits(grace=grace))
        self.processes = Processes(house.guard, self.data_dir / "output", grace=grace)
        self.shell = Shell(self.processes, self._secrets)
        self._programs = ProgramFiles(lambda: command_environment(os.environ, environment, cwd=record.path)["PATH"])
        self._sandbox: Sandbox | None = None
        self._earlier_sandbox: Sandbox | None = None
        self._engine_known: tuple[Options, EngineSettings] | None = None
        self.extensions = Extensions(self._ground())
        self.tools = self._tools()

    @property
    def settings(self) -> Settings:
        return self.configuration.current()

    def _ground(self) -> ExtensionContext:
        known = self.record.path, self.data_dir, self.configuration, self.credentials
        return ExtensionContext(*known, self.spawn, self.environment, self._say, self._secrets, self.git)

    def _say(self, event: LiveEvent) -> None:
        self.publish(event)

    def _changed(self) -> None:
        self._complain()
        self.extensions.refresh()
        self.on_settings()

    def _complain(self) -> None:
        """What is wrong with a file is said once, in the log."""
        problems = self.configuration.problems
        for problem in problems:
            if problem not in self._complaints:
                _log.warning("%s", problem)
        self._complaints = frozenset(problems)

    # Keys

    async def _new_token(self, provider: str, used: str) -> str | None:
        if await asyncio.to_thread(self.credentials.token, provider) is None:
            return None
        try:
            return (await self.refresher.refresh(provider, post_form, used=used)).access_token
        except HoldfastError as error:
            # The refusal that made us ask is told; this is why it stands.
            _log.warning("%s", error)
            return None

    async def _sign_in(self, command: str) -> bool:
        """`aws_auth_refresh`: a command of the user's own, outside of any sandbox, under the guard."""
        try:
            async with asyncio.timeout(_SIGN_IN):
                free = Shell(Processes(self._house.guard, self.data_dir / "output", grace=self._house.settings.grace))
                result = await free.call(command, self.record.path, self.environment)
        except (TimeoutError, ToolError) as error:
            _log.warning("aws_auth_refresh did not succeed: %s", str(error) or "it took too long")
            return False
        return result.exit_code == 0

    def learn_keys(self, environment: Mapping[str, str]) -> None:
        """Whoever joins may have set the key that was missing, or a new one. Nothing else of theirs counts."""
        if self.choice is not None:
            names, _ = self.choice.secrets()
            self.configuration.add_environment({name: environment[name] for name in names if environment.get(name)})

    def _secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """No command sees the keys that models are asked with."""
        return self.choice.secrets() if self.choice is not None else ((), ())

    def parts(self) -> WorkspaceParts:
        """What the engine gets. Which of the settings it is given once, and which it asks for, shows here."""
        house = self._house
        models = self.choice or house.models
        assert models is not None
        web = WebFetch(house.web)
        tools = AllTools(self.tools, self.extensions.tools)
        subagent_types = {
            "task": SubagentType(SomeTools(tools, _LOOKING | _KNOWING)),
            "fetch": SubagentType(SomeTools(self.tools, _LOOKING, web), "small", "fetch.md"),
        }
        saved = str(self.data_dir / "config.json")
        judge = PermissionCheck(self.configuration.snapshot, self.record.path, saved, self._programs)
        return WorkspaceParts(
            house.ledger,
            models,
            house.tools or tools,
            current_settings=self._engine_settings,
            wrap_outlet=lambda outlet: outlet if house.listen is None else house.listen(self.record.path, outlet),
            context_loader=lookout_for(
                self.record.path,
                lambda: self.configuration.settings,
                os.environ,
                self.extensions.notes,
                self.extensions.rescan,
                self.scan.current,
            ),
            subagent_types=subagent_types,
            judge=lambda _: judge,
            environment=self.environment,
            cleanup=self.jobs.end_run,
            completion_error=self.jobs.fault_of,
            extensions_ready=self.extensions.wait_settled,
            hooks=self.extensions.hooks,
            rules_allow=self._allows,
            named_model=None if self.choice is None else self.choice.named,
            find_subagent_type=lambda kind: self.extensions.agents.subagent_type(kind, tools),
        )

    def _allows(self, rules: Sequence[str], permit: Permit) -> bool:
        """Whether rules that hold for one run, such as those of a command, allow this."""
        return bool(rules) and allows(rules, permit, self.record.path, self._programs)

    def _engine_settings(self) -> EngineSettings:
        """As of the last look: each run looks before it begins. Asked for at every step, made when they change."""
        options = self.configuration.settings.options
        if self._engine_known is None or self._engine_known[0] is not options:
            self._engine_known = options, engine_settings(self._house.settings, options)
        return self._engine_known[1]

    def _tools(self) -> BuiltinTools:
        more = (
            Agent(self.extensions.agents.descriptions),
            AgenticFetch(),
            _ConfinedBash(self),
            JobKill(self.jobs),
            JobOutputTool(self.jobs),
            QuestionTool(),
        )
        needs = ToolNeeds(
            spawn=partial(self.spawn, is_real=True),
            git=self.git,
            settings=lambda: self.settings.tools,
            # Asked before each step, when the model was just looked up in the same settings.
            disabled=lambda: self.configuration.settings.options.disabled_tools,
            readable=lambda: (str(self.data_dir / "output"), *self.extensions.skills.readable_directories()),
            skill_at=self.extensions.skills.by_path,
            known_todos=self._todos,
            facts=self._facts,
            log_file=lambda: self._house.data_dir / "logs" / "server.log",
            web=self._house.web,
            on_view=self.extensions.lsp.on_view,
            on_change=self.extensions.lsp.on_change,
            more=more,
        )
        return BuiltinTools(needs)

    async def _todos(self, context: ToolContext) -> Sequence[Todo]:
        session = await self._house.ledger.session(self.record.id, context.session_id)
        return session.todos if session and session.todos else ()

    async def _facts(self, _: ToolContext) -> Mapping[str, Sequence[str]]:
        """What a model may know about its own settings. Secrets are blacked out by the tool."""
        settings = self.settings
        models = self.choice or self._house.models
        assert models is not None
        large, small = (await models.large()).info, (await models.small()).info
        return {
            "config files": _existing(source.path for source in self.configuration.locations.sources),
            "models": [f"large: {large.provider}/{large.model}", f"small: {small.provider}/{small.model}"],
            "providers": sorted(settings.providers),
            "language servers": self.extensions.lsp.status_lines(),
            "permissions": [*settings.permissions.allowed_tools, *settings.permissions.allow],
            "disabled tools": settings.options.disabled_tools,
            "skills": [skill.name for skill in self.extensions.skills.current.usable],
            "agents": [name for name, _ in self.extensions.agents.descriptions()],
            "sandbox": [self.sandbox_state().mode],
        }

    # The sandbox.

    async def confine(self) -> SandboxState:
        """Bring the sandbox to what the settings say. Raises `SandboxImpossible`."""
        options = self.settings.options
        if options.sandbox != "workspace":
            self._sandbox = self.processes.sandbox = None
        else:
            await self._house.guard.ready()
            policy = self._sandbox_policy()
            if self._sandbox is None or self._sandbox.policy != policy:
                means = self._house.guard.has_namespaces, find_bubblewrap(), self._earlier_sandbox
                self._sandbox = Sandbox(policy, has_namespaces=means[0], bubblewrap=means[1], earlier=means[2])
                self._earlier_sandbox = self._sandbox
            self.processes.sandbox = self._sandbox
            await asyncio.to_thread(self._sandbox.prepare)
        return self.sandbox_state()

    def _sandbox_policy(self) -> SandboxPolicy:
        settings, home = self.settings, self.environment.get("HOME", "")
        own = (self._house.data_dir, self._house.socket, *self.configuration.locations.private_directories)
        known = str(self.data_dir / "scratch"), settings.options.sandbox_network, tuple(map(str, filter(None, own)))
        return SandboxPolicy(self.record.path, *known, home=settings.sandbox, home_directory=home)

    def sandbox_state(self) -> SandboxState:
        return self._sandbox.describe() if self._sandbox is not None else SandboxState()

    def save_rule(self, rule: str) -> None:
        """Save a rule of "always allow" for this workspace, in place of one of an earlier version for the same."""
        rules = self.store.read_scope(1).get("permissions", {}).get("allow", [])
        kept = [known for known in rules if not replaces(rule, known)]
        if rule not in kept:
            self.store.set(1, "permissions.allow", [*kept, rule])

    async def can_answer(self, providers: Collection[str]) -> bool:
        return self.choice is None or await self.choice.can_answer(providers)

    async def close(self) -> None:
        """Close each part, also if another cannot be closed."""
        parts = (self.scan, self.jobs, self.extensions, self.choice, self.refresher)
        await _close_each([part.close for part in parts if part is not None], CLOSE_SECONDS)


async def _close_each(parts: Iterable[Callable[[], Awaitable[object]]], seconds: float | None) -> None:
    """Close one part after the other, each within so many seconds; then raise the first error, if there was one."""
    errors: list[Exception] = []
    for close in parts:
        try:
            async with asyncio.timeout(seconds):
                await close()
        except TimeoutError:
            _log.warning("%s did not end within %s seconds", getattr(close, "__qualname__", close), seconds)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]
