"""The ways of using git that only look. Pure: a table of subcommands and the options of each that act on nothing.

Git takes abbreviations of long options, so only whole names stand here. Aliases cannot hide a subcommand that git
knows itself. Not here: what asks another machine (`fetch`, `ls-remote`, `remote show`), what runs filters or tools
that a setting names (`--ext-diff`, `--textconv`, `grep -O`, `--submodule=diff`), what writes (`--output`, `branch -D`,
`config a b`). An option whose value may be left out never takes the next word: what stands there acts.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from holdfast.permissions.readonly_programs import Options, Taken, take
from holdfast.permissions.shell_lexer import Word, names

__all__ = ["git_looks"]


class _Looks(msgspec.Struct, frozen=True):
    """`verb`: what must follow at once; without it, or with an option before it, git does something else.
    `takes_patterns`: no operand does more than choose what is shown, so that the names of files may be operands.
    """

    options: Options
    accepts: Callable[[Taken], bool] = lambda _: True
    verb: str = ""
    takes_patterns: bool = False


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
_LOG = Options(
    _DIFF_FLAGS + "igEFPtcm",
    "nLSlG",
    names(f"{_DIFF_LONG} {_LOG_LONG}"),
    names(f"{_DIFF_VALUED} {_LOG_VALUED}"),
    _DIFF_JOINED,
    has_numbers=True,
)
_DIFF = Options(_DIFF_FLAGS, "Sl", names(_DIFF_LONG), names(_DIFF_VALUED), _DIFF_JOINED)
_REFS = Options(
    "", "", names("omit-empty ignore-case"), names("format sort count points-at contains no-contains merged no-merged")
)


def _lists_branches(taken: Taken) -> bool:
    """A plain word is the name of a branch to make, unless a list was asked for."""
    return not taken.plain or bool(taken.names & names("list contains no-contains merged no-merged points-at"))


def _lists_tags(taken: Taken) -> bool:
    return not taken.plain or bool(taken.names & names("list l n contains no-contains merged no-merged points-at"))


def _no_plain(taken: Taken) -> bool:
    return not taken.plain


def _remotes(taken: Taken) -> bool:
    words = [word.text for word in taken.plain]
    return not words or (words[0] == "get-url" and len(words) == 2)


_SETTING = re.compile(
    r"user\.(name|email)|core\.(autocrlf|bare|eol|filemode|ignorecase|symlinks)|init\.defaultbranch|pull\.rebase"
    r"|push\.default|branch\.[\w./-]+\.(remote|merge|rebase)",
    re.I,
)
"""Settings that hold no secret. The others may: addresses with passwords, headers, helpers."""


def _gets_settings(taken: Taken) -> bool:
    """One setting of the repository itself: two words would set it, and without `--local` files elsewhere are read."""
    is_read = bool(taken.names & names("get get-all")) and "local" in taken.names and len(taken.plain) == 1
    return is_read and bool(_SETTING.fullmatch(taken.plain[0].text))


def _lists_files(taken: Taken) -> bool:
    """Files that are not tracked are shown below the working directory only; `:/` would be the whole repository."""
    others = taken.names & names("o others i ignored k killed")
    return not others or not any(word.text.startswith(":") for word in taken.plain)


def _shows_reflog(taken: Taken) -> bool:
    first = taken.plain[0] if taken.plain else None
    return first is None or not (first.is_glob or first.text in ("expire", "delete", "exists", "drop", "write"))


def _names_one_object(taken: Taken) -> bool:
    return bool(taken.names & names("p t s e")) and len(taken.plain) == 1


_SUBCOMMANDS: Mapping[str, _Looks] = {
    "status": _Looks(
        Options(
            "sbvz",
            "",
            names(
                "short branch show-stash porcelain long verbose untracked-files ignored ignore-submodules column "
                "no-column ahead-behind no-ahead-behind renames no-renames find-renames"
            ),
            joined="u",
        )
    ),
    "log": _Looks(_LOG, takes_patterns=True),
    "show": _Looks(_LOG, takes_patterns=True),
    "shortlog": _Looks(
        Options("nsec", "", names(f"numbered summary email {_LOG_LONG}"), names(f"group {_LOG_VALUED}"))
    ),
    "diff": _Looks(_DIFF, takes_patterns=True),
    "diff-tree": _Looks(
        Options(
            _DIFF_FLAGS + "rtvmc",
            "",
            names(f"{_DIFF_LONG} root no-commit-id pretty always"),
            names(_DIFF_VALUED),
            _DIFF_JOINED,
        )
    ),
    "rev-list": _Looks(Options("", "n", names(_LOG_LONG + " objects"), names(_LOG_VALUED), has_numbers=True)),
    "blame": _Looks(
        Options(
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
    "describe": _Looks(
        Options(
            "",
            "",
            names("all tags contains always long dirty broken first-parent exact-match abbrev"),
            names("match candidates"),
        )
    ),
    "rev-parse": _Looks(
        Options(
            "q",
            "",
            names(
                "abbrev-ref short verify quiet show-toplevel show-prefix show-cdup git-dir is-inside-work-tree "
                "symbolic is-bare-repository absolute-git-dir git-common-dir symbolic-full-name branches tags remotes"
            ),
        )
    ),
    "ls-files": _Looks(
        Options(
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
    "ls-tree": _Looks(
        Options("drtlz", "", names("long name-only name-status full-name full-tree abbrev"), names("format"))
    ),
    "cat-file": _Looks(Options("ptse"), accepts=_names_one_object),
    "merge-base": _Looks(Options("a", "", names("all octopus independent is-ancestor fork-point"))),
    "name-rev": _Looks(Options("", "", names("name-only tags always"), names("refs exclude"))),
    "for-each-ref": _Looks(_REFS),
    "show-ref": _Looks(Options("dsq", "", names("heads tags dereference hash verify quiet head branches"))),
    "count-objects": _Looks(Options("vH", "", names("verbose human-readable")), accepts=_no_plain),
    "check-ignore": _Looks(Options("qvn", "", names("quiet verbose non-matching no-index"))),
    "grep": _Looks(
        Options(
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
    "branch": _Looks(
        Options(
            "avrl",
            "",
            names("all remotes list verbose show-current color no-color column no-column abbrev no-abbrev ignore-case"),
            names("sort format contains no-contains merged no-merged points-at"),
        ),
        accepts=_lists_branches,
    ),
    "tag": _Looks(
        Options("ln", "", names("list column no-column ignore-case"), _REFS.long_valued), accepts=_lists_tags
    ),
    "remote": _Looks(Options("v", "", names("verbose all push")), accepts=_remotes),
    "config": _Looks(
        Options(
            "z",
            "",
            names("get get-all local null"),
            names("type default"),
        ),
        accepts=_gets_settings,
    ),
    "stash": _Looks(_LOG, verb="list"),
    "worktree": _Looks(Options("v", "", names("porcelain")), verb="list"),
    "reflog": _Looks(_LOG, accepts=_shows_reflog),
    "version": _Looks(Options("", "", names("build-options")), accepts=_no_plain),
}


def git_looks(words: tuple[Word, ...]) -> bool:
    """Whether `git` with these words only looks."""
    rest = words
    while rest and rest[0].text in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
        rest = rest[1:]
    looks = _SUBCOMMANDS.get(rest[0].text) if rest else None
    if looks is None:
        return False
    if any(re.search(r"%[-+ ]?G|signature", word.text) for word in rest[1:]):
        # To show whether a signature holds, git runs the program that checks it.
        return False
    rest = rest[1:]
    if looks.verb:
        if not rest or rest[0].text != looks.verb:
            return False
        rest = rest[1:]
    if not looks.takes_patterns and any(word.is_glob for word in rest):
        return False
    taken = take(rest, looks.options)
    return taken is not None and looks.accepts(taken)
