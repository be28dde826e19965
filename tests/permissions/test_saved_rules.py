"""Rules saved by "always allow" apply in the directory they were saved for and nowhere else. On a real disk."""

import os
from pathlib import Path

import pytest

from holdfast.domain.approvals import Decision
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.always_allow_rules import is_outdated
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.process.program_files import expand_glob

SAVED = (
    "./run.sh",
    "sub/../run.sh",
    "./run.sh a 'b c' ; make",
    "make",
    "npm test",
    "python run.py",
    "bash run.sh",
    "sh -c ./run.sh",
    "timeout 5 ./run.sh",
    "nice ./run.sh",
    "X=1 ./run.sh",
    "LC_ALL=C ./run.sh",
    "./run.sh *.py",
    "./run.sh > out",
    "./run.sh >> out 2>&1",
    "make > out",
    "./run.sh | tee log",
    "cat a | ./run.sh",
    "for f in a b; do ./run.sh $f; done",
    "if make; then ./run.sh; fi",
    "./run.sh <<'E'\nx\nE",
    "source ./run.sh",
    ". ./run.sh",
    "echo $(./run.sh)",
    "find . -name a -exec ./run.sh {} ;",
    "ls | xargs ./run.sh",
    "env A=1 ./run.sh",
    "git push",
    "git -C sub push",
    "rm a",
)
ELSEWHERE = (
    "cd sub && {}",
    "cd sub; {}",
    "cd sub\n{}",
    "cd sub || {}",
    "cd sub & {}",
    "! cd nothing && {}",
    "(cd sub && {})",
    "{{ cd sub; {}; }}",
    "cd .. && {}",
    "cd {away} && {}",
    "cd link && {}",
    "cd sub/.. && cd sub && {}",
    "pushd sub && {}",
    "command cd sub && {}",
    "builtin cd sub && {}",
    "cd ~ && {}",
    "cd - && {}",
    "cd '' && cd sub && {}",
    "cd su* && {}",
    "cd $D && {}",
    "CDPATH={away} cd sub && {}",
    "cd sub | {}",
    "cd sub && ls && {}",
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for place in ("w", "w/sub", "w/sub/sub", "away", "away/sub"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "run.sh").write_text("#!/bin/sh\n")
        (tmp_path / place / "a").write_text("a\n")
    (tmp_path / "w" / "link").symlink_to(tmp_path / "away")
    (tmp_path / "w" / "inner").symlink_to("sub")
    return tmp_path.resolve()


def rules(top: Path, *allow: str, root: str = "w") -> RuleSet:
    settings = PermissionSettings(allow=allow)
    return RuleSet(settings, str(top / root), real=os.path.realpath, expansions=expand_glob)


def bash(line: str, directory: Path) -> Permit:
    return Permit("bash", "execute", str(directory), "", {"command": line}, line)


def saved_by_always(top: Path, line: str, directory: str = "w") -> tuple[str, ...]:
    return rules(top).judge(bash(line, top / directory)).saves


def judge(top: Path, line: str, directory: str, *allow: str, root: str = "w") -> Decision:
    return rules(top, *allow, root=root).judge(bash(line, top / directory)).decision


@pytest.mark.parametrize("line", SAVED)
def test_saved_rule_applies_only_in_its_directory(top: Path, line: str) -> None:
    allow = saved_by_always(top, line)
    assert allow, line
    assert all(f" in {top}/w" in rule for rule in allow)
    assert judge(top, line, "w", *allow) == "allow"
    for directory in ("w/sub", "w/sub/sub", "away", "away/sub"):
        assert judge(top, line, directory, *allow) == "ask", directory
    for form in ELSEWHERE:
        moved = form.replace("{away}", str(top / "away")).replace("{}", line).replace("{{", "{").replace("}}", "}")
        assert judge(top, moved, "w", *allow) == "ask", moved
    # Another workspace, even with the same rules.
    assert judge(top, line, "away", *allow, root="away") == "ask"


def test_saved_rule_after_a_cd_applies_in_the_target_directory(top: Path) -> None:
    allow = saved_by_always(top, "cd sub && ./run.sh")
    assert allow == (f"bash(./run.sh) in {top}/w/sub using {top}/w/sub/run.sh",)
    assert judge(top, "cd sub && ./run.sh", "w", *allow) == "allow"
    assert judge(top, "./run.sh", "w/sub", *allow) == "allow"
    assert judge(top, "cd inner && ./run.sh", "w", *allow) == "allow"
    for line, directory in (("./run.sh", "w"), ("cd sub && ./run.sh", "w/sub"), ("cd sub; ./run.sh", "w")):
        assert judge(top, line, directory, *allow) == "ask", line
    for line in (
        "cd sub && ls; ./run.sh",
        "cd sub && ls || ./run.sh",
        "cd sub && ls & ./run.sh",
        "cd sub && ls\n./run.sh",
    ):
        # If the directory does not exist, the last command runs here.
        assert judge(top, line, "w", *allow) == "ask", line
    assert saved_by_always(top, "cd sub; ./run.sh") == ()
    assert saved_by_always(top, "(cd sub && ./run.sh)") == ()


def test_changed_link_needs_a_new_approval(top: Path) -> None:
    """Program, directory and redirected file are the ones that were shown."""
    project = top / "w"
    (project / "tool").symlink_to("run.sh")
    (project / "log").symlink_to("a")
    lines = ("./tool", "./tool *.py", "make > log", "cd inner && make", "cd inner && make > out")
    allow = {line: saved_by_always(top, line) for line in lines}
    for line in lines:
        assert allow[line]
        assert judge(top, line, "w", *allow[line]) == "allow", line
    for name, target in (("tool", "sub/run.sh"), ("log", "../away/a"), ("inner", "sub/sub")):
        (project / name).unlink()
        (project / name).symlink_to(target)
    for line in lines:
        assert judge(top, line, "w", *allow[line]) == "ask", line


@pytest.mark.parametrize("name", ["a (b)", "a) in /tmp", 'a"b', "a b", "a'b", "ä", "a\tb", "a) using /bin/sh"])
def test_saved_rules_in_directories_with_unusual_names(top: Path, name: str) -> None:
    place = top / "w" / name
    place.mkdir(parents=True)
    (place / "run.sh").write_text("")
    allow = saved_by_always(top, "./run.sh x", f"w/{name}")
    assert judge(top, "./run.sh x", f"w/{name}", *allow) == "allow"
    assert judge(top, "./run.sh x", "w", *allow) == "ask"
    assert judge(top, "./run.sh x", "w/sub", *allow) == "ask"


def test_saved_rules_for_files_addresses_and_other_tools(top: Path) -> None:
    def decision(permit: Permit, *allow: str) -> Decision:
        return rules(top, *allow).judge(permit).decision

    def download(url: str, path: str) -> Permit:
        return Permit("download", "download", path, "", {"url": url, "file_path": path})

    def resource(server: str, uri: str) -> Permit:
        return Permit("read_mcp_resource", "read", str(top / "w"), "", {"mcp_name": server, "uri": uri})

    def write(tool: str, path: Path) -> Permit:
        return Permit(tool, "write", str(path), "", {"file_path": str(path)})

    calls: list[tuple[Permit, list[Permit]]] = [
        (
            download("https://a/x", str(top / "w/x")),
            [download("https://a/x", str(top / "w/.bashrc")), download("https://a/y", str(top / "w/x"))],
        ),
        (resource("docs", "x://1"), [resource("docs", "x://2"), resource("other", "x://1")]),
        (
            write("write", top / "w/a"),
            [write("write", top / "w/sub/a"), write("edit", top / "w/a"), write("write", top / "w/link/a")],
        ),
    ]
    for permit, others in calls:
        allow = rules(top).judge(permit).saves
        assert decision(permit, *allow) == "allow"
        for other in others:
            assert decision(other, *allow) == "ask", other
    allow = rules(top).judge(write("write", top / "w/a")).saves
    (top / "w/a").unlink()
    (top / "w/a").symlink_to(top / "away" / "a")
    assert decision(write("write", top / "w/a"), *allow) == "ask"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("bash(./run.sh)", True),
        ("bash(sub/run.sh *)", True),
        ("bash(../run.sh)", True),
        ("bash(= ./run.sh > out)", True),
        ("bash(= cd sub && ./run.sh)", True),
        ("bash(= for f in *; do $f; done)", True),
        ("bash(make)", False),
        ("bash(/usr/bin/make)", False),
        ("bash(= make > out)", False),
        ("bash", False),
        ("write(a)", False),
        ("bash(./run.sh) in /w using /w/run.sh", False),
    ],
)
def test_saved_rules_of_earlier_versions_are_upgraded(rule: str, expected: bool) -> None:
    assert is_outdated(rule) is expected


def test_hand_written_rules_are_not_restricted_to_a_directory(top: Path) -> None:
    for directory in ("w", "w/sub", "away"):
        assert judge(top, "./run.sh", directory, "bash(./run.sh)") == "allow"
    assert judge(top, "cd sub && ./run.sh", "w", "bash(./run.sh)") == "allow"


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("echo 1 | python3", ("echo 2 | python3", "python3 < a", "python3 <<< 2", "python3", "ls | (python3)")),
        ("python3 <<< 1", ("python3 <<< 2", "cat a |& timeout 5 python3", "{ python3; } < a")),
        ("python3 - < a", ("python3 - < run.sh", "cat a | bash -c 'python3 -'")),
        ("python3 -", ("cat a | python3 -", "python3 - < a")),
        ("source run.sh && make", ("source run.sh && ls", "source run.sh; cat a", "source run.sh", "make")),
        ("export PATH=/x && make", ("export PATH=/x && ls", "export PATH=/x; make", "make")),
        ("hash -p /x ls; make", ("hash -p /x ls; ls",)),
        ("rm '*'", ("rm *", "rm a")),
        ("rm '[a]'", ("rm [a]", "rm a")),
    ],
)
def test_saved_rule_requires_the_same_input_assignments_and_quoting(
    top: Path, line: str, others: tuple[str, ...]
) -> None:
    """A script read from a pipe, a changed search path and a pattern are not part of a command's words."""
    allow = saved_by_always(top, line)
    assert judge(top, line, "w", *allow) == "allow"
    for other in others:
        assert judge(top, other, "w", *allow) == "ask", other


def test_saved_rule_applies_when_the_output_is_piped(top: Path) -> None:
    allow = saved_by_always(top, "make test")
    for line in ("make test | tail -5", "make test 2>&1 | head", "ls && make test", "LC_ALL=C make test || echo no"):
        assert judge(top, line, "w", *allow) == "allow", line


def test_saved_rules_do_not_combine_into_another_command(top: Path) -> None:
    allow = (f"bash(export PATH=/x) in {top}/w", f"bash(source a) in {top}/w", *saved_by_always(top, "make"))
    for line in ("export PATH=/x && ls", "export PATH=/x && make", "source a && make", "source a; ls"):
        assert judge(top, line, "w", *allow) == "ask", line
