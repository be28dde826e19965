"""Mistakes planted on disk: programs that tests start use them too.

The changed file is mounted over the original in a mount namespace of one pytest process, so that nothing has to be
copied and no other process sees it. The process tree has a PID namespace of its own, which ends with it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["NEAREST", "Trial", "nearest", "run_planted"]

NEAREST: dict[str, tuple[str, ...]] = {
    "acp": ("editors", "cli"),
    "bus": ("bus", "server", "runtime", "stock"),
    "cli": ("cli", "e2e"),
    "client": ("client", "cli", "e2e"),
    "config": ("config", "runtime", "cli"),
    "engine": ("engine", "runtime", "crash", "server"),
    "permissions": ("permissions", "tools", "e2e"),
    "providers": ("providers", "runtime", "e2e"),
    "server": ("server", "stock", "client", "web"),
    "storage": ("storage", "crash", "upgrade", "runtime"),
    "workspace": ("workspace", "tools", "crash"),
}
"""Test directories for packages that are tested by more than their own directory."""

# All other installed plugins take two seconds of each start, and are of no use here.
_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
NAMESPACES: tuple[str, ...] = ("unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child")
PLANT = 'mount --bind "$1" "$2"'
"""How the changed file is installed. Tests, which have a directory of their own, copy it."""
_NOTHING_COLLECTED = 5


class Trial(NamedTuple):
    """The end of a pytest process. `test` is the one that failed."""

    is_caught: bool
    test: str
    text: str
    seconds: float


def nearest(file: Path, root: Path) -> list[str]:
    """Return the test directories of a source file, its own first."""
    package = file.relative_to(root / "src" / "holdfast").parts[0].removesuffix(".py")
    folders = NEAREST.get(package, (package, "runtime", "cli"))
    return [f"tests/{name}" for name in folders if (root / "tests" / name).is_dir()] or ["tests/runtime"]


def run_planted(file: Path, text: str, tests: Sequence[str], root: Path, limit: float) -> Trial:
    """Run the tests, ids or paths, with another text in place of the file, until one fails."""
    with tempfile.TemporaryDirectory(prefix="d-", ignore_cleanup_errors=True) as folder:
        planted = Path(folder, file.name)
        planted.write_text(text)
        names = Path(folder, "tests.txt")
        names.write_text("\n".join(tests))
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
        pytest += [word for plugin in _PLUGINS for word in ("-p", plugin)]
        command = [*NAMESPACES, "sh", "-euc", f'{PLANT}; shift 2; exec "$@"', "sh"]
        command += [str(planted), str(file), *pytest, f"--basetemp={folder}/t", f"@{names}"]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300", "TMPDIR": folder}
        # Two versions of a file that differ only within a second and have one size share their compiled form.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment.pop("PYTHONPATH", None)
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            # These are bytes even where text was requested.
            output = (error.stdout or b"").decode(errors="replace")
            return Trial(False, "", f"no failure within {limit:.0f} s\n{output[-500:]}", time.monotonic() - began)
    seconds = time.monotonic() - began
    if done.returncode in {0, _NOTHING_COLLECTED}:
        return Trial(False, "", "", seconds)
    found = re.search(r"^(?:FAILED|ERROR) (\S+?)( - .*|$)", done.stdout, re.MULTILINE)
    name = found[1] if found else f"pytest ended with {done.returncode}"
    return Trial(True, name, (done.stdout + done.stderr)[-3000:], seconds)
