"""The time limit of a test is enforced whatever the test does: in a C event loop, in blocking C code, or in plain
Python.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HANGING = {
    "plain": "import threading\ndef test_it():\n    threading.Event().wait()\n",
    "asyncio": "import asyncio\nasync def test_it():\n    await asyncio.Event().wait()\n",
    "uvloop": "import asyncio, uvloop\ndef test_it():\n    uvloop.run(asyncio.Event().wait())\n",
    "swallowing": (
        "import threading\ndef test_it():\n    while True:\n        try:\n            threading.Event().wait()\n"
        "        except BaseException:\n            pass\n"
    ),
}


@pytest.mark.parametrize("kind", HANGING)
def test_hanging_test_is_ended(tmp_path: Path, kind: str) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING[kind])
    plugins = ("conftest", "pytest_asyncio.plugin", "pytest_timeout", "no:cacheprovider")
    chosen = [word for plugin in plugins for word in ("-p", plugin)]
    options = ["--timeout=0.5", "--asyncio-mode=auto", f"--rootdir={tmp_path}", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen, *options, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "test_hanging.py" in done.stdout + done.stderr
    assert "1 passed" not in done.stdout
