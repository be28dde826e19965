"""Every mention of a distribution to install matches pyproject.toml, with existing extras."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.isolated_home import IsolatedHome
from holdfast.distribution_names import DISTRIBUTION, FOREIGN_DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_TEXTS = (Path(__file__).name, "distribution_names.py")
"""Files that have to name the other project's distribution."""

_INSTALLER = re.compile(
    r"\b(?:pipx?3? (?:install|run|inject|download)|pip3 install|uvx|uv (?:tool (?:install|run)|pip install|add)|"
    r"poetry add|pdm add|easy_install|conda install)\b([^\n#|;&`]*)"
)
_REQUIREMENT = re.compile(r"\bholdfast[\w.-]*\[[a-z][a-z, -]*\]", re.IGNORECASE)
_ARGUMENT = re.compile(r"""(?<![\w./-])(holdfast[\w-]*(?:\[[^\]\n]*\])?)(?![\w/])""", re.IGNORECASE)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named_distributions(text: str) -> Iterator[str]:
    """Yield every Holdfast requirement that a text installs."""
    for found in _INSTALLER.finditer(text.replace("\\\n", " ")):
        yield from _ARGUMENT.findall(found[1])
    for found in _REQUIREMENT.finditer(text):
        yield found[0]


def fault_in(requirement: str) -> str:
    """Return the error in a requirement, or an empty string."""
    name, _, extras = requirement.partition("[")
    if _normalized(name) != _normalized(PROJECT["name"]):
        return f"{requirement} is not {PROJECT['name']}"
    wanted = [extra.strip() for extra in extras.rstrip("]").split(",") if extra.strip()]
    known = PROJECT["optional-dependencies"]
    return next((f"{requirement}: there is no extra {extra}" for extra in wanted if extra not in known), "")


def _tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if (
            name
            and path.name not in OWN_TEXTS
            and path.suffix not in (".lock", ".png", ".gz", ".xz")
            and path.is_file()
        ):
            yield name, path.read_text(errors="replace")


def test_the_distribution_name_is_that_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION != FOREIGN_DISTRIBUTION
    assert PROJECT["scripts"] == {"holdfast": "holdfast.cli.main:main"}, "the command keeps its name"
    for extra in PROJECT["optional-dependencies"]:
        assert [fault_in(name) for name in named_distributions(install_command(extra))] == ["", ""]


def test_every_mention_uses_the_distribution_name() -> None:
    found = [(file, name) for file, text in _tracked_texts() for name in named_distributions(text)]
    wrong = [(file, fault) for file, name in found if (fault := fault_in(name))]
    assert not wrong
    assert {"docs/guide.md", "docs/recipes.md", "docs/editors.md", "docs/operating.md"} <= {file for file, _ in found}
    assert {"docs/examples/review.yml", "docs/examples/fix.yml"} <= {file for file, _ in found}


@pytest.mark.parametrize(
    "text",
    [
        "pip install holdfast",
        "RUN pip install --no-cache-dir holdfast",
        "uv tool install 'holdfast==0.1'",
        "uvx holdfast run",
        "pipx install Holdfast",
        "python -m pip install -q \\\n  holdfast[otel]",
        "requires holdfast[otel]",
        "pip install 'holdfast-agent[nothing]'",
    ],
)
def test_a_wrong_name_is_found(text: str) -> None:
    assert any(fault_in(name) for name in named_distributions(text))


def test_doctor_warns_of_the_other_distribution(home: IsolatedHome, tmp_path: Path) -> None:
    """The foreign distribution in the same environment is reported with the commands that repair it."""
    assert "another project" not in home.call("doctor", "--area", "installation").stdout
    metadata = tmp_path / f"{FOREIGN_DISTRIBUTION}-0.5.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {FOREIGN_DISTRIBUTION}\nVersion: 0.5.1\n")
    home.environment["PYTHONPATH"] = str(tmp_path)
    done = home.call("doctor", "--area", "installation")
    assert "holdfast 0.5.1 is installed in this environment: it is another project" in done.stdout
    assert "pip uninstall holdfast, then pip install --force-reinstall holdfast-agent" in done.stdout


def test_an_overwritten_package_is_a_one_line_error(tmp_path: Path) -> None:
    """Both distributions install `holdfast/__init__.py`; the commands report this instead of a traceback."""
    package = tmp_path / "holdfast"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("cli", "domain", "client", "distribution_names.py"):
        (package / name).symlink_to(ROOT / "src/holdfast" / name)
    call = "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", call, str(tmp_path), "doctor"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("holdfast: another project's distribution, 'holdfast', has overwritten files")
    assert "Traceback" not in done.stderr
