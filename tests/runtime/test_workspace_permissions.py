"""The permission rules of the current settings, and the decision while a rule cannot be read."""

from pathlib import Path

import pytest

from config.settings_files import SettingsFiles
from holdfast.config.problems import FileProblem
from holdfast.domain.approvals import Verdict
from holdfast.domain.tools import Permit
from holdfast.runtime.workspace_permissions import PermissionCheck, allows, outdated_rules, replaces, unread_rule
from permissions.fake_disk import FewPrograms


@pytest.fixture
def files(tmp_path: Path) -> SettingsFiles:
    return SettingsFiles(tmp_path.resolve())


def check_of(files: SettingsFiles) -> PermissionCheck:
    configuration = files.open()
    saved = str(files.data / "workspaces" / "w1" / "config.json")
    return PermissionCheck(configuration.snapshot, str(files.project), saved, FewPrograms())


def bash(files: SettingsFiles, line: str) -> Permit:
    return Permit("bash", "execute", str(files.project), "", {}, line)


def write(files: SettingsFiles, *, is_agreed: bool = False) -> Permit:
    path = str(files.project / "a")
    return Permit("write", "write", path, "", {"file_path": path}, is_agreed=is_agreed)


def short(verdict: Verdict) -> str:
    return f"{verdict.decision}{'!' if verdict.insists else ''}"


BROKEN = "bash(~touch)"
SETTINGS: dict[str, tuple[str, tuple[str, str, str, str]]] = {
    # reading, a command, a write, an agreed write
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
def test_decision_while_a_rule_cannot_be_read(files: SettingsFiles, name: str) -> None:
    text, expected = SETTINGS[name]
    files.write_user(f"[permissions]\n{text}\n")
    check = check_of(files)
    calls = (bash(files, "ls"), bash(files, "make"), write(files), write(files, is_agreed=True))
    assert tuple(short(check(call)) for call in calls) == expected
    if "cannot be read" in name and "allow rule" not in name:
        verdict = check(bash(files, "make"))
        assert verdict.why.startswith("A permission rule is not valid, so everything except reading requires approval")
        assert verdict.saves == (), "a rule saved now could contradict the unreadable one"


def test_changed_settings_apply_at_once(files: SettingsFiles) -> None:
    check = check_of(files)
    assert short(check(bash(files, "make"))) == "ask"
    for rules, decision in (("deny = ['bash(make)']", "deny"), ("allow = ['bash(make)']", "allow"), ("", "ask")):
        files.write_user(f"[permissions]\n{rules}\n# {decision}\n")
        assert short(check(bash(files, "make"))) == decision


def test_links_patterns_and_the_home_directory_are_looked_up(
    files: SettingsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(files.home))
    (files.project / "way").symlink_to(files.home)
    files.write_user("[permissions]\ndeny = ['write(~/kept/**)']\nallow = ['write']\n")
    check = check_of(files)
    for path in (files.home / "kept" / "a", files.project / "way" / "kept" / "a"):
        assert short(check(Permit("write", "write", str(path), "", {"file_path": str(path)}))) == "deny"
    (files.home / "key").write_text("x")
    (files.project / "a.txt").symlink_to(files.home / "key")
    assert short(check(bash(files, "cat a.txt"))) == "ask"
    assert short(check(bash(files, "cat a*"))) == "ask"
    (files.project / "b.txt").write_text("x")
    assert short(check(bash(files, "cat b*"))) == "allow"


def problem(severity: str, key: str, *, hides: bool = False) -> FileProblem:
    return FileProblem(severity, "f", 1, key, "text", hides)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problems", "files"),
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
def test_problems_that_make_every_call_ask(problems: tuple[FileProblem, ...], files: int | None) -> None:
    assert unread_rule(problems) == (None if files is None else problems[files])


OLD = "bash(./run.sh)"


def test_saved_rules_of_earlier_versions_are_ignored(files: SettingsFiles) -> None:
    saved = files.data / "workspaces" / "w1" / "config.json"
    files.write(saved, '{"permissions": {"allow": ["bash(make)", "bash(./run.sh)", "bash(touch x)"]}}')
    files.write_user("[permissions]\nallow = ['bash(./own.sh)']\n")
    (files.project / "own.sh").touch()
    configuration = files.open()
    check = PermissionCheck(configuration.snapshot, str(files.project), str(saved), FewPrograms())
    lines = ("make", "./run.sh", "touch x", "./own.sh")
    assert [short(check(bash(files, line))) for line in lines] == ["allow", "ask", "allow", "allow"]
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
def test_rule_replaces_its_old_form(new: str, old: str, expected: bool) -> None:
    assert replaces(new, old) is expected


def test_rules_that_allow_a_call_by_themselves(files: SettingsFiles) -> None:
    root = str(files.project)
    assert allows(("bash(make)",), bash(files, "make"), root, FewPrograms())
    assert not allows(("bash(make)",), bash(files, "make x"), root, FewPrograms())
    assert not allows((), bash(files, "make"), root, FewPrograms())
    assert allows((), bash(files, "ls"), root, FewPrograms())
