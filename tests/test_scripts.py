"""The scripts named on the first screen of the README, as real processes."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FAKE_PYTHON = f"""#!/bin/sh
# Plays an interpreter, and the environment's one: makes environments and installs without a network.
here=$(dirname "$0")
case "$*" in
"-m venv "*)
    echo venv >>"$JOURNAL"
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip --version") ;;
"-m pip install "*)
    echo pip >>"$JOURNAL"
    cp "$FAKE_UV" "$here/uv" ;;
*) exec "{sys.executable}" "$@" ;;
esac
"""

FAKE_UV = """#!/bin/sh
here=$(dirname "$0")
echo "uv $*" >>"$JOURNAL"
[ ! -p "$GATE" ] || cat "$GATE" >/dev/null
printf '#!/bin/sh\\n# %s/\\necho "holdfast $*"\\n' "$here" >"$here/holdfast"
chmod +x "$here/holdfast"
"""


class ScriptCopy:
    """A copy of the scripts in a directory with a space, with fakes for Python and uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a tree"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/setup", "scripts/start", "pyproject.toml", "uv.lock"):
            path = self.root / name
            path.write_bytes((ROOT / name).read_bytes())
            path.chmod(0o755)
        self.gate = folder / "gate"
        self.journal = folder / "journal"
        for name, text in (("python", FAKE_PYTHON), ("uv", FAKE_UV)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PYTHON": str(folder / "python"),
            "FAKE_UV": str(folder / "uv"),
            "JOURNAL": str(self.journal),
            "GATE": str(self.gate),
        }

    def start(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / "scripts" / script, *arguments],
            cwd="/",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        process = self.start(script, *arguments)
        out, err = process.communicate()
        return process.returncode, out, err

    @property
    def steps(self) -> list[str]:
        """Return the executed steps, one word each."""
        return [line.split()[0] for line in self.journal.read_text().splitlines()]


@pytest.fixture
def tree(tmp_path: Path) -> ScriptCopy:
    return ScriptCopy(tmp_path)


def test_start_sets_up_once_and_runs_the_demonstration(tree: ScriptCopy) -> None:
    assert tree.run("start")[:2] == (0, "holdfast demo\n")
    assert tree.run("start", "--version") == (0, "holdfast --version\n", "")
    assert tree.steps == ["venv", "pip", "uv"]


def test_start_works_through_a_link(tree: ScriptCopy, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tree.root / "scripts" / "start")
    result = subprocess.run([link, "x"], env=tree.environment, capture_output=True, text=True, check=True)
    assert result.stdout == "holdfast x\n"


def test_start_accepts_and_keeps_a_development_environment(tree: ScriptCopy) -> None:
    assert tree.run("setup", "dev")[0] == 0
    assert tree.run("start", "x") == (0, "holdfast x\n", "")
    assert tree.steps.count("uv") == 1
    (tree.root / "uv.lock").write_text("changed")
    assert tree.run("start", "x")[2].startswith("Bringing .venv up to date")
    assert "--frozen --inexact --no-dev" in tree.journal.read_text()
    assert tree.run("setup", "dev")[0] == 0
    assert tree.steps == ["venv", "pip", "uv", "uv", "uv"]


def test_concurrent_starts_set_up_once(tree: ScriptCopy) -> None:
    os.mkfifo(tree.gate)
    first = tree.start("setup")
    with tree.gate.open("w"):  # opens when the first one has reached its packages
        second = tree.start("setup")
        assert second.stderr is not None
        assert second.stderr.readline().startswith("Another set-up is at work")
    assert first.communicate()[1].startswith("Setting up .venv")
    assert second.communicate() == ("", "")
    assert (first.returncode, second.returncode) == (0, 0)
    assert tree.steps == ["venv", "pip", "uv"]


def test_killed_set_up_is_started_again(tree: ScriptCopy) -> None:
    os.mkfifo(tree.gate)
    first = tree.start("setup")
    with tree.gate.open("w"):
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    tree.gate.unlink()
    status, _, stderr = tree.run("setup")
    assert status == 0
    assert stderr.startswith("Setting up .venv")
    assert tree.steps == ["venv", "pip", "uv", "venv", "pip", "uv"]


def test_moved_environment_is_created_again(tree: ScriptCopy) -> None:
    assert tree.run("setup")[0] == 0
    tree.root = tree.root.rename(tree.root.with_name("elsewhere"))
    assert tree.run("start", "x")[:2] == (0, "holdfast x\n")
    assert tree.steps.count("venv") == 2


def test_an_unsuitable_python_is_named(tree: ScriptCopy) -> None:
    tree.environment["PYTHON"] = "/bin/false"
    assert tree.run("start") == (1, "", "PYTHON=/bin/false is not Python 3.11 or newer.\n")
    assert not (tree.root / ".venv").exists()


def test_a_failure_shows_its_reason(tree: ScriptCopy, tmp_path: Path) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\necho no route to the registry\nexit 1\n")
    status, out, stderr = tree.run("start")
    assert (status, out) == (1, "")
    assert "no route to the registry" in stderr


def test_start_from_another_directory_is_fast_the_second_time(tmp_path: Path) -> None:
    """With the real scripts, in this tree."""
    subprocess.run([ROOT / "scripts" / "setup"], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([ROOT / "scripts" / "setup"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, because the time on a clock depends on what else runs.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    command = str(ROOT / "scripts" / "start")
    steps = subprocess.run([command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Usage" in steps.stdout
    assert steps.stderr == ""


@pytest.mark.parametrize("name", ["scripts/setup", "scripts/start", "scripts/test", "scripts/check", ".ci/run"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    assert (ROOT / name).read_text().startswith("#!")
