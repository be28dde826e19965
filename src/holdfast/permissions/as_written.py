"""The commands of a line as they are written, for rules about programs that run others. Pure.

A line is judged by the commands it comes to: `timeout 5 make` is `make`. A rule that forbids `timeout` itself has to
see the words before they are taken apart. Whatever may be such a command counts, because only rules that forbid are
compared with it.
"""

import posixpath
from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.permissions.commands import Command, parse

__all__ = ["outer_commands"]

_DEEPEST = 4
_NAMES = (
    "ash bash builtin chroot command dash doas env eval exec find ionice ksh nice nohup pkexec runuser setsid sh "
    "stdbuf su sudo time timeout unshare watch xargs zsh"
)
_OUTER = frozenset(_NAMES.split())


def outer_commands(text: str, depth: int = 0) -> Iterator[Command]:
    """Yield the commands of a line that run others, also those inside each other and in the text of a nested shell."""
    for command in parse(text).commands:
        if _program(command) not in _OUTER:
            continue
        for at, word in enumerate(command.argv):
            inner = replace(command, argv=command.argv[at:])
            if _program(inner) in _OUTER:
                yield inner
            if depth < _DEEPEST and at and " " in word.text.strip():
                yield from outer_commands(word.text, depth + 1)


def _program(command: Command) -> str:
    return posixpath.basename(command.name)
