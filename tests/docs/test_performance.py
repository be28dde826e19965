"""The chart and the tables of the pages about performance belong to the stored results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["chart", "cluster"])
def test_chart_and_tables_are_generated_from_the_stored_result(name: str) -> None:
    command = [sys.executable, "-m", "bench", name, "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr
