"""When two requests are one request. Apart from `runs.py`, because hashing takes long to load and few need it."""

import hashlib

from holdfast.domain.runs import Prompt

__all__ = ["body_hash"]


def body_hash(prompt: Prompt) -> bytes:
    """Two requests with one run id are the same request if this is equal."""
    digest = hashlib.sha256()
    for field in (prompt.session_id, prompt.prompt, prompt.effective_delivery, prompt.kind):
        digest.update(len(field.encode()).to_bytes(8, "big") + field.encode())
    for item in prompt.attachments:
        for value in (item.file_path.encode(), item.mime_type.encode(), item.content):
            digest.update(len(value).to_bytes(8, "big") + value)
    return digest.digest()
