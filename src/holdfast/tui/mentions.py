"""File mentions with `@` in a prompt, and fuzzy matching of names. Pure."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["best", "mention_at", "mentioned", "score"]

_MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]+"|[^\s@"]+)')
_OPEN = re.compile(r'(?:^|\s)@([^\s@"]*)$')


def mention_at(before: str) -> str | None:
    """Return the letters of a mention just before the cursor; None if there is none."""
    found = _OPEN.search(before)
    return found[1] if found else None


def mentioned(text: str) -> list[str]:
    """Return every mention in a text once, without the sign, quotes and closing punctuation."""
    names = (found[1].strip('"') for found in _MENTION.finditer(text))
    return list(dict.fromkeys(name.rstrip(".,;:!?)") for name in names if name.strip(".,;:!?)")))


def score(letters: str, name: str) -> int | None:
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


def best(letters: str, names: Iterable[str], limit: int = 8) -> Sequence[str]:
    """Return the names that match best."""
    pattern = re.compile(".*?".join(map(re.escape, letters)), re.IGNORECASE | re.DOTALL)
    fitting = ((score(letters, name), name) for name in names if pattern.search(name))
    ranked = sorted(
        ((points, name) for points, name in fitting if points is not None), key=lambda item: (-item[0], item[1])
    )
    return [name for _, name in ranked[:limit]]
