"""Every construct of the shell followed and preceded by a command, with every separator."""

from itertools import product

import pytest

from holdfast.permissions.shell_parser import parse

CONSTRUCTS = {
    "command": "ls",
    "negation": "! ls",
    "time": "time ls",
    "subshell": "(ls)",
    "group": "{ ls; }",
    "if": "if ls; then ls; else ls; fi",
    "for": "for i in a b; do ls; done",
    "for without words": "for i; do ls; done",
    "while": "while ls; do ls; done",
    "until": "until ls; do ls; done",
    "case": "case a in a|b) ls;; *) ls;; esac ",
    "test": "[[ -f a && b == c* ]]",
    "numeric test": "[[ a -eq 1 ]]",
    "old test": "[ -f a ]",
    "function": "f() { ls; }",
    "named function": "function f { ls; }",
    "assignment": "A=b ls",
    "redirections": "ls 2>&1 <a >/dev/null",
    "here-string": "cat <<< a",
    "substitution": "ls $(ls)",
    "backquotes": "ls `ls`",
    "redirected group": "{ ls; } 2>&1",
}
SEPARATORS = (";", " ; ", "&", "&&", "||", "|", "|&", "\n", " # comment\n", "\n\n")


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct_ends_where_it_ends(name: str) -> None:
    """The command beside it is found, and nothing else about the line changes."""
    text = CONSTRUCTS[name]
    alone = parse(text)
    for separator, next_to in product(SEPARATORS, ("touch x", "(touch x)", "touch x &")):
        after = parse(f"{text}{separator}{next_to}")
        assert [command.texts for command in after.commands] == [
            *(command.texts for command in alone.commands),
            ("touch", "x"),
        ], separator
        assert (after.uncertainties, after.hidden, after.repeats) == (alone.uncertainties, alone.hidden, alone.repeats)
        if not next_to.endswith("&"):
            before = parse(f"{next_to}{separator}{text}")
            assert ("touch", "x") in [command.texts for command in before.commands], separator
            assert before.uncertainties == alone.uncertainties, separator


@pytest.mark.parametrize("name", [name for name, text in CONSTRUCTS.items() if "`" not in text])
def test_backquotes_equal_a_substitution(name: str) -> None:
    """In every position: as the program, as an argument, in quotes, in a redirection."""
    text = f"{CONSTRUCTS[name]}; cd a; touch x > y"
    for form in ("{}", "ls {}", 'ls "{}"', "ls > {}", "A={} ls", "for i in {}; do ls; done", "ls; ls {}"):
        found, expected = parse(form.replace("{}", f"`{text}`")), parse(form.replace("{}", f"$( {text})"))
        assert found == expected, form
        assert ("touch", "x") in [command.texts for command in found.commands]


@pytest.mark.parametrize(
    "text",
    [
        "{}\nls",
        " {}\nls",
        "({}\nls)",
        "( {}\nls)",
        "(ls){}\n",
        "ls;{}\nls",
        "ls\n{}\nls",
        "ls &{}\nls",
        "ls &&{}\nls",
        "ls ||{}\nls",
        "ls |{}\nls",
        "ls {}",
        "ls\t{}",
        "{ {}\nls; }",
        "{ ls; } {}\n",
        "if ls; then {}\nls; fi",
        "for i in a; do {}\nls; done",
        "ls $({}\nls)",
        "case a in {}\na) ls;; {}\nesac",
    ],
)
def test_comments_are_left_out_wherever_a_word_may_begin(text: str) -> None:
    assert parse(text.replace("{}", "# rm x; (")) == parse(text.replace("{}", "")), text
    # Inside of a word it is a character.
    assert parse("ls a#b '#c'").commands[0].texts == ("ls", "a#b", "#c")
