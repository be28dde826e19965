"""Read-only uses of git: a table of subcommands and their options without side effects. Pure.

Only full names of long options are listed, although git accepts abbreviations. An alias cannot replace a built-in
subcommand. Left out are requests to other machines (`fetch`, `ls-remote`, `remote show`), filters and tools that a
setting names (`--ext-diff`, `--textconv`, `grep -O`, `--submodule=diff`), and writes (`--output`, `branch -D`,
`config a b`). An option with an optional value never consumes the next word, which would therefore be an operand.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from holdfast.permissions.readonly_programs import ParsedArguments, ProgramOptions, parse_arguments
from holdfast.permissions.shell_lexer import Word, names

__all__ = ["is_readonly_git"]


class _GitUse(msgspec.Struct, frozen=True):
    """Read-only use of a subcommand. `verb`: the word that must follow immediately; without it, or after an option, git
    may write. `allows_patterns`: operands only select the output, so file names may be operands.
    """

    options: ProgramOptions
    accepts: Callable[[ParsedArguments], bool] = lambda _: True
    verb: str = ""
    allows_patterns: bool = False


_DIFF_FLAGS = "pusRabwzD"
_DIFF_JOINED = "UXMC"
_DIFF_LONG = (
    "stat numstat shortstat dirstat summary name-only name-status patch no-patch raw minimal patience histogram color "
    "no-color word-diff color-words ignore-all-space ignore-space-change ignore-space-at-eol ignore-blank-lines "
    "ignore-cr-at-eol find-renames find-copies no-renames check full-index binary function-context exit-code quiet "
    "no-ext-diff no-textconv no-prefix text reverse relative ignore-submodules cached staged merge-base "
    "compact-summary patch-with-stat pickaxe-all pickaxe-regex cc combined-all-paths unified abbrev"
)
_DIFF_VALUED = "inter-hunk-context diff-filter diff-algorithm stat-width stat-count word-diff-regex"
_LOG_LONG = (
    "oneline graph all branches tags remotes decorate no-decorate merges no-merges first-parent reverse follow "
    "abbrev-commit no-abbrev-commit date-order topo-order author-date-order left-right cherry-pick cherry-mark cherry "
    "boundary source full-history simplify-merges ancestry-path no-walk no-show-signature left-only "
    "right-only walk-reflogs regexp-ignore-case invert-grep all-match extended-regexp fixed-strings perl-regexp notes "
    "no-notes parents children use-mailmap no-mailmap relative-date count no-min-parents no-max-parents "
    "simplify-by-decoration dense sparse pretty format min-parents max-parents"
)
_LOG_VALUED = (
    "max-count skip since until after before author committer grep date decorate-refs decorate-refs-exclude glob "
    "exclude encoding"
)
_LOG = ProgramOptions(
    _DIFF_FLAGS + "igEFPtcm",
    "nLSlG",
    names(f"{_DIFF_LONG} {_LOG_LONG}"),
    names(f"{_DIFF_VALUED} {_LOG_VALUED}"),
    _DIFF_JOINED,
    has_numbers=True,
)
_DIFF = ProgramOptions(_DIFF_FLAGS, "Sl", names(_DIFF_LONG), names(_DIFF_VALUED), _DIFF_JOINED)
_REFS = ProgramOptions(
    "", "", names("omit-empty ignore-case"), names("format sort count points-at contains no-contains merged no-merged")
)


def _lists_branches(arguments: ParsedArguments) -> bool:
    """Return True unless an operand would be the name of a branch to create."""
    return not arguments.operands or bool(
        arguments.names & names("list contains no-contains merged no-merged points-at")
    )


def _lists_tags(arguments: ParsedArguments) -> bool:
    return not arguments.operands or bool(
        arguments.names & names("list l n contains no-contains merged no-merged points-at")
    )


def _has_no_operands(arguments: ParsedArguments) -> bool:
    return not arguments.operands


def _remotes(arguments: ParsedArguments) -> bool:
    words = [word.text for word in arguments.operands]
    return not words or (words[0] == "get-url" and len(words) == 2)


_SETTING = re.compile(
    r"user\.(name|email)|core\.(autocrlf|bare|eol|filemode|ignorecase|symlinks)|init\.defaultbranch|pull\.rebase"
    r"|push\.default|branch\.[\w./-]+\.(remote|merge|rebase)",
    re.I,
)
"""Settings without secrets. Others may contain some: URLs with passwords, headers, helpers."""


def _gets_settings(arguments: ParsedArguments) -> bool:
    """Return True if one setting of the repository is read: two operands would set it, and without `--local` files
    outside of the workspace are read.
    """
    is_read = (
        bool(arguments.names & names("get get-all")) and "local" in arguments.names and len(arguments.operands) == 1
    )
    return is_read and bool(_SETTING.fullmatch(arguments.operands[0].text))


def _lists_files(arguments: ParsedArguments) -> bool:
    """Return True unless untracked files outside of the working directory would be listed, as with `:/`."""
    others = arguments.names & names("o others i ignored k killed")
    return not others or not any(word.text.startswith(":") for word in arguments.operands)


def _shows_reflog(arguments: ParsedArguments) -> bool:
    first = arguments.operands[0] if arguments.operands else None
    return first is None or not (first.is_glob or first.text in ("expire", "delete", "exists", "drop", "write"))


def _names_one_object(arguments: ParsedArguments) -> bool:
    return bool(arguments.names & names("p t s e")) and len(arguments.operands) == 1


_SUBCOMMANDS: Mapping[str, _GitUse] = {
    "status": _GitUse(
        ProgramOptions(
            "sbvz",
            "",
            names(
                "short branch show-stash porcelain long verbose untracked-files ignored ignore-submodules column "
                "no-column ahead-behind no-ahead-behind renames no-renames find-renames"
            ),
            joined="u",
        )
    ),
    "log": _GitUse(_LOG, allows_patterns=True),
    "show": _GitUse(_LOG, allows_patterns=True),
    "shortlog": _GitUse(
        ProgramOptions("nsec", "", names(f"numbered summary email {_LOG_LONG}"), names(f"group {_LOG_VALUED}"))
    ),
    "diff": _GitUse(_DIFF, allows_patterns=True),
    "diff-tree": _GitUse(
        ProgramOptions(
            _DIFF_FLAGS + "rtvmc",
            "",
            names(f"{_DIFF_LONG} root no-commit-id pretty always"),
            names(_DIFF_VALUED),
            _DIFF_JOINED,
        )
    ),
    "rev-list": _GitUse(ProgramOptions("", "n", names(_LOG_LONG + " objects"), names(_LOG_VALUED), has_numbers=True)),
    "blame": _GitUse(
        ProgramOptions(
            "lsewftbcp",
            "L",
            names(
                "show-email show-name show-number porcelain line-porcelain root incremental color-lines color-by-age "
                "abbrev"
            ),
            names("date since"),
            "MC",
        )
    ),
    "describe": _GitUse(
        ProgramOptions(
            "",
            "",
            names("all tags contains always long dirty broken first-parent exact-match abbrev"),
            names("match candidates"),
        )
    ),
    "rev-parse": _GitUse(
        ProgramOptions(
            "q",
            "",
            names(
                "abbrev-ref short verify quiet show-toplevel show-prefix show-cdup git-dir is-inside-work-tree "
                "symbolic is-bare-repository absolute-git-dir git-common-dir symbolic-full-name branches tags remotes"
            ),
        )
    ),
    "ls-files": _GitUse(
        ProgramOptions(
            "cdmosiktuvfz",
            "x",
            names(
                "cached deleted modified others stage unmerged killed exclude-standard directory no-empty-directory "
                "full-name error-unmatch deduplicate eol abbrev"
            ),
            names("exclude"),
        ),
        accepts=_lists_files,
    ),
    "ls-tree": _GitUse(
        ProgramOptions("drtlz", "", names("long name-only name-status full-name full-tree abbrev"), names("format"))
    ),
    "cat-file": _GitUse(ProgramOptions("ptse"), accepts=_names_one_object),
    "merge-base": _GitUse(ProgramOptions("a", "", names("all octopus independent is-ancestor fork-point"))),
    "name-rev": _GitUse(ProgramOptions("", "", names("name-only tags always"), names("refs exclude"))),
    "for-each-ref": _GitUse(_REFS),
    "show-ref": _GitUse(ProgramOptions("dsq", "", names("heads tags dereference hash verify quiet head branches"))),
    "count-objects": _GitUse(ProgramOptions("vH", "", names("verbose human-readable")), accepts=_has_no_operands),
    "check-ignore": _GitUse(ProgramOptions("qvn", "", names("quiet verbose non-matching no-index"))),
    "grep": _GitUse(
        ProgramOptions(
            "ivwlLcnhHaIFEGPoqrzWp",
            "eABCm",
            names(
                "ignore-case invert-match word-regexp files-with-matches name-only files-without-match count "
                "line-number heading break text fixed-strings extended-regexp perl-regexp only-matching cached "
                "show-function function-context and or not all-match quiet full-name color no-color column"
            ),
            names("context after-context before-context max-depth threads max-count"),
            has_numbers=True,
        )
    ),
    "branch": _GitUse(
        ProgramOptions(
            "avrl",
            "",
            names("all remotes list verbose show-current color no-color column no-column abbrev no-abbrev ignore-case"),
            names("sort format contains no-contains merged no-merged points-at"),
        ),
        accepts=_lists_branches,
    ),
    "tag": _GitUse(
        ProgramOptions("ln", "", names("list column no-column ignore-case"), _REFS.long_valued), accepts=_lists_tags
    ),
    "remote": _GitUse(ProgramOptions("v", "", names("verbose all push")), accepts=_remotes),
    "config": _GitUse(
        ProgramOptions(
            "z",
            "",
            names("get get-all local null"),
            names("type default"),
        ),
        accepts=_gets_settings,
    ),
    "stash": _GitUse(_LOG, verb="list"),
    "worktree": _GitUse(ProgramOptions("v", "", names("porcelain")), verb="list"),
    "reflog": _GitUse(_LOG, accepts=_shows_reflog),
    "version": _GitUse(ProgramOptions("", "", names("build-options")), accepts=_has_no_operands),
}


def is_readonly_git(words: tuple[Word, ...]) -> bool:
    """Return True if `git` with these words only reads."""
    rest = words
    while rest and rest[0].text in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
        rest = rest[1:]
    use = _SUBCOMMANDS.get(rest[0].text) if rest else None
    if use is None:
        return False
    if any(re.search(r"%[-+ ]?G|signature", word.text) for word in rest[1:]):
        # To show the validity of a signature, git runs another program.
        return False
    rest = rest[1:]
    if use.verb:
        if not rest or rest[0].text != use.verb:
            return False
        rest = rest[1:]
    if not use.allows_patterns and any(word.is_glob for word in rest):
        return False
    arguments = parse_arguments(rest, use.options)
    return arguments is not None and use.accepts(arguments)
