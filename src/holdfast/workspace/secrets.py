"""Redaction of keys, tokens and passwords in text. Pure."""

import re

__all__ = ["HIDDEN", "redacted"]

HIDDEN = "[hidden]"

_WORDS = "api[_-]?key|secret|token|passw(?:or)?d|passphrase|credential|authorization|cookie|private[_-]?key"
# Every repetition is bounded, so that no text takes long. The expressions are compiled on first use.
_RULES = (
    # Blocks of key material.
    (r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", HIDDEN),
    # Authorization: Bearer …; also as a word in a sentence.
    (r"(?i)\b(bearer|basic)\s{1,5}[\w.~+/=-]{8,8192}", rf"\1 {HIDDEN}"),
    # "api_key": "…", token=…, password: …
    (
        rf"(?i)((?:{_WORDS})[\w.-]{{0,40}}[\"']?\s{{0,3}}[:=]\s{{0,3}})(\"[^\"]*\"|'[^']*'|[^\s,;&}}\])]+)",
        rf"\1{HIDDEN}",
    ),
    # https://user:password@host
    (r"(?i)([a-z0-9+.-]://)[^\s/@:]{1,200}:[^\s/@]{1,200}@", rf"\1{HIDDEN}@"),
    # Keys with a known format.
    (
        r"\b(?:sk|pk|rk)[-_][\w-]{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
        r"|\bxox[abprs]-[\w-]{10,}|\bA(?:KI|SI)A[A-Z0-9]{12,}|\bAIza[\w-]{30,}|\bhf_\w{20,}"
        r"|\beyJ[\w-]{10,4096}\.[\w-]{5,8192}\.[\w-]*",
        HIDDEN,
    ),
)


def redacted(text: str) -> str:
    """Replace everything that resembles a secret. False positives are preferred to leaks."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text
