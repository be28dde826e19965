"""Every setting, enumerated from its types: default, smallest value, refused values, trust, merging."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from msgspec import inspect

from config.settings_files import SettingsFiles
from holdfast.config.configuration import ConfigSnapshot, Configuration
from holdfast.config.line_numbers import KeyPath
from holdfast.config.merge import Layer, merge
from holdfast.config.problems import format_key
from holdfast.config.trust import split_untrusted
from holdfast.domain.settings import Settings

OPEN = {"providers": "p", "mcp": "m", "lsp": "l", "env": "E", "hooks": "Stop"}
"""Tables whose keys are chosen by users, with an example of each."""
REQUIRED: dict[KeyPath, dict[str, Any]] = {("hooks", "Stop", 0): {"command": "true"}}


def fields() -> dict[KeyPath, inspect.Field]:
    """Return every setting with its path; models of a provider and recent models count once."""
    found: dict[KeyPath, inspect.Field] = {}
    top = inspect.type_info(Settings)
    assert isinstance(top, inspect.StructType)
    for section in top.fields:
        name = section.encode_name
        kind = section.type
        if isinstance(kind, inspect.DictType):
            path: KeyPath = (name, OPEN[name])
            inner: inspect.Type = kind.value_type
            if isinstance(inner, inspect.VarTupleType):
                path, inner = (*path, 0), inner.item_type
            if isinstance(inner, inspect.StructType):
                found |= {(*path, field.encode_name): field for field in inner.fields}
        elif isinstance(kind, inspect.StructType):
            for field in kind.fields:
                if isinstance(field.type, inspect.StructType):
                    found |= {(name, field.encode_name, item.encode_name): item for item in field.type.fields}
                else:
                    found[name, field.encode_name] = field
    return found


FIELDS = fields()
NAMES = {format_key(path): path for path in FIELDS}


def default_of(field: inspect.Field) -> Any:  # noqa: ANN401 - any JSON
    if field.required:
        return "required"
    made = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return msgspec.json.decode(msgspec.json.encode(made))


NOT_EMPTY: dict[str, Any] = {
    "hooks.Stop[0].command": "required",
    "lsp.l.timeout": 30,
    "mcp.m.call_timeout": 300,
    "mcp.m.timeout": 10,
    "mcp.m.type": "stdio",
    "options.ask_timeout": 86_400,
    "options.attribution.generated_with": True,
    "options.attribution.trailer_style": "assisted-by",
    "options.auto_lsp": True,
    "options.disable_metrics": True,
    "options.initialize_as": "AGENTS.md",
    "options.job_linger": 28_800,
    "options.max_agent_depth": 2,
    "options.max_agents": 16,
    "options.max_minutes": 480.0,
    "options.max_retries": 5,
    "options.max_steps": 500,
    "options.model_load_timeout": 300,
    "options.notifications": "auto",
    "options.progress": True,
    "options.sandbox_network": True,
    "providers.p.discover_models": True,
}


def test_the_defaults() -> None:
    """All others are off, zero, empty or unset."""
    found = {name: default_of(FIELDS[path]) for name, path in NAMES.items()}
    assert {name: value for name, value in found.items() if value not in (None, False, 0, "", [], {})} == NOT_EMPTY
    assert len(found) > 100


def smallest(kind: inspect.Type) -> list[Any]:
    """Return the boundary values of a type."""
    match kind:
        case inspect.UnionType():
            return [value for part in kind.types for value in smallest(part)]
        case inspect.BoolType():
            return [True, False]
        case inspect.IntType() | inspect.FloatType():
            return [value for value in (kind.ge if kind.ge is not None else -1, kind.le) if value is not None]
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.StrType():
            return ["", "x"]
        case inspect.DictType() | inspect.AnyType():
            return [{}]
        case inspect.VarTupleType():
            return [[]]
        case _:
            return []


def outside(kind: inspect.Type) -> list[Any]:
    """Return values that a type refuses."""
    match kind:
        case inspect.UnionType():
            return [value for part in kind.types for value in outside(part)]
        case inspect.BoolType():
            return [1, "true"]
        case inspect.IntType() | inspect.FloatType():
            bounds = [*([kind.ge - 1] if kind.ge is not None else []), *([kind.le + 1] if kind.le is not None else [])]
            return [*bounds, True, "1"]
        case inspect.LiteralType():
            return ["another", 1]
        case inspect.StrType():
            return [1, False]
        case inspect.DictType() | inspect.VarTupleType():
            return ["x", 1]
        case _:
            return []


def tree_of(path: KeyPath, value: object) -> dict[str, Any]:
    tree: Any = value
    for at in range(len(path) - 1, -1, -1):
        name = path[at]
        tree = [REQUIRED.get(path[: at + 1], {}) | tree] if isinstance(name, int) else {name: tree}
    whole: dict[str, Any] = tree
    return whole


def value_at(tree: Any, path: KeyPath) -> Any:  # noqa: ANN401 - any JSON
    for name in path:
        tree = tree[name]
    return tree


def user_reading(files: SettingsFiles, path: KeyPath, value: object) -> ConfigSnapshot:
    files.write_user(tomlkit.dumps(tree_of(path, value)))
    return files.open().snapshot()


@pytest.mark.parametrize("name", NAMES)
def test_smallest_value_is_distinguished_from_unset(files: SettingsFiles, name: str) -> None:
    """A falsy value is not treated as missing."""
    path = NAMES[name]
    for value in smallest(FIELDS[path].type):
        if (name, value) in (("hooks.Stop[0].command", ""), ("providers.p.type", "x")):
            continue
        reading = user_reading(files, path, value)
        assert reading.problems == (), value
        assert value_at(reading.tree, path) == value
        if value != default_of(FIELDS[path]):
            assert value_at(msgspec.json.decode(msgspec.json.encode(reading.settings)), path) == value


@pytest.mark.parametrize("name", NAMES)
def test_invalid_value_is_named_and_ignored(files: SettingsFiles, name: str) -> None:
    path = NAMES[name]
    for value in outside(FIELDS[path].type):
        reading = user_reading(files, path, value)
        assert [problem.severity for problem in reading.problems] == ["error"], value
        assert reading.problems[0].key.startswith(format_key(path[:2])), reading.problems
        assert reading.problems[0].line > 0
        assert str(reading.settings.options) == str(Settings().options)


# Trust


WITHOUT_TRUST = {
    *(
        f"models.{size}.{name}"
        for size in ("large", "small")
        for name in (
            *("model", "provider", "reasoning_effort", "think", "max_tokens"),
            *("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"),
        )
    ),
    "permissions.ask",
    "permissions.deny",
    "options.disabled_tools",
    "options.sandbox",
    "options.context_paths",
}
SAMPLES: dict[str, Any] = {
    "permissions.ask": ["bash(x)"],
    "permissions.deny": ["bash(x)"],
    "permissions.allow": ["bash(x)"],
    "permissions.allowed_tools": ["bash"],
    "options.disabled_tools": ["fetch"],
    "options.sandbox": "workspace",
    "options.context_paths": ["docs/a.md"],
}


def sample(name: str) -> Any:  # noqa: ANN401 - any JSON
    """Return a value that differs from the default."""
    if name in SAMPLES:
        return SAMPLES[name]
    kind = FIELDS[NAMES[name]].type
    parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    match parts[0]:
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.DictType() | inspect.AnyType():
            return {"k": "v"} if not name.startswith("tools") else {"timeout": 1}
        case inspect.VarTupleType():
            return [{"id": "m"}] if name.endswith("models") else [{"model": "m"}] if "recent" in name else ["x"]
        case _:
            return "x"


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_take_effect_without_trust(tmp_path: Path, name: str) -> None:
    path = NAMES[name]
    layer = Layer(tree_of(path, sample(name)), "holdfast.toml", {}, may_run=True)
    kept, withheld = split_untrusted(layer, str(tmp_path), str(tmp_path))
    assert (bool(kept.tree), bool(withheld)) == (name in WITHOUT_TRUST, name not in WITHOUT_TRUST)
    assert not kept.may_run
    if kept.tree:
        assert kept.tree == layer.tree
    else:
        assert path[: len(withheld[0].path)] == withheld[0].path


def test_every_name_of_the_table_exists() -> None:
    assert NAMES.keys() >= WITHOUT_TRUST
    assert SAMPLES.keys() <= NAMES.keys()


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [
        ("docs/a.md", True),
        ("./a", True),
        ("", True),
        ("sub/../a", True),
        ("/etc/passwd", False),
        ("~/x", False),
        ("$HOME/x", False),
        ("a$b", False),
        ("../x", False),
        ("out/x", False),
        ("inside/x", True),
        ("a\0b", False),
    ],
)
def test_context_files_inside_the_project_only(tmp_path: Path, path: str, is_kept: bool) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    (root / "inside").symlink_to(root / "sub")
    layer = Layer({"options": {"context_paths": ["first", path, "last"]}}, "f", {}, may_run=False)
    kept, withheld = split_untrusted(layer, str(root), str(root))
    assert kept.tree["options"]["context_paths"] == (["first", path, "last"] if is_kept else ["first", "last"])
    assert [item.path for item in withheld] == ([] if is_kept else [("options", "context_paths", 1)])


# Merging


JOINED = {
    *(f"options.{name}" for name in ("context_paths", "global_context_paths", "skills_paths")),
    *(f"options.{name}" for name in ("disabled_tools", "disabled_skills")),
    *(f"permissions.{name}" for name in ("allowed_tools", "allow", "ask", "deny")),
    *(f"mcp.m.{name}" for name in ("disabled_tools", "enabled_tools")),
    *(f"lsp.l.{name}" for name in ("filetypes", "root_markers")),
    "providers.p.models",
}
LISTS = [name for name, path in NAMES.items() if isinstance(FIELDS[path].type, inspect.VarTupleType)]


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_joined_or_replaced(name: str) -> None:
    def item(text: str) -> Any:  # noqa: ANN401
        return {"id": text} if name.endswith("models") else {"model": text} if "recent" in name else text

    path = NAMES[name]
    layers = [
        Layer(tree_of(path, [item(text) for text in texts]), file, {}, may_run=False)
        for file, texts in (("low", "ab"), ("high", "bc"))
    ]
    tree, origins = merge(layers)
    expected = "abc" if name in JOINED else "bc"
    assert value_at(tree, path) == [item(text) for text in expected]
    sources = {at[: len(path) + 1]: origin.file for at, origin in origins.items()}
    own = ["low", "high", "high"] if "models" in name and name in JOINED else ["low", "low", "high"]
    assert [sources[(*path, place)] for place in range(len(expected))] == (own if name in JOINED else ["high", "high"])


def test_every_joined_list_exists() -> None:
    assert set(LISTS) >= JOINED


def test_the_order_of_files(files: SettingsFiles) -> None:
    """Each overrides the files before it."""
    values: list[int] = []
    for number, source in enumerate(files.locations().sources, 1):
        text = (
            f"[options]\nmax_steps = {number}\n" if source.form == "toml" else f'{{"options":{{"max_steps":{number}}}}}'
        )
        if source.form == "mcp":
            continue
        files.write(Path(source.path), text)
        configuration = files.open()
        files.trust(configuration)
        values.append(configuration.current().options.max_steps)
        assert configuration.origins["options", "max_steps"].file == source.path
        assert values[-1] == number


def test_change_is_notified_once(files: SettingsFiles) -> None:
    files.write_user("[options]\nmax_steps = 1\n")
    configuration: Configuration = files.open()
    reported: list[int] = []
    configuration.on_change = lambda: reported.append(configuration.settings.options.max_steps)
    configuration.snapshot()
    assert reported == []
    files.write_user("[options]\nmax_steps = 22\n")
    first = configuration.snapshot()
    assert configuration.snapshot() is first
    assert reported == [22]
    files.write_user("# another text\n[options]\nmax_steps = 22\n")
    configuration.snapshot()
    assert len(reported) <= 2
