"""Which files can go along with a prompt, and as what: the same for every client and for the server. Pure."""

import mimetypes

__all__ = ["LARGEST_FILE", "kind_of"]

LARGEST_FILE = 5 * 1024 * 1024
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def kind_of(path: str, content: bytes) -> str | None:
    """The kind as a model gets it: pictures and PDFs as they are, the rest as text; None if it is neither."""
    kind = mimetypes.guess_type(path)[0] or ""
    if path.lower().endswith(_PICTURES) or kind == "application/pdf":
        return kind
    return None if b"\0" in content[:8192] else "text/plain; charset=utf-8"
