"""The pytest plugin: replaces pytest's loop after the tests have been collected."""

import importlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from planting.live import CannotPlantError
from planting.runner.children import Job, Limits, Outcome, Report, run_jobs
from planting.runner.tracing import Map, Tracer

__all__ = ["Session", "collected", "import_all", "is_caught", "module_name"]

_FILE_SECONDS = 600.0
"""Limit for all tests of one file when they are traced."""


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_all(files: Sequence[Path], root: Path) -> None:
    """Import the modules, so that their functions can be replaced. Programs are left out: importing runs them."""
    for file in files:
        if not file.stem.endswith("main"):
            importlib.import_module(module_name(file, root))


class _Failures:
    """Keeps the first failure of a child."""

    def __init__(self) -> None:
        self.first: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.first is None:
            self.first = f"{report.when}: {report.longreprtext[-1500:]}"


class Session:
    """Tests that have been collected, ready to be run in forked children."""

    def __init__(self, session: pytest.Session, root: Path, tests: Map) -> None:
        self._session = session
        self.root = root
        self.map = tests
        self.items = {item.nodeid: item for item in session.items}

    def _run(self, items: Sequence[pytest.Item], before: Callable[[str], None], after: Callable[[str], None]) -> str:
        """Run the tests until one fails; return the failure or nothing."""
        failures = _Failures()
        self._session.config.pluginmanager.register(failures)
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            before(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures.first is not None:
                return failures.first
            after(item.nodeid)
        return ""

    def _use(self, folder: Path) -> None:
        """Place temporary directories of the tests below the child's own."""
        factory: Any = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._given_basetemp = folder / "t"

    def job(self, plant: Callable[[], object], name: str, tests: Sequence[str], limits: Limits) -> Job:
        """Plant a mistake and run the tests until one fails."""

        def work(report: Report, folder: Path) -> None:
            self._use(folder)
            try:
                plant()
            except (CannotPlantError, SyntaxError, ValueError) as error:
                report({"end": "refused", "text": repr(error)})
                return
            items = [self.items[test] for test in tests]
            failure = self._run(items, lambda test: report({"test": test}), lambda test: None)
            report({"end": "failed" if failure else "passed", "text": failure})

        return Job(name, work, limits)

    def trace(self, files: Sequence[str], tracer: Tracer, workers: int, say: Callable[[str], None]) -> None:
        """Run the tests of each file once, and store which functions each test executes."""
        jobs = iter([self._trace_job(file, tracer) for file in files])
        for number, (job, outcome) in enumerate(run_jobs(lambda: next(jobs, None), workers), 1):
            tests = outcome.data.get("tests", {})
            say(f"{number}/{len(files)} {job.name}: {outcome.word}, {len(tests)} tests, {outcome.seconds:.1f} s")
            for test, text in outcome.data.get("failed", {}).items():
                say(f"    left out, because it fails: {test}: {text.splitlines()[-1] if text else ''}")
            if outcome.word == "passed":
                self.map.store(job.name, tracer.names, tests)
            else:
                say(f"    not traced: {outcome.test} {outcome.text}")

    def _trace_job(self, file: str, tracer: Tracer) -> Job:
        items = [item for test, item in self.items.items() if test.partition("::")[0] == file]
        plugins = self._session.config.pluginmanager

        def work(report: Report, folder: Path) -> None:
            self._use(folder)
            tests: dict[str, tuple[float, list[int]]] = {}
            failed: dict[str, str] = {}
            tracer.start()
            for index, item in enumerate(items):
                report({"test": item.nodeid})
                began = time.monotonic()
                failures = _Failures()
                plugins.register(failures)
                following = items[index + 1] if index + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                plugins.unregister(failures)
                called = tracer.take()
                if failures.first is None:
                    tests[item.nodeid] = (round(time.monotonic() - began, 3), called)
                else:
                    failed[item.nodeid] = failures.first
            report({"end": "passed", "text": "", "data": {"tests": tests, "failed": failed}})

        return Job(file, work, Limits(_FILE_SECONDS, lambda test: 120.0))


class _Driver:
    """Runs a function in place of the tests."""

    def __init__(self, act: Callable[[pytest.Session], None]) -> None:
        self._act = act

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._act(session)
        return True


def collected(root: Path, paths: Sequence[str], act: Callable[[pytest.Session], None]) -> int:
    """Collect the tests and call the function with them."""
    os.chdir(root)
    options = ["-q", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=sys", "--no-header", "--no-summary"]
    return int(pytest.main([*options, *paths], plugins=[_Driver(act)]))


def is_caught(outcome: Outcome) -> bool:
    """Return true if a test detected the mutant: it failed, never ended, or the process crashed."""
    return outcome.word in {"failed", "hung", "died"}
