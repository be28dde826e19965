"""The programs that only look, and how each of them may be used. Pure: a table, and what its rows need.

Left out on purpose: `env` and `printenv` (they show secrets), `kill`, `set`, `top`, pagers, whatever runs what it is
given, and options that write, delete, follow links out of the workspace, or start another program.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from holdfast.permissions.options import ANY, Options, Taken

__all__ = ["PROGRAMS", "VERSIONED", "Looks"]


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


class Looks(msgspec.Struct, frozen=True):
    """How a program is used that only looks. `first_is_text`: the first plain word is no path but a pattern or a
    program, unless one of `text_options` has given it. The values of `path_options` are paths. `looks_below`: of a
    directory it reads what is in it. `takes_anything`: no word makes it do more than print.
    """

    options: Options = ANY
    takes_paths: bool = True
    first_is_text: bool = False
    text_options: frozenset[str] = frozenset()
    path_options: frozenset[str] = frozenset()
    most_plain: int | None = None
    looks_below: bool = False
    takes_anything: bool = False
    accepts: Callable[[Taken], bool] = lambda _: True


VERSIONED = _set(
    "awk bash clang cmp curl docker g++ gcc gh git grep java jq ld make node openssl perl php "
    "podman psql python python3 rg rsync ruby sed sqlite3 ssh tar tree vim wget xz"
)
"""These tell their version and do nothing else. Not those that fetch the version a project asks for (go, cargo), nor
those that are often scripts in the project's own directory, where whoever may write could change them (pip, cmake)."""

_WORDS_ONLY = (
    ": arch basename cal dirname echo expr factor false free groups id logname nproc pwd seq sleep tr true tty type"
)
_READERS = (
    "cat cmp comm df dir du expand fold head hexdump ls nl numfmt od paste readlink realpath rev stat sum tail "
    "unexpand vdir wc"
)
_SUMS = "b2sum cksum md5sum sha1sum sha224sum sha256sum sha384sum sha512sum"
_GREP = Looks(
    Options(
        "ivwxclLqsnHhoraIzUFEGPTZbuy",
        "eABCmdDf",
        _set(
            "ignore-case invert-match word-regexp line-regexp count files-with-matches files-without-match quiet "
            "silent no-messages line-number with-filename no-filename only-matching recursive text null null-data "
            "fixed-strings extended-regexp basic-regexp perl-regexp initial-tab byte-offset color colour "
            "no-ignore-case line-buffered version help"
        ),
        _set(
            "regexp file after-context before-context context max-count include exclude exclude-dir exclude-from "
            "binary-files devices directories label"
        ),
        has_numbers=True,
        dashed=_set("e regexp"),
    ),
    first_is_text=True,
    text_options=frozenset({"e", "f", "regexp", "file"}),
    path_options=frozenset({"f", "file", "exclude-from"}),
)
_RG = Looks(
    Options(
        "ilnvwcHhFSsUNoPpaxIu.0",
        "eABCgtTmMjrdEf",
        _set(
            "ignore-case files-with-matches line-number invert-match word-regexp line-regexp count count-matches "
            "hidden no-ignore no-ignore-vcs fixed-strings smart-case case-sensitive multiline only-matching no-heading "
            "heading "
            "files no-filename with-filename json stats vimgrep trim null column no-line-number files-without-match "
            "text pcre2 type-list version pretty no-messages passthru unrestricted"
        ),
        _set(
            "regexp glob iglob type type-not max-count max-depth context after-context before-context color colors "
            "max-columns max-filesize sort sortr replace encoding threads file ignore-file engine"
        ),
        dashed=_set("e regexp"),
    ),
    first_is_text=True,
    text_options=frozenset({"e", "f", "regexp", "file", "files", "type-list"}),
    path_options=frozenset({"f", "file", "ignore-file"}),
)


def _sets_no_date(taken: Taken) -> bool:
    """A plain word that is no format is a time to set."""
    return all(word.text.startswith("+") for word in taken.plain)


def _tests_plainly(taken: Taken) -> bool:
    """An index in brackets is calculated, and what is calculated may run commands. A pattern may stand for one."""
    words = [word.text for word in taken.plain]
    inner = words[:-1] if words[-1:] == ["]"] else words
    if any(word.is_glob for word in taken.plain):
        return False
    return not any(char in word for word in inner for char in "[$`") and "-v" not in inner and "-R" not in inner


def _script(taken: Taken) -> str:
    """The first word, if it is what the program gets to see: a pattern becomes the name of some file."""
    first = taken.plain[0] if taken.plain else None
    return "" if first is None or first.is_glob else first.text


_PRINTF_ACTS = re.compile(r"%[-+ #0'*\d.]*[^-+ #0'*\d.sdiouxXcbqQeEfFgG]|%[-+ #0'*\d.]*$")


def _prints_plainly(taken: Taken) -> bool:
    """`-v` would set a variable, and so would `%n`."""
    form = _script(taken)
    return form[:1] not in ("", "-") and not _PRINTF_ACTS.search(form.replace("%%", ""))


def _looks_up_names(taken: Taken) -> bool:
    words = [word.text for word in taken.plain]
    return words[:1] in (["-v"], ["-V"]) and not any(word.startswith("-") for word in words[1:])


_SED = re.compile(r"(\d+|\$)?(,(\d+|\$|\+\d+))?[pdq=]|\d+q|s(/)([^/\\\n]|\\[^\n])*/([^/\\\n]|\\[^\n])*/[gpI0-9]*")
_SED_LINES = re.compile(r"/([^/\\\n]|\\[^\n])*/(,/([^/\\\n]|\\[^\n])*/)?[pd]")


def _edits_nothing(taken: Taken) -> bool:
    """Every script is one of a few forms that neither write nor run anything."""
    scripts = [value for name, value in taken.values if name in ("e", "expression")]
    if not scripts:
        scripts = [_script(taken)]
    return all(
        _SED.fullmatch(part.strip()) or _SED_LINES.fullmatch(part.strip())
        for script in scripts
        for part in ([script] if script[:1] in ("s", "/") else script.split(";"))
    )


_AWK = re.compile(r"[\w\s$,{}()\"':;=!+*/.%&^~\[\]?\\#-]*")
_AWK_ACTS = re.compile(
    r"system|getline|close|fflush|ENVIRON|SYMTAB|FUNCTAB|ARGV|ARGC|FILENAME\s*=|PROCINFO|function|\bfunc\b"
)


def _counts_only(taken: Taken) -> bool:
    """No pipe, no redirection, no call that runs anything."""
    text = _script(taken)
    return bool(text) and bool(_AWK.fullmatch(text)) and not _AWK_ACTS.search(text)


def _asks_json(taken: Taken) -> bool:
    """The environment is not shown; nothing is loaded."""
    text = _script(taken)
    return bool(text) and not re.search(r"\benv\b|ENV|input_filename|import|include|modulemeta|getpath\(\$__", text)


_PS = re.compile(
    r"aux|auxw|auxww|axu|ax|a|x|-(e|f|ef|A|ax|aux|auxww|eF|efww|efH|w|ww|l|el)|-[pC]|-e?o|\d[\d,]*|[a-z%]+(,[a-z%]+)*"
    r"|--(forest|no-headers|sort=[-+\w,%]+)"
)


def _lists_processes(taken: Taken) -> bool:
    """A word of letters is a list of columns only behind `-o`; alone it is a heap of options, `e` among them."""
    words = [word.text for word in taken.plain]
    columns = {at + 1 for at, word in enumerate(words) if word in ("-o", "-eo", "-C")}
    bare = [word for at, word in enumerate(words) if at not in columns and not word.startswith("-")]
    shows_secrets = any("environ" in word for word in words)
    return all(_PS.fullmatch(word) for word in words) and not shows_secrets and not any("e" in word for word in bare)


def _names_its_files(taken: Taken) -> bool:
    """A list of files may name any."""
    lists = any(word.text.startswith("--f") and "files0".startswith(word.text[2:8]) for word in taken.plain)
    return not lists and not _hides_options(taken)


def _hides_options(taken: Taken) -> bool:
    """Whether options are left to the names of files."""
    return any(word.may_be_option and word.text.startswith("-") for word in taken.plain)


def _sums_its_files(taken: Taken) -> bool:
    """What is checked against a list are files that the list names."""
    words = [word.text for word in taken.plain if word.text.startswith("-")]
    checks = any(word.startswith("--c") if word.startswith("--") else "c" in word for word in words)
    return not checks and not _hides_options(taken)


def _walks_here(taken: Taken) -> bool:
    """Following links and going down at once leads anywhere."""
    long = [word.text for word in taken.plain if word.text.startswith("--")]
    short = "".join(word.text[1:] for word in taken.plain if word.text[:1] == "-" and word.text[:2] != "--")
    follows = "L" in short or any("--dereference".startswith(word) and len(word) > 3 for word in long)
    return not follows and _names_its_files(taken)


def _compares_here(taken: Taken) -> bool:
    """In directories below it would follow links, wherever they lead."""
    return not taken.names & {"r", "recursive"} or "no-dereference" in taken.names


_FIND_VALUED = _set(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -maxdepth -mindepth -size -mtime "
    "-mmin -atime -amin -ctime -cmin -newer -perm -user -group -uid -gid -printf -links -inum -lname -ilname"
)
_FIND_ALONE = _set(
    "-print -print0 -ls -empty -not -a -o -and -or -prune -depth -readable -writable -executable -true -false -xdev "
    "-mount -nouser -nogroup -daystart -quit -P ( ) ! ,"
)


def _finds_only(taken: Taken) -> bool:
    words = list(taken.plain)
    while words:
        word = words.pop(0)
        if word.may_be_option:
            return False
        if word.text in _FIND_VALUED:
            if not words or words[0].is_glob:
                return False
            words.pop(0)
        elif word.text.startswith("-") and word.text not in _FIND_ALONE:
            return False
    return True


_TABLE: Mapping[str, Looks] = {
    **dict.fromkeys(_WORDS_ONLY.split(), Looks(takes_paths=False, takes_anything=True)),
    **dict.fromkeys(_READERS.split(), Looks(accepts=_names_its_files)),
    **dict.fromkeys(_SUMS.split(), Looks(accepts=_sums_its_files)),
    **dict.fromkeys(("ls", "dir", "vdir", "du"), Looks(accepts=_walks_here)),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _GREP),
    "rg": _RG,
    "uname": Looks(takes_paths=False, most_plain=6),
    "uptime": Looks(Options("ps", "", _set("pretty since version")), takes_paths=False, most_plain=0),
    "whoami": Looks(Options(), takes_paths=False, most_plain=0),
    "which": Looks(takes_paths=False, takes_anything=True),
    "whereis": Looks(Options("bms"), takes_paths=False),
    "command": Looks(takes_paths=False, accepts=_looks_up_names),
    "printf": Looks(takes_paths=False, takes_anything=True, accepts=_prints_plainly),
    "hostname": Looks(Options("fisIdA"), takes_paths=False, most_plain=0),
    "date": Looks(
        Options("uR", "dr", _set("utc universal iso-8601 rfc-email"), _set("date rfc-3339 reference"), "I"),
        takes_paths=False,
        accepts=_sets_no_date,
    ),
    "test": Looks(accepts=_tests_plainly),
    "[": Looks(accepts=_tests_plainly),
    "cut": Looks(
        Options(
            "sz", "dfbc", _set("complement only-delimited"), _set("delimiter fields bytes characters output-delimiter")
        )
    ),
    "sort": Looks(
        Options(
            "bdfgiMhnRrVcCmsuz",
            "kt",
            _set(
                "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort human-numeric-sort "
                "numeric-sort "
                "random-sort reverse version-sort check stable unique zero-terminated month-sort merge"
            ),
            _set("key field-separator"),
        )
    ),
    "uniq": Looks(Options("cdDuiz", "fsw", _set("count repeated unique ignore-case")), most_plain=1),
    "column": Looks(Options("txne", "sc", _set("table"), _set("separator output-separator columns table-columns"))),
    "file": Looks(Options("biLhNnr0v", "", _set("brief mime mime-type mime-encoding dereference no-dereference"))),
    "tree": Looks(
        Options(
            "adfipsughDFqNxrtcvUSACJX",
            "LPI",
            _set("noreport dirsfirst gitignore prune du inodes si charset matchdirs ignore-case"),
            _set("filelimit sort"),
            is_apart=True,
        )
    ),
    "diff": Looks(
        Options(
            "uqrNabBiwycpetTEZ",
            "UCxIWL",
            _set(
                "unified brief recursive new-file ignore-all-space ignore-space-change ignore-blank-lines ignore-case "
                "side-by-side color report-identical-files text minimal suppress-common-lines no-dereference"
            ),
            _set("exclude width label"),
        ),
        looks_below=True,
        accepts=_compares_here,
    ),
    "xxd": Looks(Options("beipuE", "cglso", is_apart=True, is_first=True), most_plain=1),
    "sed": Looks(
        Options("nErsuz", "e", _set("quiet silent regexp-extended"), _set("expression")),
        first_is_text=True,
        text_options=_set("e expression"),
        accepts=_edits_nothing,
    ),
    **dict.fromkeys(
        ("awk", "gawk", "mawk"), Looks(Options("", "Fv", is_first=True), first_is_text=True, accepts=_counts_only)
    ),
    "jq": Looks(
        Options(
            "rcSnesjaCM", "", _set("raw-output compact-output sort-keys null-input slurp exit-status join-output tab")
        ),
        first_is_text=True,
        accepts=_asks_json,
    ),
    "ps": Looks(takes_paths=False, accepts=_lists_processes),
    "find": Looks(accepts=_finds_only),
}
PROGRAMS: Mapping[str, Looks] = _TABLE
