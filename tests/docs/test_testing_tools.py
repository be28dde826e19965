"""The examples of the page about test tools run as written."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/testing-tools.md").read_text()
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
FRAGMENTS = {"A store of your own"}
"""Examples that need an implementation of the reader."""


@pytest.mark.parametrize("title", sorted({*EXAMPLES} - FRAGMENTS))
def test_an_example_runs(title: str) -> None:
    exec(compile(EXAMPLES[title], title, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("title", sorted(FRAGMENTS))
def test_a_fragment_compiles(title: str) -> None:
    compile(EXAMPLES[title], title, "exec")


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 4
