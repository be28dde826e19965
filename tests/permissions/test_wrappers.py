"""Commands that run others: each clause that looks through a wrapper decides about a line of its own.

A row of `wrappers.txt` is a line, the commands that it runs, and marks. Of a command: its assignments in braces, `*`
after a word that expands to others, `+` if its input adds words, `<` if a pipe feeds it. Of the line: `doubted` if the
commands are not certain, `hidden` or `lookup` if more may run than is listed, `outer` for commands that only deny rules
see.
"""

from pathlib import Path

import pytest

from holdfast.permissions import wrapper_commands
from holdfast.permissions.shell_parser import SimpleCommand
from holdfast.permissions.wrapper_commands import read_line
from planting import assert_every_clause_decides

ROWS = Path(__file__).with_name("wrappers.txt").read_text().splitlines()
TABLE = [[part.strip() for part in row.split(" => ")] for row in ROWS if not row.startswith("#")]

FUNCTIONS = (
    *("_expand", "_expand_by_name", "_opaque", "_is_lookup", "_expand_eval", "_expand_shell", "_is_command_option"),
    *("_with_assignments", "_expand_env", "_expand_wrapper", "_wrapped_words", "_mark_placeholder", "_is_joined"),
    *("_expand_find", "_mark_found_path", "_finds_files", "_open_ended", "_ends_action", "may_evaluate_text"),
    *("_declares", "_reads", "_unsets", "_prints", "_tests", "_sets"),
)
NEVER = "the text of a word that is not literal is none of these"
EQUIVALENT = {
    (
        "words and words[0].is_literal and (words[0].text in _SHELL_OPTIONS) -> words and words[0].text in "
        "_SHELL_OPTIONS"
    ): NEVER,
    (
        "len(words) > 1 and words[0].is_literal and (words[0].text in _TEXT_OPTIONS) and (words[1] is text) "
        "-> words[0].is_literal and words[0].text in _TEXT_OPTIONS and (words[1] is text)"
    ): "a text follows its option",
    (
        "len(words) > 1 and words[0].is_literal and (words[0].text in _TEXT_OPTIONS) and (words[1] is text) "
        "-> len(words) > 1 and words[0].text in _TEXT_OPTIONS and (words[1] is text)"
    ): NEVER,
    (
        "len(words) > 1 and words[0].is_literal and (words[0].text in _TEXT_OPTIONS) and (words[1] is text) "
        "-> len(words) > 1 and words[0].is_literal and (words[0].text in _TEXT_OPTIONS)"
    ): "the first text option is the one before the text",
    (
        "rest and rest[0].is_literal and (rest[0].text in ('-i', '-', '--ignore-environment', '-u', "
        "'--unset')) -> rest and rest[0].text in ('-i', '-', '--ignore-environment', '-u', '--unset')"
    ): NEVER,
    (
        "word.text == '+' and at > 0 and (words[at - 1].text == '{}') -> word.text == '+' and words[at - "
        "1].text == '{}'"
    ): "either way no command ends there",
    (
        "not word.is_literal or not re.fullmatch('-[xrgaAlupfF]+|--', word.text) -> not "
        "re.fullmatch('-[xrgaAlupfF]+|--', word.text)"
    ): NEVER,
    (
        "word.is_literal and (word.text in ('-v', '-f') or _NAME.fullmatch(word.text)) and (not "
        "changes_programs(word.text)) -> (word.text in ('-v', '-f') or _NAME.fullmatch(word.text)) and (not "
        "changes_progr…"
    ): NEVER,
    "not word.is_literal or not _SET.fullmatch(word.text) -> not _SET.fullmatch(word.text)": NEVER,
}


def shown(command: SimpleCommand) -> str:
    assigned = "".join(f"{{{name}={value.text}}} " for name, value in command.assignments)
    words = " ".join(f"{word.text or repr('')}{'*' if word.is_glob else ''}" for word in command.argv)
    return f"{assigned}{words}{'+' if command.is_open else ''}{'<' if command.is_fed else ''}".strip()


def read(text: str) -> tuple[str, str]:
    read_line.cache_clear()
    line = read_line(text)
    marks = ["doubted"] if line.uncertainties else []
    marks += sorted({"lookup" if "programs are found" in reason else "hidden" for reason in line.hidden})
    marks += [f"{len(line.redirections)} redirected"] if line.redirections else []
    marks += [f"outer: {'; '.join(map(shown, line.outer))}"] if line.outer else []
    return "; ".join(map(shown, line.commands)), ", ".join(marks)


def check() -> None:
    for line, commands, *marks in TABLE:
        assert read(line) == (commands, marks[0] if marks else ""), line


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_wrapper_is_replaced_by_the_commands_that_it_runs(row: list[str]) -> None:
    line, commands, *marks = row
    assert read(line) == (commands, marks[0] if marks else "")


def test_every_clause_of_the_expansion_decides() -> None:
    assert_every_clause_decides([getattr(wrapper_commands, name) for name in FUNCTIONS], check, equivalent=EQUIVALENT)
