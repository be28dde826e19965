"""The services of one open workspace, beside its engine.

Settings, credentials, models, permission rules, processes, tools, extensions. Nothing here makes decisions; the
constructor passes the parts to each other, in an order in which each part exists before it is used.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.bus.bus import Bus
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials, TokenRefresher
from holdfast.config.locations import locate_settings
from holdfast.config.problems import FileProblem
from holdfast.config.saved_settings import ConfigStore
from holdfast.domain.documents import STORE_PREFIX
from holdfast.domain.errors import HoldfastError, NoUsableModel, ToolError
from holdfast.domain.events import AgentEvent, AgentNotice, Change, ConfigChanged, ConfigChangedEvent, LiveEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.sessions import Todo
from holdfast.domain.settings import Options, Settings
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.engine.approvals import Approvals
from holdfast.engine.ports import ContextLoader, Models, Outlet
from holdfast.engine.recovery import plan_recovery
from holdfast.engine.run_context import RunContext, SubagentRegistry, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.extensions import Extensions
from holdfast.providers.shared_http_clients import post_form
from holdfast.runtime.command_substitution import Substitution
from holdfast.runtime.engine_settings import context_loader, engine_settings
from holdfast.runtime.model_selection import SelectedModels, model_sources
from holdfast.runtime.server_services import MissingCredentials, ServerServices, close_each
from holdfast.runtime.workspace import SystemClock, Workspace, WorkspaceEvents, new_id
from holdfast.runtime.workspace_permissions import PermissionCheck, allows, replaces
from holdfast.tasks import TaskOwner
from holdfast.tools.agent import Agent
from holdfast.tools.agentic_fetch import AgenticFetch, WebFetch
from holdfast.tools.bash import Bash, BashArguments
from holdfast.tools.jobs import JobKill, JobOutputTool
from holdfast.tools.question import QuestionTool
from holdfast.tools.registry import AllTools, BuiltinTools, SomeTools, ToolNeeds
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.git.background_status import GitScan
from holdfast.workspace.git.readonly_check import examined_git
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.output_capture import is_output_file
from holdfast.workspace.process.piped_process import GuardedSpawn
from holdfast.workspace.process.program_files import ProgramFiles
from holdfast.workspace.process.shell_launch import Shell, command_environment
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxPolicy, SandboxState, find_bubblewrap

__all__ = ["Ownership", "WorkspaceServices", "open_owned_workspace", "open_workspace"]

_log = logging.getLogger("holdfast.server")

_SIGN_IN_SECONDS = 300.0
"""Limit of the command that renews a machine's own credentials: the user may have to confirm in a browser."""
CLOSE_SECONDS = 15.0
"""Limit for closing one part of a workspace."""
_MODEL_WAIT_SECONDS = 1.0
_MODEL_NOTICE_SECONDS = 60.0
"""Time until clients are notified again that runs wait for a model: another one may be attached by then."""
_MODEL_USED = f"{STORE_PREFIX}model-used"
"""A document that exists once a server of the cluster has used a model."""
_READ_ONLY_TOOLS = frozenset({"glob", "grep", "ls", "view"})
_LSP_TOOLS = frozenset({"lsp_call_hierarchy", "lsp_definition", "lsp_references", "lsp_symbols"})


async def open_workspace(
    server: ServerServices,
    path: str,
    environment: Mapping[str, str],
    on_busy: Callable[[WorkspaceId], None],
    *,
    unattended: bool,
) -> Workspace:
    """Open the workspace of a directory, recover its runs and start its services."""
    record = await server.ledger.open_workspace(path)

    def report_busy(_: bool) -> None:
        on_busy(record.id)

    observe = server.overrides.observe
    events = WorkspaceEvents(record, server.ledger, partial(observe, path) if observe is not None else _unobserved)
    services = server.workspace_services(record, environment, events.outlet.publish_live, report_busy)
    try:
        resume = not unattended or await _can_resume(record, services)
        workspace = Workspace(record, services, events, report_busy)
        await workspace.recover(resume=resume)
    except BaseException:
        await services.close()
        raise
    try:
        if not resume:
            raise MissingCredentials
        services.start()
    except BaseException:
        await workspace.close()
        raise
    return workspace


class Ownership(msgspec.Struct, frozen=True):
    """What connects a workspace to the cluster whose node owns it."""

    bus: Bus
    """The bus of the workspace on this node, which may have subscribers already."""
    wrap_outlet: Callable[[Outlet], Outlet]
    """Wraps the outlet, to notify other nodes."""
    on_busy: Callable[[bool], None]
    """Called when the first run becomes active and when the last one has ended."""
    on_owner_changed: Callable[[], None]
    """Called when a write shows that another node has taken over."""


async def open_owned_workspace(
    server: ServerServices, record: WorkspaceRecord, services: "WorkspaceServices", ownership: Ownership
) -> Workspace:
    """Open a workspace that this node of a cluster owns, and recover its runs. Its services are not started: they may
    start programs, so that happens when tools may act.
    """
    observe = server.overrides.observe
    observed = partial(observe, record.path) if observe is not None else _unobserved
    events = WorkspaceEvents(
        record, server.ledger, lambda outlet: ownership.wrap_outlet(observed(outlet)), ownership.bus
    )
    workspace = Workspace(
        record,
        services,
        events,
        ownership.on_busy,
        is_shared=True,
        on_owner_changed=ownership.on_owner_changed,
        on_session_deleted=services.remove_session,
    )
    try:
        await workspace.recover()
    except BaseException:
        # Runs may have been started, and the next attempt would start them again.
        await workspace.engine.abandon()
        raise
    return workspace


def _unobserved(outlet: Outlet) -> Outlet:
    return outlet


async def _can_resume(record: WorkspaceRecord, services: "WorkspaceServices") -> bool:
    """Return True if no prompt is queued, or the queued ones can be answered without a client."""
    ledger = services.ledger
    sessions = {run.session_id for run in plan_recovery(await ledger.open_runs(record.id), {}).requeued}
    conversations = [await ledger.messages(record.id, session) for session in sessions]
    used = {message.provider for messages in conversations for message in messages if message.provider}
    return not sessions or await services.can_answer(used)


class WorkspaceServices:
    """The services of one open workspace. `publish` sends live events to the attached clients.

    `environment` is that of the client that opened the workspace. Commands receive it beside a few variables of the
    server; it is empty if the client sent none.
    """

    def __init__(
        self,
        server: ServerServices,
        record: WorkspaceRecord,
        environment: Mapping[str, str],
        publish: Callable[[LiveEvent], None],
        on_busy: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._server = server
        self.record = record
        self.environment = environment
        self.publish = publish
        self.ledger = server.ledger
        self.git = server.git
        self.clock = SystemClock()
        self.new_id = new_id
        self.data_dir = server.data_dir / "workspaces" / record.id
        self.spawn = GuardedSpawn(server.guard)
        self.git_scan = GitScan(server.git, self.spawn, record.path, environment or os.environ)
        self.configuration = self._configuration(server)
        locations = self.configuration.locations
        self._engine_settings: tuple[Options, EngineSettings] | None = None
        self._settings_version = 0
        self._logged_problems: frozenset[FileProblem] = frozenset()
        self._log_problems()
        self.config_store = ConfigStore(*locations.saved_settings, server.documents, keys_file=locations.keys_file)
        tokens = None if server.shared is None else server.shared.tokens
        self.credentials = Credentials(locations.credentials_file, os.environ, tokens=tokens)
        self.token_refresher = TokenRefresher(self.credentials)
        self.selected_models = self._select_models() if server.overrides.models is None else None
        self._programs = ProgramFiles(lambda: command_environment(os.environ, environment, cwd=record.path)["PATH"])
        saved_rules = locations.saved_settings[1]
        self.judge = PermissionCheck(self.configuration.snapshot, record.path, saved_rules, self._programs)
        grace = server.overrides.settings.grace
        self.jobs = Jobs(self.clock.now_ms, limits=JobLimits(grace=grace), on_busy=on_busy)
        self.output_directory = server.output_root / "workspaces" / record.id / "output"
        self.processes = Processes(server.guard, self.output_directory, grace=grace)
        self.shell = Shell(self.processes, self._secrets)
        self.extensions = Extensions(self._extension_context())
        self.tools = self._tools()
        self.await_tools: Callable[[], Awaitable[None]] | None = None
        """Returns once tools may act; None if they always may. Set for a workspace that a node of a cluster owns."""
        self._missing_model = ("", 0.0)
        """The reason of the last notice that runs wait for a model, and the time until which it is not repeated."""
        self._has_noted_model = False
        self._tasks = TaskOwner()
        self._sandbox: Sandbox | None = None
        self._earlier_sandbox: Sandbox | None = None

    def _configuration(self, server: ServerServices) -> Configuration:
        # Files that count as the user's own may run commands, so the environment of the server locates them.
        locations = locate_settings(
            self.record.path,
            os.environ,
            data_dir=str(server.data_dir),
            workspace_id=self.record.id,
            is_shared=server.shared is not None,
        )
        return Configuration(
            locations,
            self.environment or os.environ,
            run=Substitution(self.spawn),
            on_change=self._settings_changed,
            documents=server.documents,
        )

    def start(self) -> None:
        """Start the extensions and the first scan of the work tree, in the background."""
        self.extensions.start()
        self.git_scan.current()

    @property
    def settings(self) -> Settings:
        """The effective settings. Re-reads files that have changed."""
        return self.configuration.current()

    @property
    def models(self) -> Models:
        """The models that the server was given, or else those that the settings select."""
        models = self.selected_models or self._server.overrides.models
        assert models is not None, "one of them is always set"
        return models

    def _extension_context(self) -> ExtensionContext:
        known = self.record.path, self.data_dir, self.configuration, self.credentials
        return ExtensionContext(*known, self.spawn, self.environment, self.publish, self._secrets, self.git)

    # Settings

    def notify_settings_changed(self) -> None:
        """Notify clients of a changed setting, once, even if re-reading the files also reports the change."""
        version = self._settings_version
        self.configuration.snapshot()
        if self._settings_version == version:
            self._publish_change()

    def _settings_changed(self) -> None:
        self._log_problems()
        self.extensions.refresh()
        self._publish_change()

    def _publish_change(self) -> None:
        self._settings_version += 1
        self.publish(ConfigChangedEvent(Change("updated", ConfigChanged(self.record.id))))

    def _log_problems(self) -> None:
        """Log each problem of a settings file once."""
        problems = self.configuration.problems
        for problem in problems:
            if problem not in self._logged_problems:
                _log.warning("%s", problem)
        self._logged_problems = frozenset(problems)

    def engine_settings(self) -> EngineSettings:
        """Return the engine's settings as of the last read: each run reads the files before it begins, and every step
        calls this.
        """
        options = self.configuration.settings.options
        if self._engine_settings is None or self._engine_settings[0] is not options:
            self._engine_settings = options, engine_settings(self._server.overrides.settings, options)
        return self._engine_settings[1]

    # Models and credentials

    def _select_models(self) -> SelectedModels:
        sources = model_sources(self.configuration, self.credentials, self._server.data_dir)
        sources = msgspec.structs.replace(
            sources, new_token=self._new_token, sign_in=self._sign_in, on_use=self._note_model
        )
        return SelectedModels(sources, self._server.discovery)

    async def _new_token(self, provider: str, used: str) -> str | None:
        if await asyncio.to_thread(self.credentials.token, provider) is None:
            return None
        try:
            return (await self.token_refresher.refresh(provider, post_form, used=used)).access_token
        except HoldfastError as error:
            # The caller reports the provider's refusal; this is why the refusal could not be resolved.
            _log.warning("%s", error)
            return None

    async def _sign_in(self, command: str) -> bool:
        """Run `aws_auth_refresh`, a command of the user's own: outside the sandbox, under the guard."""
        server = self._server
        try:
            async with asyncio.timeout(_SIGN_IN_SECONDS):
                grace = server.overrides.settings.grace
                unconfined = Shell(Processes(server.guard, self.output_directory, grace=grace))
                result = await unconfined.call(command, self.record.path, self.environment)
        except (TimeoutError, ToolError) as error:
            _log.warning("aws_auth_refresh did not succeed: %s", str(error) or "it took too long")
            return False
        return result.exit_code == 0

    def add_client_keys(self, environment: Mapping[str, str]) -> None:
        """Use the API keys in the environment of a client that joined later. Its other variables have no effect."""
        if self.selected_models is not None:
            names, _ = self.selected_models.secrets()
            self.configuration.add_environment({name: environment[name] for name in names if environment.get(name)})

    def _secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names and values of API keys, which are removed from the environment of commands."""
        return self.selected_models.secrets() if self.selected_models is not None else ((), ())

    async def can_answer(self, providers: Collection[str]) -> bool:
        """Return whether conversations with these providers can continue without a client."""
        return self.selected_models is None or await self.selected_models.can_answer(providers)

    # Permissions

    def approval_timeout(self) -> float:
        """Return for how many seconds a request waits for an answer while no client is attached."""
        return self.configuration.settings.options.ask_timeout

    async def save_rule(self, rule: str) -> None:
        """Save a rule of "always allow" for this workspace, in place of its form of an earlier version."""

        def with_rule(rules: Any) -> object:  # noqa: ANN401 - any JSON
            kept = [known for known in rules or () if not replaces(rule, known)]
            return kept if rule in kept else [*kept, rule]

        await asyncio.to_thread(self.config_store.change, 1, "permissions.allow", with_rule)
        self.notify_settings_changed()

    def _rules_allow(self, rules: Sequence[str], permit: Permit) -> bool:
        """Return whether the rules of one run, such as those of a command, allow a call."""
        return bool(rules) and allows(rules, permit, self.record.path, self._programs)

    # Runs and tools

    def run_context(self, record: WorkspaceRecord, approvals: Approvals) -> RunContext:
        """Return the dependencies of the workspace's runs."""
        server = self._server
        tools = AllTools(self.tools, self.extensions.tools)
        web_fetch = WebFetch(server.web)
        subagent_types = {
            "task": SubagentType(SomeTools(tools, _READ_ONLY_TOOLS | _LSP_TOOLS)),
            "fetch": SubagentType(SomeTools(self.tools, _READ_ONLY_TOOLS, web_fetch), "small", "fetch.md"),
        }
        return RunContext(
            record.id,
            record.path,
            server.ledger,
            self.models,
            server.overrides.tools or tools,
            self.engine_settings,
            permissions=approvals,
            environment=self.environment,
            context_loader=self._context_loader(),
            subagents=SubagentRegistry(subagent_types, lambda name: self.extensions.agents.subagent_type(name, tools)),
            cleanup=self.jobs.end_run,
            completion_error=self.jobs.fault_of,
            extensions_ready=self.extensions.wait_settled,
            hooks=self.extensions.hooks,
            rules_allow=self._rules_allow,
            named_model=None if self.selected_models is None else self.selected_models.named,
            await_tools=self.await_tools,
            await_model=None if self.await_tools is None else self._await_model,
            may_fall_back=self._may_fall_back,
        )

    async def _await_model(self, error: NoUsableModel) -> None:
        """Wait a moment if no model can be used. Keys belong to a node, and a client or an operator may still supply
        one; the run must not fail because it was taken over by a node without.
        """
        now, text = asyncio.get_running_loop().time(), str(error)
        if self._missing_model[0] != text or now > self._missing_model[1]:
            self._missing_model = text, now + _MODEL_NOTICE_SECONDS
            notice = f"{text} The run waits until this server has a model, or another server takes over the workspace."
            _log.warning("%s: %s", self.record.path, notice)
            self.publish(AgentEvent(Change("created", AgentNotice("error", error=notice))))
        await asyncio.sleep(_MODEL_WAIT_SECONDS)

    def _may_fall_back(self) -> bool:
        """Return whether the scripted tour may answer: in a cluster only until any server has used a model, because a
        server without a key must not answer in its place.
        """
        return self._server.shared is None or self._server.documents.signature(_MODEL_USED) is None

    def _note_model(self) -> None:
        """Record that this cluster uses models. Once for the cluster."""
        if self._server.shared is not None and not self._has_noted_model and self._may_fall_back():
            self._has_noted_model = True
            self._tasks.start(self._store_model_used(), name="model used")

    async def _store_model_used(self) -> None:
        try:
            await asyncio.to_thread(self._server.documents.update, _MODEL_USED, lambda _: b"1")
        except HoldfastError:
            self._has_noted_model = False

    def _context_loader(self) -> ContextLoader:
        return context_loader(
            self.record.path,
            lambda: self.configuration.settings,
            os.environ,
            self.extensions.notes,
            self.extensions.rescan,
            self.git_scan.current,
        )

    def _tools(self) -> BuiltinTools:
        more = (
            Agent(self.extensions.agents.descriptions),
            AgenticFetch(),
            _SandboxedBash(self),
            JobKill(self.jobs),
            JobOutputTool(self.jobs),
            QuestionTool(),
        )
        needs = ToolNeeds(
            spawn=partial(self.spawn, is_real=True),
            git=self.git,
            settings=lambda: self.settings.tools,
            # Called before each step, right after the model was looked up in the same settings.
            disabled=lambda: self.configuration.settings.options.disabled_tools,
            readable=lambda: (str(self.output_directory), *self.extensions.skills.readable_directories()),
            unavailable=self._unavailable,
            skill_at=self.extensions.skills.by_path,
            known_todos=self._todos,
            facts=self._describe_settings,
            log_file=lambda: self._server.data_dir / "logs" / "server.log",
            web=self._server.web,
            on_view=self.extensions.lsp.on_view,
            on_change=self.extensions.lsp.on_change,
            more=more,
        )
        return BuiltinTools(needs)

    def _unavailable(self, path: str) -> str:
        """Return why a file is not available: it is an output on the disk of an earlier owner of the workspace."""
        is_output = self._server.shared is not None and is_output_file(path, self.record.id)
        if not is_output or is_within(str(self.output_directory), path) or os.path.lexists(path):
            return ""
        return (
            "This output was stored on the disk of the server that owned the workspace before, so it is not available "
            "here. Run the command again if its output is needed."
        )

    async def _todos(self, context: ToolContext) -> Sequence[Todo]:
        session = await self.ledger.session(self.record.id, context.session_id)
        return session.todos if session and session.todos else ()

    async def _describe_settings(self, _: ToolContext) -> Mapping[str, Sequence[str]]:
        """Describe the settings for the model. The tool removes secrets."""
        settings = self.settings
        large, small = (await self.models.large()).info, (await self.models.small()).info
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

    def remove_session(self, session: SessionId) -> None:
        """End the jobs of a session that another server has deleted, and remove the output of its commands."""
        self._tasks.start(self._remove_session(session), name=f"remove session {session}")

    async def _remove_session(self, session: SessionId) -> None:
        await self.jobs.end_session(session)
        await asyncio.to_thread(self.processes.remove_output, session, ())

    # Sandbox

    async def update_sandbox(self) -> SandboxState:
        """Create, change or remove the sandbox as the settings require. Raises `SandboxImpossible`."""
        options = self.settings.options
        if options.sandbox != "workspace":
            self._sandbox = self.processes.sandbox = None
        else:
            await self._server.guard.ready()
            policy = self._sandbox_policy()
            if self._sandbox is None or self._sandbox.policy != policy:
                self._sandbox = Sandbox(
                    policy,
                    has_namespaces=self._server.guard.has_namespaces,
                    bubblewrap=find_bubblewrap(),
                    earlier=self._earlier_sandbox,
                )
                self._earlier_sandbox = self._sandbox
            self.processes.sandbox = self._sandbox
            await asyncio.to_thread(self._sandbox.prepare)
        return self.sandbox_state()

    def _sandbox_policy(self) -> SandboxPolicy:
        settings, home = self.settings, self.environment.get("HOME", "")
        own = (
            *dict.fromkeys((self._server.data_dir, self._server.output_root)),
            self._server.overrides.socket,
            *self.configuration.locations.private_directories,
        )
        known = str(self.data_dir / "scratch"), settings.options.sandbox_network, tuple(map(str, filter(None, own)))
        return SandboxPolicy(self.record.path, *known, home=settings.sandbox, home_directory=home)

    def sandbox_state(self) -> SandboxState:
        """Return the state of the sandbox."""
        return self._sandbox.describe() if self._sandbox is not None else SandboxState()

    def skip_graces(self) -> None:
        """Kill commands and jobs at once from now on. For a workspace of another node: frozen processes would not react
        to another signal, and must never act again.
        """
        self.processes.grace = 0.0
        self.jobs.skip_graces()

    async def close(self) -> None:
        """Close the parts, each even if another cannot be closed."""
        await self._tasks.drain()
        parts = (self.git_scan, self.jobs, self.extensions, self.selected_models, self.token_refresher)
        await close_each([part.close for part in parts if part is not None], CLOSE_SECONDS)


class _SandboxedBash(Bash):
    """The `bash` tool, which never starts a command before the sandbox matches the settings."""

    def __init__(self, services: WorkspaceServices) -> None:
        super().__init__(services.shell, services.jobs)
        self._services = services

    async def act(self, context: ToolContext, arguments: BashArguments) -> ToolOutcome:
        """Run a command. Also called after an approval, during which the settings may have changed."""
        await self.prepare()
        path, shell = self._services.record.path, self._services.shell
        async with examined_git(path, shell, context.environment, arguments.command):
            return await super().act(context, arguments)

    async def prepare(self) -> None:
        """Update the sandbox."""
        await self._services.update_sandbox()


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]
