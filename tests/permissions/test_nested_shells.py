"""Shells inside a line: every form that is not plainly a literal text counts as hidden."""

import pytest

from holdfast.permissions.wrapper_commands import read_line

PLAIN = ["sh -ec ls", "sh -c 'ls a'", "bash -c ls", "bash -c 'ls a' name", "sh -c 'ls' a b"]
HIDDEN = {
    "a text that could be an option": ["sh -c -x", "bash -c '-e ls'", "bash -c '+x'", "sh -c '+e ls'"],
    "a text that is not literal": ['sh -c "$x"', "bash -c $x", "sh -c ls$x"],
    "no text": ["bash script.sh", "sh", "bash -s", "sh -c"],
    "a variable that changes which programs are found": ["PATH=/x sh -c ls", "LD_PRELOAD=x bash -c ls"],
    "unknown options": ["bash --rcfile x -c ls", "bash -O extglob -c ls"],
}  # fmt: skip
UNCERTAIN = ["bash -l -c ls", "bash -c ls $x", "bash -c ls -x", "sh -xc ls -c"]


@pytest.mark.parametrize("line", PLAIN)
def test_literal_script_is_parsed(line: str) -> None:
    found = read_line(line)
    assert (found.hidden, found.uncertainties) == ((), ())
    assert [command.argv[0].text for command in found.commands] == ["ls"]


@pytest.mark.parametrize("line", [line for lines in HIDDEN.values() for line in lines])
def test_other_scripts_of_a_shell_are_hidden(line: str) -> None:
    assert read_line(line).hidden


@pytest.mark.parametrize("line", UNCERTAIN)
def test_literal_script_in_an_unusual_call_is_uncertain(line: str) -> None:
    found = read_line(line)
    assert found.uncertainties
    assert "ls" in [command.argv[0].text for command in found.commands]
