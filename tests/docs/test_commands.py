"""Every `holdfast` command in the documents exists, with its options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.cli.click_group import holdfast
from holdfast.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/examples").iterdir())]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:^\s*|[|;&(]\s*|\$\(|`|ssh \S+ |exec |-- )(holdfast(?: +[^\n`]*)?)(?=$|`|\n)", re.MULTILINE)


def _texts(document: Path) -> Iterator[str]:
    text = document.read_text()
    if document.suffix != ".md":
        yield text
        return
    for kind, block in _FENCE.findall(text):
        if kind in ("sh", "text", "", "yaml"):
            yield block
    prose = _FENCE.sub("", text)
    yield from re.findall(r"`(holdfast [^`\n]+)`", prose)


def calls_in(text: str) -> Iterator[list[str]]:
    """Yield the words of every call, up to a pipe, a redirection, a comment or two spaces."""
    joined = text.replace("\\\n", " ")
    for found in _CALL.finditer(joined):
        line = re.split(r"\s#|  +|\s[|&;]|[|;]\s|\s>|\)$", found[1])[0]
        try:
            words = shlex.split(line)
        except ValueError:
            # A prompt continues on the next line: the words before it are sufficient.
            words = shlex.split(line[: line.rindex('"')] if '"' in line else line)
        if len(words) > 1 and "…" not in line:
            yield words[1:]


def wrong_with(words: list[str]) -> str:
    """Return the error in a call, or an empty string."""
    if words[0].startswith("-") and words[0] not in ("--help", "--version", "-h"):
        words = ["tui", *words]
    if words[0].startswith("-"):
        return ""
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]}"
    context = click.Context(holdfast, info_name="holdfast")
    command = holdfast.get_command(context, words[0])
    rest = words[1:]
    while isinstance(command, click.Group):
        context = click.Context(command, context)
        if not rest or rest[0].startswith("-"):
            default = getattr(command, "default", "")
            command = command.get_command(context, default) if default else None
        else:
            command, rest = command.get_command(context, rest[0]), rest[1:]
    if command is None:
        return "there is no such command in its group"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    # Words after two dashes belong to another program.
    own = rest[: rest.index("--")] if "--" in rest else rest
    unknown = [word for word in own if word.startswith("-") and len(word) > 1 and word.partition("=")[0] not in known]
    return f"it has no option {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_exists(document: Path) -> None:
    calls = [call for text in _texts(document) for call in calls_in(text)]
    wrong = [(" ".join(call), reason) for call in calls if (reason := wrong_with(call))]
    assert not wrong


def test_commands_are_found_in_documents() -> None:
    """The test above proves nothing if it overlooks them."""
    lines = ('a | holdfast run --nonsense "x" > y', "  holdfast nothing", "x=$(holdfast stats --jsn)")
    text = "\n".join([*lines, "ssh me@b holdfast server start -z", ""])
    reasons = [wrong_with(call) for call in calls_in(text)]
    assert reasons == [
        "it has no option --nonsense",
        "there is no command nothing",
        "it has no option --jsn",
        "it has no option -z",
    ]
    documents = {"guide.md": 15, "recipes.md": 12, "operating.md": 10, "review.yml": 1, "fix.yml": 2}
    for name, least in documents.items():
        document = next(path for path in DOCUMENTS if path.name == name)
        assert len([call for text in _texts(document) for call in calls_in(text)]) >= least, name
