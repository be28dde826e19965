"""Permission rules: their syntax, and the tool calls they match. Pure.

For a shell the pattern is a command, word by word: `bash(git status *)`. A lone `*` matches any number of
words, a `*` in a word any characters of it; `bash(= …)` is one whole line, exactly. For other tools the pattern is
a path, relative to the workspace, to the home directory (`~/`) or absolute (`write(src/**)`), or the address that is
fetched. A rule saved by "always allow" has a scope behind the pattern: the directory, and the files that relative
names resolved to.

Rules that forbid are matched leniently, rules that allow strictly: a command that begins with denied words is denied,
a directory includes its contents, and names of tools are compared without regard to case.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import zip_longest
from typing import Literal

import msgspec

from holdfast.domain.approvals import Decision
from holdfast.domain.errors import BadRequest
from holdfast.domain.tools import (
    FOREIGN,
    MCP_FORM,
    TOOLS,
    TOOLS_WITHOUT_REQUESTS,
    Permit,
    canonical_tool_name,
    matching_tools,
    suggest,
)
from holdfast.domain.url_patterns import AddressPattern, BadAddress, WebAddress, parse_pattern

__all__ = ["BadRule", "Rule", "Scope", "escape", "parse_rules"]


_PLAIN_PATH = re.compile(r"/[\w./+@,=:~%-]*")


class Scope(msgspec.Struct, frozen=True):
    """The limits of a saved rule. It matches only a call whose own scope is equal.

    `directory` is the real path in which a command runs, `uses` the real paths of its relative programs and of the
    files it is redirected to, `target` the destination of a download, `params` the parameters of a call as JSON.
    """

    directory: str = ""
    uses: tuple[str, ...] = ()
    target: str = ""
    params: str = ""

    def __str__(self) -> str:
        """Return the text behind the pattern. It never contains a `)`, so the last one ends the pattern."""
        uses = "".join(f" {_quote_path(path)}" for path in self.uses)
        return (
            (f" in {_quote_path(self.directory)}" if self.directory else "")
            + (f" using{uses}" if uses else "")
            + (f" to {_quote_path(self.target)}" if self.target else "")
            + (f" with {_escape_parenthesis(self.params)}" if self.params else "")
        )


def _quote_path(path: str) -> str:
    if _PLAIN_PATH.fullmatch(path):
        return path
    return _escape_parenthesis(json.dumps(path, ensure_ascii=not path.isprintable()))


def _escape_parenthesis(text: str) -> str:
    return text.replace(")", "\\u0029")


class Rule(msgspec.Struct, frozen=True):
    """`subject` names what the pattern is compared with; without a pattern the rule covers all calls of the tool."""

    text: str
    effect: Decision
    tool: str
    actions: tuple[str, ...] = ()
    subject: Literal["all", "command", "line", "path", "address"] = "all"
    pattern: str = ""
    words: tuple[str, ...] = ()
    address: AddressPattern | None = None
    scope: Scope | None = None

    @property
    def ours(self) -> str:
        """The rule in Holdfast's own notation."""
        tool = ":".join((self.tool, *self.actions[:1]))
        pattern = f"= {self.pattern}" if self.subject == "line" else self.pattern
        return f"{tool}({pattern}){self.scope or ''}" if pattern else f"{tool}{self.scope or ''}"

    @property
    def is_lenient(self) -> bool:
        """True for rules that ask or deny, which are matched leniently."""
        return self.effect != "allow"

    @property
    def is_naming(self) -> bool:
        """True if the rule names its subject. A rule for everything does not override a warning about something
        specific.
        """
        if self.subject == "all":
            return self.scope is not None
        return self.words[:1] != ("*",) and self.pattern not in ("*", "**", "/**")

    def is_about(self, permit: Permit) -> bool:
        """Return True if the rule covers this tool and action."""
        tool, pattern = permit.tool, self.tool
        if self.is_lenient:
            tool, pattern = tool.lower(), pattern.lower()
        return fnmatchcase(tool, pattern) and (
            not self.actions or any(fnmatchcase(permit.action, action) for action in self.actions)
        )

    def fits_command(self, argv: Sequence[str], *, is_open: bool = False, scope: Scope | None = None) -> bool:
        """Return True if the rule matches the command. An open command, with words that are not known yet, matches only
        a rule that ends with a lone `*`.
        """
        if self.subject != "command" or (is_open and self.words[-1:] != ("*",)):
            return False
        return self.scope in (None, scope) and _fits_words(self.words, tuple(argv))

    def may_fit(self, known: Sequence[str]) -> bool:
        """Return True if a command of which only the first words are known could match."""
        if self.subject != "command":
            return False
        for pattern, word in zip_longest(self.words, known):
            if pattern == "*" or word is None:
                return True
            if pattern is None or not fnmatchcase(word, pattern):
                return False
        return True

    def fits_line(self, line: str, scope: Scope | None = None) -> bool:
        """Return True if the rule is for exactly this line."""
        return self.subject == "line" and self.pattern == line.strip() and self.scope in (None, scope)

    def fits_address(self, address: WebAddress | None) -> bool:
        """Return True if the rule matches the address. An unparsable address matches every rule that forbids and no
        rule that allows.
        """
        if self.address is None:
            return False
        return self.is_lenient if address is None else self.address.matches(address, leniently=self.is_lenient)

    def fits_path(self, root: str, path: str, home: str = "") -> bool:
        """Return True if the rule matches the path. `root` is the base of relative patterns, `home` that of `~/`."""
        if self.subject != "path" or (self.pattern.startswith("~/") and not home):
            return False
        # The names of these directories may contain brackets and stars, which are no wildcards.
        start = posixpath.join(escape(home), self.pattern[2:]) if self.pattern.startswith("~/") else self.pattern
        pattern = posixpath.normpath(posixpath.join(escape(root), start))
        if _path_pattern(pattern).fullmatch(path):
            return True
        unescaped = _ESCAPE.sub("", posixpath.basename(pattern))
        covers_below = self.is_lenient and not any(char in unescaped for char in "*?[")
        return covers_below and _path_pattern(f"{pattern}/**").fullmatch(path) is not None


_ESCAPE = re.compile(r"\[[*?[\\]\]")


def escape(text: str) -> str:
    r"""Return a pattern that matches this text and nothing else."""
    return re.sub(r"([*?[\\])", r"[\1]", text)


def _fits_words(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Match with backtracking to the last lone `*` only: linear in both lengths together."""
    at = place = 0
    star, mark = -1, 0
    while place < len(words):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, place
            at += 1
        elif at < len(pattern) and fnmatchcase(words[place], pattern[at]):
            at += 1
            place += 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return all(word == "*" for word in pattern[at:])


@cache
def _path_pattern(pattern: str) -> re.Pattern[str]:
    """`**` crosses directories, `*` and `?` do not. A pattern for a directory's contents matches the directory too."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("/**", at) and at + 3 == len(pattern):
            parts.append("(/.*)?")
            at += 3
        elif pattern.startswith("**/", at):
            parts.append("(.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif pattern[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            parts.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] in ("!", "^")))) > 0:
            inside = re.sub(r"([\\[&~|]|(?<=-)-)", r"\\\1", pattern[at + 1 : end])
            parts.append(f"[{'^' + inside[1:] if inside.startswith('!') else inside}]")
            at = end + 1
        else:
            parts.append(re.escape(pattern[at]))
            at += 1
    return re.compile("".join(parts), re.S)


# The text of a permission rule: `tool`, `tool:action`, `tool(pattern)`, and the scope of a saved one. Pure.

_RULE = re.compile(r"([\w*?.-]+)\s*(?::\s*([\w*-]+)\s*)?(?:\((.*)\))?", re.S)
_PATH = r'(?:"(?:[^"\\]|\\.)*"|/[^\s"]*)'
_SCOPE = re.compile(
    rf"(?: in (?P<directory>{_PATH}))?(?: using(?P<uses>(?: {_PATH})+))?"
    rf"(?: to (?P<target>{_PATH}))?(?: with (?P<params>\{{.*\}}))?",
    re.S,
)
_SHELL = "bash"
_WITHOUT_PATTERN = TOOLS_WITHOUT_REQUESTS | {"list_mcp_resources", "read_mcp_resource"}
_FETCHING = frozenset({"fetch", "agentic_fetch"})
_MAX_NAME_LENGTH = 64
_FORMS = "write `tool`, `tool:action` or `tool(pattern)`; for a command `bash(command *)`."
_MULTIPLE_ACTIONS: dict[str, tuple[str, ...]] = {"Edit": ("write", "download"), "Read": ("read", "list")}
"""Claude Code's rules for these cover every tool that edits or reads files; a rule here that forbids does as well."""
_WRITERS = frozenset({"Write", "MultiEdit"})
"""With a path these mean the file, not the tool."""


_LANGUAGE = (
    "if then else elif fi for while until do done case esac in select function coproc { } [[ ]] ! "
    "export declare typeset local readonly unset"
)
_KEYWORDS = frozenset(_LANGUAGE.split())
_PROGRAM = re.compile(r"[\w./+@%~*?\[\]-]+(:\*)?|/.*")


class BadRule(BadRequest):
    """A permission rule is written wrongly."""


class _Reader:
    """Parses one rule; every complaint names it."""

    def __init__(self, text: str, effect: Decision) -> None:
        self.text = text
        self.effect = effect

    def bad(self, why: str) -> BadRule:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return BadRule(f"The rule {shown!r} in permissions.{self.effect} has no effect as it is written: {why}")

    def rules(self) -> tuple[Rule, ...]:
        text = self.text.strip()
        if not all(char.isprintable() or char in "\n\t" for char in text):
            raise self.bad("it contains invisible characters; type it again.")
        head, scope = self._scope(text)
        found = _RULE.fullmatch(head)
        if found is None:
            raise self.bad(_FORMS)
        name, action, pattern = found[1], found[2] or "", found[3]
        if pattern is not None and not pattern.strip():
            raise self.bad("the pattern is empty; leave the parentheses out to cover everything.")
        tool, actions = self._tool(name, action, has_pattern=pattern is not None)
        # In a rule that allows, a lone star is one part of a path. A rule that forbids has to include everything below
        # it.
        is_broad = name != tool or (self.effect != "allow" and tool != _SHELL)
        if pattern is None or (is_broad and pattern.strip() == "*"):
            return (self._rule(tool, actions, scope=scope),)
        self._check_pattern_place(name, tool, actions)
        if tool == _SHELL:
            return self._shell(actions, pattern.strip(), scope)
        if tool in _FETCHING or "://" in pattern or pattern.startswith("domain:"):
            return self._address(tool, actions, pattern.strip(), scope)
        return self._paths(name, tool, actions, pattern.strip(), scope)

    def _rule(
        self,
        tool: str,
        actions: tuple[str, ...],
        subject: Literal["all", "command", "line", "path"] = "all",
        pattern: str = "",
        words: tuple[str, ...] = (),
        scope: Scope | None = None,
    ) -> Rule:
        return Rule(self.text, self.effect, tool, actions, subject, pattern, words, scope=scope)

    # The tool

    def _tool(self, name: str, action: str, *, has_pattern: bool) -> tuple[str, tuple[str, ...]]:
        """Return our name of the tool, and the actions that the rule covers; none means all."""
        if self.effect != "allow" and not action and (name in _MULTIPLE_ACTIONS or (has_pattern and name in _WRITERS)):
            return "*", _MULTIPLE_ACTIONS.get(name, _MULTIPLE_ACTIONS["Edit"])
        tool = canonical_tool_name(name)
        if name.lower() in FOREIGN:
            return name.lower(), ()
        if tool.lower().startswith("mcp_"):
            return self._mcp_tool(name, tool), (action,) if action else ()
        known = matching_tools(tool)
        if not known:
            raise self.bad(f"there is no tool {name!r}{suggest(name)}")
        actions = {each for item in known for each in TOOLS[item]} | {"execute"}
        if action and not any(re.fullmatch(action.replace("*", ".*"), each) for each in actions):
            hint = f" For a command write bash({action} *)." if tool == _SHELL else ""
            shown = ", ".join(sorted(actions if tool == _SHELL else actions - {"execute"}))
            raise self.bad(f"{tool} has no action {action!r}; it has {shown}.{hint}")
        return tool, (action,) if action else ()

    def _mcp_tool(self, name: str, tool: str) -> str:
        """Return the name of an MCP tool. Its form is checked only, because the server may not be running."""
        if name.startswith("mcp__") and tool.count("_") < 2 and "*" not in tool:
            # Claude Code's way to name all tools of a server.
            tool = f"{tool}_*"
        tool = "mcp_" + re.sub(r"[^\w*?-]|[^\x00-\x7f]", "_", tool[len("mcp_") :])
        if not MCP_FORM.fullmatch(tool):
            raise self.bad("a tool of an MCP server is written mcp_<server>_<tool>, all of them mcp_<server>_*.")
        if len(tool) > _MAX_NAME_LENGTH:
            raise self.bad(f"the name of a tool has at most {_MAX_NAME_LENGTH} characters.")
        return tool

    def _check_pattern_place(self, name: str, tool: str, actions: tuple[str, ...]) -> None:
        if tool in _WITHOUT_PATTERN or tool in FOREIGN:
            raise self.bad(f"{name} takes no pattern; leave the parentheses out.")
        if tool != _SHELL and _SHELL in matching_tools(tool) and not actions:
            raise self.bad("after a wildcard a pattern needs an action, such as *:write(…); name bash for commands.")

    # The pattern

    def _shell(self, actions: tuple[str, ...], pattern: str, scope: Scope | None) -> tuple[Rule, ...]:
        if pattern.startswith("= "):
            return (self._rule(_SHELL, actions, "line", pattern[2:].strip(), scope=scope),)
        try:
            words = tuple(shlex.split(pattern))
        except ValueError:
            raise self.bad("a quote is not closed.") from None
        if scope is None:
            self._check_shell(pattern, words)
        variants = [(pattern, words)]
        if scope is None and words[-1].endswith(":*"):
            # Claude Code's form of "and any further words".
            begin = words[-1].removesuffix(":*")
            words = (*words[:-1], *([begin] if begin else []), "*")
            variants.append((f"{pattern.removesuffix(':*')} *".strip(), words))
        return tuple(self._command(actions, variant, words, scope) for variant, words in variants)

    def _command(self, actions: tuple[str, ...], pattern: str, words: tuple[str, ...], scope: Scope | None) -> Rule:
        if self.effect != "allow":
            # A program is forbidden by its name, in any directory and with any arguments.
            words = (posixpath.basename(words[0]) or words[0], *words[1:], *(["*"] if words[-1] != "*" else []))
        return self._rule(_SHELL, actions, "command", pattern, words, scope)

    def _check_shell(self, pattern: str, words: Sequence[str]) -> None:
        """Reject patterns that could only match by accident, because a command is compared word by word."""
        if not words or not words[0]:
            raise self.bad("it names no program.")
        program = words[0]
        bare = _strip_quotes(pattern)
        if any(char in bare for char in ";|&<>()\n") or re.search(r"\{[^}]*,[^}]*\}", bare):
            raise self.bad("one rule is about one command; write one for each, and write(path) for a redirection.")
        if program != "[" and re.search(r"[][{}]", re.sub(r"\[[^][]*\]|\{[^{}]*\}|\[\[\]", "", bare)):
            raise self.bad("a bracket is unbalanced; quote it if it is literal.")
        if any(word.endswith(",") for word in bare.split()):
            raise self.bad("one rule is about one command; write one for each.")
        if "$" in bare or "`" in bare:
            raise self.bad("variables and substitutions are not expanded in rules.")
        if re.search(r"\s", program) and ("*" in program or "/" not in program):
            raise self.bad(f"quotes make it a single word; write bash({program}).")
        if program in _KEYWORDS:
            raise self.bad(f"{program} is part of the shell's language, not a program; rules match programs.")
        if re.match(r"[A-Za-z_]\w*\+?=", program):
            raise self.bad("it begins with a variable; name the program.")
        is_expression = self.effect != "allow" and (words[-1] == ".*" or program.endswith("/"))
        is_unknown = program[0] in "!^=-:" or re.match(r"~(?!/)", program) or not _PROGRAM.fullmatch(program)
        if is_expression or is_unknown or any(word.endswith(":*") for word in words[:-1]):
            raise self.bad("it is neither a regular expression nor negated; write bash(program *).")

    def _address(self, tool: str, actions: tuple[str, ...], pattern: str, scope: Scope | None) -> tuple[Rule, ...]:
        if pattern in ("*", "**"):
            return (self._rule(tool, actions, scope=scope),)
        known = matching_tools(tool)
        if known and not any(name in ("fetch", "agentic_fetch", "download") for name in known):
            raise self.bad(f"{tool} takes a path, not an address.")
        if pattern.startswith("domain:"):
            host = pattern.removeprefix("domain:").strip()
            pattern = f"https://{host}/*" if self.effect == "allow" else f"*://{host}:*/*"
        elif "://" not in pattern:
            raise self.bad(f"it needs an address, such as {tool}(https://{pattern.strip('/*') or 'example.org'}/*).")
        try:
            address = parse_pattern(pattern)
        except BadAddress as error:
            raise self.bad(str(error)) from None
        rule = self._rule(tool, actions, pattern=pattern, scope=scope)
        return (msgspec.structs.replace(rule, subject="address", address=address),)

    def _paths(
        self, name: str, tool: str, actions: tuple[str, ...], pattern: str, scope: Scope | None
    ) -> tuple[Rule, ...]:
        if tool.startswith("mcp_"):
            raise self.bad("a tool of an MCP server takes no path; leave the parentheses out.")
        if scope is None and "\\" in re.sub(r"\[[^]]*\]", "", pattern):
            raise self.bad("directories are separated by /.")
        if scope is None and pattern.startswith("$"):
            raise self.bad("variables are not expanded in rules; ~/ is the home directory.")
        if re.match(r"~[^/]", pattern):
            raise self.bad("~/ is your own home directory; write the path of another one in full.")
        is_claude = name != name.lower()
        return tuple(
            self._rule(tool, actions, "path", self._path(variant), scope=scope)
            for variant in (_claude_paths(pattern, self.effect) if is_claude else (pattern,))
        )

    def _path(self, pattern: str) -> str:
        if pattern == "~":
            return "~/**"
        plain = re.sub(r"/{2,}", "/", pattern)
        if re.search(r"[*?\[\]][^/]*/\.\.(/|$)", plain):
            raise self.bad("`..` after a wildcard is ambiguous.")
        try:
            _path_pattern(plain)
        except re.error:
            raise self.bad("a range in brackets begins after its end.") from None
        return f"{plain}**" if plain.endswith("/") and plain != "/" else plain

    # The scope

    def _scope(self, text: str) -> tuple[str, Scope | None]:
        """Split off the scope of a saved rule: it follows the last parenthesis, or the name of the tool."""
        end = text.rfind(")") + 1 or next((at for at, char in enumerate(text) if char == " "), len(text))
        head, tail = text[:end], text[end:]
        if not tail.strip():
            return head, None
        found = _SCOPE.fullmatch(tail)
        if found is None:
            raise self.bad(_FORMS)
        if self.effect != "allow":
            raise self.bad("only rules in permissions.allow can be limited to a directory.")
        try:
            uses = tuple(_unquote(path) for path in re.findall(_PATH, found["uses"] or ""))
            params = json.dumps(json.loads(found["params"]), sort_keys=True) if found["params"] else ""
            return head, Scope(_unquote(found["directory"]), uses, _unquote(found["target"]), params)
        except ValueError:
            raise self.bad("the paths or the parameters after the pattern are not valid.") from None


def parse_rules(text: str, effect: Decision) -> tuple[Rule, ...]:
    """Parse the text of a rule. Raises `BadRule`, whose message names the rule, the mistake and the remedy."""
    return _Reader(text, effect).rules()


def _unquote(path: str | None) -> str:
    if not path:
        return ""
    return str(json.loads(path)) if path.startswith('"') else path


def _strip_quotes(pattern: str) -> str:
    """Return the pattern without quoted and escaped text; in double quotes `$` and backticks still count."""
    without = re.sub(r"\\.|'[^']*'", " q", pattern, flags=re.S)
    return re.sub(r'"((?:[^"\\]|\\.)*)"', lambda found: " q" + "".join(re.findall(r"[$`]", found[1])), without)


def _claude_paths(pattern: str, effect: Decision) -> tuple[str, ...]:
    """Return the patterns that a Claude Code path means: `//x` is absolute, `/x` is relative to the project, and a bare
    name matches at any depth.
    """
    if pattern.startswith(("//", "~/")):
        return (pattern,)
    if pattern.startswith("/"):
        return (pattern.lstrip("/"),) if effect == "allow" else (pattern.lstrip("/"), pattern)
    plain = pattern.removeprefix("./")
    if plain == pattern and "/" not in pattern.rstrip("/"):
        return (f"**/{pattern}",)
    return (plain,)
