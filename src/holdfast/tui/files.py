"""Local files that are attached to a prompt."""

import os
import shlex
import shutil
import subprocess
from urllib.parse import unquote

from holdfast.domain.runs import Attachment
from holdfast.protocol.attachments import LARGEST_FILE, kind_of

__all__ = ["LARGEST", "TooLarge", "attached", "clipboard_image", "pasted", "path_in_paste"]

LARGEST = LARGEST_FILE
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_CLIPBOARDS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)


class TooLarge(Exception):
    """The file is larger than 5 MB: a prompt cannot take it along."""


def attached(path: str, name: str) -> Attachment | None:
    """Return a file as an attachment; None if it does not exist or no model can read it. Raises `TooLarge`."""
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
    """Return a long text as an attachment."""
    name = f"paste-{number}.txt"
    return Attachment(text.encode("utf-8", "replace"), name, name, "text/plain; charset=utf-8")


def path_in_paste(text: str) -> str | None:
    """Return the path of an image. Terminals paste the path of a file that is dropped on them."""
    path = text.strip()
    if "\n" in path or not path.strip("'\"").lower().endswith(_IMAGES):
        return None
    try:
        # Most terminals quote the path for a shell; others paste it unchanged.
        words = shlex.split(path)
    except ValueError:
        words = []
    path = words[0] if len(words) == 1 else path
    path = unquote(path.removeprefix("file://")) if path.startswith("file://") else os.path.expanduser(path)
    return path if os.path.isfile(path) else None


def clipboard_image() -> bytes | None:
    """Return the image on the clipboard, if a program can read it."""
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
