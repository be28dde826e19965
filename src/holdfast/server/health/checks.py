"""Health checks for `holdfast doctor`: settings, trust, models, sandbox, search tools, the data directory, and the
extensions that users have in files. Each check returns findings; `doctor.py` runs them with a time limit.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path

from holdfast.config.problems import FileProblem, format_key
from holdfast.domain.doctor import Finding, Severity
from holdfast.domain.errors import ProviderError, ToolError
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.settings import Selection
from holdfast.engine.ports import Model
from holdfast.extensions.agents import AgentFile
from holdfast.runtime.workspace_permissions import outdated_rules
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.storage.data_directory import find_exposed_files
from holdfast.storage.postgres.store_report import ReportingLedger, findings
from holdfast.workspace.git.git_command import find_git
from holdfast.workspace.process.piped_process import find_program
from holdfast.workspace.process.process_tag import orphaned_processes
from holdfast.workspace.sandbox.sandbox import find_bubblewrap, unavailable_reason

__all__ = [
    "agents",
    "commands",
    "data_directory",
    "hooks",
    "is_about_hooks",
    "models",
    "place_of",
    "processes",
    "sandbox",
    "search_tools",
    "settings",
    "skills",
    "store",
    "trust",
]


_ANSWER_TIMEOUT = 15.0
_LOW_SPACE = 1 << 30
_CRITICAL_SPACE = 1 << 26
_CORRECT_FILE = "Correct the file; until then it is ignored."
_TRUST = "Review it, then: holdfast trust."


def place_of(handle: WorkspaceHandle, *path: str) -> tuple[str, int]:
    """Return the file of a setting and its first line there; empty if no file contains it."""
    origins = handle.services.configuration.origins.items()
    places = ((origin.file, origin.line) for key, origin in origins if key[: len(path)] == path and origin.file)
    return min(places, key=lambda place: place[1], default=("", 0))


async def settings(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the settings files."""
    reading = handle.services.configuration.snapshot()
    outdated = outdated_rules(reading, handle.services.configuration.locations.saved_settings[1])
    problems = [item for item in (*reading.problems, *outdated) if not is_about_hooks(item)]
    if not problems:
        files = {origin.file for origin in reading.origins.values()}
        return (Finding("settings", "ok", f"{_count(len(files), 'file')}, no problems."),)
    return tuple(_problem_finding(problem) for problem in problems)


def is_about_hooks(problem: FileProblem) -> bool:
    """Return True for problems that the check of hooks reports."""
    return problem.key.startswith("hooks")


def _problem_finding(problem: FileProblem) -> Finding:
    what = f"{problem.key}: {problem.text}" if problem.key else problem.text
    todo = "Correct the file; until then its last valid contents are in effect, if there were any."
    if problem.hides_denial:
        todo = (
            "Correct the file; until then everything except reading requires approval, and is refused in"
            " unattended runs."
        )
    return Finding("settings", problem.severity, what, todo, problem.file, problem.line)


async def trust(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report the settings of project files that have no effect without trust."""
    reading = handle.services.configuration.snapshot()
    if not reading.project.files:
        return (Finding("trust", "ok", "The project is trusted."),) if reading.project.is_trusted else ()
    if not reading.withheld:
        word = "trusted" if reading.project.is_trusted else "in effect: none of them needs trust"
        return (Finding("trust", "ok", f"The project's settings are {word}."),)
    todo = "Review them, then: holdfast trust."
    what = "has no effect: the project is not trusted."
    return tuple(
        Finding("trust", "warning", f"{format_key(item.path)} {what}", todo, item.file, item.line)
        for item in reading.withheld
    )


async def models(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Send a short request to the large and the small model, which verifies key, address and model name."""
    available = handle.services.models
    found: list[Finding] = []
    users: dict[tuple[str, str], list[str]] = {}
    chosen: dict[tuple[str, str], Model] = {}
    for size, choose in (("large", available.large), ("small", available.small)):
        try:
            model = await choose()
        except ProviderError as error:
            found.append(Finding("models", "error", f"{size}: {error}", "holdfast models lists the usable models."))
            continue
        name = (model.info.provider, model.info.model)
        users.setdefault(name, []).append(size)
        chosen[name] = model
    for name, sizes in users.items():
        answer = await _check_model(chosen[name])
        what = f"{' and '.join(sizes)}: {'/'.join(name)} {answer.what}"
        found.append(Finding("models", answer.severity, what, answer.what_to_do))
    return found


async def _check_model(model: Model) -> Finding:
    if model.info.is_scripted:
        todo = "Store a key with holdfast login, or start Ollama; holdfast models lists the available ones."
        return Finding("models", "warning", "is the scripted model: no language model is configured.", todo)
    parts = (TextPart(Text("Answer with the word: ready")),)
    word = Message(parts, MessageId("doctor"), "user", SessionId("doctor"), "", "", 0, 0)
    request = ModelRequest(SessionId("doctor"), "Answer briefly.", (word,), max_output_tokens=16)
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT), aclosing(model.stream(request)) as answer:
            async for _ in answer:
                break
    except TimeoutError:
        todo = "Check the network and the provider's address."
        return Finding("models", "error", f"did not answer within {_ANSWER_TIMEOUT:g} seconds.", todo)
    except ProviderError as error:
        todo = "Check the key (holdfast login), the model's name (holdfast models) and the provider's address."
        return Finding("models", "error", f"refuses: {error}", todo)
    return Finding("models", "ok", "answers.")


async def sandbox(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report the state of the sandbox."""
    try:
        state = await handle.services.update_sandbox()
    except ToolError as error:
        return (Finding("sandbox", "error", str(error)),)
    if state.mode != "off":
        what = f"on, by {state.mechanism}; the network is {'open' if state.network else 'closed'}."
        notes = (Finding("sandbox", "note", note) for note in state.notes)
        gaps = (Finding("sandbox", "warning", f"not closed: {gap}") for gap in state.gaps)
        return (Finding("sandbox", "ok", what), *notes, *gaps)
    guard = handle.services.processes.guard
    await guard.ready()
    why = unavailable_reason(has_namespaces=guard.has_namespaces, bubblewrap=find_bubblewrap())
    if not why:
        todo = "To confine commands to the workspace: holdfast config set options.sandbox workspace."
        return (Finding("sandbox", "note", "off: commands have all your permissions. It can be enabled here.", todo),)
    return (Finding("sandbox", "note", f"off, and not available here: {why}", "To use it, install bubblewrap."),)


async def processes(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report how commands are kept from surviving their run or the server, and processes that have survived."""
    guard = handle.services.processes.guard
    left = await asyncio.to_thread(orphaned_processes)
    found = [
        Finding("processes", "warning", f"process {process} survived its server: {line[:100]}", f"kill -9 {process}")
        for process, line in left.items()
    ]
    if guard.escapes:
        what = f"commands killed their supervisors {guard.escapes} times; some of their processes may still be running."
        found.append(Finding("processes", "warning", what, "Check the processes of this user."))
    if await guard.ready() == "namespace":
        return (*found, Finding("processes", "ok", "each command runs in a PID namespace, which it cannot leave."))
    kind = "in control groups" if guard.containment == "groups" else "without control groups"
    what = (
        f"commands run without a PID namespace, {kind}: one that kills its supervisors is searched for and killed, and"
        " its run fails; one that also kills the server, or hides from the search on purpose, survives."
    )
    return (*found, Finding("processes", "note", what, "The sandbox has a PID namespace."))


async def search_tools(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report which programs are available for searches."""
    environment = handle.services.environment or os.environ
    if program := find_program("rg", environment, handle.path):
        return (Finding("search tools", "ok", f"ripgrep is at {program}."),)
    todo = "Install ripgrep: searches get faster in large projects."
    if program := find_git(environment, handle.path):
        return (Finding("search tools", "note", f"git is at {program}; ripgrep is not installed.", todo),)
    return (Finding("search tools", "warning", "neither ripgrep nor git is installed: searches are slow.", todo),)


async def data_directory(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check permissions and free space of the data directory."""
    return await asyncio.to_thread(_data_directory, Path(handle.data_dir).parent.parent)


async def store(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the database, and the key of the tokens in it, if the store is not in the data directory."""
    ledger = handle.workspace.ledger
    if not isinstance(ledger, ReportingLedger):
        return ()
    problem = await asyncio.to_thread(handle.services.credentials.problem)
    wrong_key = (Finding("store", "error", problem),) if problem else ()
    return (*wrong_key, *findings(await ledger.report()))


def _data_directory(place: Path) -> Sequence[Finding]:
    if not place.is_dir():
        # The server's own check of its storage reports this.
        return ()
    found = [
        Finding("data directory", "warning", item.description, f"chmod {item.wanted:o} {item.path}", item.path)
        for item in find_exposed_files(place)
    ]
    free = shutil.disk_usage(place).free
    if free < _LOW_SPACE:
        severity: Severity = "error" if free < _CRITICAL_SPACE else "warning"
        todo = "Free some space: prompts that cannot be stored are refused."
        found.append(Finding("data directory", severity, f"{_size(free)} are left on its disk.", todo, str(place)))
    database = place / "holdfast.db"
    size = database.stat().st_size if database.exists() else 0
    if not found:
        found.append(Finding("data directory", "ok", f"{place}: {_size(size)} used, {_size(free)} free."))
    return found


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def _count(number: int, word: str) -> str:
    return f"1 {word}" if number == 1 else f"{number} {word}s"


async def skills(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the skills."""
    extensions = handle.services.extensions
    found = await extensions.skills.rescan()
    below = (_shadowed_finding("skills", skill.name, skill.path) for skill in found.hidden if skill.owner != "builtin")
    off = (Finding("skills", "note", f"{skill.name} is disabled by disabled_skills.") for skill in found.disabled)
    return (*_area_findings("skills", len(found.usable), found.problems), *below, *off)


async def hooks(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the hooks of the settings and of other programs' files."""
    known = handle.services.extensions.hooks
    withheld = [file for file in known.claude_files() if not known.is_trusted(file) and file.hooks.hooks]
    own = [item for item in handle.services.configuration.snapshot().problems if is_about_hooks(item)]
    problems = (*own, *known.problems())
    found = _area_findings("hooks", len(known.current()), problems, "Correct the file; until then it is not run.")
    return (
        *found,
        *(
            _untrusted_finding("hooks", _hook_count_text(len(file.hooks.hooks)), file.folder.path, file.hooks.line)
            for file in withheld
        ),
    )


def _hook_count_text(count: int) -> str:
    return "1 hook is not run" if count == 1 else f"{count} hooks are not run"


async def commands(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the commands, and the models that they name."""
    known = handle.services.extensions.commands
    found = await known.rescan()
    withheld = (
        _untrusted_finding("commands", f"{key} has no effect", command.path, line)
        for command in found.usable
        if known.withheld_keys(command)
        for key, line in command.trust_keys
    )
    models = [await _model_trouble(handle, item.model, item.path, item.model_line) for item in found.usable]
    below = (_shadowed_finding("commands", command.name, command.path) for command in found.hidden)
    return (*_area_findings("commands", len(found.usable), (*found.problems, *filter(None, models))), *withheld, *below)


async def agents(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Check the agents, and the models and tools that they name."""
    known = handle.services.extensions.agents
    found = await known.rescan()
    withheld = (
        _untrusted_finding(
            "agents", f"{agent.name} is read-only and uses the default model", agent.path, agent.trust_keys[0][1]
        )
        for agent in found.usable
        if known.withheld_keys(agent)
    )
    models = [await _model_trouble(handle, item.model, item.path, item.model_line) for item in found.usable]
    tools = await handle.owned.tools.current()
    missing = [_missing_tools(item, {tool.spec.name for tool in tools}) for item in found.usable]
    problems = (*found.problems, *filter(None, models), *filter(None, missing))
    below = (_shadowed_finding("agents", agent.name, agent.path) for agent in found.hidden)
    return (*_area_findings("agents", len(found.usable), problems), *withheld, *below)


async def _model_trouble(handle: WorkspaceHandle, name: str, file: str, line: int) -> FileProblem | None:
    """Return the problem with a model that a file names; the default model is used in its place."""
    if name in ("", "large", "small") or handle.services.selected_models is None:
        return None
    try:
        await handle.services.selected_models.check(Selection(name))
    except ProviderError as error:
        return FileProblem("warning", file, line, "model", f"{error} Until then the default model is used.")
    return None


def _missing_tools(agent: AgentFile, known: set[str]) -> FileProblem | None:
    """Return the tools that do not exist. Tools of MCP and language servers may appear later and are not checked."""
    missing = [name for name in agent.tools or () if name not in known and not name.startswith(("mcp_", "lsp_"))]
    if not missing:
        return None
    text = f"there is no {', no '.join(missing)} here: {agent.name} works without."
    return FileProblem("warning", agent.path, agent.tools_line, "tools", text)


def _area_findings(
    area: str, count: int, problems: Iterable[FileProblem], todo: str = _CORRECT_FILE
) -> tuple[Finding, ...]:
    """Return the problems; without problems a summary with the count; nothing if there are no items."""
    found = tuple(
        Finding(
            area,
            problem.severity,
            f"{problem.key}: {problem.text}" if problem.key else problem.text,
            todo if problem.severity == "error" else "",
            problem.file,
            problem.line,
        )
        for problem in problems
    )
    if found or not count:
        return found
    return (Finding(area, "ok", f"{count} {area if count != 1 else area.removesuffix('s')}, no problems."),)


def _shadowed_finding(area: str, name: str, file: str) -> Finding:
    return Finding(area, "note", f"{name} is overridden by another one of the same name.", file=file)


def _untrusted_finding(area: str, what: str, file: str, line: int) -> Finding:
    return Finding(area, "warning", f"{what}: the project's file is not trusted.", _TRUST, file, line)
