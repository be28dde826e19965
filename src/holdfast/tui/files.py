"""Files on this side: which there are, and what goes along with a prompt."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from urllib.parse import unquote

from holdfast.domain.runs import Attachment
from holdfast.protocol.attachments import LARGEST_FILE, kind_of

__all__ = ["LARGEST", "TooLarge", "attached", "clipboard_image", "listed", "pasted", "path_in_paste"]

LARGEST = LARGEST_FILE
_MOST_FILES = 20_000
_LITTER = frozenset({"node_modules", "__pycache__", "venv", "target", "dist", "build"})
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_CLIPBOARDS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)


class TooLarge(Exception):
    """The file is larger than 5 MB: a prompt cannot take it along."""


def listed(directory: str) -> Sequence[str]:
    """The files of a directory as a person knows them: those git would show, else a walk with a bound."""
    try:
        done = subprocess.run(
            # A repository may name a program that watches its files: nobody has agreed to run that.
            ["git", "-c", "core.fsmonitor=false", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=directory,
            capture_output=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return _walked(directory)
    names = done.stdout.decode("utf-8", "replace").split("\0")
    return [name for name in names[:_MOST_FILES] if name]


def _walked(directory: str) -> Sequence[str]:
    names: list[str] = []
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name not in _LITTER)
        inside = os.path.relpath(root, directory)
        names += [name if inside == "." else f"{inside}/{name}" for name in sorted(files)]
        if len(names) >= _MOST_FILES:
            break
    return names[:_MOST_FILES]


def attached(path: str, name: str) -> Attachment | None:
    """A file to send along; None if there is no such file, or one that no model can read. Raises `TooLarge`."""
    try:
        if not os.path.isfile(path):
            return None
        if os.path.getsize(path) > LARGEST:
            raise TooLarge
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError:
        return None
    kind = kind_of(path, content)
    return None if kind is None else Attachment(content, name, os.path.basename(path), kind)


def pasted(text: str, number: int) -> Attachment:
    """A long text as a file."""
    name = f"paste-{number}.txt"
    return Attachment(text.encode("utf-8", "replace"), name, name, "text/plain; charset=utf-8")


def path_in_paste(text: str) -> str | None:
    """Terminals paste the path of a picture that is dropped on them."""
    path = text.strip()
    if "\n" in path or not path.strip("'\"").lower().endswith(_IMAGES):
        return None
    try:
        # As for a shell, most of them; else as it is.
        words = shlex.split(path)
    except ValueError:
        words = []
    path = words[0] if len(words) == 1 else path
    path = unquote(path.removeprefix("file://")) if path.startswith("file://") else os.path.expanduser(path)
    return path if os.path.isfile(path) else None


def clipboard_image() -> bytes | None:
    """The picture on the clipboard, where a program can tell."""
    for command in _CLIPBOARDS:
        if shutil.which(command[0]) is None:
            continue
        try:
            done = subprocess.run(command, capture_output=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        if done.stdout:
            return done.stdout
    return None
