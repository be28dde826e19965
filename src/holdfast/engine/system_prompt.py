"""The system prompt: instructions, context files, facts about the workspace.

Ordered from constant to variable content, so that providers can cache the prefix.
"""

from collections.abc import Iterator

from holdfast.domain.project_context import ContextFile, GitChanges, GitState, ProjectContext
from holdfast.engine.run_context import text

__all__ = ["git_note", "subagent_prompt", "system_prompt"]


def system_prompt(place: ProjectContext) -> str:
    """Return the system prompt of a run that is not a sub-agent's."""
    sections = [text("system.md").strip(), *_context(place), *place.notes, "\n".join(_facts(place))]
    return "\n\n".join(sections) + "\n"


def subagent_prompt(place: ProjectContext, name: str = "task.md", prompt: str = "") -> str:
    """Return the system prompt of a sub-agent. A custom prompt is followed by the project's context files."""
    words = [prompt.strip(), *_context(place)] if prompt.strip() else [text(name).strip()]
    return "\n\n".join([*words, "\n".join(_facts(place))]) + "\n"


def _context(place: ProjectContext) -> Iterator[str]:
    if place.context:
        yield "# How people work here\n\nThese files were written for you by the people of this project. Follow them."
        yield from map(_file, place.context)


def _file(file: ContextFile) -> str:
    cut = f"\n[{file.left_out} more characters: read the file if you need them.]" if file.left_out else ""
    return f'<file path="{file.path}">\n{file.text.strip()}{cut}\n</file>'


def _facts(place: ProjectContext) -> Iterator[str]:
    yield "# Where you are"
    yield ""
    yield f"Directory: {place.directory}"
    if place.platform:
        yield f"Platform: {place.platform}"
    if place.date:
        yield f"Date: {place.date}"
    if place.trailer:
        yield f"When you commit, end the message with this line: {place.trailer}"
    if place.git is None:
        yield "The directory is not in a git repository."
    else:
        yield from _git(place.git)


def _git(state: GitState) -> Iterator[str]:
    commit = f", commit {state.commit[:12]}" if state.commit else ""
    if state.branch:
        yield f"Git branch: {state.branch}{commit or ', without commits'} (when the session began)"
    elif commit:
        yield f"Git: detached HEAD{commit} (when the session began)"
    else:
        yield "The directory is in a git repository; its branch is not known."


def git_note(changes: GitChanges) -> str:
    """Return the state of the work tree, to be sent beside a message of the user."""
    lines = ["<git-status>", "State of the git work tree, added automatically; it is not updated:"]
    if changes.files:
        lines += ["Changes that are not committed:", *(f"  {line}" for line in changes.files)]
        if changes.more_files:
            lines.append(f"  … and {changes.more_files} more")
    else:
        lines.append("No changes that are not committed.")
    if changes.commits:
        lines += ["Last commits:", *(f"  {line}" for line in changes.commits)]
    return "\n".join([*lines, "</git-status>"])
