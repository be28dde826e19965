"""Read-only programs: a table of programs with the options that have no side effects. Pure.

Every option is listed, with its kind; an option that is not listed needs approval. Left out on purpose: `env` and
`printenv` (they show secrets), `kill`, `set`, `top`, pagers, programs that execute their arguments, and options that
write, delete, follow links out of the workspace, read lists of files, or start another program.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.permissions.shell_lexer import Word, names

__all__ = ["ANY", "PROGRAMS", "VERSION_ONLY", "ParsedArguments", "ProgramOptions", "ReadonlyUse", "parse_arguments"]


class ProgramOptions(msgspec.Struct, frozen=True):
    """The options of a program. `flags` are letters without a value, `valued` letters that require one, `joined`
    letters that may have one in the same word; `long` are names without a value or with one after `=`, `long_valued`
    names that require one.
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    joined: str = ""
    has_numbers: bool = False
    """True if `-5` is an option too."""
    is_apart: bool = False
    """True if a letter with a value must be alone in its word."""
    is_first: bool = False
    """True if options must precede all operands."""
    dashed: frozenset[str] = frozenset()
    """Options whose value may begin with a dash. For others it is ambiguous."""


ANY = ProgramOptions()
"""All words are operands: the program has no options with side effects, or `accepts` checks the words."""


class ParsedArguments(msgspec.Struct, frozen=True):
    """The operands and options of a program."""

    operands: tuple[Word, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    """Names of the options, with their values or empty strings."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the options."""
        return frozenset(name for name, _ in self.values)


def parse_arguments(
    words: tuple[Word, ...], options: ProgramOptions, is_operand: Callable[[Word], bool] = lambda _: False
) -> ParsedArguments | None:
    """Separate options from operands. Return None if a word is, or may be, an unknown option. `is_operand` returns True
    for a pattern that matches no name which could be an option.
    """
    if options is ANY:
        return ParsedArguments(words, tuple(("", value) for word in words for value in _values(word.text)))
    operands: list[Word] = []
    values: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text == "--":
            operands += rest
            break
        if word.may_be_option and not is_operand(word):
            return None
        if not word.text.startswith("-") or word.text == "-":
            operands.append(word)
            if options.is_first:
                operands += rest
                break
            continue
        found = _parse_long(word.text, options) if word.text.startswith("--") else _parse_short(word.text, options)
        if found is None:
            return None
        names, value, wants_value = found
        if wants_value and rest:
            is_dash = len(rest[0].text) > 1 and rest[0].text.startswith("-")
            # A pattern may match several files: the first would be the value, the others operands.
            if rest[0].is_glob or (is_dash and names[-1] not in options.dashed):
                return None
            value = rest.pop(0).text
        values += [*((name, "") for name in names[:-1]), (names[-1], value)]
    return ParsedArguments(tuple(operands), tuple(values))


def _values(text: str) -> tuple[str, ...]:
    """Return the parts of a word that may be the value of an option."""
    if not text.startswith("-"):
        return ()
    return (text.partition("=")[2], text[2:])


def _parse_long(text: str, options: ProgramOptions) -> tuple[Sequence[str], str, bool] | None:
    name, sign, value = text[2:].partition("=")
    if name in options.long_valued:
        return (name,), value, not sign
    return ((name,), value, False) if name in options.long else None


def _parse_short(text: str, options: ProgramOptions) -> tuple[Sequence[str], str, bool] | None:
    """Parse a group of short options, of which the last may have a value."""
    if options.has_numbers and text[1:].isdecimal():
        return (text[1:],), "", False
    for at, letter in enumerate(text[1:], start=1):
        if letter in options.joined:
            return text[1 : at + 1], text[at + 1 :], False
        if letter in options.valued:
            if options.is_apart and len(text) > len("-x"):
                return None
            return text[1 : at + 1], text[at + 1 :], at + 1 == len(text)
        if letter not in options.flags:
            return None
    return text[1:], "", False


class ReadonlyUse(msgspec.Struct, frozen=True):
    """The read-only use of a program.

    `first_is_text`: the first operand is a pattern or a script, not a path, unless one of `text_options` is given. The
    values of `path_options` are paths. `reads_directories`: it reads the contents of a directory operand.
    `takes_anything`: with any words it only prints. `allows_patterns`: operands may be patterns of the shell that match
    no name which could be an option.
    """

    options: ProgramOptions = ANY
    takes_paths: bool = True
    first_is_text: bool = False
    text_options: frozenset[str] = frozenset()
    path_options: frozenset[str] = frozenset()
    max_operands: int | None = None
    reads_directories: bool = False
    takes_anything: bool = False
    allows_patterns: bool = False
    accepts: Callable[[ParsedArguments], bool] = lambda _: True


VERSION_ONLY = names(
    "awk bash clang cmp curl docker g++ gcc gh git grep java jq ld make node openssl perl php "
    "podman psql python python3 rg rsync ruby sed sqlite3 ssh tar tree vim wget xz"
)
"""Programs that with `--version` only print it. Left out are those that download the version that a project requires
(go, cargo), and those that are often scripts in the project's own directory, which can be changed (pip, cmake).
"""

_TEXT_PROGRAMS = (
    ": arch basename cal dirname echo expr factor false free groups id logname nproc pwd seq sleep tr true tty type"
)


def _reader(flags: str = "", valued: str = "", long: str = "", long_valued: str = "") -> ReadonlyUse:
    """Return the use of a program that reads files and prints."""
    options = ProgramOptions(flags, valued, names(f"{long} help version"), names(long_valued))
    return ReadonlyUse(options, allows_patterns=True)


def _counting(use: ReadonlyUse, dashed: str = "") -> ReadonlyUse:
    """Return a use with `-5` as an option; the values of the `dashed` options may be negative."""
    return replace(use, options=replace(use.options, has_numbers=True, dashed=names(dashed)))


_LS = _reader(
    "aAbBcCdfFgGhiklmnNopqQrRsStuUvxXZ1",
    "ITw",
    "all almost-all author escape ignore-backups color directory classify file-type full-time no-group inode si size "
    "group-directories-first human-readable kibibytes numeric-uid-gid literal hide-control-chars show-control-chars "
    "quote-name reverse recursive context zero",
    "block-size hide indicator-style ignore format sort time time-style tabsize width quoting-style",
)
_SUM = _reader("btz", "l", "binary text tag zero", "length")
_READERS: Mapping[str, ReadonlyUse] = {
    "cat": _reader(
        "AbeEnstTuv", "", "show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting"
    ),
    "head": _counting(_reader("qvz", "nc", "quiet silent verbose zero-terminated", "lines bytes"), "n c lines bytes"),
    "tail": _counting(
        _reader(
            "fFqvzr",
            "ncs",
            "follow retry quiet silent verbose zero-terminated",
            "lines bytes pid sleep-interval",
        ),
        "n c lines bytes",
    ),
    "wc": _reader("clmwL", "", "bytes chars lines words max-line-length", "total"),
    "nl": _reader("p", "bdfhilnsvw", "no-renumber", "body-numbering number-format number-width"),
    "rev": _reader(),
    "comm": _reader("123z", "", "check-order nocheck-order total zero-terminated", "output-delimiter"),
    "cmp": _reader("bls", "in", "print-bytes verbose silent quiet", "ignore-initial bytes"),
    "paste": _reader("sz", "d", "serial zero-terminated", "delimiters"),
    "fold": _counting(_reader("bs", "w", "bytes spaces", "width")),
    "expand": _counting(_reader("i", "t", "initial", "tabs")),
    "unexpand": _reader("a", "t", "all first-only", "tabs"),
    "od": _reader(
        "abcdfhiloxsvDHIO",
        "AjNSt",
        "traditional output-duplicates",
        "address-radix skip-bytes read-bytes format",
    ),
    "hexdump": _reader("bcCdovx", "ns"),
    "stat": _reader("Lft", "c", "dereference file-system terse", "format printf"),
    "readlink": _reader(
        "femnqsvz",
        "",
        "canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero",
    ),
    "realpath": replace(
        _reader(
            "emLPqsz",
            "",
            "canonicalize-existing canonicalize-missing logical physical quiet strip no-symlinks zero",
            "relative-to relative-base",
        ),
        path_options=names("relative-to relative-base"),
    ),
    "df": _reader(
        "ahHiklPTv",
        "Btx",
        "all human-readable si inodes local portability print-type total output",
        "block-size type exclude-type",
    ),
    "du": _reader(
        "abchkmsSx0",
        "dtB",
        "all apparent-size bytes total human-readable si summarize separate-dirs one-file-system null inodes time",
        "max-depth threshold block-size exclude time-style",
    ),
    **dict.fromkeys(("ls", "dir", "vdir"), _LS),
    **dict.fromkeys(("b2sum", "md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum"), _SUM),
    "cksum": _reader("z", "al", "raw base64 untagged tag zero", "algorithm length"),
    "sum": _reader("rs", "", "sysv"),
}
_GREP = ReadonlyUse(
    ProgramOptions(
        "ivwxclLqsnHhoraIzUFEGPTZbuy",
        "eABCmdDf",
        names(
            "ignore-case invert-match word-regexp line-regexp count files-with-matches files-without-match quiet "
            "silent no-messages line-number with-filename no-filename only-matching recursive text null null-data "
            "fixed-strings extended-regexp basic-regexp perl-regexp initial-tab byte-offset color colour "
            "no-ignore-case line-buffered version help"
        ),
        names(
            "regexp file after-context before-context context max-count include exclude exclude-dir exclude-from "
            "binary-files devices directories label"
        ),
        has_numbers=True,
        dashed=names("e regexp"),
    ),
    first_is_text=True,
    text_options=frozenset({"e", "f", "regexp", "file"}),
    path_options=frozenset({"f", "file", "exclude-from"}),
)
_RG = ReadonlyUse(
    ProgramOptions(
        "ilnvwcHhFSsUNoPpaxIu.0",
        "eABCgtTmMjrdEf",
        names(
            "ignore-case files-with-matches line-number invert-match word-regexp line-regexp count count-matches "
            "hidden no-ignore no-ignore-vcs fixed-strings smart-case case-sensitive multiline only-matching no-heading "
            "heading "
            "files no-filename with-filename json stats vimgrep trim null column no-line-number files-without-match "
            "text pcre2 type-list version pretty no-messages passthru unrestricted"
        ),
        names(
            "regexp glob iglob type type-not max-count max-depth context after-context before-context color colors "
            "max-columns max-filesize sort sortr replace encoding threads file ignore-file engine"
        ),
        dashed=names("e regexp"),
    ),
    first_is_text=True,
    text_options=frozenset({"e", "f", "regexp", "file", "files", "type-list"}),
    path_options=frozenset({"f", "file", "ignore-file"}),
)


def _sets_no_date(arguments: ParsedArguments) -> bool:
    """Return True if all operands are formats: any other one is a time to set."""
    return all(word.text.startswith("+") for word in arguments.operands)


def _tests_plainly(arguments: ParsedArguments) -> bool:
    """Return True if no word may contain a subscript, which bash evaluates and which may run commands."""
    words = [word.text for word in arguments.operands]
    inner = words[:-1] if words[-1:] == ["]"] else words
    if any(word.is_glob for word in arguments.operands):
        return False
    return not any(char in word for word in inner for char in "[$`") and "-v" not in inner and "-R" not in inner


def _script(arguments: ParsedArguments) -> str:
    """Return the first operand; empty if it is a pattern, which the shell replaces by names of files."""
    first = arguments.operands[0] if arguments.operands else None
    return "" if first is None or first.is_glob else first.text


_PRINTF_ACTS = re.compile(r"%[-+ #0'*\d.]*[^-+ #0'*\d.sdiouxXcbqQeEfFgG]|%[-+ #0'*\d.]*$")


def _prints_plainly(arguments: ParsedArguments) -> bool:
    """Return True unless `printf` would set a variable, by `-v` or `%n`."""
    form = _script(arguments)
    return form[:1] not in ("", "-") and not _PRINTF_ACTS.search(form.replace("%%", ""))


def _looks_up_names(arguments: ParsedArguments) -> bool:
    words = [word.text for word in arguments.operands]
    return words[:1] in (["-v"], ["-V"]) and not any(word.startswith("-") for word in words[1:])


_SED = re.compile(r"(\d+|\$)?(,(\d+|\$|\+\d+))?[pdq=]|\d+q|s(/)([^/\\\n]|\\[^\n])*/([^/\\\n]|\\[^\n])*/[gpI0-9]*")
_SED_LINES = re.compile(r"/([^/\\\n]|\\[^\n])*/(,/([^/\\\n]|\\[^\n])*/)?[pd]")


def _edits_nothing(arguments: ParsedArguments) -> bool:
    """Return True if each sed script has one of a few forms that neither write files nor run commands."""
    scripts = [value for name, value in arguments.values if name in ("e", "expression")]
    if not scripts:
        scripts = [_script(arguments)]
    return all(
        _SED.fullmatch(part.strip()) or _SED_LINES.fullmatch(part.strip())
        for script in scripts
        for part in ([script] if script[:1] in ("s", "/") else script.split(";"))
    )


_AWK = re.compile(r"[\w\s$,{}()\"':;=!+*/.%&^~\[\]?\\#-]*")
_AWK_ACTS = re.compile(
    r"system|getline|close|fflush|ENVIRON|SYMTAB|FUNCTAB|ARGV|ARGC|FILENAME\s*=|PROCINFO|function|\bfunc\b"
)


def _counts_only(arguments: ParsedArguments) -> bool:
    """Return True if the awk program has no pipe, no redirection and no call that runs commands."""
    text = _script(arguments)
    return bool(text) and bool(_AWK.fullmatch(text)) and not _AWK_ACTS.search(text)


def _is_plain_jq(arguments: ParsedArguments) -> bool:
    """Return True if the jq filter neither reads the environment nor loads modules."""
    text = _script(arguments)
    return bool(text) and not re.search(r"\benv\b|ENV|input_filename|import|include|modulemeta|getpath\(\$__", text)


_PS_ALONE = re.compile(r"aux(ww?)?|axu|ax|a|x|-(e|f|ef|A|ax|eF|efww?|efH|w|ww|l|el)|--(forest|no-headers)")
_PS_COLUMN = (
    "(pid|ppid|pgid|pgrp|sid|sess|tty|tt|stat|state|s|time|cputime|etimes?|r?user|euser|e?uid|e?gid|e?group|comm|args|"
    "cmd|command|ucmd|%cpu|pcpu|%mem|pmem|vsz|rss|sz|size|nlwp|lwp|pri|ni|nice|l?start|start_time|stime|wchan|psr|cls)=?"
)
_PS_COLUMNS = re.compile(f"{_PS_COLUMN}(,{_PS_COLUMN})*")
"""Known columns only: with an unknown one, ps parses all words again as options of another kind."""
_PS_SORT = re.compile(f"--sort=[-+]?{_PS_COLUMN}(,[-+]?{_PS_COLUMN})*")
_PS_VALUES = {
    "-o": _PS_COLUMNS,
    "-eo": _PS_COLUMNS,
    "-p": re.compile(r"\d+(,\d+)*"),
    "-C": re.compile(r"\w[\w.-]*"),
}


def _lists_processes(arguments: ParsedArguments) -> bool:
    """Return True if each word is one of a few options, or the value of the option before it. A word of letters is a
    group of options, and an `e` among them shows the environment of processes.
    """
    words = [word.text for word in arguments.operands]
    while words:
        word = words.pop(0)
        if word in _PS_VALUES:
            value = words.pop(0) if words else ""
            if not _PS_VALUES[word].fullmatch(value):
                return False
        elif not _PS_ALONE.fullmatch(word) and not _PS_SORT.fullmatch(word):
            return False
    return not any(word.is_glob for word in arguments.operands)


def _compares_here(arguments: ParsedArguments) -> bool:
    """Return True unless subdirectories are compared with links followed, which may lead outside."""
    return not arguments.names & {"r", "recursive"} or "no-dereference" in arguments.names


_FIND_VALUED = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -maxdepth -mindepth -size -mtime "
    "-mmin -atime -amin -ctime -cmin -newer -perm -user -group -uid -gid -printf -links -inum -lname -ilname"
)
_FIND_ALONE = names(
    "-print -print0 -ls -empty -not -a -o -and -or -prune -depth -readable -writable -executable -true -false -xdev "
    "-mount -nouser -nogroup -daystart -quit -P ( ) ! ,"
)


def _is_plain_find(arguments: ParsedArguments) -> bool:
    words = list(arguments.operands)
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


_TABLE: Mapping[str, ReadonlyUse] = {
    **dict.fromkeys(_TEXT_PROGRAMS.split(), ReadonlyUse(takes_paths=False, takes_anything=True)),
    **_READERS,
    "numfmt": ReadonlyUse(
        ProgramOptions(
            "z", "d", names("grouping header"), names("to from suffix field padding format delimiter round")
        ),
        takes_paths=False,
    ),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _GREP),
    "rg": _RG,
    "uname": ReadonlyUse(takes_paths=False, max_operands=6),
    "uptime": ReadonlyUse(ProgramOptions("ps", "", names("pretty since version")), takes_paths=False, max_operands=0),
    "whoami": ReadonlyUse(ProgramOptions(), takes_paths=False, max_operands=0),
    "which": ReadonlyUse(takes_paths=False, takes_anything=True),
    "whereis": ReadonlyUse(ProgramOptions("bms"), takes_paths=False),
    "command": ReadonlyUse(takes_paths=False, accepts=_looks_up_names),
    "printf": ReadonlyUse(takes_paths=False, takes_anything=True, accepts=_prints_plainly),
    "hostname": ReadonlyUse(ProgramOptions("fisIdA"), takes_paths=False, max_operands=0),
    "date": ReadonlyUse(
        ProgramOptions("uR", "dr", names("utc universal iso-8601 rfc-email"), names("date rfc-3339 reference"), "I"),
        path_options=names("r reference"),
        accepts=_sets_no_date,
    ),
    "test": ReadonlyUse(accepts=_tests_plainly),
    "[": ReadonlyUse(accepts=_tests_plainly),
    "cut": ReadonlyUse(
        ProgramOptions(
            "sz",
            "dfbc",
            names("complement only-delimited"),
            names("delimiter fields bytes characters output-delimiter"),
        )
    ),
    "sort": ReadonlyUse(
        ProgramOptions(
            "bdfgiMhnRrVcCmsuz",
            "kt",
            names(
                "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort human-numeric-sort "
                "numeric-sort "
                "random-sort reverse version-sort check stable unique zero-terminated month-sort merge"
            ),
            names("key field-separator"),
        )
    ),
    "uniq": ReadonlyUse(ProgramOptions("cdDuiz", "fsw", names("count repeated unique ignore-case")), max_operands=1),
    "column": ReadonlyUse(
        ProgramOptions("txne", "sc", names("table"), names("separator output-separator columns table-columns"))
    ),
    "file": ReadonlyUse(
        ProgramOptions("biLhNnr0v", "", names("brief mime mime-type mime-encoding dereference no-dereference"))
    ),
    "tree": ReadonlyUse(
        ProgramOptions(
            "adfipsughDFqNxrtcvUSACJX",
            "LPI",
            names("noreport dirsfirst gitignore prune du inodes si charset matchdirs ignore-case"),
            names("filelimit sort"),
            is_apart=True,
        )
    ),
    "diff": ReadonlyUse(
        ProgramOptions(
            "uqrNabBiwycpetTEZ",
            "UCxIWL",
            names(
                "unified brief recursive new-file ignore-all-space ignore-space-change ignore-blank-lines ignore-case "
                "side-by-side color report-identical-files text minimal suppress-common-lines no-dereference"
            ),
            names("exclude width label"),
        ),
        reads_directories=True,
        accepts=_compares_here,
    ),
    "xxd": ReadonlyUse(ProgramOptions("beipuE", "cglso", is_apart=True, is_first=True), max_operands=1),
    "sed": ReadonlyUse(
        ProgramOptions("nErsuz", "e", names("quiet silent regexp-extended"), names("expression")),
        first_is_text=True,
        text_options=names("e expression"),
        accepts=_edits_nothing,
    ),
    **dict.fromkeys(
        ("awk", "gawk", "mawk"),
        ReadonlyUse(ProgramOptions("", "Fv", is_first=True), first_is_text=True, accepts=_counts_only),
    ),
    "jq": ReadonlyUse(
        ProgramOptions(
            "rcSnesjaCM", "", names("raw-output compact-output sort-keys null-input slurp exit-status join-output tab")
        ),
        first_is_text=True,
        accepts=_is_plain_jq,
    ),
    "ps": ReadonlyUse(takes_paths=False, accepts=_lists_processes),
    "find": ReadonlyUse(accepts=_is_plain_find),
}
PROGRAMS: Mapping[str, ReadonlyUse] = _TABLE
