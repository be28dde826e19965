"""The decision about a tool call by the rules of a workspace: allow, ask or deny. Pure.

Among the user's rules the strictest match wins: deny, then ask, then allow. Without a match, reading inside the
workspace is allowed and everything else asks. Some programs ask even if all calls are allowed (`bash` alone in
`allow`), unless a rule names them. A shell line is allowed only if each of its commands and redirections is.

Restrictions and permissions treat uncertainty in opposite ways. A deny or ask rule applies if any spelling of a path or
program matches; an allow rule applies only if all of them do. If a line is not fully understood and a deny rule could
apply, the verdict is an ask that cannot be skipped (`insists`).
"""

import posixpath
import shlex
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.domain.approvals import Verdict
from holdfast.domain.permission_rules import BadRule, Rule, Scope, parse_rules
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.domain.url_patterns import BadAddress, WebAddress, parse_address
from holdfast.permissions.always_allow_rules import (
    call_rules,
    call_scope,
    command_rules,
    command_scope,
    is_exact,
    is_plain,
    line_rules,
    line_scope,
    working_directory,
)
from holdfast.permissions.deny_check import (
    FileUse,
    NamesOnly,
    ProgramFiles,
    directories,
    file_uses,
    find_denial,
    find_uncertainty,
    is_replaced,
)
from holdfast.permissions.readonly_check import (
    Place,
    has_harmless_assignments,
    is_program_in_workspace,
    is_readonly,
    is_readonly_redirection,
    leads_outside,
)
from holdfast.permissions.shell_lexer import ShellLine, SimpleCommand
from holdfast.permissions.wrapper_commands import read_line

__all__ = ["ALWAYS_ASK", "BadRule", "RuleSet"]


# Calls that ask even if all calls are allowed, unless a rule names them: the network, other users, system packages, the
# machine itself, and the files of a repository that make git run programs.

_ALWAYS_ASK_PROGRAMS = (
    # the network
    "alias aria2c axel chrome curl curlie firefox http-prompt httpie links lynx nc safari scp ssh telnet w3m wget xh "
    # other users
    "doas su sudo "
    # packages of the system
    "apk apt apt-cache apt-get dnf dpkg emerge home-manager makepkg opkg pacman paru pkg pkg_add pkg_delete portage "
    "rpm yay yum zypper "
    # the machine
    "at batch chkconfig crontab fdisk mkfs mkfs.* mount parted service systemctl umount "
    "firewall-cmd ifconfig ip iptables netstat pfctl route ufw"
)
_ALWAYS_ASK_USES = (
    "brew install *",
    "cargo install *",
    "gem install *",
    "go install *",
    "npm install * -g *",
    "npm install * --global *",
    "npm -g *",
    "npm --global *",
    "pip install * --user *",
    "pip3 install * --user *",
    "pnpm add * -g *",
    "pnpm add * --global *",
    "yarn global add *",
    "go test * -exec *",
    "go test * -exec=* *",
)
_ALWAYS_ASK_FILES = ("*:write(.git/**)", "*:write(**/.git/**)", "*:download(.git/**)", "*:download(**/.git/**)")

ALWAYS_ASK: tuple[str, ...] = (
    *(f"bash({program} *)" for program in _ALWAYS_ASK_PROGRAMS.split()),
    *(f"bash({way})" for way in _ALWAYS_ASK_USES),
    *_ALWAYS_ASK_FILES,
)


_READ_ACTIONS = frozenset({"read", "list", "use"})
_FILE_TOOLS = {"read": ("view",), "write": ("write", "edit", "multiedit")}
_MAX_PATTERNS = 32
_ALWAYS_ASK_RULES = tuple(rule for text in ALWAYS_ASK for rule in parse_rules(text, "ask"))


class RuleSet:
    """The rules of one workspace.

    The callables access the disk: `real` resolves links, `expansions` returns the paths that a glob pattern matches,
    `git_is_quiet` returns True if git would run no other program in a repository. Their defaults access no disk.
    """

    def __init__(  # noqa: PLR0913 - the look-ups on the disk, each replaced by some test
        self,
        settings: PermissionSettings,
        root: str,
        *,
        real: Callable[[str], str] = posixpath.normpath,
        expansions: Callable[[str], Sequence[str] | None] = lambda pattern: (pattern,),
        git_is_quiet: Callable[[str], bool] = lambda _: True,
        home: str = "",
        programs: ProgramFiles | None = None,
    ) -> None:
        """Parse the rules. `home` replaces `~/` in rules. Raises `BadRule` for the first invalid rule."""
        self._root = root
        self._real = real
        self._programs = programs or NamesOnly()
        find = self._programs.find
        self._here = Place(root, root, real, expansions=expansions, git_is_quiet=git_is_quiet, find_program=find)
        self._home = home
        self._deny = [rule for text in settings.deny for rule in parse_rules(text, "deny")]
        self._ask = [rule for text in settings.ask for rule in parse_rules(text, "ask")]
        allowing = (*settings.allowed_tools, *settings.allow)
        self._allow = [rule for text in allowing for rule in parse_rules(text, "allow")]

    def judge(self, permit: Permit) -> Verdict:
        """Return the decision about a tool call, with its reason and the rules that "always allow" would save."""
        if permit.command:
            return self._judge_line(permit)
        for rule in self._deny:
            if self._matches_call(rule, permit, any_path=True):
                return _deny_verdict(rule)
        for rule in self._ask:
            if self._matches_call(rule, permit, any_path=True):
                return Verdict("ask", f"The rule {rule.text} requires approval.")
        if permit.is_agreed:
            return Verdict("allow")
        allowing = [rule for rule in self._allow if self._matches_call(rule, permit)]
        warned = next((rule for rule in _ALWAYS_ASK_RULES if self._matches_call(rule, permit, any_path=True)), None)
        # A general permission does not cover the dangerous calls; a rule that names them does.
        if any(rule.is_naming for rule in allowing) or (allowing and warned is None):
            return Verdict("allow")
        is_outside = leads_outside(Place(self._root, self._root, self._real), _path(permit))
        if permit.action in _READ_ACTIONS and not is_outside and not _is_elsewhere(permit):
            return Verdict("allow")
        why = "It is outside of the workspace." if is_outside else "No rule allows it."
        written = posixpath.normpath(posixpath.join(self._root, _path(permit)))
        shown = posixpath.relpath(written, self._root) if written.startswith(self._root + "/") else written
        return Verdict("ask", why, call_rules(permit, shown, is_read=permit.action in _READ_ACTIONS))

    def _matches_call(self, rule: Rule, permit: Permit, *, any_path: bool = False) -> bool:
        """Return True if the rule matches the call. A path is compared as written and with links resolved: a
        restriction applies if one of them matches (`any_path`), an allow rule only if both do.
        """
        if not rule.is_about(permit) or rule.scope not in (None, call_scope(permit)):
            return False
        if rule.subject == "all":
            return True
        if rule.subject == "address":
            return bool(_address(permit)) and rule.fits_address(_parsed_address(_address(permit)))
        if rule.subject != "path" or (_address(permit) and not permit.params.get("file_path")):
            return False
        written = posixpath.join(self._root, _path(permit))
        paths = (posixpath.normpath(written), self._real(written))
        fits_each = [rule.fits_path(self._root, path, self._home) for path in paths]
        return any(fits_each) if any_path else all(fits_each)

    def _judge_line(self, permit: Permit) -> Verdict:
        line = read_line(permit.command)
        place = self._resolve_place(permit, line)
        about = [rule for rule in (*self._deny, *self._ask, *self._allow) if rule.is_about(permit)]
        deny, ask, allow = ([rule for rule in about if rule.effect == effect] for effect in ("deny", "ask", "allow"))
        if (found := self._find_restriction(deny, self._deny, permit, line)) is not None:
            return _deny_verdict(found)
        # Computed before the ask rules: an answer from auto-approval must not override a deny rule that may apply.
        uncertain = self._uncertainty(deny, self._deny, permit, line)
        if (found := self._find_restriction(ask, self._ask, permit, line)) is not None:
            return Verdict("ask", f"The rule {found.text} requires approval.", insists=bool(uncertain))
        # A rule for this exact line was saved by a person who saw it, so its uncertainty is accepted.
        if any(rule.subject == "line" for rule in allow):
            scope = line_scope(permit.command, line, place)
            if any(rule.fits_line(permit.command, scope) for rule in allow):
                return Verdict("allow")
        if uncertain:
            why = f"The line is not fully understood ({uncertain}), and a deny rule could apply."
            return replace(self._ask_verdict(permit, line, allow), why=why, insists=True)
        if any(not rule.is_naming and _is_everything(rule) for rule in allow):
            return self._judge_allow_all(permit, line, ask, allow)
        # A program in the workspace may have been written by the model itself.
        is_known = not line.uncertainties and not any(is_program_in_workspace(item.name, place) for item in line.outer)
        is_settled = not self._commands_not_allowed(permit, line, allow, place)
        if is_known and is_settled and self._are_redirections_allowed(line, place):
            return Verdict("allow")
        return self._ask_verdict(permit, line, allow)

    def _judge_allow_all(self, permit: Permit, line: ShellLine, ask: Sequence[Rule], allow: Sequence[Rule]) -> Verdict:
        """Return the decision if all lines are allowed: some programs and files still need a rule that names them."""
        warned = [rule for rule in _ALWAYS_ASK_RULES if rule.is_about(permit)]
        named = [item.argv for item in self._commands_named_by(permit, line, allow, self._resolve_place(permit, line))]
        commands, outer = (
            tuple(item for item in items if item.argv not in named) for items in (line.commands, line.outer)
        )
        unnamed = replace(line, commands=commands, outer=outer)
        is_warned = self._find_restriction(warned, _ALWAYS_ASK_RULES, replace(permit, command=""), unnamed) is not None
        if is_warned or self._uncertainty(ask, self._ask, permit, line):
            return self._ask_verdict(permit, line, allow)
        return Verdict("allow")

    def _find_restriction(
        self, about: Sequence[Rule], rules: Sequence[Rule], permit: Permit, line: ShellLine
    ) -> Rule | None:
        """Return the first rule that matches a command of the line, or a file that the line reads or writes."""
        places = directories(line, self._directory(permit))
        found = find_denial(about, line, permit.command, places, self._programs)
        if found is not None:
            return found
        for use in file_uses(line):
            for place in places or (self._directory(permit),):
                if (against := self._restriction_on_file(rules, use, place)) is not None:
                    return against
        return None

    def _restriction_on_file(self, rules: Sequence[Rule], use: FileUse, place: str) -> Rule | None:
        path = posixpath.join(place, use.path)
        for tool in _FILE_TOOLS[use.action]:
            permit = Permit(tool, use.action, path, "", {"file_path": path})
            found = next((rule for rule in rules if self._matches_call(rule, permit, any_path=True)), None)
            if found is not None:
                return found
        return None

    def _uncertainty(self, about: Sequence[Rule], rules: Sequence[Rule], permit: Permit, line: ShellLine) -> str:
        """Return the reason why a rule could apply although none matches; empty if none could."""
        places = directories(line, self._directory(permit))
        if why := find_uncertainty(about, line, places, self._programs):
            return why
        if not any(rule.subject in ("path", "all") and self._is_about_files(rule) for rule in rules):
            return ""
        uses = file_uses(line)
        if places is None and any(not use.path.startswith("/") for use in uses):
            return "it writes to a file in a directory that is not known"
        paths = (posixpath.join(place, use.path) for use in uses for place in places or ("/",))
        if any(self._real(path).startswith("/proc/") for path in paths):
            return "it uses a file whose path differs for each process"
        created = [use for use in uses if use.makes == "file"]
        if is_replaced(created, [use.path for use in uses if use not in created], places):
            return "it writes through a file that it creates"
        return line.hidden[0] if line.hidden else ""

    def _is_about_files(self, rule: Rule) -> bool:
        uses = ((tool, action) for action, tools in _FILE_TOOLS.items() for tool in tools)
        return any(rule.is_about(Permit(tool, action, "", "", {})) for tool, action in uses)

    def _directory(self, permit: Permit) -> str:
        return posixpath.normpath(posixpath.join(self._root, permit.path))

    def _resolve_place(self, permit: Permit, line: ShellLine) -> Place:
        """Return the directories in which the line runs. Only a single `cd` at its beginning can be followed."""
        here = self._here
        if (
            sum(any(char in text for char in "*?[") for command in line.commands for text in command.texts)
            > _MAX_PATTERNS
        ):
            # Each pattern would be expanded on disk, which takes too long.
            here = replace(here, expansions=lambda _: None)
        directory = self._directory(permit)
        moves = [command for command in line.commands if command.name in ("cd", "pushd", "popd")]
        if not moves:
            return replace(here, directory=directory)
        # The directory depends on the order and success of commands; nothing is assumed about it.
        if len(moves) > 1 or moves[0] is not line.commands[0] or len(moves[0].argv) != 2:
            return replace(here, directory=directory, is_lost=True)
        destination = posixpath.normpath(posixpath.join(directory, moves[0].argv[1].text))
        return replace(here, directory=directory, moved_to=destination)

    def _commands_named_by(
        self, permit: Permit, line: ShellLine, allow: Sequence[Rule], place: Place
    ) -> list[SimpleCommand]:
        """Return the commands that a rule names. A saved rule names a command only if the scope is the same and no
        other part of the line changes the effect of the command.
        """
        directory = None if line.hidden else working_directory(permit.command, line, place)

        def scope(command: SimpleCommand) -> Scope | None:
            return None if directory is None or not is_exact(command) else command_scope(command, directory, place)

        return [command for command in line.commands if _named_by(allow, command, scope(command))]

    def _commands_not_allowed(
        self, permit: Permit, line: ShellLine, allow: Sequence[Rule], place: Place
    ) -> list[SimpleCommand]:
        """Return the commands that neither a rule allows nor are read-only."""
        named = self._commands_named_by(permit, line, allow, place)
        is_outside = leads_outside(place, place.directory)
        return [
            command
            for command in line.commands
            if command not in named and (is_outside or not is_readonly(command, place))
        ]

    def _are_redirections_allowed(self, line: ShellLine, place: Place) -> bool:
        return all(
            is_readonly_redirection(item, place) or self._may_write(item.target.text, place)
            for item in line.redirections
        )

    def _may_write(self, target: str, place: Place) -> bool:
        """Return True if a redirection to the file is allowed. It is treated as a call of the write tool."""
        if place.is_moved or any(char in target for char in "*?[~$"):
            return False
        path = posixpath.join(place.directory, target)
        permit = Permit("write", "write", path, "", {"file_path": path})
        return self.judge(permit).decision == "allow"

    def _ask_verdict(self, permit: Permit, line: ShellLine, allow: Sequence[Rule]) -> Verdict:
        place = self._resolve_place(permit, line)
        not_allowed = self._commands_not_allowed(permit, line, allow, place)
        exact = line_rules(permit.command, line, place)
        if line.uncertainties:
            return Verdict("ask", f"The line is not fully understood: {line.uncertainties[0]}.", exact)
        if not not_allowed:
            return Verdict("ask", "It writes to a file.", exact)
        names = ", ".join(dict.fromkeys(_display(command) for command in not_allowed))
        is_apart = not line.hidden and self._are_redirections_allowed(line, place)
        if is_apart and all(is_plain(command) for command in not_allowed):
            exact = command_rules(not_allowed, permit.command, line, place)
        return Verdict("ask", f"No rule allows: {names}.", exact)


def _deny_verdict(rule: Rule) -> Verdict:
    return Verdict("deny", f"The rule {rule.text} forbids it.")


def _is_everything(rule: Rule) -> bool:
    return rule.subject == "all" or rule.words == ("*",)


def _path(permit: Permit) -> str:
    return str(permit.params.get("file_path") or permit.path or ".")


def _is_elsewhere(permit: Permit) -> bool:
    """Return True if the call reads a resource without a path: a URL, or a resource of an MCP server."""
    return bool(_address(permit) or permit.params.get("mcp_name"))


def _address(permit: Permit) -> str:
    address = permit.params.get("url")
    return address if isinstance(address, str) else ""


def _parsed_address(url: str) -> WebAddress | None:
    try:
        return parse_address(url)
    except BadAddress:
        return None


def _named_by(rules: Sequence[Rule], command: SimpleCommand, scope: Scope | None = None) -> bool:
    """Return True if a rule names the command, and the command sets no variables that may change its effect."""
    if not has_harmless_assignments(command) or any(word.is_dynamic for word in command.argv):
        return False
    fits = (rule.fits_command(command.texts, is_open=command.is_open, scope=scope) for rule in rules if rule.is_naming)
    return any(fits)


def _display(command: SimpleCommand) -> str:
    if not command.argv:
        return " ".join(f"{name}=…" for name, _ in command.assignments)
    text = " ".join(shlex.quote(word) for word in command.texts[:3])
    return text if len(command.texts) <= 3 else f"{text} …"
