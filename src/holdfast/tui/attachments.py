"""Attachments of a prompt: local files, pastes, images of the clipboard, and files mentioned with `@`."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from holdfast.domain.runs import Attachment
from holdfast.protocol.attachment_types import LARGEST_FILE, kind_of

__all__ = [
    "MAX_SIZE",
    "AttachmentTooLarge",
    "best_matches",
    "clipboard_image",
    "find_mentions",
    "match_score",
    "open_mention",
    "pasted_path",
    "read_attachment",
    "text_attachment",
]


MAX_SIZE = LARGEST_FILE
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_CLIPBOARDS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)


class AttachmentTooLarge(Exception):
    """The file is larger than 5 MB, the limit for attachments."""


def read_attachment(path: str, name: str) -> Attachment | None:
    """Return a file as an attachment; None if no model can read it or it does not exist.

    Raises `AttachmentTooLarge`.
    """
    try:
        if not os.path.isfile(path):
            return None
        if os.path.getsize(path) > MAX_SIZE:
            raise AttachmentTooLarge
        with open(path, "rb") as file:
            content = file.read(MAX_SIZE + 1)
    except OSError:
        return None
    kind = kind_of(path, content)
    return None if kind is None else Attachment(content, name, os.path.basename(path), kind)


def text_attachment(text: str, number: int) -> Attachment:
    """Return a long text as an attachment."""
    name = f"paste-{number}.txt"
    return Attachment(text.encode("utf-8", "replace"), name, name, "text/plain; charset=utf-8")


def pasted_path(text: str) -> str | None:
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


_MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]+"|[^\s@"]+)')
_OPEN = re.compile(r'(?:^|\s)@([^\s@"]*)$')


def open_mention(before: str) -> str | None:
    """Return the letters of a mention just before the cursor; None if there is none."""
    found = _OPEN.search(before)
    return found[1] if found else None


def find_mentions(text: str) -> list[str]:
    """Return every mention in a text once, without the sign, quotes and closing punctuation."""
    names = (found[1].strip('"') for found in _MENTION.finditer(text))
    return list(dict.fromkeys(name.rstrip(".,;:!?)") for name in names if name.strip(".,;:!?)")))


def match_score(letters: str, name: str) -> int | None:
    """Score how well the letters match a path, in order; higher is better, None is no match."""
    low, base = name.lower(), name.rpartition("/")[2].lower()
    wanted = letters.lower()
    if not wanted:
        return -len(name)
    if wanted in base:
        at = base.index(wanted)
        begins = 500 if not at else 200 if base[at - 1] in "._- " else 0
        return 3_000 + begins - 10 * at - len(name)
    if wanted in low:
        return 2_000 - len(name)
    at, points = -1, 0
    for letter in wanted:
        found = low.find(letter, at + 1)
        if found < 0:
            return None
        points += 30 if found == at + 1 else 15 if found == 0 or low[found - 1] in "/._- " else 0
        at = found
    return points - len(name)


def best_matches(letters: str, names: Iterable[str], limit: int = 8) -> Sequence[str]:
    """Return the names that match best."""
    pattern = re.compile(".*?".join(map(re.escape, letters)), re.IGNORECASE | re.DOTALL)
    fitting = ((match_score(letters, name), name) for name in names if pattern.search(name))
    ranked = sorted(
        ((points, name) for points, name in fitting if points is not None), key=lambda item: (-item[0], item[1])
    )
    return [name for _, name in ranked[:limit]]
