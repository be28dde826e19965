"""The chart and the tables of the page about performance belong to the stored result."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_chart_and_tables_are_generated_from_the_stored_result() -> None:
    command = [sys.executable, "-m", "bench", "chart", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr
