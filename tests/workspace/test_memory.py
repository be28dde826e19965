"""Memory returned to the system."""

import os
import subprocess
import sys

import pytest

# Huge blocks are freed, each followed by a small one that stays, so that an ordinary heap cannot shrink.
_PROGRAM = """
from holdfast.workspace.process.guard_system import return_freed_memory
return_freed_memory()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 // 1024
before = resident()
huge = b"x" * 30_000_000
del huge
huge, small = [], []
for _ in range(4):
    huge.append(b"x" * 29_000_000)
    small.append(b"x" * 100_000)
del huge
print(resident() - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc keeps what is freed")
def test_freed_huge_blocks_are_returned_to_system() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20
