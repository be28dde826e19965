"""The files a person may name in a prompt."""

import subprocess
from pathlib import Path

from holdfast.tui.files import listed


def test_listing_files_runs_nothing_that_the_repository_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "a.py"], cwd=tmp_path, check=True)
    setting = ["core.fsmonitor", f"touch {tmp_path}/ran; false"]
    subprocess.run(["git", "config", *setting], cwd=tmp_path, check=True)
    assert list(listed(str(tmp_path))) == ["a.py"]
    assert not (tmp_path / "ran").exists()
