"""Every clause of the path checks: a row that only it refuses, and one that only it admits.

Among them are symlinks that match only as written, or only as resolved.
"""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.errors import ToolError
from holdfast.workspace.files import safe_open
from holdfast.workspace.files.path_strings import as_one_line, display_path, is_within, join_path
from holdfast.workspace.files.safe_open import (
    FileLocation,
    digest_file,
    digest_of,
    locate,
    open_directory,
    open_plain_file,
    read_whole_file,
    read_within,
    require_workspace,
    status_of,
)
from holdfast.workspace.process import program_files
from holdfast.workspace.process.piped_process import find_program
from holdfast.workspace.process.program_files import ProgramFiles, expand_glob, real_path
from planting import assert_every_clause_decides
from scratch import memory_directory

REFUSED = "refused"


def outcome(call: Callable[[], object]) -> object:
    """Return the result of a call, or REFUSED."""
    try:
        return call()
    except (ToolError, OSError):
        return REFUSED


# Names


@pytest.mark.parametrize(
    ("given", "home", "expected"),
    [
        ("a", "", "/w/a"),
        ("./a//b/", "", "/w/a/b"),
        (".", "", "/w"),
        ("/x", "", "/x"),
        ("a/../b", "", "/w/a/../b"),
        ("..", "", "/w/.."),
        ("a..b", "", "/w/a..b"),
        ("~", "/h", "/h"),
        ("~/a", "/h", "/h/a"),
        ("~a", "/h", "/w/~a"),
        ("a/~", "/h", "/w/a/~"),
        ("~", "", "/w/~"),
        ("~/a", "", "/w/~/a"),
        ("", "", REFUSED),
        (" \t\n", "", REFUSED),
        (" a", "", "/w/ a"),
        ("a\0b", "", REFUSED),
        ("x" * 4_096, "", f"/w/{'x' * 4_096}"),
        ("x" * 4_097, "", REFUSED),
    ],
)
def test_name_resolution(given: str, home: str, expected: str) -> None:
    assert outcome(lambda: join_path("/w", given, home)) == expected


@pytest.mark.parametrize(
    ("root", "path", "inside", "shown"),
    [
        ("/w", "/w", True, "."),
        ("/w", "/w/a", True, "a"),
        ("/w", "/w/", True, ""),
        ("/w", "/wa", False, "/wa"),
        ("/w", "/", False, "/"),
        ("/w", "/v/w/a", False, "/v/w/a"),
        ("/w/", "/w/a", True, "a"),
        ("/", "/", True, "."),
        ("/", "/a/b", True, "a/b"),
    ],
)
def test_containment_of_paths(root: str, path: str, inside: bool, shown: str) -> None:
    assert is_within(root, path) is inside
    assert display_path(root, path) == shown


def test_control_characters_do_not_break_a_list() -> None:
    for character in map(chr, range(32)):
        assert as_one_line(f"a{character}b").startswith('"a\\')
    for text in ("a b", "é", "a\x7fb", '"'):
        assert as_one_line(text) == text


# Checked paths


class PathFixture:
    """A workspace with every kind of entry, and a neighbour whose name begins with its name."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "work"
        self.outside = base / "workshop"
        for folder in (self.root / "sub", self.outside / "deep"):
            folder.mkdir(parents=True)
        for path, text in (("work/file", "inside"), ("work/sub/file", "below"), ("workshop/file", "outside")):
            (base / path).write_text(text)
        (base / "workshop/deep/file").write_text("deep")
        for link, target in (
            ("work/to file", "sub/file"),
            ("work/to sub", "sub"),
            ("work/out", "../workshop/file"),
            ("work/out folder", "../workshop"),
            ("work/nothing", "nowhere"),
            ("work/out to nothing", "../workshop/new"),
            ("work/loop", "loop"),
            ("workshop/back", "../work/file"),
            ("way in", "work"),
        ):
            os.symlink(target, base / link)
        os.mkfifo(self.root / "pipe")
        here = os.getcwd()
        os.chdir(self.root)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket")
        os.chdir(here)
        self.root = Path(os.path.realpath(self.root))
        self.outside = Path(os.path.realpath(self.outside))


@pytest.fixture
def ground(tmp_path: Path) -> PathFixture:
    return PathFixture(tmp_path)


def check_places(ground: PathFixture) -> None:
    def place(given: str, root: str = "") -> object:
        def found() -> tuple[str, bool, str]:
            known = locate(root or str(ground.root), given, "/h")
            return os.path.relpath(known.path, ground.base), known.is_inside, known.name

        return outcome(found)

    def name(path: str) -> str:
        return str(ground.base / path)

    assert place("file") == ("work/file", True, "file")
    assert place("./file") == ("work/file", True, "./file")
    assert place(name("work/file")) == ("work/file", True, name("work/file"))
    assert place("to file") == ("work/sub/file", True, "to file (which is sub/file)")
    assert place("to sub/file") == ("work/sub/file", True, "to sub/file (which is sub/file)")
    assert place("to sub/../file") == ("work/file", True, "to sub/../file")
    assert place("out") == ("workshop/file", False, f"out (which is {ground.outside}/file)")
    assert place("out folder/../work/file") == ("work/file", True, "out folder/../work/file (which is file)")
    assert place("../workshop/back") == ("work/file", True, "../workshop/back (which is file)")
    assert place("../workshop/file") == ("workshop/file", False, f"../workshop/file (which is {ground.outside}/file)")
    assert place("nothing") == ("work/nowhere", True, "nothing (which is nowhere)")
    assert place("out to nothing") == ("workshop/new", False, f"out to nothing (which is {ground.outside}/new)")
    # The root itself is a symlink: paths below it are inside.
    assert place("file", name("way in")) == ("work/file", True, "file")
    assert place(name("way in/file"), name("way in")) == ("work/file", True, f"{name('way in/file')} (which is file)")
    assert place("a\udcff") == REFUSED
    assert place("\0") == REFUSED


def check_contents(ground: PathFixture) -> None:
    def place(path: str) -> FileLocation:
        """Treat the path as checked: symlinks in it are not resolved."""
        whole = str(ground.base / path) if not path.startswith("/") else path
        return FileLocation(path, whole, str(ground.root), is_inside=True)

    def kind(path: str) -> object:
        def found() -> object:
            status = status_of(place(path))
            return None if status is None else stat.S_IFMT(status.st_mode)

        return outcome(found)

    def content(path: str) -> object:
        return outcome(lambda: read_whole_file(place(path), 6).data)

    kinds = [("work/file", stat.S_IFREG), ("work/sub", stat.S_IFDIR), ("work/out", stat.S_IFLNK), ("work/x", None)]
    kinds += [("work/file/x", None), ("work/pipe", stat.S_IFIFO), ("/", stat.S_IFDIR)]
    for path, expected in kinds:
        assert kind(path) == expected, path
    assert kind("work/to sub/file") == kind("work/out folder/file") in (REFUSED, None)
    assert (content("work/file"), content("work/sub/file")) == (b"inside", b"below")
    refused = ("sub", "out", "to file", "loop", "pipe", "socket", "x", "file/x", "to sub/file", "out folder/file")
    assert {content(f"work/{path}") for path in refused} == {REFUSED}
    assert content("workshop/file") == REFUSED, "one byte more than is taken"
    seen, (digest, status) = read_whole_file(place("work/file"), 6), digest_file(place("work/file"))
    assert seen.digest == digest.text == digest_of(b"inside")
    assert (digest.size, status.st_size, seen.status.st_ino) == (6, 6, status.st_ino)
    assert {content(path) for path in ("/proc/version", "/sys/kernel/notes", "/dev/null", "/dev")} == {REFUSED}


def check_within(ground: PathFixture) -> None:
    root, outside = str(ground.root), str(ground.outside)

    def within(path: str, *tops: str, most: int = 100) -> object:
        return outcome(lambda: read_within(str(ground.base / path), tops, most)[0])

    assert within("work/file", root) == within("way in/file", root) == within("work/file", str(ground.base / "way in"))
    assert within("work/file", root) == b"inside"
    assert within("work/file", root, most=2) == b"in"
    assert within("work/file", root, most=0) == b""
    assert within("work/file", str(ground.root / "sub"), root) == within("work/file", root, outside) == b"inside"
    assert within("work/to file", root) == b"below"
    assert within("workshop/back", root) == b"inside"
    assert within("work/out", root, outside) == b"outside"
    for path in ("work/out", "work/out folder/file", "workshop/file", "work/x", "work/pipe", "work/socket", "work/sub"):
        assert within(path, root) == REFUSED, path
    assert within("work/file", outside) == within("work/file") == REFUSED


def test_paths_are_resolved(ground: PathFixture) -> None:
    check_places(ground)
    assert_every_clause_decides([locate, FileLocation.name], lambda: check_places(ground))


def test_only_plain_files_are_read(ground: PathFixture) -> None:
    check_contents(ground)
    checked = [status_of, open_plain_file, read_whole_file, digest_file, open_directory]
    assert_every_clause_decides(checked, lambda: check_contents(ground))


def test_project_files_that_may_be_read(ground: PathFixture) -> None:
    check_within(ground)
    assert_every_clause_decides([read_within], lambda: check_within(ground))


def test_shared_memory_is_not_a_system_directory() -> None:
    with memory_directory() as folder:
        path = folder / "file"
        path.write_text("x")
        place = FileLocation(str(path), str(path), "/", is_inside=True)
        assert read_whole_file(place, 10).data == b"x"
        assert {outcome(lambda: read_whole_file(FileLocation("", "/dev/shm", "/", is_inside=True), 10))} == {REFUSED}


def test_a_file_that_grows_while_it_is_read_is_bounded(ground: PathFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size was small when it was opened."""
    real = os.read
    path = ground.root / "file"

    def growing(handle: int, count: int) -> bytes:
        piece = real(handle, 3)
        with path.open("ab") as file:
            file.write(b"more")
        return piece

    monkeypatch.setattr(safe_open.os, "read", growing)  # type: ignore[attr-defined]
    with pytest.raises(ToolError, match="the limit is 6"):
        read_whole_file(FileLocation("file", str(path), str(ground.root), is_inside=True), 6)


def test_missing_directory_is_named(ground: PathFixture) -> None:
    require_workspace(str(ground.root))
    for path in (ground.root / "file", ground.root / "x"):
        with pytest.raises(ToolError, match="is gone"):
            require_workspace(str(path))


def test_suggested_names_are_siblings(ground: PathFixture) -> None:
    with pytest.raises(ToolError, match=r"Did you mean sub/file\?"):
        read_whole_file(FileLocation("sub/fil", str(ground.root / "sub/fil"), str(ground.root), is_inside=True), 10)
    with pytest.raises(ToolError, match=r"There is no file sub/zzzz\.$"):
        read_whole_file(FileLocation("sub/zzzz", str(ground.root / "sub/zzzz"), str(ground.root), is_inside=True), 10)


@pytest.mark.parametrize("way", ["openat2", "step by step"])
def test_open_below_directory(ground: PathFixture, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    def unknown(*_: object) -> int:
        raise NotImplementedError

    if way != "openat2":
        monkeypatch.setattr(safe_open, "_openat2", unknown)
    handle = os.open(ground.root, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))

    def tried(path: str) -> object:
        open_plain_file = outcome(lambda: safe_open.open_beneath(handle, path, os.O_RDONLY | os.O_NONBLOCK))
        if isinstance(open_plain_file, int):
            status = os.fstat(open_plain_file)
            assert not os.get_inheritable(open_plain_file)
            os.close(open_plain_file)
            return status.st_ino
        return open_plain_file

    def number(path: str) -> int:
        return (ground.root / path).stat().st_ino

    rows = {"file": number("file"), "sub/file": number("sub/file"), "./sub/./file": number("sub/file")}
    rows |= {"": number("."), ".": number("."), "sub": number("sub"), "pipe": number("pipe")}
    for path, expected in rows.items():
        assert tried(path) == expected, path
    for path in ("..", "sub/..", "sub/../file", "to sub/file", "to file", "out", "x", "file/x", "/..", "a..b"):
        assert tried(path) == REFUSED, path
    assert tried("/sub/file") == number("sub/file"), "leading slashes do not lead to the top"
    for path, is_there in (("file", True), ("to file", True), ("to sub/file", False), ("x", False), ("../x", False)):
        assert (safe_open.status_beneath(handle, path) is not None) is is_there, path
    assert safe_open.status_beneath(handle, "a\0b") is None
    entries = {name: rest for name, *rest in safe_open.entries_of(handle, ".")}
    assert entries["sub"] == [True, False, ""]
    assert entries["file"] == [False, True, ""]
    assert entries["to sub"] == [False, False, "sub"]
    assert entries["pipe"] == [False, False, ""]
    assert list(entries) == sorted(entries)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(handle)


@pytest.mark.parametrize("number", [1, 7, 22, 38])
def test_fallback_without_openat2(ground: PathFixture, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """EPERM, E2BIG, EINVAL and ENOSYS: the path is opened component by component."""

    class Old:
        def syscall(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(safe_open, "_libc", Old())
    monkeypatch.setattr(safe_open.ctypes, "get_errno", lambda: number)  # type: ignore[attr-defined]
    handle = os.open(ground.root, os.O_RDONLY)
    os.close(safe_open.open_beneath(handle, "sub/file", os.O_RDONLY))
    os.close(handle)


def test_interrupted_call_is_repeated(ground: PathFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    real, numbers = safe_open._libc, [4, 11, 0]

    class Interrupted:
        def syscall(self, *arguments: object) -> int:
            return -1 if numbers[0] else int(real.syscall(*arguments))

    monkeypatch.setattr(safe_open, "_libc", Interrupted())
    monkeypatch.setattr(safe_open.ctypes, "get_errno", lambda: numbers.pop(0))  # type: ignore[attr-defined]
    handle = os.open(ground.root, os.O_RDONLY)
    os.close(safe_open.open_beneath(handle, "sub/file", os.O_RDONLY))
    assert numbers == [0]
    os.close(handle)


# Programs


class Tools:
    """Programs in several directories, some of them in a workspace."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.realpath(base))
        for path in ("bin/tool", "bin/other", "work/bin/tool", "work/real", "copies/copy", "shims/one", "shims/two"):
            self.put(path, "#!/bin/sh\n# the tool\n" if path != "bin/other" else "#!/bin/sh\n# another\n")
        self.put("bin/plain", "text").chmod(0o644)
        self.put("bin/busybox", "#!/bin/sh\n# many\n")
        self.put("copies/long", "#!/bin/sh\n# the tool\n# and more\n")
        self.put("copies/same size", "#!/bin/sh\n# the fool\n")
        self.put("copies/nil", "")
        self.put("bin/empty", "")
        self.put("bin/two blocks", "x" * (1 << 20) + "y")
        self.put("copies/block", "x" * (1 << 20))
        os.link(self.base / "bin/tool", self.base / "shims/hard")
        (self.base / "bin/folder").mkdir()
        for link, target in (
            ("bin/into work", "../work/real"),
            ("bin/link", "tool"),
            ("work/link out", "../bin/tool"),
            ("copies/link", "../bin/link"),
            ("copies/named/tool", "../../bin/other"),
            ("bin/many", "busybox"),
            ("copies/many too", "../bin/busybox"),
        ):
            (self.base / link).parent.mkdir(exist_ok=True)
            os.symlink(target, self.base / link)

    def put(self, name: str, text: str) -> Path:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def path(self, *names: str) -> str:
        return ":".join(str(self.base / name) for name in names)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)


def test_search_program_is_never_taken_from_workspace(tools: Tools) -> None:
    root = tools.path("work")

    def found(name: str, path: str) -> str | None:
        place = find_program(name, {"PATH": path}, root)
        return None if place is None else os.path.relpath(place, tools.base)

    assert found("tool", tools.path("bin")) == "bin/tool"
    assert found("tool", tools.path("work/bin")) is None
    assert found("into work", tools.path("bin")) is None
    assert found("link out", root) == "work/link out", "only what it leads to counts"
    assert found("plain", tools.path("bin")) is None
    assert found("nothing", tools.path("bin")) is None
    here = os.getcwd()
    os.chdir(tools.base)
    try:
        assert found("tool", "bin") is None
    finally:
        os.chdir(here)
    assert find_program("sh", {"PATH": ""}, root) == find_program("sh", {}, root) is not None


def check_programs(tools: Tools) -> None:
    programs = ProgramFiles(lambda: f"relative::{tools.path('nothing', 'bin', 'shims')}")
    base = str(tools.base)

    def found(name: str, directory: str = base) -> str | None:
        place = programs.find(name, directory)
        return None if place is None else os.path.relpath(place, base)

    assert found("tool") == "bin/tool"
    assert found("plain") is found("folder") is found("nothing") is None
    assert found("work/bin/tool") == "work/bin/tool"
    assert found("./bin/plain") == "bin/plain", "bash says itself that it cannot be run"
    assert found("bin/folder") is found("bin/nothing") is None
    assert found(f"{base}/bin/tool", "/") == "bin/tool"
    assert found("/proc/self/exe") is found("/dev/fd/0") is None

    def same(path: str, name: str) -> bool:
        return programs.is_same(os.path.join(base, path), name)

    assert same("bin/tool", "tool")
    assert same("copies/copy", "tool"), "a copy"
    assert same("bin/link", "tool"), "a link"
    assert same("copies/link", "tool"), "a link to a link"
    assert same("copies/named/tool", "tool"), "a link of that name"
    assert same("work/bin/tool", "/anywhere/tool")
    assert not same("bin/other", "tool")
    assert not same("shims/one", "two"), "installed, and equal on purpose"
    assert not same("copies/long", "tool")
    assert not same("copies/same size", "tool")
    assert not same("copies/nil", "empty")
    assert not same("copies/block", "two blocks")
    assert same("shims/hard", "tool"), "another name of the same file"
    assert not same("copies/copy", "other")
    assert not same("copies/copy", "nothing")
    assert not same("copies/nothing", "tool")
    assert not same("copies/many too", "many"), "one file that is many programs"
    assert same("copies/many too", "busybox")


def test_program_lookup(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    # A relative entry of PATH is ignored, though bash would find a program there.
    tools.put("relative/tool", "")
    monkeypatch.chdir(tools.base)
    check_programs(tools)
    assert_every_clause_decides([ProgramFiles, program_files._is_copy], lambda: check_programs(tools))
    # A file above the limit is not compared.
    monkeypatch.setattr(program_files, "_MAX_COMPARED_SIZE", len("#!/bin/sh\n# the tool\n"))
    check_programs(tools)
    monkeypatch.setattr(program_files, "_MAX_COMPARED_SIZE", len("#!/bin/sh\n# the tool\n") - 1)
    assert not ProgramFiles(lambda: tools.path("bin")).is_same(tools.path("copies/copy"), "tool")


def test_real_path_stops_at_kernel_links(ground: PathFixture) -> None:
    base = os.path.realpath(ground.base)
    os.symlink("/proc/self/cwd", ground.base / "cwd")
    os.symlink(f"{base}/work/sub", ground.base / "absolute")
    rows = {
        f"{base}/work/to sub/file": f"{base}/work/sub/file",
        f"{base}/absolute/../file": f"{base}/work/file",
        f"{base}/way in/./x": f"{base}/work/x",
        f"{base}/work/nothing/x": f"{base}/work/nowhere/x",
        f"{base}/cwd/x": "/proc/self/cwd/x",
        "/proc/self/../x": "/proc/self/../x",
        "/procx/a": "/procx/a",
        "/..": "/",
        "/a/../..": "/",
        "/": "/",
        "//x//y/": "/x/y",
        "/a\0b": "/a\0b",
    }
    for path, expected in rows.items():
        assert real_path(path) == expected, path
    assert real_path(f"{base}/work/loop") == os.path.realpath(f"{base}/work/loop")


# Patterns


def check_expansions(ground: PathFixture) -> None:
    root = str(ground.root)

    def leads(pattern: str) -> list[str]:
        found = expand_glob(f"{root}/{pattern}")
        assert found is not None
        return sorted(os.path.relpath(path, root) for path in found)

    assert leads("file") == ["file"]
    assert leads("fi*") == ["fi*"], "plain files are where their directory is"
    assert leads("t*") == ["t*", "to file", "to sub"]
    assert leads("to?f*") == ["to file", "to sub", "to?f*"], "only what stands before the first special character"
    assert leads("[n]*") == sorted(["[n]*", *leads_all])
    assert leads("s*") == ["s*"], "a directory is a way, not a place"
    assert leads("s*/file") == ["s*/file", "sub/file"]
    assert leads("s*/fi*") == ["s*/fi*", "sub/fi*"]
    assert leads("-*") == ["-*", "-option"]
    assert "-option" in leads("*")
    assert ".hidden" not in leads("*")
    assert leads(".h*") == [".h*", ".hidden"]
    assert leads("x*/y") == ["x*/y"]
    assert expand_glob(f"{root}/sub/") == [f"{root}/sub/"]
    assert [os.path.normpath(path)[-10:] for path in expand_glob("/pro*/self") or ()] == ["/pro*/self", "/proc/self"]


leads_all = ["-option", "loop", "nothing", "out", "out folder", "out to nothing", "to file", "to sub"]


def test_expansions_of_a_pattern(ground: PathFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (ground.root / "-option").write_text("")
    os.symlink("file", ground.root / ".hidden")
    check_expansions(ground)
    assert_every_clause_decides(program_files._GlobWalk, lambda: check_expansions(ground))
    count = len(leads_all) + 1
    for name, most, is_known in (
        ("_MAX_EXPANSIONS", count, True),
        ("_MAX_EXPANSIONS", count - 1, False),
        ("_MAX_ENTRIES", len(os.listdir(ground.root)), True),
        ("_MAX_ENTRIES", len(os.listdir(ground.root)) - 1, False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(program_files, name, most)
            assert (expand_glob(f"{ground.root}/*") is not None) is is_known, (name, most)
