"""Front matter: common spellings are accepted, ambiguous ones are refused with their line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.markdown_document import Value, parse, split_list

LONG = "x" * 70_000


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("a: b", {"a": "b"}),
        ("a: b: c, and <d>", {"a": "b: c, and <d>"}),
        ("a: b # said", {"a": "b"}),
        ("a: b#c", {"a": "b#c"}),
        ("a: one\n  two\n  three", {"a": "one two three"}),
        ("a:\n  one\n  two", {"a": "one two"}),
        ("a: 'it''s'", {"a": "it's"}),
        ('a: "x\\n\\"y\\""  # said', {"a": 'x\n"y"'}),
        ('a: "one\n  two"', {"a": "one two"}),
        ("a: |\n  one\n    two\n\n  three\nb: c", {"a": "one\n  two\n\nthree\n", "b": "c"}),
        ("a: >-\n  one\n  two\n\n  three", {"a": "one two\nthree"}),
        ("a: [x, 'y', z]", {"a": ["x", "y", "z"]}),
        ("a: [file] [other]", {"a": "[file] [other]"}),
        ("a: {x: 1, y: 'z'}", {"a": {"x": "1", "y": "z"}}),
        ("a:\n- x\n- y: z", {"a": ["x", "y: z"]}),
        ("a:\n  - x\n  - y\nb: c", {"a": ["x", "y"], "b": "c"}),
        ("a:\n  b:\n    c: d\n  e: f", {"a": {"b": {"c": "d"}, "e": "f"}}),
        ("a: true\nb: False\nc: yes", {"a": True, "b": False, "c": "yes"}),
        ("a:\nb: null\nc: ~", {"a": "", "b": "", "c": ""}),
        ("# said\n\na: 1", {"a": "1"}),
        ('"a b": c\nargument-hint: [x]', {"a b": "c", "argument-hint": ["x"]}),
        ("a: *all", {"a": "*all"}),
        ("a: !!python/object:os.system x", {"a": "!!python/object:os.system x"}),
        ("a: &b c\nd: *b", {"a": "&b c", "d": "*b"}),
        ("a: 日本 ✓", {"a": "日本 ✓"}),
        ("a: ''", {"a": ""}),
        ('a: ""', {"a": ""}),
        ("a: ['', x]", {"a": ["", "x"]}),
        ("a: [x, \"]\nb: {x: '}", {"a": ["x", '"'], "b": {"x": "'"}}),
    ],
)
def test_accepted_spellings(written: str, means: dict[str, Value]) -> None:
    document = parse(f"---\n{written}\n---\nbody\n")
    assert (document.problem, document.fields, document.body) == (None, means, "body\n")


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("a: b", 1),
        ("---\na: b", 1),
        ("---\nb: c\nwhat is this\n---\n", 3),
        ("---\na: 1\na: 2\n---\n", 3),
        ("---\nx: y\n\ta: 1\n---\n", 3),
        ('---\na: "open\n---\n', 2),
        ("---\na: 'x' y\n---\n", 2),
        ("---\na:\n  b: 1\n c: 2\n---\n", 4),
        ("---\na: {x, y}\n---\n", 2),
        ("---\n  a: 1\n---\n", 2),
        ("---\n" + "".join(f"{' ' * depth}a:\n" for depth in range(12)) + "---\n", 10),
        (f"---\na: {LONG}\n---\n", 1),
        ("---\n" + "a1: b\n" * 1_001 + "---\n", 1),
    ],
)
def test_invalid_front_matter_is_reported_with_line(written: str, line: int) -> None:
    document = parse(written)
    if written == "a: b":
        assert (document.fields, document.body, document.problem) == ({}, "a: b", None)
    else:
        assert document.problem is not None
        assert (document.problem[0], document.fields) == (line, {})


def test_line_numbers_and_line_endings() -> None:
    document = parse("\ufeff---\r\nname: x\r\n\r\nother: y\r\n---\r\nbody\r\n")
    assert document.fields == {"name": "x", "other": "y"}
    assert document.lines == {"name": 2, "other": 4}
    assert (document.body, document.body_line) == ("body\n", 6)


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("Read, Bash(git add:*, x), Grep", ("Read", "Bash(git add:*, x)", "Grep")),
        (["a", " b ", "", True], ("a", "b")),
        ("", ()),
        (True, ()),
        ("a)(b,c", ("a)(b,c",)),
    ],
)
def test_lists_of_texts(value: Value, means: tuple[str, ...]) -> None:
    assert split_list(value) == means


@given(st.text(alphabet="ab:-# \n\t'\"[]{}|>,\\é", max_size=120))
def test_any_input_is_parsed(text: str) -> None:
    parse(f"---\n{text}\n---\nx")
    parse(text)
