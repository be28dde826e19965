"""Complete results of the file and search functions: texts, paths, ignore rules, kinds of files, undo, searches."""

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import HoldfastError, ToolError
from holdfast.domain.files import FileVersion, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.store_operations import Operation
from holdfast.workspace.files import safe_open
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.path_strings import as_one_line, display_path, glob_regex, join_path, similar_names
from holdfast.workspace.files.text_edit import replace_text
from holdfast.workspace.files.text_encoding import decode, line_ending, placeholder, with_line_ending
from holdfast.workspace.files.undo import last_change, last_run, plan, undo
from holdfast.workspace.search import fallback_scan, search
from holdfast.workspace.search.search import GrepRequest, Match, Searcher, SearchScope
from recorded_values import assert_recorded, plain

RECORDED = Path(__file__).with_name("recorded")


def result_of(call: Callable[[], object]) -> Any:  # noqa: ANN401 - JSON
    """Return the result of a call, or its error."""
    try:
        return plain(call())
    except HoldfastError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except OSError as error:
        # Its text may contain the number of a descriptor.
        return {"error": f"{type(error).__name__}: {error.strerror}"}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    yield root
    os.umask(before)


TEXTS = (
    "a\nb\nc\n",
    "  a\n    b\n  c\n",
    "\ta\n\t\tb\n\tc\n",
    "a\r\nb\r\nc\r\n",
    "a\r\nb\nc\r\n",
    "a\nb\na\nb\na\nb\na\nb\na\nb\na\nb\na\nb",
    "",
    "\n\n",
    " a\n a\n a\n a\n a\n",
    "def one():\n    return 1\n\n\ndef two():\n    return 2\n",
)
OLDS = (
    "a",
    "b\n",
    "a\nb",
    "a\na",
    "a\r\nb",
    "  a\n  b",
    "a\n  b",
    "    b\n",
    "     1|a\n     2|b",
    " ",
    "a\nx\nc",
    "b\nc\nd",
    "a\\nb",
    "def on():",
    "return 1",
    "    return 1\n\n\ndef two():\n  return 2",
)
NEWS = ("", "x", "x\n  y\n", "a\n\tz", "     1|x\n     2|y")


def test_replacements() -> None:
    """Every text with every old and every new string, once and everywhere."""
    records = []
    for text, old in itertools.product(TEXTS, OLDS):
        results: dict[str, Any] = {}
        for new, every in itertools.product(NEWS, (False, True)):
            found = json.dumps(result_of(lambda: replace_text(text, old, new, replace_all=every)))  # noqa: B023
            results.setdefault(found, []).append([new, every])
        records.append({"text": text, "old": old, **{found: new for found, new in results.items()}})
    assert_recorded(RECORDED / "replacements.json", records, {})


def test_texts() -> None:
    records: list[dict[str, Any]] = []
    for text in (*TEXTS, "\r\n", "a\r", "a\r\r\nb\n"):
        ends = {repr(end): with_line_ending(text, end) for end in ("\n", "\r\n")}
        records.append({"text": text, "ending": line_ending(text), "converted": ends})
    for data in ("", "é", "\ufeffé", "a\0"):
        for encoding in ("utf-8", "utf-16-le", "utf-16-be", "latin-1"):
            raw = data.encode(encoding, "replace")
            found = result_of(lambda: decode(raw, "the file"))  # noqa: B023
            records.append({"data": repr(raw), "decoded": found})
    far = b"a" * 8192 + b"\xff"
    for raw in (far, far + b"\0", b"a" * 8191 + b"\0", b"a" * 8192 + b"\0"):
        found = result_of(lambda: decode(raw, "the file"))  # noqa: B023
        records.append({"size": len(raw), "decoded": found})
    records.append({"placeholder": placeholder(12_345, "d1")})
    assert_recorded(RECORDED / "texts.json", records, {})


PATTERNS = (
    "*", "*.py", "./*.py", "/src/*.py", "src/*.py", "**/*.py", "src/**", "src/**/b.py", "**", "a?.py", "[ab].py",
    "[!a].py", "[^a].py", "[]a].py", "[a", "{a,b}.py", "{a,{b,c}}.p{y,}", "{a", "a**b", "*a*b*", "\\*.py",
    "src/**/x/**/*.py", "{" + ",".join("x" * 201) + "}",
    "", "a.py/", "src", "{src,lib}/*.py", "[a-c].py", "[z-a].py", "a.p[!/]",
)  # fmt: skip
NAMES = (
    "a.py", "b.py", "c.py", "ab", "aXbYb", "*.py", "].py", "a1.py", "src/a.py", "src/b.py", "src/x/b.py",
    "src/x/y/b.py", "lib/a.py", "src", "x/src/a.py", ".py", "a.pyc", "a\n.py", "src/x/", "a.p",
)  # fmt: skip


def test_paths() -> None:
    records: list[dict[str, Any]] = []
    for pattern in PATTERNS:

        def matching(pattern: str = pattern) -> list[str]:
            regex = glob_regex(pattern)
            return [name for name in NAMES if regex.match(name)]

        shown = pattern if len(pattern) < 100 else "many"
        records.append({"pattern": shown, "matching": result_of(matching)})
    given = ("a", "./a", "a/", "a//b", "a/../b", "../a", "~", "~/a", "~a", "/x/y", " ", "a\0", "x" * 4_096, "x" * 4_097)
    for name in given:
        found = [result_of(lambda: join_path("/top", name, home)) for home in ("", "/home/me")]  # noqa: B023
        records.append({"given": name[:20], "joined": [item if len(str(item)) < 100 else "long" for item in found]})
    for top, path in itertools.product(("/", "/top"), ("/", "/top", "/top/a", "/topping", "/a/top")):
        shown_path = display_path(top, path)
        records.append({"top": top, "path": path, "shown": shown_path, "line": as_one_line(path + "\x1f é")})
    names = ("alpha.py", "Alpha.txt", "beta.py", "alphabet", "lpha.py", "test_alpha.py", "x", "ALPHA")
    for wanted in ("alpha", "alpha.py", "ALPHA.PY", "zeta", "x", "bata.py", ""):
        similar = [similar_names(wanted, names), similar_names(wanted, names, 1)]
        records.append({"wanted": wanted, "similar": similar})
    assert_recorded(RECORDED / "paths.json", records, {})


def test_ignore_rules(root: Path) -> None:
    """A repository with ignore files at several levels, below several roots and with several sets of files."""
    files = {
        ".gitignore": "*.log\n/build\n!keep.log\ndocs/*.tmp\nlib/\n",
        ".crushignore": "secret*\n",
        ".holdfastignore": "!secret.txt\n",
        "sub/.gitignore": "!x.log\n*.md\n",
        "sub/deep/.ignore": "!z.md\n# a comment\n\n",
        "build/.gitignore": "!*\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".git").mkdir()
    (root / "sub/inner/.git").mkdir(parents=True)
    paths = (
        "a.log", "keep.log", "build", "sub/build", "sub/x.log", "sub/y.log", "sub/a.md", "sub/deep/z.md", "docs/a.tmp",
        "docs/sub/a.tmp", "lib", "sub/lib", "secret.txt", "secret", "sub/secret.md", "node_modules", "sub/.git",
        "build/out.log", "sub/inner/a.log", "a.py",
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    tops = ("", "sub", "sub/deep", "build", "sub/inner", "..")
    options: tuple[dict[str, Any], ...] = ({}, {"names": (".ignore",)}, {"extra": ("*.py", "!sub/")})
    for top, option in itertools.product(tops, options):
        rules = IgnoreRules(os.path.normpath(root / top), **option)
        ignored = {
            kind: [path for path in paths if rules.is_ignored(str(root / path), is_folder=kind == "folder")]
            for kind in ("file", "folder")
        }
        covered = [path for path in paths if rules.covers(str(root / path))]
        covered += [f"{path}/below" for path in paths if rules.covers(str(root / path / "below"))]
        about = {"root": top, "options": option, "root is ignored": rules.is_root_ignored}
        records.append({**about, **ignored, "covered": covered})
    assert_recorded(RECORDED / "ignore_rules.json", records, {})


def test_kinds_of_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of file with each function that opens one, at the bounds of its size."""
    (root / "file").write_bytes(b"12345")
    (root / "empty").touch()
    (root / "folder/below").mkdir(parents=True)
    (root / "link").symlink_to("file")
    (root / "outer").symlink_to("../outside")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("nothing")
    (root.parent / "outside").write_bytes(b"out")
    os.mkfifo(root / "pipe")
    end = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(root)
    end.bind("socket")
    end.close()
    records: list[dict[str, Any]] = []
    names = (
        "file",
        "empty",
        "folder",
        "link",
        "outer",
        "loop",
        "dangling",
        "pipe",
        "socket",
        "fil",
        "file/x",
        ".",
        "..",
    )
    handle = os.open(root, os.O_RDONLY)
    for name in (*names, "../outside", "/proc/version", "/dev/null", "/dev/shm/nothing"):
        path = str(root / name)

        def read(limit: int, name: str = name) -> object:
            seen = safe_open.read_whole_file(safe_open.locate(str(root), name), limit)
            return [seen.data.decode(), seen.digest[:8], seen.status.st_size]

        def within(limit: int, tops: Sequence[str], path: str = path) -> object:
            data, status = safe_open.read_within(path, tops, limit)
            return [data.decode(), status.st_size]

        def status(name: str = name) -> object:
            found = safe_open.status_of(safe_open.locate(str(root), name))
            return None if found is None else oct(found.st_mode)

        def beneath(name: str = name) -> object:
            found = safe_open.status_beneath(handle, name)
            return None if found is None else oct(found.st_mode)

        digest = result_of(lambda: safe_open.digest_file(safe_open.locate(str(root), name))[0].text)  # noqa: B023
        here, is_own = safe_open.locate(str(root), name), name[0] != "/"
        records.append(
            {
                "file": name,
                "location": [here, here.name],
                "read": [result_of(lambda: read(limit)) for limit in (0, 4, 5, 6)]  # noqa: B023
                if is_own
                else result_of(lambda: read(0)),
                "within": [result_of(lambda: within(4, tops)) for tops in ((), (str(root),), (str(root.parent),))],  # noqa: B023
                "status": result_of(status) if is_own else None,
                "beneath": result_of(beneath),
                "digest": digest,
                "entries": result_of(lambda: safe_open.entries_of(handle, name)) if name[0] not in "/." else None,  # noqa: B023
            }
        )
    os.close(handle)
    assert_recorded(RECORDED / "kinds_of_files.json", records, {str(root.parent): "TOP"})


class Disk:
    """A directory whose files are compared as a whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[list[Operation]] = []
        self.refused = 0
        """The record with this number, from 1, is refused."""

    def files(self) -> dict[str, str]:
        found = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                found[os.path.relpath(path, self.root)] = (
                    f"{path.stat().st_mode:o} {path.read_bytes().decode('latin-1')}"
                )
        return found

    async def record(self, operations: tuple[Operation, ...]) -> None:
        self.operations.append(list(operations))
        if len(self.operations) == self.refused:
            raise ToolError("refused")


def versions_of(root: Path) -> list[FileVersion]:
    """Return the history of two runs that changed three files."""
    rows = (
        ("a", "r1", "outside", "a0"), ("a", "r1", "tool", "a1"), ("a", "r2", "outside", "a1"),
        ("a", "r2", "tool", "a2"),
        ("b", "r1", "outside", None), ("b", "r1", "tool", "b1"),
        ("c", "r2", "outside", "c0"), ("c", "r2", "tool", None), ("c", "", "outside", "cx"), ("c", "r3", "tool", "c3"),
    )  # fmt: skip
    counts: dict[str, int] = {}
    found = []
    for at, (name, run, origin, content) in enumerate(rows):
        number = counts.setdefault(name, 0)
        counts[name] += 1
        found.append(
            FileVersion(
                f"v{at}", SessionId("s"), str(root / name), content or "", number, 100 - at, at,
                run_id=RunId(run), origin=origin, is_missing=content is None,  # type: ignore[arg-type]
            )
        )  # fmt: skip
    return found


STATES: dict[str, dict[str, str | None]] = {
    "as recorded": {"a": "a2", "b": "b1", "c": "c3"},
    "changed": {"a": "ax", "b": "bx", "c": "cx"},
    "removed": {"a": None, "b": None, "c": None},
    "undone": {"a": "a1", "b": None, "c": "cx"},
    "first": {"a": "a0", "b": None, "c": "c0"},
}
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    {"path": "a"},
    {"path": "b"},
    {"path": "c"},
    {"path": "other"},
    {"run_id": "r1"},
    {"run_id": "r2"},
    {"run_id": "r2", "path": "a"},
    {"run_id": "r3"},
    {"run_id": "r9"},
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"force": True}, {"dry_run": True}, {"force": True, "refused": 1}, {"force": True, "refused": 2},
)  # fmt: skip


async def test_undo(root: Path) -> None:
    """Every state of the files, every request; and each refused record, after which the files are as before."""
    records: list[dict[str, Any]] = []
    for (state, contents), request in itertools.product(STATES.items(), REQUESTS):
        for more in OPTIONS:
            disk = Disk(root)
            for name, content in contents.items():
                if content is None:
                    (root / name).unlink(missing_ok=True)
                else:
                    (root / name).write_text(content)
                    (root / name).chmod(0o640)
            disk.refused = int(more.get("refused", 0))
            before = disk.files()
            ids = itertools.count(1)
            options: dict[str, Any] = {key: True for key in more if key != "refused"}
            asked = UndoRequest(session_id=SessionId("s"), **request, **options)
            try:
                report: Any = plain(
                    await undo(
                        asked, versions_of(root), root=str(root), record=disk.record,
                        now_ms=lambda: 5_999, new_id=lambda: f"n{next(ids)}",  # noqa: B023
                    )
                )  # fmt: skip
            except HoldfastError as error:
                report = f"{type(error).__name__}: {error}"
            if disk.refused or "dry_run" in more:
                assert disk.files() == before
                continue
            changed = {name: text for name, text in disk.files().items() if before.get(name) != text}
            gone = sorted(before.keys() - disk.files().keys())
            about = {"state": state, "request": {**request, **more}, "report": report}
            records.append({**about, "recorded": disk.operations, "changed": changed, "gone": gone})
    versions = versions_of(root)
    for count in range(len(versions) + 1):
        known = versions[:count]
        shown = [result_of(lambda: last_change(known)), result_of(lambda: last_run(known))]  # noqa: B023
        shown += [result_of(lambda: plan(known, path=str(root / name))) for name in "abc"]  # noqa: B023
        records.append({"versions": count, "last": shown})
    assert_recorded(RECORDED / "undo.json", records, {str(root): "TOP"})


def test_atomic_writes(root: Path) -> None:
    """Each kind of target through each end of a write, with everything that is left in the directory."""
    records: list[dict[str, Any]] = []
    targets = ("new", "deep/er/new", "old", "private", "twin", "link/below", "old/below")
    ends = ("publish", "discard", "revert", "remove", "set aside and restore", "changed", "removed", "appeared")
    for number, (name, end) in enumerate(itertools.product(targets, ends)):
        top = root / str(number)
        (top / "real").mkdir(parents=True)
        (top / "link").symlink_to("real")
        for old in ("old", "private", "twin"):
            (top / old).write_text(f"{old} text")
        (top / "private").chmod(0o600)
        os.link(top / "twin", top / "other twin")
        steps = result_of(lambda: _write(top, name, end))  # noqa: B023
        left = {file: text for file, text in Disk(top).files().items()}
        folders = sorted(
            os.path.relpath(os.path.join(at, folder), top) for at, inner, _ in os.walk(top) for folder in inner
        )
        records.append({"target": name, "end": end, "result": steps, "files": left, "folders": folders})
    text = {str(root / str(number)): "TOP" for number in reversed(range(len(targets) * len(ends)))}
    assert_recorded(RECORDED / "atomic_writes.json", records, text)


def _write(top: Path, name: str, end: str) -> object:
    location = safe_open.locate(str(top), name)
    path = Path(location.path)
    old = safe_open.status_of(location)
    before = path.read_bytes() if old is not None else None
    write = AtomicWrite(location, old)
    if end in ("remove", "set aside and restore"):
        if end == "remove":
            write.remove()
            return "removed"
        write.set_aside()
        aside = not path.exists()
        write.restore()
        write.discard()
        return aside
    try:
        write.open()
        write.add(b"new ")
        write.add(b"text")
        write.finish()
        if end == "discard":
            return write.size
        if end == "changed" and old is not None:
            path.write_text("changed meanwhile")
        if end == "removed" and old is not None:
            path.unlink()
        if end == "appeared" and old is None:
            path.write_text("appeared meanwhile")
        write.publish()
        write.sync()
        if end == "revert":
            write.revert(before)
        return write.size
    finally:
        write.discard()


ERRORS = (
    "regex parse error:\n    (\n    ^\nerror: unclosed group",
    "fatal: -e option, '(*ANYCRLF)(': missing closing parenthesis.",
    "PCRE2: error compiling pattern",
    "some other failure",
    "  ^ \n",
    "x" * 400,
)


async def test_search_commands_and_records(root: Path) -> None:
    """The command lines of every program for every request, and the parts that read their output."""
    for name in ("rg", "git"):
        (root.parent / name).write_text("")
        (root.parent / name).chmod(0o755)
    (root / "sub").mkdir()
    (root / "sub/f.py").write_text("x\n")
    environment = {"PATH": str(root.parent), "LANG": "C"}
    records: list[dict[str, Any]] = []
    scopes = (
        SearchScope(str(root), str(root), environment, 5.0),
        SearchScope(str(root), str(root / "sub/f.py"), environment, 5.0, is_file=True),
    )
    requests = (
        None,
        GrepRequest("a.b"),
        GrepRequest("a.b", is_literal=True),
        GrepRequest("a", include="*.py"),
        GrepRequest("a", include="src/*.py"),
    )
    for scope, request, uses in itertools.product(scopes, requests, (True, False)):
        backends, _ = Searcher(uses_ripgrep=uses)._prepare(scope, request)
        shown = [{**plain(backend)["_Backend"], "python": None} for backend in backends]
        for item in shown:
            item["arguments"] = ["PYTHON" if "python" in word else word for word in item["arguments"]]
            item["arguments"] = [word if not word.startswith("--glob=!") else "--glob=!" for word in item["arguments"]]
        about = {"folder": scope.folder, "name": scope.name, "request": request, "ripgrep": uses}
        records.append({**about, "backends": shown})
    for error in ERRORS:
        about = {"error": error[:80], "is about the pattern": search._is_about_pattern(error)}
        records.append({**about, "last line": search._last_line(error)})
    lines = (
        b"a\0001:1:text\r", b"./a\0001:1:text", b"a\0x:1:text", b"a\0001:x:text", b"a\0001:2", b"no nul",
        b"a\0001:4:\xc3\xa9\xc3\xa9x:y",
        b"a\0001:2:" + b"x" * 500, b"a\0001:2:" + b"x" * 501, b"\xff\0001:1:\xff",
    )  # fmt: skip
    for line in lines:
        found = (
            search._match(line, b":"),
            search._match(line.replace(b":", b"\0"), b"\0"),
            search._file(line.partition(b"\0")[0]),
        )
        records.append({"line": repr(line[:30]), "matches": json.loads(json.dumps(plain(found)))})
    records.append({"no file": [search._file(b""), search._file(b"nested/")]})
    for include in ("", "*.py", "src/*.py", "./*.py", "**/x/*.py"):
        accepts = search._path_filter(include)
        records.append({"include": include, "accepted": [name for name in NAMES if accepts(name)]})
    for number, name in enumerate(("old", "new", "mid")):
        (root / name).write_text(f"{name} 1\n{'y' * 600}\r\nlast é")
        os.utime(root / name, (1, (3, 9, 5)[number]))
    (root / "wide").write_bytes("\ufeffone\ntwo\n".encode("utf-16-le"))
    wanted = [
        Match(name, line, 1, text)
        for name in ("new", "gone", "sub")
        for line, text in ((1, f"{name} 1"), (2, "y" * 600), (3, "other"), (9, ""))
    ]
    wanted += [Match("wide", 1, 1, "\ufeffone"), Match("wide", 2, 1, "two"), Match("wide", 4, 1, "")]
    records.append({"confirmed": search.confirmed_matches(str(root), wanted)})
    names = ["old", "gone", "new", "mid", "sub"]
    records.append({"newest": search.newest_first(str(root), names)})
    records += [{"existing": search.existing_paths(str(root), names, limit)} for limit in (0, 1, 2, 3, 9)]
    records.append({"replaced": result_of(lambda: search.confirmed_matches(str(root / "gone"), wanted))})
    assert_recorded(RECORDED / "search_commands.json", records, {str(root.parent): "TOP"})


def test_own_scan(root: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The program that searches where there is no other, called in process with every request."""
    monkeypatch.setattr(fallback_scan, "_MAX_FILE_SIZE", 60)
    monkeypatch.setattr(fallback_scan, "_MAX_LINE", 30)
    files = {
        "dos": b"one\r\nx\r", "a.txt": b"one\r\ntwo one\nthree\n", "sub/b.txt": "é one\none one".encode(),
        "sub/.hidden": b"one", "z/binary": b"one\0",
        "z/large": b"one " * 15 + b"x", "z/fits": b"one " * 15,
        "ignored.log": b"one", ".gitignore": b"*.log\n", "long": b"x" * 29 + b"one two",
    }  # fmt: skip
    for name, data in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    (root / "link").symlink_to("a.txt")
    monkeypatch.chdir(root)
    records: list[dict[str, Any]] = []
    requests: tuple[dict[str, Any], ...] = (
        {}, {"name": "a.txt"}, {"pattern": "one"}, {"pattern": "one", "limit": 1}, {"pattern": "^one$"},
        {"pattern": "x$"}, {"pattern": "^x"}, {"pattern": "o.e", "is_literal": True},
        {"pattern": "one", "name": "ignored.log"}, {"pattern": "one\\Z"}, {"pattern": "\\bone"}, {"pattern": "("},
        {"pattern": "one", "name": "link"},
        {"pattern": "one", "name": "nothing"}, {"pattern": "", "limit": 2},
        {"pattern": "e\\s"}, {"pattern": "(", "is_literal": True},
    )  # fmt: skip
    for request in requests:
        monkeypatch.setattr("sys.argv", ["scan", json.dumps({"root": str(root), **request})])
        code = fallback_scan.main()
        out, errors = capfdbinary.readouterr()
        records.append({"request": request, "code": code, "out": out.decode("latin-1"), "errors": errors.decode()})
    assert_recorded(RECORDED / "own_scan.json", records, {str(root): "TOP"})
