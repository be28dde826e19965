"""Expansion of slash commands into prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.commands import (
    CommandFile,
    expand_template,
    mentioned_agents,
    named_arguments,
    parse_command,
    parse_invocation,
    split_words,
)
from holdfast.extensions.markdown_dir import MarkdownFile
from holdfast.extensions.search_paths import Owner, SearchPath


@pytest.mark.parametrize(
    ("prompt", "means"),
    [
        ("/review", ("review", "")),
        ("  /review  src and tests \n", ("review", "src and tests")),
        ("/git:commit -m 'x'", ("git:commit", "-m 'x'")),
        ("/user:x.y-z a\nb", ("user:x.y-z", "a\nb")),
        ("/überprüfe", ("überprüfe", "")),
        ("/etc/hosts is odd", None),
        ("//x", None),
        ("/ x", None),
        ("look at /review", None),
        ("/1st", ("1st", "")),
        ("", None),
        ("/a:", None),
    ],
)
def test_command_syntax(prompt: str, means: tuple[str, str] | None) -> None:
    assert parse_invocation(prompt) == means


@pytest.mark.parametrize(
    ("body", "arguments", "means"),
    [
        ("See $ARGUMENTS!", "a  'b c'", "See a  'b c'!"),
        ("$1 then $2 ($3)", "a 'b c'", "a then b c ()"),
        ("$1", "it's", "it's"),
        ("Fix $TICKET on $BRANCH", "BRANCH=main TICKET='A 7'", "Fix A 7 on main"),
        ("Fix $TICKET on $BRANCH", "7 main and more", "Fix 7 on main and more"),
        ("Fix $TICKET on $BRANCH", "7", "Fix 7 on $BRANCH"),
        ("Fix $TICKET on $BRANCH", "BRANCH=main 7", "Fix 7 on main"),
        ("Fix $TICKET on $BRANCH", "TICKET=7 main and more", "Fix 7 on main and more"),
        ("Fix $TICKET on $BRANCH", "TICKET main", "Fix TICKET on main"),
        ("Fix $TICKET on $BRANCH", "a=b c=d", "Fix a=b on c=d"),
        ("Fix $TICKET", "", "Fix $TICKET"),
        ("$TICKET: $ARGUMENTS", "7", "$TICKET: 7"),
        ("$TICKET: $ARGUMENTS", "TICKET=7", "7: TICKET=7"),
        ("echo $HOME for $ARGUMENTS", "x", "echo $HOME for x"),
        ("echo $HOME for $ARGUMENTS", "HOME=y", "echo y for HOME=y"),
        ("no places", "but words", "no places\n\nbut words"),
        ("no places", "", "no places"),
        ("$ARGUMENTS", "$1 $ARGUMENTS", "$1 $ARGUMENTS"),
        ("$1", "$ARGUMENTS x", "$ARGUMENTS"),
        ("costs $5 or $10", "", "costs  or $10"),
        ("$ARGUMENTSX $name ${1}", "v", "v $name ${1}"),
    ],
)
def test_arguments_are_substituted_once(body: str, arguments: str, means: str) -> None:
    assert expand_template(body, arguments) == means


def test_command_lines_become_instructions_to_run_them() -> None:
    """The lines keep their position and their arguments; similar or typed text is unchanged."""
    reported = expand_template("Changes in $1: !`git diff $1`", "src")
    assert reported.startswith("Changes in src: !`git diff src`\n\n(Each !`…` above stands")
    for body, arguments in (
        ("Use `x`!", ""),
        ("$ARGUMENTS", "!`rm -rf .`"),
        ("```\n!```", ""),
        ("!``", ""),
        ("wow!", ""),
    ):
        assert "bash" not in expand_template(body, arguments)


def test_named_arguments_may_be_separate_from_text() -> None:
    assert expand_template("Fix $TICKET on $BRANCH", "", {"TICKET": "7", "BRANCH": "x y"}) == "Fix 7 on x y"


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_prompt_is_expanded(body: str, arguments: str) -> None:
    expand_template(body, arguments)
    parse_invocation(arguments)
    mentioned_agents(arguments, ["a"])


@pytest.mark.parametrize(
    ("prompt", "means"),
    [
        ("@reviewer look", ("reviewer",)),
        ("let @Reviewer and @tester, look", ("reviewer", "tester")),
        ("(@agent-reviewer)", ("reviewer",)),
        ("@reviewer @reviewer", ("reviewer",)),
        ("me@reviewer.org @reviewer/x @reviewer.py @other @@reviewer", ()),
        ("ask @reviewer.", ("reviewer",)),
    ],
)
def test_agents_are_named_with_at_sign(prompt: str, means: tuple[str, ...]) -> None:
    assert mentioned_agents(prompt, ["reviewer", "tester"]) == means


def test_command_with_all_fields() -> None:
    front = ("description: Looks", "argument-hint: [path]", "allowed-tools: Bash(git diff:*), Read", "model: haiku")
    text = "\n".join(["---", *front, "---", "Look at $1."])
    command = parse_command(MarkdownFile("/c/r.md", "r", SearchPath("/c", "project"), text.encode()))
    assert (command.description, command.hint, command.model) == ("Looks", "[path]", "small")
    assert command.allow == ("bash(git diff *)", "view")
    assert command.trust_keys == (("model", 5), ("allowed-tools", 4))
    own = parse_command(MarkdownFile("/c/r.md", "r", SearchPath("/c", "user"), text.encode()))
    assert (own.trust_keys, own.allow) == ((), command.allow)


def test_a_command_without_front_matter() -> None:
    command = parse_command(MarkdownFile("/c/r.md", "r", SearchPath("/c", "project"), b"# Review\n\nLook at $FILE."))
    assert (command.description, command.trust_keys, command.problems) == ("Review", (), ())


@pytest.mark.parametrize(
    ("data", "name", "line"),
    [
        (b"", "a", 1),
        (b"---\nmodel: x\n---\n \n", "a", 4),
        (b"---\nmodel: x\n", "a", 1),
        (b"ok\n\xff", "a", 2),
        (b"text", "a b", 0),
        (b"text", "a+b", 0),
    ],
)
def test_invalid_command_is_reported_with_line(data: bytes, name: str, line: int) -> None:
    command = parse_command(MarkdownFile("/c/a.md", name, SearchPath("/c", "user"), data))
    assert command.error
    assert [problem.line for problem in command.problems] == [line]


def test_invalid_rule_is_omitted() -> None:
    text = b"---\nallowed-tools: [Read, 'bash(', 'a b']\n---\nx"
    command = parse_command(MarkdownFile("/c/a.md", "a", SearchPath("/c", "user"), text))
    assert (command.error, command.allow) == ("", ("view",))
    assert {(problem.line, problem.severity) for problem in command.problems} == {(2, "warning")}


def test_invalid_model_name_is_reported() -> None:
    command = parse_command(MarkdownFile("/c/a.md", "a", SearchPath("/c", "user"), b"---\nmodel: [a]\n---\nx"))
    assert (command.error, command.model) == ("", "")
    assert [(problem.line, problem.key) for problem in command.problems] == [(2, "model")]


def test_separate_named_arguments_leave_words_to_positional_ones() -> None:
    assert expand_template("Fix $TICKET on $BRANCH", "main", {"TICKET": "7"}) == "Fix 7 on main"
    assert expand_template("Fix $TICKET", "TICKET=7", {"TICKET": "8"}) == "Fix 8"


def _read(text: str, owner: Owner = "user") -> CommandFile:
    return parse_command(MarkdownFile("/c/r.md", "r", SearchPath("/c", owner), text.encode()))


@pytest.mark.parametrize(
    ("given", "hint"),
    [("[path]", "[path]"), ("[a, b]", "[a, b]"), ("[a, true]", "[a]"), ("'  <file> '", "<file>"), ("true", "")],
)
def test_argument_hint(given: str, hint: str) -> None:
    assert _read(f"---\nargument-hint: {given}\n---\nx").hint == hint
    assert _read("x").hint == ""


@pytest.mark.parametrize(
    ("body", "description"),
    [
        ("# Review\nmore", "Review"),
        ("\n  \n** Bold **\nmore", "Bold"),
        ("---\ndescription: Own\n---\nText", "Own"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
    ],
)
def test_description_from_body(body: str, description: str) -> None:
    assert _read(body).description == description


def test_fields_that_need_trust_are_reported_with_line() -> None:
    assert _read("---\nmodel: x\n---\ny", "project").trust_keys == (("model", 2),)
    assert _read("---\nallowed-tools: Read\n---\ny", "project").trust_keys == (("allowed-tools", 2),)
    plain = _read("y", "project")
    assert (plain.trust_keys, plain.model, plain.allow, plain.model_line) == ((), "", (), 0)
    assert _read("---\ndescription: x\nmodel: m\n---\ny").model_line == 3
    assert _read("a").digest != _read("b").digest


def test_argument_names_are_unique_and_exclude_whole_text() -> None:
    assert named_arguments("$B $A $B $ARGUMENTS $1 $name") == ("B", "A")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" a  b\tc\n", ["a", "b", "c"]),
        ("'a b' c", ["a b", "c"]),
        ('x="a b"', ["x=a b"]),
        ("a\\ b", ["a b"]),
        # An unclosed quote is text.
        ("don't  go\tthere\n", ["don't", "go", "there"]),
        ('say "hi', ["say", '"hi']),
        ("a \\", ["a", "\\"]),
    ],
)
def test_words_of_the_arguments(text: str, words: list[str]) -> None:
    assert split_words(text) == words
