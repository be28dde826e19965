"""Random permission rules: saved ones match only where they were saved, misspelt ones are errors, addresses have one
form. Each trial is a function of a seed that raises on a violation.
"""

import random

from holdfast.domain.permission_rules import BadRule, parse_rules
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.domain.url_patterns import parse_address
from holdfast.permissions.rule_decision import RuleSet

__all__ = ["try_rules"]

_ROOT = "/w"
_COMMANDS = (
    "./run.sh",
    "../run.sh",
    "sub/run.sh",
    "make",
    "npm test",
    "python a.py",
    "bash run.sh",
    "git push",
    "rm a",
)
_FRAMES = (
    "{}",
    "{} > out",
    "{} 2>&1 | tee log",
    "timeout 5 {}",
    "env A=1 {}",
    "X=1 {}",
    "sh -c '{}'",
    "for f in a b; do {}; done",
    "if {}; then {}; fi",
    "{} *.py",
    "{} && {}",
    "{}; {}",
)
_MOVES = (
    "cd sub && {}",
    "cd sub; {}",
    "cd sub || {}",
    "(cd sub && {})",
    "pushd sub && {}",
    "cd .. && {}",
    "cd /other && {}",
    "cd sub && ls; {}",
    "! cd no && {}",
    "env -C sub {}",
    "find . -execdir {} ;",
)
_PUNCTUATION = "()[]{}\"'`,;:!|&<>$#\\ \t\u00a0\u200b"


def try_rules(seed: int) -> None:
    """Raise `AssertionError` on a violation."""
    chance = random.Random(seed)
    _try_saved(chance)
    _try_misspelt(chance)
    _try_address(chance)


def _judge(line: str, directory: str, settings: PermissionSettings) -> str:
    permit = Permit("bash", "execute", directory, "", {}, line)
    return RuleSet(settings, _ROOT).judge(permit).decision


def _try_saved(chance: random.Random) -> None:
    frame = chance.choice(_FRAMES)
    line = frame.replace("{}", chance.choice(_COMMANDS), 1).replace("{}", chance.choice(_COMMANDS))
    permit = Permit("bash", "execute", _ROOT, "", {}, line)
    saved = PermissionSettings(allow=RuleSet(PermissionSettings(), _ROOT).judge(permit).saves)
    assert _judge(line, _ROOT, saved) == "allow", f"{line!r} is not allowed by {saved.allow}"
    where = chance.choice(("/w/sub", "/w/sub/sub", "/other", "/"))
    assert _judge(line, where, saved) == "ask", f"{saved.allow} allow {line!r} in {where}"
    moved = chance.choice(_MOVES).replace("{}", line)
    assert _judge(moved, _ROOT, saved) == "ask", f"{saved.allow} allow {moved!r}"


def _try_misspelt(chance: random.Random) -> None:
    """A character too many or too few, anywhere but in the name of the program. In the arguments some of them only
    yield another pattern.
    """
    text = "bash(touch *)"
    place = chance.choice([at for at in range(len(text) + 1) if not 5 < at < 10])
    if chance.random() < 0.5:
        known = [char for char in _PUNCTUATION if place not in (11, 12) or char not in "!#,:"]
        wrong = text[:place] + chance.choice(known) + text[place:]
    else:
        place = chance.choice([at for at in range(len(text)) if not 5 <= at < 10])
        wrong = text[:place] + text[place + 1 :]
    try:
        parse_rules(wrong, "deny")
    except BadRule:
        return
    settings = PermissionSettings(deny=(wrong,), allow=("bash",))
    assert _judge("touch made", _ROOT, settings) == "deny", f"the rule {wrong!r} is silently ineffective"


def _try_address(chance: random.Random) -> None:
    def spelled(text: str) -> str:
        return "".join(f"%{ord(char):02x}" if chance.random() < 0.3 and char.isalnum() else char for char in text)

    host = "".join(char.upper() if chance.random() < 0.5 else char for char in "docs.example.org")
    path = chance.choice(("/", "/./", "/x/../", "/x/y/../../")) + spelled("private") + "/" + spelled("a")
    url = f"https://{host}{chance.choice(('', '.'))}{chance.choice(('', ':443'))}{path}"
    assert parse_address(url).url == "https://docs.example.org/private/a", url
    permit = Permit("fetch", "fetch", _ROOT, "", {"url": url})
    for pattern in ("https://docs.example.org/private", "*://DOCS.example.org./pri*", "https://*.example.org/*"):
        settings = PermissionSettings(deny=(f"fetch({pattern})",), allow=("fetch",))
        assert RuleSet(settings, _ROOT).judge(permit).decision == "deny", (pattern, url)
