"""Project rules that no linter can check."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NAMED_DOCUMENTS = ("ARCHITECTURE.md", "AGENTS.md", "README.md", "GLOSSARY.md", "SECURITY.md", "CHANGELOG.md")
DOCUMENTS = [*(ROOT / name for name in NAMED_DOCUMENTS), *sorted((ROOT / "docs").rglob("*.md"))]

PURE = (
    "domain/*.py",
    "protocol/*.py",
    "permissions/*.py",
    "storage/operations/*.py",
    "bus/shared_backlog.py",
    "client/view.py",
    "client/events.py",
    "cluster/lease_state_machine.py",
    "config/merge.py",
    "config/validate.py",
    "http11/client_messages.py",
    "http11/sse.py",
    "engine/history.py",
    "engine/history_repair.py",
    "engine/run_lifecycle.py",
    "engine/response_builder.py",
    "engine/retries.py",
    "extensions/lsp/server_state_machine.py",
    "server/presence.py",
    "server/streams/crush_stream.py",
    "server/web/web_auth.py",
    "tui/blocks.py",
)
"""Modules that must stay pure. A module whose docstring says "Pure" is checked as well."""
IMPURE_IMPORTS = {"asyncio", "time", "random", "uuid", "os", "logging", "datetime"}

_TOP = {"src", "scripts", "tests", "docs", "bench", ".ci"}
_PACKAGE_LINES = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
_FILE = re.compile(r"[\w.-]+\.(py|md|toml|lock|sql)")
_PATH = re.compile(r"[\w./-]+")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), name_of(path))


def dotted_name(node: ast.expr) -> str:
    """Return `a.b` for the expression a.b; other expressions have no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(path: Path, *words: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with its dotted name; imported names are prefixed with their module.

    Only files that contain one of the words are parsed: parsing all of them takes long.
    """
    if not any(word in path.read_text() for word in words):
        return
    tree = tree_of(path)
    origin = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            yield origin.get(name, name), node


def public_names(path: Path) -> list[str] | None:
    """Return the content of `__all__`, or None if there is none."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


# Documents


def fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    for block in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield block[1], block[2]


def drawn_paths(tree: str) -> Iterator[str]:
    """Yield the paths of a drawn tree: two spaces for each level, names separated by one, then a remark."""
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split()
        for name in names:
            yield "/".join([*folders[:depth], name.rstrip("/")])
        folders[depth:] = [names[0].rstrip("/")]


def is_path(word: str) -> bool:
    if not _PATH.fullmatch(word) or word.startswith("/"):
        return False
    first, slash, _ = word.partition("/")
    return bool(slash and first in _TOP | _PACKAGE_LINES) or bool(_FILE.fullmatch(word.rpartition("/")[2]))


def named_paths(text: str) -> set[str]:
    """Yield the paths in a document: drawn trees, links, and words in backquotes and blocks that look like paths."""
    paths: set[str] = set()
    for kind, block in fenced_blocks(text):
        paths |= set(drawn_paths(block)) if kind == "tree" else {word for word in block.split() if is_path(word)}
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    paths |= {word for span in re.findall(r"`([^`\n]+)`", prose) for word in span.split() if is_path(word)}
    links: list[str] = re.findall(r"\]\(([^)#]+)", prose)
    return paths | {link for link in links if "://" not in link}


def exists(path: str, document: Path) -> bool:
    if any((base / path).exists() for base in (ROOT, PACKAGE, document.parent)):
        return True
    return "/" not in path and any(module.name == path for module in MODULES)


def test_no_file_contains_conflict_markers() -> None:
    """Formatters and type checkers find them in source only, not in documents and data."""
    folders = [path for name in sorted(_TOP | {"web"}) for path in (ROOT / name).rglob("*")]
    texts = (path for path in [*ROOT.iterdir(), *folders] if path.suffix in {".md", ".toml", ".txt", ".sql", ".json"})
    kept = (path for path in texts if "node_modules" not in path.parts and path.is_file())
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [name_of(path) for path in kept if marker.search(path.read_text(errors="replace"))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_paths_named_in_documents_exist(document: Path) -> None:
    missing = sorted(path for path in named_paths(document.read_text()) if not exists(path, document))
    assert not missing, f"{name_of(document)} names missing paths: {missing}"


def test_path_reader_sees_paths() -> None:
    """The test above proves nothing if it overlooks paths."""
    prose = "`a.py`, `domain/x` and `scripts/no -x`; [doc](docs/no.md) `application/json` `a b`"
    text = f"{prose}\n```tree\nsrc/\n  a/\n    b.py c.py  two\n```\n"
    assert named_paths(text) == {
        "a.py", "domain/x", "scripts/no", "docs/no.md", "src", "src/a", "src/a/b.py", "src/a/c.py",
    }  # fmt: skip


def test_every_promise_is_explained() -> None:
    text = (ROOT / "docs/promises.md").read_text()
    found = re.findall(r"^## (R\d+) .+\n\n(.{60,})", text, re.MULTILINE)
    assert [name for name, _ in found] == [f"R{number}" for number in range(1, 13)]


def test_every_case_is_explained() -> None:
    text = (ROOT / "docs/cases.md").read_text()
    found = re.findall(r"^- \*\*(C-\d\d)\*\* \[[a-z, ]+\] .{20,}", text, re.MULTILINE)
    assert found == [f"C-{number:02}" for number in range(1, 61)]


def test_tests_name_every_case_and_promise_and_no_others() -> None:
    others = [path for path in TESTS if path != Path(__file__).resolve()]
    named = {name for path in others for name in re.findall(r"\b(?:C-\d+|R\d+)\b", path.read_text())}
    known = {f"C-{number:02}" for number in range(1, 61)} | {f"R{number}" for number in range(1, 13)}
    assert named == known


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[(Unreleased|{re.escape(holdfast.__version__)})\]", text, re.MULTILINE)


def test_the_first_screen_of_the_readme_has_both_commands() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:32]
    for start in ("scripts/start ", "scripts/test ", "[Architecture]"):
        assert any(line.startswith(start) for line in screen), start


def test_the_guide_stays_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 120


# Modules


def test_modules_stay_short() -> None:
    limits = {PACKAGE / "engine/run_lifecycle.py": 330}
    lengths = {module: len(module.read_text().splitlines()) for module in MODULES}
    assert not {name_of(module): length for module, length in lengths.items() if length > limits.get(module, 600)}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from its `def`, without its docstring."""
    length = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return length


def test_functions_stay_short() -> None:
    long: dict[str, int] = {}
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > 50:
                long[f"{name_of(module)}: {node.name}"] = body_lines(node)
    assert not long


def imports_of(path: Path) -> Iterator[str]:
    """Yield the names that a module imports at run time, in full."""
    checked: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            checked |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree_of(path)):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def modules_by_name() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in MODULES
    }


def reached_from(path: Path) -> set[Path]:
    """Return a module and every module of the package that it imports, directly or not."""
    found, waiting = {path}, [path]
    while waiting:
        for name in imports_of(waiting.pop()):
            module = modules_by_name().get(name)
            if module is not None and module not in found:
                found.add(module)
                waiting.append(module)
    return found


def test_pure_modules_reach_nothing_impure() -> None:
    """Including the modules they import."""
    unmatched = [pattern for pattern in PURE if not list(PACKAGE.glob(pattern))]
    assert not unmatched, f"no such pure modules: {unmatched}"
    declared = {path for path in MODULES if re.search(r"\bPure\b", ast.get_docstring(tree_of(path)) or "")}
    pure = declared | {path for pattern in PURE for path in PACKAGE.glob(pattern)}
    impure = sorted(
        f"{name_of(path)} imports {name} in {name_of(reached)}"
        for path in pure
        for reached in reached_from(path)
        for name in imports_of(reached)
        if name.split(".")[0] in IMPURE_IMPORTS
    )
    assert not impure


def test_the_purity_check_sees_indirect_imports() -> None:
    recorder, tasks = PACKAGE / "engine/recorder.py", PACKAGE / "tasks.py"
    assert "asyncio" in set(imports_of(tasks))
    assert tasks in reached_from(recorder)


def task_groups(path: Path) -> set[str]:
    """Return the names in `async with TaskGroup() as name`: a group owns its tasks."""
    items = [item for node in ast.walk(tree_of(path)) if isinstance(node, ast.AsyncWith) for item in node.items]
    return {
        f"{ast.unparse(item.optional_vars)}.create_task"
        for item in items
        if item.optional_vars is not None and ast.unparse(item.context_expr).endswith("TaskGroup()")
    }


def test_only_one_module_creates_tasks() -> None:
    making = ("create_task", "ensure_future")
    makers = {
        name_of(path)
        for path in MODULES
        for name, _ in calls(path, *making)
        if name.rpartition(".")[2] in making and name not in task_groups(path)
    }
    assert makers == {"src/holdfast/tasks.py"}


def is_nonzero_constant(node: ast.Call) -> bool:
    values = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "delay")]
    return any(isinstance(value, ast.Constant) and value.value != 0 for value in values)


IN_VIRTUAL_TIME = ROOT / "tests/trials/schedules.py"
"""Runs only on the seeded event loop, where a sleep takes no time."""


def test_tests_do_not_sleep() -> None:
    sleeps = [
        f"{name_of(path)}:{node.lineno}"
        for path in TESTS
        if path != IN_VIRTUAL_TIME
        for name, node in calls(path, "sleep")
        if name == "time.sleep" or (name == "asyncio.sleep" and is_nonzero_constant(node))
    ]
    assert not sleeps, "wait for an event, a gate or the seeded loop instead"


OUTSIDE = ("/tmp", "/var/tmp", "/dev/shm")
MAKING = ("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile")
OPENING = (
    "Path",
    "open",
    "mkdir",
    "makedirs",
    "mkfifo",
    "mknod",
    "symlink",
    "write_text",
    "write_bytes",
    "touch",
    "bind",
)


def text_before_values(node: ast.expr) -> str:
    """Return the constant beginning of a text, up to the first interpolated value."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return text_before_values(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_outside_session(name: str, call: ast.Call) -> bool:
    """Return true if a file or directory is created at a literal path outside the directory of the session."""
    function = name.rpartition(".")[2]
    if function in MAKING:
        given = [keyword.value for keyword in call.keywords if keyword.arg == "dir"]
    elif function in OPENING:
        given = call.args[:2]
    else:
        return False
    return any(text_before_values(value).startswith(OUTSIDE) for value in given)


def test_tests_create_nothing_outside_the_directory_of_their_session() -> None:
    """Files elsewhere stay if a test is killed, and are shared by two sessions."""
    places = [
        f"{name_of(path)}:{call.lineno}"
        for path in TESTS
        if path.name != "scratch.py"
        for name, call in calls(path, *OUTSIDE)
        if is_outside_session(name, call)
    ]
    assert not places, "take tmp_path, or a directory of scratch.py if the path has to be short or in memory"


def test_public_modules_declare_their_exports() -> None:
    defining = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)
    silent = [
        name_of(path)
        for path in MODULES
        if (not path.name.startswith("_") or path.name == "__init__.py")
        and "\n__all__ = " not in path.read_text()
        and any(isinstance(node, defining) for node in tree_of(path).body)
    ]
    assert not silent


def glossary() -> set[frozenset[str]]:
    """Return every term, as the set of its words."""
    text = (ROOT / "GLOSSARY.md").read_text()
    terms = [term for entry in re.findall(r"^\| \*\*(.+?)\*\*", text, re.MULTILINE) for term in entry.split(", ")]
    return {frozenset(word.removesuffix("s") for word in term.lower().split()) for term in terms}


Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def is_setter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(item, ast.Attribute) and item.attr == "setter" for item in function.decorator_list)


def public_definitions(path: Path) -> Iterator[tuple[str, Definition]]:
    """Yield the classes and functions in `__all__`, and the public methods of these classes, without setters."""
    for node in tree_of(path).body:
        if isinstance(node, Definition) and node.name in (public_names(path) or ()):
            yield node.name, node
            functions = [
                item
                for item in (node.body if isinstance(node, ast.ClassDef) else ())
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            for function in functions:
                if not function.name.startswith("_") and not is_setter(function):
                    yield f"{node.name}.{function.name}", function


def test_public_classes_and_functions_have_docstrings() -> None:
    """In every package, for everything in `__all__`."""
    definitions = ((path, name, node) for path in MODULES for name, node in public_definitions(path))
    undocumented = [f"{name_of(path)}: {name}" for path, name, node in definitions if ast.get_docstring(node) is None]
    assert not undocumented


def test_packages_have_docstrings() -> None:
    packages = [path for path in MODULES if path.name == "__init__.py"]
    assert not [name_of(path) for path in packages if not ast.get_docstring(tree_of(path))]


def test_number_of_modules_is_limited() -> None:
    """Fragments of one subject share a module: decision 32. The limit grew with the second store: decision 35."""
    modules = [path for path in MODULES if path.name != "__init__.py" and PACKAGE / "testing" not in path.parents]
    assert len(modules) <= 430


# Start-up


def loaded_by(script: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


SERVERS = {f"holdfast.{room}" for room in ("engine", "storage", "bus", "runtime", "tools", "providers")}
LOOPS = {"asyncio", "uvloop", "ssl", "logging", "subprocess"}


def test_command_line_imports_little() -> None:
    """Help needs neither the engine nor SQLite; the command itself not even click."""
    assert len(loaded_by("import holdfast.cli.main")) - len(loaded_by("import os")) <= 4
    loaded = loaded_by("import holdfast.cli.click_group")
    assert not loaded & ({"apsw", "msgspec"} | SERVERS | LOOPS)
    assert len(loaded) < 160, f"{len(loaded)} modules"


def test_run_imports_little_before_its_prompt() -> None:
    """Modules imported before a prompt is sent; `tests/cli/test_run.py` checks a real one."""
    loaded = loaded_by("import holdfast.cli.run_client.run_command")
    assert not loaded & ({"apsw", "msgspec", "click", "inspect", "pathlib"} | SERVERS | LOOPS)
    assert len(loaded) < 115, f"{len(loaded)} modules"


def test_server_responds_before_it_is_fully_imported() -> None:
    """Modules imported before the first response."""
    loaded = loaded_by("import holdfast.cli.serve")
    assert not loaded & ({"apsw", "msgspec", "click", "inspect", "pathlib"} | SERVERS | LOOPS)
    assert len(loaded) < 115, f"{len(loaded)} modules"


def test_server_imports_no_unneeded_modules() -> None:
    load = "from holdfast.cli.fast_msgspec_import import load_msgspec\nload_msgspec()\n"
    script = load + "import uvloop, holdfast.server.serve"
    loaded = loaded_by(script)
    assert not loaded & {"click", "rich", "uvicorn", "typing_extensions", "pydantic_ai", "httpx2", "openai"}
    assert not loaded & {"asyncpg", "holdfast.cluster"}, "they are for PostgreSQL"
    assert len(loaded) < 520, f"{len(loaded)} modules"
