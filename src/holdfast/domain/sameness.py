"""Identity of requests. Separate from `runs.py`, because hashing takes long to load and few modules need it."""

from hashlib import blake2b

import msgspec

from holdfast.domain.runs import Prompt

__all__ = ["body_hash"]

# Msgpack stores the length of every value before it, so two different requests never have the same encoding.
_encoder = msgspec.msgpack.Encoder()


def body_hash(prompt: Prompt) -> bytes:
    """Return the hash of a request. Requests with the same run id are equal if their hashes are."""
    files = [(item.file_path, item.mime_type, item.content) for item in prompt.attachments]
    body = (prompt.session_id, prompt.prompt, prompt.effective_delivery, prompt.kind, files)
    return blake2b(_encoder.encode(body), digest_size=32).digest()
