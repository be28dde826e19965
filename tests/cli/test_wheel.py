"""The package as distributed: built, installed with its dependencies into an empty environment, and used there."""

import os
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, isolated_home

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "src/holdfast/web"
MUST_RUN = os.environ.get("CI") == "true"
SECONDS = 300


def _uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def _done(*command: str) -> None:
    """Skip without a package registry, unless it is required."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode and not MUST_RUN and "error sending request" in done.stderr:
        pytest.skip("the package registry is out of reach")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `holdfast` is, in an environment that has nothing else of ours."""
    place = tmp_path_factory.mktemp("wheel")
    _done(_uv(), "build", "--wheel", "--quiet", "--out-dir", str(place / "dist"), str(ROOT))
    (wheel,) = (place / "dist").glob("holdfast_agent-*.whl")
    _done(_uv(), "venv", "--quiet", "--python", sys.executable, str(place / "venv"))
    python = place / "venv" / "bin" / "python"
    _done(_uv(), "pip", "install", "--quiet", "--python", str(python), str(wheel))
    return python.with_name("holdfast")


@pytest.fixture
def away() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        made.environment.pop("PYTHONPATH", None)
        yield made


@pytest.mark.timeout(SECONDS + 60)
def test_the_wheel_works_from_an_empty_environment(installed: Path, away: IsolatedHome) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(installed), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            cwd=away.work,
            env=away.environment,
        )

    done = call("run", "words=3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "word1 word2 word3\n", "")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(call("web").stdout.strip()) as page:
        assert b"/assets/" in page.read(), "the page is in the wheel"
    assert "Stopped" in call("server", "stop", "--force").stdout
    assert "Usage: holdfast" in call("--help").stdout
    with subprocess.Popen([str(installed), "serve"], stderr=subprocess.PIPE, env=away.environment) as server:
        assert server.stderr is not None
        assert any(b"listening" in line for line in server.stderr)
        assert call("run", "words=2").stdout == "word1 word2\n"
        place = Path(f"/proc/{server.pid}/maps")
        assert not place.exists() or str(ROOT / "src") not in place.read_text()
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(TIMEOUT) == 0


@pytest.mark.timeout(SECONDS)
def test_the_source_package_contains_the_page_and_its_source(tmp_path: Path) -> None:
    _done(_uv(), "build", "--sdist", "--quiet", "--out-dir", str(tmp_path), str(ROOT))
    (archive,) = tmp_path.glob("holdfast_agent-*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    built = {f"src/holdfast/web/{path.relative_to(BUNDLE)}" for path in BUNDLE.rglob("*") if path.is_file()}
    assert built
    assert built | {"web/package-lock.json", "web/vite.config.ts", "web/src/main.tsx", "scripts/web"} <= names
    assert not any("node_modules" in name for name in names)
