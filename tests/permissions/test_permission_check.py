"""The rules of a workspace as its settings say now, and what holds while one of them cannot be read."""

from pathlib import Path

import pytest

from config.place import Place
from holdfast.config.problems import Problem
from holdfast.domain.approvals import Verdict
from holdfast.domain.tools import Permit
from holdfast.runtime.permission_check import PermissionCheck, allows, outdated_rules, replaces, unread_rule
from permissions.disk import FewPrograms


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def check_of(place: Place) -> PermissionCheck:
    configuration = place.open()
    saved = str(place.data / "workspaces" / "w1" / "config.json")
    return PermissionCheck(configuration.snapshot, str(place.project), saved, FewPrograms())


def bash(place: Place, line: str) -> Permit:
    return Permit("bash", "execute", str(place.project), "", {}, line)


def write(place: Place, *, is_agreed: bool = False) -> Permit:
    path = str(place.project / "a")
    return Permit("write", "write", path, "", {"file_path": path}, is_agreed=is_agreed)


def short(verdict: Verdict) -> str:
    return f"{verdict.decision}{'!' if verdict.insists else ''}"


BROKEN = "bash(~touch)"
SETTINGS: dict[str, tuple[str, tuple[str, str, str, str]]] = {
    # reading, a command, a write, a write that was agreed to
    "none": ("", ("allow", "ask", "ask", "allow")),
    "allowed": ("allow = ['bash', 'write']", ("allow", "allow", "allow", "allow")),
    "allowed tools": ("allowed_tools = ['bash', 'write']", ("allow", "allow", "allow", "allow")),
    "denied": ("deny = ['write', 'bash(make)']", ("allow", "deny", "deny", "deny")),
    "a deny rule cannot be read": (
        f"deny = ['{BROKEN}']\nallow = ['bash', 'write']\nallowed_tools = ['bash', 'write']",
        ("allow", "ask!", "ask!", "ask!"),
    ),
    "an ask rule cannot be read": (
        f"ask = ['{BROKEN}']\nallow = ['bash', 'write']\nallowed_tools = ['bash', 'write']",
        ("allow", "ask", "ask", "ask"),
    ),
    "an allow rule cannot be read": (f"allow = ['{BROKEN}', 'write']", ("allow", "ask", "allow", "allow")),
    "another deny rule can be read": (f"deny = ['{BROKEN}', 'write']", ("allow", "ask!", "deny", "deny")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_holds(place: Place, name: str) -> None:
    text, expected = SETTINGS[name]
    place.user(f"[permissions]\n{text}\n")
    check = check_of(place)
    calls = (bash(place, "ls"), bash(place, "make"), write(place), write(place, is_agreed=True))
    assert tuple(short(check(call)) for call in calls) == expected
    if "cannot be read" in name and "allow rule" not in name:
        verdict = check(bash(place, "make"))
        assert verdict.why.startswith("A permission rule cannot be read, so everything but reading needs consent")
        assert verdict.saves == (), "what is saved now could be what the rule was to forbid"


def test_a_change_of_settings_counts_at_once(place: Place) -> None:
    check = check_of(place)
    assert short(check(bash(place, "make"))) == "ask"
    for rules, decision in (("deny = ['bash(make)']", "deny"), ("allow = ['bash(make)']", "allow"), ("", "ask")):
        place.user(f"[permissions]\n{rules}\n# {decision}\n")
        assert short(check(bash(place, "make"))) == decision


def test_links_patterns_and_the_home_directory_are_looked_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.home))
    (place.project / "way").symlink_to(place.home)
    place.user("[permissions]\ndeny = ['write(~/kept/**)']\nallow = ['write']\n")
    check = check_of(place)
    for path in (place.home / "kept" / "a", place.project / "way" / "kept" / "a"):
        assert short(check(Permit("write", "write", str(path), "", {"file_path": str(path)}))) == "deny"
    (place.home / "key").write_text("x")
    (place.project / "a.txt").symlink_to(place.home / "key")
    assert short(check(bash(place, "cat a.txt"))) == "ask"
    assert short(check(bash(place, "cat a*"))) == "ask"
    (place.project / "b.txt").write_text("x")
    assert short(check(bash(place, "cat b*"))) == "allow"


def problem(severity: str, key: str, *, hides: bool = False) -> Problem:
    return Problem(severity, "f", 1, key, "text", hides)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problems", "place"),
    [
        ((), None),
        ((problem("error", "options.max_steps"),), None),
        ((problem("warning", "permissions.ask[0]"),), None),
        ((problem("error", "permissions.allow[0]"),), None),
        ((problem("error", "permissions.ask[0]"),), 0),
        ((problem("warning", "", hides=True),), 0),
        ((problem("error", "permissions.ask[0]"), problem("error", "permissions.deny[0]", hides=True)), 1),
        ((problem("error", "permissions.ask[1]"), problem("error", "permissions.ask[0]")), 0),
    ],
)
def test_which_problem_holds_everything(problems: tuple[Problem, ...], place: int | None) -> None:
    assert unread_rule(problems) == (None if place is None else problems[place])


OLD = "bash(./run.sh)"


def test_saved_rules_of_earlier_versions_are_left_out_of_the_file_they_were_saved_in(place: Place) -> None:
    saved = place.data / "workspaces" / "w1" / "config.json"
    place.write(saved, '{"permissions": {"allow": ["bash(make)", "bash(./run.sh)", "bash(touch x)"]}}')
    place.user("[permissions]\nallow = ['bash(./own.sh)']\n")
    (place.project / "own.sh").touch()
    configuration = place.open()
    check = PermissionCheck(configuration.snapshot, str(place.project), str(saved), FewPrograms())
    lines = ("make", "./run.sh", "touch x", "./own.sh")
    assert [short(check(bash(place, line))) for line in lines] == ["allow", "ask", "allow", "allow"]
    (found,) = outdated_rules(configuration.snapshot(), str(saved))
    assert (found.severity, found.file, found.key) == ("warning", str(saved), "permissions.allow[2]")
    assert outdated_rules(configuration.snapshot(), "/another") == ()


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (f"{OLD} in /w using /w/run.sh", OLD, True),
        (OLD, OLD, False),
        (f"{OLD}x in /w", OLD, False),
        ("bash(make) in /w", "bash(make)", False),
        ("bash(./other) in /w", OLD, False),
    ],
)
def test_a_rule_takes_the_place_of_its_old_form(new: str, old: str, expected: bool) -> None:
    assert replaces(new, old) is expected


def test_whether_some_rules_alone_allow_a_call(place: Place) -> None:
    root = str(place.project)
    assert allows(("bash(make)",), bash(place, "make"), root, FewPrograms())
    assert not allows(("bash(make)",), bash(place, "make x"), root, FewPrograms())
    assert not allows((), bash(place, "make"), root, FewPrograms())
    assert allows((), bash(place, "ls"), root, FewPrograms())
