"""The mutation runner: its children are limited and leave nothing, its map is correct, its patches apply."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from planting import Mutant, mutants_of_file
from planting.live import CannotPlantError
from planting.runner import disk
from planting.runner.children import Job, Limits, Outcome, Report, run_jobs
from planting.runner.patches import read_patches
from planting.runner.selection import Equivalents, Name, Selection, functions_near, name_of, select, source_files
from planting.runner.tracing import Map, Tracer, key_of

NO_LIMITS = Limits(60.0, lambda test: 60.0)

SOURCE = '''
LIMIT = 3


class Thing:
    size: int = 4

    def grow(self, by: int = 1) -> int:
        """Grow."""
        if by > 0 and self.size < 10:
            self.size += by
        return self.size


def outer(number: int) -> int:
    def inner() -> int:
        return number + LIMIT

    return inner()


def unused() -> None:
    outer(1)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of one module."""
    package = tmp_path / "src" / "holdfast"
    (package / "engine").mkdir(parents=True)
    (package / "engine" / "thing.py").write_text(SOURCE)
    return tmp_path


def source_of(root: Path) -> Path:
    return root / "src" / "holdfast" / "engine" / "thing.py"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("thing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Children


def run_one(job: Job) -> Outcome:
    jobs = iter([job])
    [(_, outcome)] = run_jobs(lambda: next(jobs, None), 2)
    return outcome


def test_results_of_children_arrive() -> None:
    def work(report: Report, folder: Path) -> None:
        assert folder.is_dir()
        assert os.environ["TMPDIR"] == str(folder)
        report({"test": "a"})
        report({"test": "b"})
        report({"end": "failed", "text": "why", "data": {"folder": str(folder)}})

    outcome = run_one(Job("job", work, NO_LIMITS))
    assert outcome[:4] == ("failed", "b", "why", 2)
    assert not Path(outcome.data["folder"]).exists()


def test_several_children_run_at_once_and_a_result_may_lead_to_another() -> None:
    reader, writer = os.pipe()

    def wait(report: Report, folder: Path) -> None:
        report({"end": "passed", "text": os.read(reader, 1).decode()})

    def write(report: Report, folder: Path) -> None:
        os.write(writer, b"x")
        report({"end": "passed"})

    jobs = [Job("wait", wait, NO_LIMITS), Job("write", write, NO_LIMITS)]
    names = []
    for job, outcome in run_jobs(lambda: jobs.pop(0) if jobs else None, 2):
        names.append((job.name, outcome.text))
        if len(names) == 2:
            jobs.append(Job("last", lambda report, folder: report({"end": "passed", "text": "z"}), NO_LIMITS))
    os.close(reader)
    os.close(writer)
    assert sorted(names) == [("last", "z"), ("wait", "x"), ("write", "")]


def hang(report: Report, folder: Path) -> None:
    report({"test": "a"})
    signal.pause()


@pytest.mark.parametrize(
    ("limits", "word"),
    [(Limits(60.0, lambda test: 0.05), "hung"), (Limits(0.05, lambda test: 60.0), "limit")],
    ids=["a test", "all tests"],
)
def test_children_are_ended_at_their_limits(limits: Limits, word: str) -> None:
    outcome = run_one(Job("job", hang, limits))
    assert (outcome.word, outcome.test) == (word, "a")


def test_child_that_ends_without_a_result_is_reported_as_died() -> None:
    assert run_one(Job("job", lambda report, folder: os._exit(3), NO_LIMITS)).word == "died"

    def fail(report: Report, folder: Path) -> None:
        raise SystemExit("no")

    outcome = run_one(Job("job", fail, NO_LIMITS))
    assert (outcome.word, outcome.text) == ("died", "SystemExit('no')")


def test_processes_that_left_their_group_and_parent_are_ended() -> None:
    """The supervisor waits for their end, so that nothing runs when the result is known."""

    def work(report: Report, folder: Path) -> None:
        program = "setsid sh -c 'echo $$; exec sleep 600' & sleep 600"
        shell = subprocess.Popen(["sh", "-c", program], start_new_session=True, stdout=subprocess.PIPE, text=True)
        assert shell.stdout is not None
        process = int(shell.stdout.readline())
        os.kill(shell.pid, signal.SIGKILL)
        report({"end": "passed", "data": {"process": process}})

    outcome = run_one(Job("job", work, NO_LIMITS))
    assert outcome.word == "passed"
    with pytest.raises(ProcessLookupError):
        os.kill(outcome.data["process"], 0)


# The map


def test_tracer_records_each_function_once_per_test(root: Path) -> None:
    module = load(source_of(root))
    tracer = Tracer([source_of(root)], root)

    def names() -> list[str]:
        return [tracer.names[number].partition(":")[2] for number in tracer.take()]

    tracer.start()
    thing = module.Thing()
    assert [thing.grow(), thing.grow()] == [5, 6]
    assert names() == ["Thing.grow"]
    assert module.outer(1) == 4
    module.unused()
    assert names() == ["outer", "unused"]
    assert names() == []
    assert module.Thing.grow.__doc__ == "Grow."


def test_the_map_finds_the_tests_of_a_function(root: Path) -> None:
    (root / "tests").mkdir()
    for name in ("a", "b"):
        (root / "tests" / f"test_{name}.py").write_text(name)
    stored = Map(root / "cache", root)
    stored.store("tests/test_a.py", ["f", "g"], {"tests/test_a.py::slow": (2.0, [0, 1])})
    stored.store(
        "tests/test_b.py", ["g", "h"], {"tests/test_b.py::fast": (0.1, [0]), "tests/test_b.py::other": (0, [1])}
    )
    found = Map(root / "cache", root)
    found.load()
    assert found.tests_of(["f"]) == ["tests/test_a.py::slow"]
    assert found.tests_of(["g"]) == ["tests/test_b.py::fast", "tests/test_a.py::slow"]
    assert found.tests_of(["g"], lambda test: "slow" in test) == ["tests/test_a.py::slow"]
    assert found.is_current("tests/test_a.py")
    (root / "tests" / "test_a.py").write_text("changed")
    assert not found.is_current("tests/test_a.py")
    (root / "tests" / "test_b.py").unlink()
    later = Map(root / "cache", root)
    later.load()
    assert later.tests_of(["g"]) == ["tests/test_a.py::slow"]


def test_one_row_of_each_table_runs_before_the_second_of_any(root: Path) -> None:
    (root / "t.py").write_text("")
    tests: dict[str, tuple[float, list[int]]] = {f"t.py::table[{row}]": (0.001, [0]) for row in range(9)}
    stored = Map(root / "cache", root)
    stored.store("t.py", ["f"], {**tests, "t.py::single": (0.005, [0])})
    stored.load()
    assert stored.tests_of(["f"])[:2] == ["t.py::table[0]", "t.py::single"]
    assert sorted(stored.tests_of(["f"])) == sorted([*tests, "t.py::single"])


# The selection


def test_a_sample_depends_on_its_seed(root: Path) -> None:
    def sample(seed: int) -> list[Name]:
        return [name_of(mutant, root) for mutant in select(Selection(["engine"], sample=5, seed=seed), root)]

    assert sample(1) == sample(1) != sample(2)
    assert len(sample(1)) == 5


def test_functions_and_kinds_narrow_the_selection(root: Path) -> None:
    found = select(Selection(["src/holdfast/engine/thing.py"], functions=["grow"], kinds=["clause"]), root)
    assert [mutant.text for mutant in found] == [
        "by > 0 and self.size < 10 -> self.size < 10",
        "by > 0 and self.size < 10 -> by > 0",
    ]
    assert {mutant.qualname for mutant in select(Selection(["engine"], ["Thing"]), root)} == {
        "Thing.grow",
        "Thing.size",
    }
    with pytest.raises(SystemExit, match="no such file or package: nothing"):
        source_files(["nothing"], root)


def test_equivalent_mutants_are_found_again_after_lines_have_moved(root: Path) -> None:
    names = [name_of(mutant, root) for mutant in select(Selection(["engine"]), root)]
    path = root / "equivalent"
    path.write_text("# a remark\n" + json.dumps([*names[0], "a reason"]) + "\n")
    source_of(root).write_text("\n\n" + SOURCE)
    assert Equivalents(path).reasons == {names[0]: "a reason"}
    assert [name_of(mutant, root) for mutant in select(Selection(["engine"]), root)] == names
    assert Equivalents(root / "missing").reasons == {}


def test_functions_near_a_constant_or_field_mention_it(root: Path) -> None:
    def near(qualname: str) -> list[str]:
        unit = next(one.unit for one in mutants_of_file(source_of(root)) if one.qualname == qualname)
        return [name.partition(":")[2] for name in functions_near(unit, root)]

    assert near("LIMIT") == ["outer"]
    assert near("Thing.size") == ["Thing.grow"]
    assert near("unused") == ["unused"]


# Patches and planting on disk


def write_patch(root: Path, name: str, before: str, after: str) -> Path:
    folder = root / "patches"
    folder.mkdir(exist_ok=True)
    changed = root / "changed.py"
    changed.write_text(SOURCE.replace(before, after))
    labels = [f"{side}/src/holdfast/engine/thing.py" for side in "ab"]
    command = ["diff", "-u", "--label", labels[0], "--label", labels[1], str(source_of(root)), str(changed)]
    difference = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert difference
    (folder / f"{name}.patch").write_text(difference)
    return folder


def test_a_patch_of_function_bodies_is_planted_in_process(root: Path) -> None:
    folder = write_patch(root, "clause", " and self.size < 10", "")
    module = load(source_of(root))
    [patch] = read_patches(folder, root)
    assert (patch.name, patch.file, patch.is_simple) == ("clause", source_of(root), True)
    assert [key_of(unit, root) for unit, _ in patch.changes] == ["src/holdfast/engine/thing.py:Thing.grow"]
    thing = module.Thing()
    assert thing.grow(6) == 10
    assert thing.grow(1) == 10
    patch.plant()
    assert thing.grow(1) == 11


@pytest.mark.parametrize(
    ("before", "after", "results"),
    [
        ("LIMIT = 3", "LIMIT = 4", (5, 5)),
        ("by: int = 1", "by: int = 2", (6, 4)),
        ("size: int = 4", "size: int = 7", (8, 4)),
    ],
    ids=["constant", "default", "field"],
)
def test_a_patch_of_a_constant_is_planted_in_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, results: tuple[int, int]
) -> None:
    folder = write_patch(root, "constant", before, after)
    module = load(source_of(root))
    monkeypatch.setitem(sys.modules, "thing", module)
    [patch] = read_patches(folder, root)
    assert patch.is_simple
    assert (module.Thing().grow(), module.outer(1)) == (5, 4)
    patch.plant()
    assert (module.Thing().grow(), module.outer(1)) == results


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 3 + 1"),
        ("class Thing", "class Thing(list)"),
        ("def unused() -> None:\n    outer(1)\n", ""),
    ],
    ids=["expression", "class", "function removed"],
)
def test_other_patches_are_planted_on_disk_only(root: Path, before: str, after: str) -> None:
    [patch] = read_patches(write_patch(root, "other", before, after), root)
    assert not patch.is_simple
    assert patch.text == SOURCE.replace(before, after)
    with pytest.raises(CannotPlantError, match="changes more than functions"):
        patch.plant()


def test_patch_that_does_not_apply_is_refused(root: Path) -> None:
    folder = write_patch(root, "late", "self.size += by", "self.size -= by")
    source_of(root).write_text("pass\n")
    with pytest.raises(SystemExit, match=r"late\.patch does not fit"):
        list(read_patches(folder, root))
    with pytest.raises(SystemExit, match="no such directory"):
        list(read_patches(root / "nowhere", root))


TESTS = """
import subprocess, sys
from pathlib import Path

PROGRAM = "import sys; sys.path.insert(0, 'src/holdfast/engine'); import thing; sys.exit(thing.outer(1))"

def test_passes():
    pass

def test_a_program_answers():
    assert subprocess.run([sys.executable, "-c", PROGRAM]).returncode == 4
"""


def test_programs_use_mistakes_planted_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "NAMESPACES", ())
    monkeypatch.setattr(disk, "PLANT", 'cp "$1" "$2"')
    (root / "test_thing.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    def trial(text: str) -> disk.Trial:
        return disk.run_planted(source_of(root), text, ["test_thing.py"], root, 60.0)

    [mutant] = [one for one in mutants_of_file(source_of(root)) if one.text == "LIMIT = 3 -> LIMIT = 4"]
    assert isinstance(mutant, Mutant)
    caught = trial(mutant.source())
    assert (caught.is_caught, caught.test) == (True, "test_thing.py::test_a_program_answers")
    assert trial(SOURCE)[:3] == (False, "", "")


def test_the_directories_nearest_to_a_source_file_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    for package in sorted((root / "src" / "holdfast").iterdir()):
        if package.suffix == ".py" or (package / "__init__.py").exists():
            folders = disk.nearest(package, root)
            assert folders
            assert all((root / folder).is_dir() for folder in folders)
    missing = {name for names in disk.NEAREST.values() for name in names if not (root / "tests" / name).is_dir()}
    assert not missing
    assert sys.executable
