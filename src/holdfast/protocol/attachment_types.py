"""Types of files that can be attached to a prompt, the same for every client and for the server.

Separate from `bodies.py`, because `mimetypes` takes long to load.
"""

import mimetypes

__all__ = ["LARGEST_FILE", "kind_of"]

LARGEST_FILE = 5 * 1024 * 1024
_IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def kind_of(path: str, content: bytes) -> str | None:
    """Return the type under which a model receives the file: images and PDFs unchanged, others as text; None if
    neither.
    """
    kind = mimetypes.guess_type(path)[0] or ""
    if path.lower().endswith(_IMAGE_EXTENSIONS) or kind == "application/pdf":
        return kind
    return None if b"\0" in content[:8192] else "text/plain; charset=utf-8"
