"""Lists to choose from: sessions, models, commands, runs, jobs, changed files, themes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from textual import work

from holdfast.domain.extensions import LspInfo, LspState, McpInfo
from holdfast.domain.files import FileVersion, UndoAsk
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.line_diff import count_changes, diff_lines
from holdfast.domain.processes import JobInfo
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice
from holdfast.protocol.extension_routes import SkillInfo
from holdfast.tui.base_app import Stage
from holdfast.tui.block_render import ago, elapsed, price, thousands, usage_of
from holdfast.tui.screens.dialogs import AutoApprove, Confirm, TextInput
from holdfast.tui.screens.pager import DiffScreen, PagerScreen
from holdfast.tui.screens.picker import Choice, Picked, Picker
from holdfast.tui.server_connection import LSP_WORDS

__all__ = [
    "Choosing",
    "Extensions",
    "effort_choices",
    "lack_of",
    "lsp_choice",
    "mcp_choice",
    "model_choices",
    "skill_choices",
]


# The list of models: those that can be used, then providers that need a key. Pure.


def model_choices(providers: Sequence[Mapping[str, Any]], now: str) -> list[Choice]:
    """Return the list entries; `now` is the model in use. Models that cannot be used yet are shown only in searches,
    because there are thousands.
    """
    ready = [item for item in providers if not item.get("lack")]
    lacking = [item for item in providers if item.get("lack")]
    choices = [choice for item in ready for choice in _models(item, now)]
    choices += [Choice(f"{item['id']}/", _name(item), _reason(item), group="Not set up yet") for item in lacking]
    choices += [choice for item in lacking for choice in _models(item, now)]
    return choices


def lack_of(providers: Sequence[Mapping[str, Any]], provider: str) -> str:
    """Return why a provider cannot be used, and the remedy; empty if it can."""
    return next((str(item.get("lack") or "") for item in providers if item.get("id") == provider), "")


def _name(provider: Mapping[str, Any]) -> str:
    return str(provider.get("name") or provider.get("id"))


def _reason(provider: Mapping[str, Any]) -> str:
    """Return what a provider needs, without the hint about other ways to set a key, which can be entered here."""
    return str(provider["lack"]).removeprefix(_name(provider)).strip().partition(", or run ")[0].rstrip(".")


def _models(provider: Mapping[str, Any], now: str) -> list[Choice]:
    name, lacks = _name(provider), bool(provider.get("lack"))
    choices: list[Choice] = []
    for model in provider.get("models") or ():
        value = f"{provider['id']}/{model['id']}"
        facts = [name, "not set up yet"] if lacks else [_window(model), _prices(model)]
        choices.append(
            Choice(
                value,
                str(model.get("name") or model["id"]),
                " · ".join(fact for fact in facts if fact),
                "●" if value == now else "",
                group=name,
                is_rare=lacks and value != now,
            )
        )
    return choices


def _window(model: Mapping[str, Any]) -> str:
    window = int(model.get("context_window") or 0)
    return f"{thousands(window)} tokens" if window else ""


def _prices(model: Mapping[str, Any]) -> str:
    """Return the prices of a million input and output tokens."""
    asked, said = model.get("cost_per_1m_in"), model.get("cost_per_1m_out")
    return f"{price(asked)} in, {price(said or 0)} out" if asked else ""


def effort_choices(facts: Mapping[str, Any], now: ModelChoice) -> list[Choice]:
    """Return the reasoning levels of a model, or on and off; empty if it does not reason."""
    if not facts.get("can_reason"):
        return []
    default = str(facts.get("default_reasoning_effort") or "")
    levels = [str(level) for level in facts.get("reasoning_levels") or ()] or ["on"]
    own = Choice("", "as the model does by itself", default, "" if now.reasoning_effort or now.think else "●")
    current = now.reasoning_effort or ("on" if now.think else "")
    return [own, *(Choice(level, level, "", "●" if level == current else "") for level in levels)]


# Lists to choose from: sessions, models, commands, runs, jobs, changed files, themes.

_SESSION_KEYS = (("enter", "open"), ("ctrl+r", "rename"), ("ctrl+x", "delete"), ("●", "busy"), ("◉", "others"))
_MODEL_KEYS = (("enter", "choose"), ("tab", "large or small"), ("ctrl+e", "set a key"), ("esc", "close"))
_RUN_KEYS = (("enter", "show its session"), ("ctrl+x", "cancel"), ("esc", "close"))
_JOB_KEYS = (("enter", "what it says"), ("ctrl+x", "end it"), ("esc", "close"))
_CHANGE_KEYS = (("enter", "show"), ("esc", "close"))
_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "■", "interrupted": "!"}


class Choosing(Stage):
    """Dialogs that list items."""

    # Sessions.

    @work
    async def action_new_session(self) -> None:
        """Start a new session."""
        await self.say(self.link.choose(None))
        self.editor.focus()

    @work
    async def action_sessions(self) -> None:
        """Show the sessions."""
        start = str(self.link.session or "")
        while True:
            sessions = await self.ask(self.link.client.list_sessions(self.link.workspace))
            if sessions is None:
                return
            known = {item.id: item for item in sessions}
            now = int(time.time())
            choices = [_session_choice(item, now, is_mine=item.id == self.link.session) for item in sessions]
            picker = Picker(
                "Sessions", choices, _SESSION_KEYS, keys=("ctrl+r", "ctrl+x"), start=start, empty="No session fits."
            )
            picked = await self.push_screen_wait(picker)
            if picked is None or (session := known.get(SessionId(picked.value))) is None:
                return
            start = picked.value
            if picked.key == "enter":
                await self.say(self.link.choose(session.id))
                self.editor.focus()
                return
            await (self._rename(session) if picked.key == "ctrl+r" else self._delete(session))

    async def _rename(self, session: Session) -> None:
        title = await self.push_screen_wait(TextInput("Rename the session", session.title))
        if title:
            await self.say(self.link.client.put_session(self.link.workspace, session.id, title))

    async def _delete(self, session: Session) -> None:
        text = "Its conversation and the history of its files go with it."
        if session.is_busy:
            text += " It is busy: what runs is cancelled."
        if await self.push_screen_wait(Confirm(f"Delete “{session.title}”?", text, "delete it")):
            await self.say(self.link.client.delete_session(self.link.workspace, session.id))

    # Models.

    @work
    async def action_models(self) -> None:
        """Show the models."""
        size: Literal["large", "small"] = "large"
        start = ""
        while True:
            providers = await self.ask(self.link.client.list_providers(self.link.workspace))
            if providers is None:
                return
            picked = await self.push_screen_wait(self._model_picker(providers, size, start))
            if picked is None:
                return
            start = picked.value
            provider, _, model = picked.value.partition("/")
            if picked.key == "tab":
                size = "small" if size == "large" else "large"
                start = ""
            elif picked.key == "ctrl+e":
                await self._set_key(provider, providers)
            elif lack_of(providers, provider):
                if not await self._set_up(provider, providers) or not model:
                    continue
                after = await self.ask(self.link.client.list_providers(self.link.workspace))
                if after is not None and not lack_of(after, provider):
                    await self._use_model(size, provider, model)
                    return
            elif model:
                await self._use_model(size, provider, model)
                return

    async def _use_model(self, size: Literal["large", "small"], provider: str, model: str) -> None:
        choice = ConfigModel(size, ModelChoice(model, provider))
        if await self.say(self.link.client.config_model(self.link.workspace, choice)):
            self.notify(f"{model} is the {size} model now.", markup=False)

    def _model_picker(self, providers: Sequence[Mapping[str, Any]], size: str, start: str) -> Picker:
        chosen = self.config.get("models", {}).get(size, {})
        now = f"{chosen.get('provider', '')}/{chosen.get('model', '')}"
        what = "the large model: it does the work" if size == "large" else "the small model: it writes titles"
        choices = model_choices(providers, now)
        return Picker(f"Choose {what}", choices, _MODEL_KEYS, keys=("tab", "ctrl+e"), start=start or now)

    async def _set_up(self, provider: str, providers: Sequence[Mapping[str, Any]]) -> bool:
        """Set a key if the provider needs one, or show what it needs. Returns True if there is a key now."""
        if any(item.get("id") == provider and item.get("api_key") for item in providers):
            return await self._set_key(provider, providers)
        self.notify(lack_of(providers, provider), markup=False, timeout=10)
        return False

    async def _set_key(self, provider: str, providers: Sequence[Mapping[str, Any]]) -> bool:
        """Request a key and store it. Returns True if there is a key now."""
        known = next((item for item in providers if item.get("id") == provider), {})
        variable = str(known.get("api_key") or "").lstrip("$")
        hint = f"The server keeps it and never shows it. You may set {variable} instead." if variable else ""
        key = await self.push_screen_wait(
            TextInput(f"Key of {known.get('name') or provider}", hint=hint, is_secret=True)
        )
        if not key:
            return False
        body = {"scope": 0, "provider_id": provider, "kind": "string", "api_key": key}
        if not await self.say(self.link.client.config_provider_key(self.link.workspace, body)):
            return False
        self.notify("The key is stored.")
        return True

    @work
    async def action_effort(self) -> None:
        """Choose how much the large model reasons."""
        providers = await self.ask(self.link.client.list_providers(self.link.workspace))
        now = msgspec.convert(self.config.get("models", {}).get("large", {"model": "", "provider": ""}), ModelChoice)
        models = next((item.get("models") or [] for item in providers or () if item.get("id") == now.provider), [])
        facts: dict[str, Any] = next((item for item in models if item.get("id") == now.model), {})
        choices = effort_choices(facts, now)
        if not choices:
            self.notify(f"{now.model or 'This model'} does not let anybody choose how much it thinks.", markup=False)
            return
        start = now.reasoning_effort or ("on" if now.think else "")
        picked = await self.push_screen_wait(Picker(f"How much {now.model} thinks", choices, start=start))
        if picked is None:
            return
        effort = "" if picked.value == "on" else picked.value
        chosen = msgspec.structs.replace(now, reasoning_effort=effort, think=bool(picked.value))
        if await self.say(self.link.client.config_model(self.link.workspace, ConfigModel("large", chosen))):
            self.notify(f"Thinking: {picked.value or 'as the model does by itself'}", markup=False)

    # Runs and jobs.

    @work
    async def action_runs(self) -> None:
        """Show the runs."""
        while True:
            runs = await self.ask(self.link.client.list_runs(self.link.workspace, limit=100))
            if runs is None:
                return
            now = int(time.time() * 1000)
            choices = [_run_choice(run, now) for run in runs if not run.parent_run_id]
            picker = Picker("Runs", choices, _RUN_KEYS, keys=("ctrl+x",), empty="Nothing was asked yet.")
            picked = await self.push_screen_wait(picker)
            if picked is None or not picked.value:
                return
            if picked.key == "ctrl+x":
                await self.say(self.link.client.cancel_run(self.link.workspace, RunId(picked.value)))
                continue
            run = next(run for run in runs if run.run_id == picked.value)
            await self.say(self.link.choose(run.session_id))
            return

    @work
    async def action_jobs(self) -> None:
        """Show the background jobs."""
        while True:
            jobs = await self.ask(self.link.client.list_jobs(self.link.workspace))
            if jobs is None:
                return
            now = int(time.time() * 1000)
            choices = [_job_choice(job, now) for job in jobs]
            picker = Picker("Background jobs", choices, _JOB_KEYS, keys=("ctrl+x",), empty="No job runs.")
            picked = await self.push_screen_wait(picker)
            if picked is None or not picked.value:
                return
            if picked.key == "ctrl+x":
                await self.say(self.link.client.kill_job(self.link.workspace, picked.value))
                continue
            output = await self.ask(self.link.client.job_output(self.link.workspace, picked.value))
            if output is not None:
                said = "\n".join(text for text in (output.stdout, output.stderr) if text)
                await self.push_screen_wait(PagerScreen(output.job.command, said or "It has said nothing yet."))

    # Files.

    @work
    async def action_changes(self) -> None:
        """Show the files that the session has changed."""
        if self.link.session is None:
            self.notify("This session has changed nothing yet.")
            return
        start = ""
        while True:
            versions = await self.ask(self.link.client.list_history(self.link.workspace, self.link.session))
            if versions is None:
                return
            changes = _changes(versions)
            root = f"{self.link.directory}/"
            choices = [_change_choice(path, first, last, root) for path, (first, last) in changes.items()]
            picker = Picker("Changed files", choices, _CHANGE_KEYS, start=start, empty="Nothing changed.")
            picked = await self.push_screen_wait(picker)
            if picked is None:
                return
            start = picked.value
            first, last = changes[picked.value]
            screen = DiffScreen(
                picked.value.removeprefix(root),
                diff_lines(first.content, last.content),
                self.look,
                can_undo=True,
            )
            if await self.push_screen_wait(screen) == "undo":
                await self._undo(picked.value)

    async def _undo(self, path: str) -> None:
        ask = UndoAsk(path, session_id=self.link.session or SessionId(""))
        report = await self.ask(self.link.client.undo_changes(self.link.workspace, ask))
        if report is None:
            return
        refused = [item for item in report.files if item.outcome == "refused"]
        if refused:
            question = Confirm("The file has changed since.", refused[0].reason, "undo it all the same")
            if not await self.push_screen_wait(question):
                return
            forced = msgspec.structs.replace(ask, force=True)
            report = await self.ask(self.link.client.undo_changes(self.link.workspace, forced))
        for item in report.files if report is not None else ():
            self.notify(f"{item.path.rpartition('/')[2]}: {item.outcome}", markup=False)

    # Other actions.

    @work
    async def action_themes(self) -> None:
        """Choose a theme."""
        choices = [
            Choice(name, name, "dark" if theme.dark else "light") for name, theme in self.available_themes.items()
        ]
        ours = ("harbour", "paper", "midnight")
        choices.sort(key=lambda choice: (choice.value not in ours, choice.value))
        picked = await self.push_screen_wait(Picker("Themes", choices, start=self.theme))
        if picked is not None:
            self.theme = picked.value
            await self.say(self.link.client.config_set(self.link.workspace, "options.tui.theme", picked.value))

    @work
    async def action_yolo(self) -> None:
        """Switch auto-approval."""
        now = await self.ask(self.link.client.get_skip(self.link.workspace))
        if now is None:
            return
        skips = not (now.skip or self.link.yolo)
        if skips and not await self.push_screen_wait(AutoApprove()):
            return
        if now.skip != skips and not await self.say(self.link.client.set_skip(self.link.workspace, skip=skips)):
            return
        self.link.yolo = False
        self.note_change()
        if not skips:
            self.notify("Tools ask again.")
        else:
            self.notify("Tools act without asking now.", severity="warning")

    @work
    async def action_summarize(self) -> None:
        """Summarize the session."""
        if self.link.session is not None:
            await self.say(self.link.client.summarize(self.link.workspace, self.link.session))

    @work
    async def action_init(self) -> None:
        """Let the model write a description of the project."""
        start = await self.ask(self.link.client.init_prompt(self.link.workspace))
        if start is not None:
            await self.say(self.link.prompt(start.prompt))


def _session_choice(session: Session, now: int, *, is_mine: bool) -> Choice:
    others = session.attached_clients - is_mine
    mark = "●" if session.is_busy else "◉" if others > 0 else ""
    stamp = session.updated_at // 1000 if session.updated_at > 10**11 else session.updated_at
    facts = [ago(now - stamp), f"{others} attached" if others > 0 else "", f"{session.message_count} messages"]
    facts.append(usage_of(session, 0))
    return Choice(session.id, session.title, " · ".join(fact for fact in facts if fact), mark)


def _run_choice(run: Run, now: int) -> Choice:
    took = elapsed((run.ended_at or now) - run.started_at) if run.started_at else ""
    facts = [run.outcome or run.state, took, ago((now - run.accepted_at) // 1000), run.error]
    mark = _MARKS.get(run.outcome or "", "●")
    return Choice(run.run_id, " ".join(run.prompt.split())[:120] or run.kind, " · ".join(filter(None, facts)), mark)


def _changes(versions: Sequence[FileVersion]) -> dict[str, tuple[FileVersion, FileVersion]]:
    """Return each changed file with its first and latest version, the latest first."""
    found: dict[str, tuple[FileVersion, FileVersion]] = {}
    for version in sorted(versions, key=lambda item: item.version):
        first, _ = found.get(version.path, (version, version))
        found[version.path] = (first, version)
    changed = {path: pair for path, pair in found.items() if not pair[0].is_same_state(pair[1])}
    return dict(sorted(changed.items(), key=lambda item: -item[1][1].created_at))


def _change_choice(path: str, first: FileVersion, last: FileVersion, root: str) -> Choice:
    more, less = count_changes(diff_lines(first.content, last.content))
    word = "removed" if last.is_missing else "new" if first.is_missing else ""
    return Choice(path, path.removeprefix(root), f"+{more} -{less}  {word}".rstrip())


def _job_choice(job: JobInfo, now: int) -> Choice:
    end = "" if job.exit_code is None else f"exit code {job.exit_code}"
    facts = [job.id, job.state, end, elapsed((job.ended_at or now) - job.started_at)]
    mark = "●" if job.state == "running" else "✗" if job.exit_code else "✓"
    return Choice(job.id, " ".join(job.command.split())[:120], " · ".join(fact for fact in facts if fact), mark)


# The list of extensions: MCP servers, language servers, skills.

_KEYS = (("enter", "all about it"), ("ctrl+r", "start it again"), ("esc", "close"))
_EMPTY = "Nothing was brought along: holdfast mcp add, holdfast lsp and holdfast skills tell how."
_MCP_MARKS = {"connected": "●", "starting": "◌", "error": "✗", "needs auth": "!", "disabled": "○"}
_MCP_WORDS = {"needs auth": "needs login"}
_LSP_MARKS = {LspState.READY: "●", LspState.STARTING: "◌", LspState.ERROR: "✗"}


class Extensions(Stage):
    """One list for all extensions, with the reason beside those that do not work."""

    @work
    async def action_extensions(self) -> None:
        """Show the extensions."""
        start = ""
        while True:
            skills = await self.ask(self.link.client.list_skills(self.link.workspace))
            if skills is None:
                return
            await self.link.servers.read(self.link.client, self.link.workspace)
            choices = [mcp_choice(info) for info in self.link.servers.mcps.values()]
            choices += [lsp_choice(info) for info in self.link.servers.lsps.values()]
            choices += skill_choices(skills, self._skill_states())
            picker = Picker("Extensions", choices, _KEYS, keys=("ctrl+r",), start=start, empty=_EMPTY)
            picked = await self.push_screen_wait(picker)
            if picked is None or not picked.value:
                return
            start = picked.value
            await self._look_at(picked)

    def _skill_states(self) -> Sequence[Mapping[str, Any]]:
        workspace = self.link.view.workspace
        return workspace.skills if workspace is not None else ()

    async def _look_at(self, picked: Picked) -> None:
        kind, _, name = picked.value.partition(" ")
        if picked.key == "ctrl+r":
            await self._restart(kind, name)
        elif kind == "mcp":
            log = await self.ask(self.link.client.mcp_log(self.link.workspace, name))
            await self._read(name, self.link.servers.mcps.get(name), log.text if log else "")
        elif kind == "lsp":
            said = await self.ask(self.link.client.lsp_log(self.link.workspace, name))
            await self._read(name, self.link.servers.lsps.get(name), said.text if said else "")
        elif kind == "skill":
            skill = await self.ask(self.link.client.read_skill(self.link.workspace, name))
            if skill is not None:
                await self.push_screen_wait(PagerScreen(name, skill.content.decode("utf-8", "replace"), is_log=False))
        else:
            broken = next((item for item in self._skill_states() if item.get("path") == name), {})
            await self.push_screen_wait(PagerScreen(name, str(broken.get("error") or "It is gone."), is_log=False))

    async def _read(self, name: str, info: McpInfo | LspInfo | None, log: str) -> None:
        """Show the error, the tools and the log of a server."""
        pieces = [info.error if info is not None else ""]
        if isinstance(info, McpInfo) and info.tools:
            pieces.append("Tools:\n" + "\n".join(f"  {tool}" for tool in info.tools))
        pieces.append(f"What it printed:\n{log}" if log.strip() else "It has printed nothing.")
        await self.push_screen_wait(PagerScreen(name, "\n\n".join(piece for piece in pieces if piece)))

    async def _restart(self, kind: str, name: str) -> None:
        if kind == "mcp":
            is_told = await self.say(self.link.client.mcp_restart(self.link.workspace, name))
        elif kind == "lsp":
            is_told = await self.say(self.link.client.restart_lsps(self.link.workspace, name))
        else:
            self.notify("A skill is a text: it is read anew when it has changed.")
            return
        if is_told:
            self.notify(f"{name} starts again.", markup=False)


def mcp_choice(info: McpInfo) -> Choice:
    """Return the list entry: the state, then the error if there is one, else the counts."""
    counts = ((info.tool_count, "tool"), (info.prompt_count, "prompt"), (info.resource_count, "resource"))
    offers = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    facts = [_MCP_WORDS.get(info.state, info.state), *([_line(info.error)] if info.error else offers)]
    return Choice(f"mcp {info.name}", info.name, " · ".join(facts), _MCP_MARKS[info.state], "MCP servers")


def lsp_choice(info: LspInfo) -> Choice:
    """Return the list entry of a language server."""
    found = f"{info.diagnostic_count} found" if info.diagnostic_count else ""
    facts = [LSP_WORDS[info.state], found, _line(info.error)]
    mark = _LSP_MARKS.get(info.state, "○")
    return Choice(f"lsp {info.name}", info.name, " · ".join(filter(None, facts)), mark, "Language servers")


def skill_choices(skills: Sequence[SkillInfo], states: Sequence[Mapping[str, Any]]) -> list[Choice]:
    """Return the usable skills, then the broken ones with their errors."""
    choices = [
        Choice(f"skill {skill.name}", skill.name, f"{skill.source} · {_line(skill.description)}", "●", "Skills")
        for skill in skills
    ]
    broken = [(str(item.get("path")), str(item.get("error"))) for item in states if item.get("state")]
    return choices + [Choice(f"broken {path}", path, _line(error), "✗", "Skills") for path, error in broken]


def _line(text: str) -> str:
    return " ".join(text.split())
