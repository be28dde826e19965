"""When two requests are one request. Apart from `runs.py`, because hashing takes long to load and few need it."""

from hashlib import blake2b

import msgspec

from holdfast.domain.runs import Prompt

__all__ = ["body_hash"]

# Every value with its length before it, so that no two requests have one encoding.
_encoder = msgspec.msgpack.Encoder()


def body_hash(prompt: Prompt) -> bytes:
    """Two requests with one run id are the same request if this is equal."""
    files = [(item.file_path, item.mime_type, item.content) for item in prompt.attachments]
    body = (prompt.session_id, prompt.prompt, prompt.effective_delivery, prompt.kind, files)
    return blake2b(_encoder.encode(body), digest_size=32).digest()
