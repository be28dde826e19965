"""Redaction of secrets in settings and in text.

A secret in the settings is shown as `set`. A template such as `$OPENAI_API_KEY` names the source of a secret and is
shown as it is. Secrets are recognised by the names of their keys and by their form: a URL or an argument may contain a
key too. `redact_text` does the same for logs and reports, which have no keys.
"""

import re
from typing import Any

from holdfast.config.line_numbers import KeyPath
from holdfast.config.variables import CommandSubstitution, ExpansionFailed, Piece, Variable, is_template, read_template

__all__ = ["HIDDEN", "SET", "is_named_secret", "is_secret", "redact", "redact_text", "redact_value"]


SET = "set"
"""Text that is shown in place of a secret setting."""

# Patterns are strings, compiled on first use: most workspaces have no settings to redact.
_SECRET_NAME = (
    r"(?i)(?:^|[_.-])(?:api[_-]?key|apikey|access[_-]?key|key|token|secret|password|passwd|authorization|auth|cookie"
    r"|credentials?|bearer|pat)$"
)
_KNOWN_KEY = (
    r"(?:\b(?:sk|pk|rk|xai|gsk|hf|csk|fw|nvapi|tgp|pplx|ghp|gho|ghu|ghs|glpat|github_pat|xox[abprs])[-_][A-Za-z0-9_-]{8,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\bA(?:KIA|SIA)[A-Z0-9]{12,}|\beyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_.-]+)"
)
_BEARER = r"(?i)\b(bearer|basic)\s+[^\s$\"']{6,}"
_URL_LOGIN = r"(?<=://)[^/@\s$]+@"
_NAMED_VALUE = (
    r"(?i)\b([a-z0-9_-]{0,40}(?:key|token|secret|password|passwd|signature|authorization))(=|:\s{0,8})"
    r"(?!\s|bearer|basic)[^&\s$\"']+"
)
_AFTER_FLAG = r"(?i)((?<!\S)--?[a-z0-9-]{0,40}(?:key|token|secret|password|auth)\s{1,8})(?!-)[^\s$\"']+"
_FLAG = r"(?is)^(--?[a-z0-9-]*(?:key|token|secret|password|auth|credentials?|header))(?:=(.*))?$"
_AUTH_SCHEMES = frozenset({"", "bearer", "basic", "token"})
_SECRET_SECTIONS = frozenset({"env", "headers", "extra_headers", "oauth", "oauth_token"})
_NOT_SECRET = frozenset(
    {"aws_auth_refresh", "max_tokens", "default_max_tokens", "token_url", "auth_url", "client_id"}
    # Numbers beside a token: a stock client that finds text in their place discards the whole object.
    | {"expires_at", "expires_in", "auth_style"}
)


def is_secret(path: KeyPath) -> bool:
    """Return True if the value at this path may be a secret, by the names on the path."""
    names = [name for name in path if isinstance(name, str)]
    if not names or names[-1] in _NOT_SECRET:
        return False
    if any(name in _SECRET_SECTIONS for name in names[:-1]):
        return True
    return is_named_secret(path)


def is_named_secret(path: KeyPath) -> bool:
    """Return True if the last name denotes a secret, such as `API_KEY`. Variables and headers with other names may
    still contain one (`is_secret`).
    """
    names = [name for name in path if isinstance(name, str)]
    return len(names) > 1 and names[-1] not in _NOT_SECRET and re.search(_SECRET_NAME, names[-1]) is not None


def redact_value(value: object, path: KeyPath) -> object:
    """Return one value with secrets replaced."""
    if not isinstance(value, str):
        return SET if is_secret(path) and value not in (None, False, True) else value
    if is_secret(path) and value:
        return _redact_template(value)
    head, end, scope = value.rpartition(")")
    if path[:1] == ("permissions",) and scope.startswith((" in /", " to /")):
        # The path of a saved rule is not redacted: the name of a directory may have the form of a key.
        return _redact_patterns(head) + end + scope
    return _redact_patterns(value)


def redact(value: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return a tree with secrets replaced."""
    if isinstance(value, dict):
        return {name: redact(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list):
        return _redact_arguments([redact(item, (*path, index)) for index, item in enumerate(value)])
    return redact_value(value, path)


def _redact_template(value: str) -> str:
    """Return a template without literal text that may be a secret."""
    if not is_template(value):
        return SET
    try:
        return "".join(_redact_piece(piece) for piece in read_template(value))
    except ExpansionFailed:
        return SET


def _redact_piece(piece: Piece) -> str:
    match piece:
        case str():
            return piece if piece.strip().lower() in _AUTH_SCHEMES else SET
        case Variable():
            return f"${piece.name}" if piece.default is None else f"${{{piece.name}:-{SET if piece.default else ''}}}"
        case CommandSubstitution():
            return f"$({_redact_patterns(piece.text)})"


def _redact_patterns(value: str) -> str:
    value = re.sub(_KNOWN_KEY, SET, value)
    value = re.sub(_BEARER, rf"\1 {SET}", value)
    value = re.sub(_URL_LOGIN, f"{SET}@", value)
    value = re.sub(_NAMED_VALUE, rf"\1\2{SET}", value)
    return re.sub(_AFTER_FLAG, rf"\1{SET}", value)


def _redact_arguments(items: list[Any]) -> list[Any]:
    """Redact command arguments, where a key may follow its option: `--token X`, `--token=X`."""
    result: list[Any] = []
    after_flag = False
    for item in items:
        if not isinstance(item, str):
            result.append(item)
            after_flag = False
            continue
        flag = re.match(_FLAG, item)
        if flag is not None and flag[2] is not None:
            result.append(item if is_template(flag[2]) else f"{flag[1]}={SET}")
        else:
            result.append(SET if after_flag and not item.startswith("-") and not is_template(item) else item)
        after_flag = flag is not None and flag[2] is None
    return result


HIDDEN = "[hidden]"
"""Text that replaces a secret in other text."""

_SECRET_WORDS = "api[_-]?key|secret|token|passw(?:or)?d|passphrase|credential|authorization|cookie|private[_-]?key"
# Every repetition is bounded, so that no text takes long. The expressions are compiled on first use.
_RULES = (
    # Blocks of key material.
    (r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", HIDDEN),
    # Authorization: Bearer …; also as a word in a sentence.
    (r"(?i)\b(bearer|basic)\s{1,5}[\w.~+/=-]{8,8192}", rf"\1 {HIDDEN}"),
    # "api_key": "…", token=…, password: …
    (
        rf"(?i)((?:{_SECRET_WORDS})[\w.-]{{0,40}}[\"']?\s{{0,3}}[:=]\s{{0,3}})(\"[^\"]*\"|'[^']*'|[^\s,;&}}\])]+)",
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


def redact_text(text: str) -> str:
    """Replace everything that resembles a secret. False positives are preferred to leaks."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text
