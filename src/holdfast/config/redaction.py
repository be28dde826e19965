"""Which values are nobody else's business, and how they are shown instead.

A template says where a key comes from and is shown as it was written; a key itself is shown as `set`. Values are
judged by the name they stand under, and by their looks: a key in an address or an argument is a key too.
"""

import re
from typing import Any

from holdfast.config.line_numbers import KeyPath
from holdfast.config.variables import Command, ExpansionFailed, Piece, Variable, is_template, read_template

__all__ = ["HIDDEN", "SET", "is_named_secret", "is_secret", "redact", "redact_text", "redact_value"]


SET = "set"

# As texts: most workspaces have no settings to hide anything of, so they are compiled when the first one comes.
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
    # Numbers beside a token: a stock client that finds a word in their place drops all that came with it.
    | {"expires_at", "expires_in", "auth_style"}
)


def is_secret(path: KeyPath) -> bool:
    """Whether what stands under a key is, or may be, a secret, by its names."""
    names = [name for name in path if isinstance(name, str)]
    if not names or names[-1] in _NOT_SECRET:
        return False
    if any(name in _SECRET_SECTIONS for name in names[:-1]):
        return True
    return is_named_secret(path)


def is_named_secret(path: KeyPath) -> bool:
    """Whether its own name says so. Variables and headers may hold secrets; `API_KEY` certainly does."""
    names = [name for name in path if isinstance(name, str)]
    return len(names) > 1 and names[-1] not in _NOT_SECRET and re.search(_SECRET_NAME, names[-1]) is not None


def redact_value(value: object, path: KeyPath) -> object:
    """One value as it may be shown."""
    if not isinstance(value, str):
        return SET if is_secret(path) and value not in (None, False, True) else value
    if is_secret(path) and value:
        return _redact_template(value)
    head, end, scope = value.rpartition(")")
    if path[:1] == ("permissions",) and scope.startswith((" in /", " to /")):
        # The paths of a saved rule are shown as they are: a directory may look like a key.
        return _redact_patterns(head) + end + scope
    return _redact_patterns(value)


def redact(value: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401 - any JSON
    """A whole tree as it may be shown."""
    if isinstance(value, dict):
        return {name: redact(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list):
        return _redact_arguments([redact(item, (*path, index)) for index, item in enumerate(value)])
    return redact_value(value, path)


def _redact_template(value: str) -> str:
    """Where a secret comes from, without what is written out beside it."""
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
        case Command():
            return f"$({_redact_patterns(piece.text)})"


def _redact_patterns(value: str) -> str:
    value = re.sub(_KNOWN_KEY, SET, value)
    value = re.sub(_BEARER, rf"\1 {SET}", value)
    value = re.sub(_URL_LOGIN, f"{SET}@", value)
    value = re.sub(_NAMED_VALUE, rf"\1\2{SET}", value)
    return re.sub(_AFTER_FLAG, rf"\1{SET}", value)


def _redact_arguments(items: list[Any]) -> list[Any]:
    """In the arguments of a command a key may follow its name: `--token X`, `--token=X`."""
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


# Redaction of keys, tokens and passwords in text. Pure.

HIDDEN = "[hidden]"

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
