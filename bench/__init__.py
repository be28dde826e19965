"""What Holdfast costs, beside what the machine alone can do. Run with `scripts/bench`."""

import sys
from pathlib import Path

# The provider that benchmarks and tests share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
