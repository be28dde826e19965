"""Hostile texts of models, files and names, which try to run code or to send requests to another host."""

from pathlib import Path

__all__ = ["BEACON", "MARKDOWN", "NAMES", "huge"]

BEACON = "http://beacon.example"
_JS = "javascript:window.pwned=1"
_RUN = "window.pwned=1"


def _read() -> dict[str, str]:
    """Texts by their purpose: a name after three equals signs, then the text."""
    blocks = Path(__file__).with_suffix(".txt").read_text().split("=== ")[1:]
    return {name: text.rstrip("\n") for name, _, text in (block.partition("\n") for block in blocks)}


MARKDOWN = {
    **_read(),
    "directions": "\u202egnp.exe\u202c and \u2066hidden\u2069 \u200bzero",
    "controls": "\x00\x07\x1b[31mred\x1b[0m \ufffe \ud7ff",
}
NAMES = (f"<img src=x onerror='{_RUN}'>", f'"><script>{_RUN}</script>', f"[x]({_JS})", f"![x]({BEACON}/title.png)")


def huge() -> dict[str, str]:
    """Huge texts that are expensive to parse."""
    return {
        "one line": "x" * 300_000,
        "words": "word " * 20_000,
        "stars": "*" * 30_000,
        "brackets": "[" * 20_000,
        "backquotes": "`" * 20_000 + "x",
        "quotes": "> " * 2_000 + "deep",
        "lists": "\n".join("  " * depth + "- x" for depth in range(200)),
        "links": "[a](b " * 10_000,
        "tags": "<b>" * 20_000,
        "table": "|a" * 2_000 + "|\n" + "|-" * 2_000 + "|\n" + "|x" * 2_000 + "|\n",
        "lines": "a line\n" * 10_000,
        "code": "```js\n" + "let x = { a: [1, 2, '3'] };\n" * 4_000 + "```",
    }
