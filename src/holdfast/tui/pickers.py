"""Actions that let the user choose from a list: sessions, runs, models, jobs, changed files, themes, extensions.

Each class covers one subject and has coroutines that the app runs in the background, because they wait for dialogs.
Lists that a key can change (rename, delete, cancel) are shown again with fresh data until the user closes them.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from textual.theme import Theme

from holdfast.domain.extensions import LspInfo, LspState, McpInfo
from holdfast.domain.files import FileVersion, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.line_diff import count_changes, diff_lines
from holdfast.domain.processes import JobInfo
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel
from holdfast.protocol.extension_routes import SkillInfo
from holdfast.tui.app_context import AppContext
from holdfast.tui.block_render import format_age, format_count, format_duration, format_price, format_usage
from holdfast.tui.screens.dialogs import AutoApprove, Confirm, TextInput
from holdfast.tui.screens.pager import DiffScreen, PagerScreen
from holdfast.tui.screens.picker import Picker, PickerItem, PickerResult
from holdfast.tui.server_connection import LSP_STATE_NAMES
from holdfast.tui.themes import THEMES

__all__ = [
    "ExtensionPicker",
    "ModelPicker",
    "SessionPicker",
    "WorkspacePicker",
    "effort_items",
    "lsp_item",
    "mcp_item",
    "missing_requirement",
    "model_items",
    "skill_items",
]

_SESSION_KEYS = (("enter", "open"), ("ctrl+r", "rename"), ("ctrl+x", "delete"), ("●", "busy"), ("◉", "others"))
_MODEL_KEYS = (("enter", "choose"), ("tab", "large or small"), ("ctrl+e", "set a key"), ("esc", "close"))
_RUN_KEYS = (("enter", "show its session"), ("ctrl+x", "cancel"), ("esc", "close"))
_JOB_KEYS = (("enter", "show its output"), ("ctrl+x", "end it"), ("esc", "close"))
_CHANGE_KEYS = (("enter", "show"), ("esc", "close"))
_EXTENSION_KEYS = (("enter", "details"), ("ctrl+r", "restart"), ("esc", "close"))
_NO_EXTENSIONS = "No extensions: see holdfast mcp add, holdfast lsp and holdfast skills."
_RUN_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "■", "interrupted": "!"}
_MCP_MARKS = {"connected": "●", "starting": "◌", "error": "✗", "needs auth": "!", "disabled": "○"}
_MCP_STATE_NAMES = {"needs auth": "needs login"}
_LSP_MARKS = {LspState.READY: "●", LspState.STARTING: "◌", LspState.ERROR: "✗"}
_MODEL_DEFAULT = "the model's default"

ModelSize = Literal["large", "small"]
Providers = Sequence[Mapping[str, Any]]
"""Providers with their models, as the server lists them. `lack` names the missing requirement of a provider."""


class SessionPicker:
    """Sessions and their runs."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._connection = context.connection

    async def create_session(self) -> None:
        """Leave the current session. The next prompt creates a new one."""
        await self._context.send(self._connection.open_session(None))
        self._context.composer.focus()

    async def choose_session(self) -> None:
        """Show the sessions: to open, rename or delete."""
        start = str(self._connection.session or "")
        while True:
            sessions = await self._context.fetch(self._connection.client.list_sessions(self._connection.workspace))
            if sessions is None:
                return
            known = {item.id: item for item in sessions}
            now = int(time.time())
            items = [_session_item(item, now, is_shown=item.id == self._connection.session) for item in sessions]
            picker = Picker(
                "Sessions", items, _SESSION_KEYS, keys=("ctrl+r", "ctrl+x"), start=start, empty="No session matches."
            )
            picked = await self._context.show_dialog(picker)
            if picked is None or (session := known.get(SessionId(picked.value))) is None:
                return
            start = picked.value
            if picked.key == "enter":
                await self._context.send(self._connection.open_session(session.id))
                self._context.composer.focus()
                return
            await (self._rename(session) if picked.key == "ctrl+r" else self._delete(session))

    async def _rename(self, session: Session) -> None:
        title = await self._context.show_dialog(TextInput("Rename the session", session.title))
        if title:
            await self._context.send(self._connection.client.put_session(self._connection.workspace, session.id, title))

    async def _delete(self, session: Session) -> None:
        text = "Its conversation and the history of its files are deleted."
        if session.is_busy:
            text += " Its current run is cancelled."
        if await self._context.show_dialog(Confirm(f"Delete “{session.title}”?", text, "delete it")):
            await self._context.send(self._connection.client.delete_session(self._connection.workspace, session.id))

    async def choose_run(self) -> None:
        """Show the runs: to open their session or to cancel them."""
        while True:
            runs = await self._context.fetch(self._connection.client.list_runs(self._connection.workspace, limit=100))
            if runs is None:
                return
            now = int(time.time() * 1000)
            items = [_run_item(run, now) for run in runs if not run.parent_run_id]
            picker = Picker("Runs", items, _RUN_KEYS, keys=("ctrl+x",), empty="There are no runs yet.")
            picked = await self._context.show_dialog(picker)
            if picked is None or not picked.value:
                return
            if picked.key == "ctrl+x":
                await self._context.send(
                    self._connection.client.cancel_run(self._connection.workspace, RunId(picked.value))
                )
                continue
            run = next(run for run in runs if run.run_id == picked.value)
            await self._context.send(self._connection.open_session(run.session_id))
            return

    async def summarize(self) -> None:
        """Summarize the session."""
        if self._connection.session is not None:
            await self._context.send(
                self._connection.client.summarize(self._connection.workspace, self._connection.session)
            )

    async def describe_project(self) -> None:
        """Let the model write a description of the project."""
        start = await self._context.fetch(self._connection.client.init_prompt(self._connection.workspace))
        if start is not None:
            await self._context.send(self._connection.prompt(start.prompt))


class ModelPicker:
    """Models, their keys and their reasoning effort."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._connection = context.connection

    async def choose_model(self) -> None:
        """Choose the large or the small model; set a key if its provider needs one."""
        size: ModelSize = "large"
        start = ""
        while True:
            providers = await self._fetch_providers()
            if providers is None:
                return
            picked = await self._context.show_dialog(self._picker(providers, size, start))
            if picked is None:
                return
            start = picked.value
            provider, _, model = picked.value.partition("/")
            if picked.key == "tab":
                size = "small" if size == "large" else "large"
                start = ""
            elif picked.key == "ctrl+e":
                await self._set_key(provider, providers)
            elif missing_requirement(providers, provider):
                if not await self._set_up(provider, providers) or not model:
                    continue
                after = await self._fetch_providers()
                if after is not None and not missing_requirement(after, provider):
                    await self._use_model(size, provider, model)
                    return
            elif model:
                await self._use_model(size, provider, model)
                return

    async def _fetch_providers(self) -> Providers | None:
        return await self._context.fetch(self._connection.client.list_providers(self._connection.workspace))

    async def _use_model(self, size: ModelSize, provider: str, model: str) -> None:
        choice = ConfigModelRequest(size, SelectedModel(model, provider))
        if await self._context.send(self._connection.client.config_model(self._connection.workspace, choice)):
            self._context.notify(f"{model} is the {size} model now.")

    def _picker(self, providers: Providers, size: ModelSize, start: str) -> Picker:
        chosen = self._context.config.get("models", {}).get(size, {})
        current = f"{chosen.get('provider', '')}/{chosen.get('model', '')}"
        purpose = "the large model: it does the work" if size == "large" else "the small model: it writes titles"
        items = model_items(providers, current)
        return Picker(f"Choose {purpose}", items, _MODEL_KEYS, keys=("tab", "ctrl+e"), start=start or current)

    async def _set_up(self, provider: str, providers: Providers) -> bool:
        """Set a key if the provider needs one, or show the missing requirement. Returns True if there is a key now."""
        if any(item.get("id") == provider and item.get("api_key") for item in providers):
            return await self._set_key(provider, providers)
        self._context.notify(missing_requirement(providers, provider), timeout=10)
        return False

    async def _set_key(self, provider: str, providers: Providers) -> bool:
        """Request a key and store it. Returns True if there is a key now."""
        known = next((item for item in providers if item.get("id") == provider), {})
        variable = str(known.get("api_key") or "").lstrip("$")
        hint = f"The server stores it and never shows it. You can set {variable} instead." if variable else ""
        key = await self._context.show_dialog(
            TextInput(f"Key of {known.get('name') or provider}", hint=hint, is_secret=True)
        )
        if not key:
            return False
        body = {"scope": 0, "provider_id": provider, "kind": "string", "api_key": key}
        if not await self._context.send(self._connection.client.config_provider_key(self._connection.workspace, body)):
            return False
        self._context.notify("The key is stored.")
        return True

    async def choose_effort(self) -> None:
        """Choose the reasoning effort of the large model."""
        providers = await self._fetch_providers()
        if providers is None:
            return
        large = self._context.config.get("models", {}).get("large", {"model": "", "provider": ""})
        current = msgspec.convert(large, SelectedModel)
        models = next((item.get("models") or [] for item in providers if item.get("id") == current.provider), [])
        facts: Mapping[str, Any] = next((item for item in models if item.get("id") == current.model), {})
        items = effort_items(facts, current)
        if not items:
            self._context.notify(f"{current.model or 'This model'} has no adjustable reasoning effort.")
            return
        start = current.reasoning_effort or ("on" if current.think else "")
        picked = await self._context.show_dialog(Picker(f"Reasoning effort of {current.model}", items, start=start))
        if picked is None:
            return
        effort = "" if picked.value == "on" else picked.value
        chosen = msgspec.structs.replace(current, reasoning_effort=effort, think=bool(picked.value))
        request = self._connection.client.config_model(self._connection.workspace, ConfigModelRequest("large", chosen))
        if await self._context.send(request):
            self._context.notify(f"Reasoning effort: {picked.value or _MODEL_DEFAULT}")


class WorkspacePicker:
    """Background jobs, changed files, the theme and auto-approval."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._connection = context.connection

    async def choose_job(self) -> None:
        """Show the background jobs: to read their output or to end them."""
        while True:
            jobs = await self._context.fetch(self._connection.client.list_jobs(self._connection.workspace))
            if jobs is None:
                return
            now = int(time.time() * 1000)
            items = [_job_item(job, now) for job in jobs]
            picker = Picker("Background jobs", items, _JOB_KEYS, keys=("ctrl+x",), empty="There are no jobs.")
            picked = await self._context.show_dialog(picker)
            if picked is None or not picked.value:
                return
            if picked.key == "ctrl+x":
                await self._context.send(self._connection.client.kill_job(self._connection.workspace, picked.value))
                continue
            output = await self._context.fetch(
                self._connection.client.job_output(self._connection.workspace, picked.value)
            )
            if output is not None:
                text = "\n".join(part for part in (output.stdout, output.stderr) if part)
                await self._context.show_dialog(PagerScreen(output.job.command, text or "No output yet."))

    async def choose_change(self) -> None:
        """Show the files that the session has changed: to read the differences or to undo them."""
        if self._connection.session is None:
            self._context.notify("This session has not changed any files yet.")
            return
        start = ""
        while True:
            versions = await self._context.fetch(
                self._connection.client.list_history(self._connection.workspace, self._connection.session)
            )
            if versions is None:
                return
            changes = _changed_files(versions)
            root = f"{self._connection.directory}/"
            items = [_change_item(path, first, last, root) for path, (first, last) in changes.items()]
            picker = Picker("Changed files", items, _CHANGE_KEYS, start=start, empty="No file has changed.")
            picked = await self._context.show_dialog(picker)
            if picked is None:
                return
            start = picked.value
            first, last = changes[picked.value]
            lines = diff_lines(first.content, last.content)
            screen = DiffScreen(picked.value.removeprefix(root), lines, self._context.palette, can_undo=True)
            if await self._context.show_dialog(screen) == "undo":
                await self._undo(picked.value)

    async def _undo(self, path: str) -> None:
        """Undo the last change of a file; confirm it if the file has changed since."""
        request = UndoRequest(path, session_id=self._connection.session or SessionId(""))
        report = await self._context.fetch(self._connection.client.undo_changes(self._connection.workspace, request))
        if report is None:
            return
        refused = [item for item in report.files if item.outcome == "refused"]
        if refused:
            question = Confirm("The file has changed since.", refused[0].reason, "undo it anyway")
            if not await self._context.show_dialog(question):
                return
            forced = msgspec.structs.replace(request, force=True)
            report = await self._context.fetch(self._connection.client.undo_changes(self._connection.workspace, forced))
        for item in report.files if report is not None else ():
            self._context.notify(f"{item.path.rpartition('/')[2]}: {item.outcome}")

    async def choose_theme(self, themes: Mapping[str, Theme], current: str) -> str | None:
        """Let the user choose a theme and return its name."""
        items = [PickerItem(name, name, "dark" if theme.dark else "light") for name, theme in themes.items()]
        own = {theme.name for theme in THEMES}
        items.sort(key=lambda item: (item.value not in own, item.value))
        picked = await self._context.show_dialog(Picker("Themes", items, start=current))
        if picked is None:
            return None
        return picked.value

    async def store_theme(self, name: str) -> None:
        """Store the theme in the settings."""
        client, workspace = self._connection.client, self._connection.workspace
        await self._context.send(client.config_set(workspace, "options.tui.theme", name))

    async def toggle_auto_approve(self) -> None:
        """Switch auto-approval of tool calls on, after a confirmation, or off."""
        current = await self._context.fetch(self._connection.client.get_skip(self._connection.workspace))
        if current is None:
            return
        skips = not (current.skip or self._connection.yolo)
        if skips and not await self._context.show_dialog(AutoApprove()):
            return
        request = self._connection.client.set_skip
        if current.skip != skips and not await self._context.send(request(self._connection.workspace, skip=skips)):
            return
        self._connection.yolo = False
        self._context.request_frame()
        if not skips:
            self._context.notify("Tools ask for approval again.")
        else:
            self._context.notify("Tools act without asking now.", severity="warning")


class ExtensionPicker:
    """MCP servers, language servers and skills in one list, with the error beside those that do not work."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._connection = context.connection

    async def choose_extension(self) -> None:
        """Show the extensions: to read details or to restart servers."""
        start = ""
        connection = self._connection
        while True:
            skills = await self._context.fetch(connection.client.list_skills(connection.workspace))
            if skills is None:
                return
            await connection.servers.fetch(connection.client, connection.workspace)
            items = [mcp_item(info) for info in connection.servers.mcps.values()]
            items += [lsp_item(info) for info in connection.servers.lsps.values()]
            items += skill_items(skills, self._skill_states())
            picker = Picker("Extensions", items, _EXTENSION_KEYS, keys=("ctrl+r",), start=start, empty=_NO_EXTENSIONS)
            picked = await self._context.show_dialog(picker)
            if picked is None or not picked.value:
                return
            start = picked.value
            await self._handle(picked)

    def _skill_states(self) -> Sequence[Mapping[str, Any]]:
        workspace = self._connection.view.workspace
        return workspace.skills if workspace is not None else ()

    async def _handle(self, picked: PickerResult) -> None:
        kind, _, name = picked.value.partition(" ")
        client, workspace = self._connection.client, self._connection.workspace
        if picked.key == "ctrl+r":
            await self._restart(kind, name)
        elif kind == "mcp":
            log = await self._context.fetch(client.mcp_log(workspace, name))
            await self._show_server(name, self._connection.servers.mcps.get(name), log.text if log else "")
        elif kind == "lsp":
            trace = await self._context.fetch(client.lsp_log(workspace, name))
            await self._show_server(name, self._connection.servers.lsps.get(name), trace.text if trace else "")
        elif kind == "skill":
            skill = await self._context.fetch(client.read_skill(workspace, name))
            if skill is not None:
                text = skill.content.decode("utf-8", "replace")
                await self._context.show_dialog(PagerScreen(name, text, is_log=False))
        else:
            broken = next((item for item in self._skill_states() if item.get("path") == name), {})
            error = str(broken.get("error") or "The file no longer exists.")
            await self._context.show_dialog(PagerScreen(name, error, is_log=False))

    async def _show_server(self, name: str, info: McpInfo | LspInfo | None, log: str) -> None:
        """Show the error, the tools and the log of a server."""
        pieces = [info.error if info is not None else ""]
        if isinstance(info, McpInfo) and info.tools:
            pieces.append("Tools:\n" + "\n".join(f"  {tool}" for tool in info.tools))
        pieces.append(f"Log:\n{log}" if log.strip() else "The log is empty.")
        await self._context.show_dialog(PagerScreen(name, "\n\n".join(piece for piece in pieces if piece)))

    async def _restart(self, kind: str, name: str) -> None:
        client, workspace = self._connection.client, self._connection.workspace
        if kind == "mcp":
            is_accepted = await self._context.send(client.mcp_restart(workspace, name))
        elif kind == "lsp":
            is_accepted = await self._context.send(client.restart_lsps(workspace, name))
        else:
            self._context.notify("A skill is a text file; changes take effect by themselves.")
            return
        if is_accepted:
            self._context.notify(f"{name} is restarting.")


def model_items(providers: Providers, current: str) -> list[PickerItem]:
    """Return the entries of the list of models: usable models, then providers that need a key. Models that cannot be
    used yet are shown only in searches, because there are thousands.
    """
    ready = [item for item in providers if not item.get("lack")]
    lacking = [item for item in providers if item.get("lack")]
    items = [entry for item in ready for entry in _provider_models(item, current)]
    items += [PickerItem(f"{item['id']}/", _name(item), _reason(item), group="Not set up yet") for item in lacking]
    items += [entry for item in lacking for entry in _provider_models(item, current)]
    return items


def missing_requirement(providers: Providers, provider: str) -> str:
    """Return why a provider cannot be used, and the remedy; empty if it can."""
    return next((str(item.get("lack") or "") for item in providers if item.get("id") == provider), "")


def _name(provider: Mapping[str, Any]) -> str:
    return str(provider.get("name") or provider.get("id"))


def _reason(provider: Mapping[str, Any]) -> str:
    """Return the missing requirement without the hint about other ways to set a key, which can be entered here."""
    return str(provider["lack"]).removeprefix(_name(provider)).strip().partition(", or run ")[0].rstrip(".")


def _provider_models(provider: Mapping[str, Any], current: str) -> list[PickerItem]:
    name, is_lacking = _name(provider), bool(provider.get("lack"))
    items: list[PickerItem] = []
    for model in provider.get("models") or ():
        value = f"{provider['id']}/{model['id']}"
        facts = [name, "not set up yet"] if is_lacking else [_context_window(model), _prices(model)]
        items.append(
            PickerItem(
                value,
                str(model.get("name") or model["id"]),
                " · ".join(fact for fact in facts if fact),
                "●" if value == current else "",
                group=name,
                is_rare=is_lacking and value != current,
            )
        )
    return items


def _context_window(model: Mapping[str, Any]) -> str:
    window = int(model.get("context_window") or 0)
    return f"{format_count(window)} tokens" if window else ""


def _prices(model: Mapping[str, Any]) -> str:
    """Return the prices of a million input and output tokens."""
    price_in, price_out = model.get("cost_per_1m_in"), model.get("cost_per_1m_out")
    return f"{format_price(price_in)} in, {format_price(price_out or 0)} out" if price_in else ""


def effort_items(facts: Mapping[str, Any], current: SelectedModel) -> list[PickerItem]:
    """Return the reasoning levels of a model, or on and off; empty if it does not reason."""
    if not facts.get("can_reason"):
        return []
    default = str(facts.get("default_reasoning_effort") or "")
    levels = [str(level) for level in facts.get("reasoning_levels") or ()] or ["on"]
    chosen = current.reasoning_effort or ("on" if current.think else "")
    first = PickerItem("", _MODEL_DEFAULT, default, "" if chosen else "●")
    return [first, *(PickerItem(level, level, "", "●" if level == chosen else "") for level in levels)]


def _session_item(session: Session, now: int, *, is_shown: bool) -> PickerItem:
    others = session.attached_clients - is_shown
    mark = "●" if session.is_busy else "◉" if others > 0 else ""
    # The time may be in seconds or in milliseconds.
    updated_at = session.updated_at // 1000 if session.updated_at > 10**11 else session.updated_at
    facts = [format_age(now - updated_at), f"{others} attached" if others > 0 else ""]
    facts += [f"{session.message_count} messages", format_usage(session, 0)]
    return PickerItem(session.id, session.title, " · ".join(fact for fact in facts if fact), mark)


def _run_item(run: Run, now: int) -> PickerItem:
    duration = format_duration((run.ended_at or now) - run.started_at) if run.started_at else ""
    facts = [run.outcome or run.state, duration, format_age((now - run.accepted_at) // 1000), run.error]
    title = " ".join(run.prompt.split())[:120] or run.kind
    return PickerItem(run.run_id, title, " · ".join(filter(None, facts)), _RUN_MARKS.get(run.outcome or "", "●"))


def _changed_files(versions: Sequence[FileVersion]) -> dict[str, tuple[FileVersion, FileVersion]]:
    """Return each changed file with its first and latest version, the latest change first."""
    found: dict[str, tuple[FileVersion, FileVersion]] = {}
    for version in sorted(versions, key=lambda item: item.version):
        first, _ = found.get(version.path, (version, version))
        found[version.path] = (first, version)
    changed = {path: pair for path, pair in found.items() if not pair[0].is_same_state(pair[1])}
    return dict(sorted(changed.items(), key=lambda item: -item[1][1].created_at))


def _change_item(path: str, first: FileVersion, last: FileVersion, root: str) -> PickerItem:
    added, removed = count_changes(diff_lines(first.content, last.content))
    kind = "removed" if last.is_missing else "new" if first.is_missing else ""
    return PickerItem(path, path.removeprefix(root), f"+{added} -{removed}  {kind}".rstrip())


def _job_item(job: JobInfo, now: int) -> PickerItem:
    code = "" if job.exit_code is None else f"exit code {job.exit_code}"
    facts = [job.id, job.state, code, format_duration((job.ended_at or now) - job.started_at)]
    mark = "●" if job.state == "running" else "✗" if job.exit_code else "✓"
    return PickerItem(job.id, " ".join(job.command.split())[:120], " · ".join(fact for fact in facts if fact), mark)


def mcp_item(info: McpInfo) -> PickerItem:
    """Return the list entry of an MCP server: the state, then the error if there is one, else the counts."""
    counts = ((info.tool_count, "tool"), (info.prompt_count, "prompt"), (info.resource_count, "resource"))
    offers = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    facts = [_MCP_STATE_NAMES.get(info.state, info.state), *([_one_line(info.error)] if info.error else offers)]
    return PickerItem(f"mcp {info.name}", info.name, " · ".join(facts), _MCP_MARKS[info.state], "MCP servers")


def lsp_item(info: LspInfo) -> PickerItem:
    """Return the list entry of a language server."""
    count = info.diagnostic_count
    diagnostics = f"{count} diagnostic{'s' * (count > 1)}" if count else ""
    facts = [LSP_STATE_NAMES[info.state], diagnostics, _one_line(info.error)]
    mark = _LSP_MARKS.get(info.state, "○")
    return PickerItem(f"lsp {info.name}", info.name, " · ".join(filter(None, facts)), mark, "Language servers")


def skill_items(skills: Sequence[SkillInfo], states: Sequence[Mapping[str, Any]]) -> list[PickerItem]:
    """Return the usable skills, then the broken ones with their errors."""
    items = [
        PickerItem(f"skill {skill.name}", skill.name, f"{skill.source} · {_one_line(skill.description)}", "●", "Skills")
        for skill in skills
    ]
    broken = [(str(item.get("path")), str(item.get("error"))) for item in states if item.get("state")]
    return items + [PickerItem(f"broken {path}", path, _one_line(error), "✗", "Skills") for path, error in broken]


def _one_line(text: str) -> str:
    return " ".join(text.split())
