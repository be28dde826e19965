"""Benchmarks: the cost of Holdfast beside the limits of the machine. Run with `scripts/bench`."""

import sys
from pathlib import Path

# The provider that benchmarks and tests share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
