"""Shell lines that run without approval, and the check that they have no effect and show no outside content.

Lines combine programs that may run without an approval, their options and hostile words: paths and links that lead out
of the workspace, file names that look like options, scripts that write. A real bash runs the lines that the rules
allow: no file may change, and no secret of an outside file or of a variable may be printed.
"""

import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.process.program_files import ProgramFiles, expand_glob

__all__ = ["UnapprovedShell", "hostile_line", "try_unapproved"]


def _items(text: str) -> list[str]:
    return [item.strip() for line in text.splitlines() for item in line.split("¦") if item.strip()]


_LINES = 150
_TIMEOUT = 5.0
_MARK = "qz7secret"
_PROGRAMS = _items(r"""
ls ¦ dir ¦ cat ¦ head ¦ tail ¦ wc ¦ nl ¦ rev ¦ comm ¦ cmp ¦ paste ¦ fold ¦ expand ¦ od ¦ hexdump ¦ stat
readlink ¦ realpath ¦ df ¦ du ¦ md5sum ¦ sha256sum ¦ cksum ¦ sum ¦ grep ¦ egrep ¦ rg ¦ cut ¦ sort ¦ uniq
column ¦ file ¦ tree ¦ diff ¦ xxd ¦ sed ¦ awk ¦ mawk ¦ jq ¦ ps ¦ find ¦ test ¦ date ¦ echo ¦ printf ¦ numfmt
which ¦ type ¦ id ¦ git
""")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_LONG = _items(r"""
output ¦ files0-from ¦ file ¦ reference ¦ exclude-from ¦ include-from ¦ recursive ¦ dereference ¦ follow ¦ check
format ¦ compress-program ¦ pre ¦ no-index ¦ untracked ¦ ext-diff ¦ textconv ¦ contents ¦ get ¦ list
show-origin ¦ from-file ¦ to-file ¦ unrestricted ¦ hidden ¦ search-zip ¦ expression ¦ in-place ¦ raw-input
slurpfile ¦ rawfile ¦ args
""")
_VERBS = _items(r"""
status ¦ log ¦ log -p ¦ show ¦ diff ¦ grep foo ¦ grep --untracked qz7 ¦ grep --no-index qz7 ¦ ls-files -o
blame a.txt ¦ config --get ¦ config --list ¦ config --global --get ¦ cat-file -p HEAD ¦ branch ¦ tag
stash list ¦ reflog ¦ rev-parse ¦ describe ¦ show-ref
""")
_SCRIPTS = _items(r"""
'{print}' ¦ '1' ¦ 'BEGIN{while((getline l<"OUT/key")>0)print l}' ¦ '{print ENVIRON["QZ"]}'
'BEGIN{system("touch made")}' ¦ 's/a/b/w made' ¦ '1r OUT/key' ¦ '1e touch made' ¦ 'p' ¦ 'w made' ¦ . ¦ env
'$ENV' ¦ 'input_filename' ¦ 'env.QZ' ¦ foo ¦ qz7 ¦ ''
""")
_OPERANDS = _items(r"""
a.txt ¦ b.txt ¦ d ¦ e ¦ . ¦ .. ¦ sub ¦ OUT/key ¦ OUT ¦ ../outside/key ¦ way ¦ way/key ¦ d/.x ¦ .x ¦ d/y
sub/../way/key ¦ * ¦ ?* ¦ .* ¦ d/* ¦ d/.* ¦ way/* ¦ -* ¦ *.txt ¦ --output=made ¦ -omade ¦ -o made ¦ -f OUT/key
-fOUT/key ¦ --file=OUT/key ¦ made ¦ /proc/self/environ ¦ /dev/fd/0 ¦ ~ ¦ ~/key ¦ {} ¦ :/ ¦ HEAD ¦ http* ¦ 1
100 ¦ %s ¦ +%s ¦ - ¦ -- ¦ "$QZ" ¦ $? ¦ -R ¦ -r ¦ -L ¦ -e ¦ axeww ¦ axe ¦ -o axeww ¦ -C -o axeww ¦ eww ¦ list ¦ -
-newer OUT/key ¦ -name x ¦ -type f ¦ -exec cat {} + ¦ -exec awk {} a.txt \; ¦ -exec uniq {} +
-execdir cat {} \; ¦ -exec jq -n {} \; ¦ -exec grep {} a.txt +
""")
_WRAPS = _items(r"""
LINE ¦ LINE ¦ LINE ¦ LINE ¦ LINE | cat ¦ LINE 2>&1 | head -50 ¦ cd sub && LINE ¦ cd d; LINE ¦ cd way && LINE
env LINE ¦ env -i LINE ¦ env -u PATH LINE ¦ env -i bash -c 'LINE' ¦ bash -c 'LINE' ¦ timeout 5 LINE ¦ nice LINE
ls | xargs LINE ¦ ls -a d | xargs -n1 LINE ¦ echo a.txt | xargs -I{} LINE ¦ LINE < OUT/key ¦ LINE < a.txt
LINE > /dev/null ¦ LINE <<< qz ¦ [ -f a.txt ] && LINE ¦ PATH=. LINE ¦ PATH=.:$PATH LINE ¦ command -p LINE
command LINE ¦ time LINE ¦ LC_ALL=C LINE ¦ exec LINE ¦ LINE <&3 ¦ LINE <&0 ¦ cd .. && LINE ¦ LINE; LINE
find . -type f -exec LINE {} + ¦ find . -type f -exec LINE {} \; ¦ find d -exec LINE {} \;
""")


def hostile_line(rng: random.Random, outside: Path) -> str:
    """Return a line that may have an effect, or read outside content."""
    program = rng.choice(_PROGRAMS)
    words = [program]
    if program == "git":
        words.append(rng.choice(_VERBS))
    if program in ("awk", "mawk", "sed", "jq", "grep", "egrep", "rg", "printf") and rng.random() < 0.8:
        words.append(rng.choice(_SCRIPTS))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        letters = "".join(rng.choice(_LETTERS) for _ in range(rng.choice((1, 1, 2, 3))))
        long = rng.choice(_LONG)
        kinds = [f"-{letters}", f"-{letters}", f"--{long}", f"--{long}={rng.choice(_OPERANDS)}", *_picks(rng, 4)]
        kinds.append(f"-{letters}{rng.choice(('OUT/key', 'made', 'a.txt'))}")
        words.append(rng.choice(kinds))
    if rng.random() < 0.3:
        words[1:] = rng.sample(words[1:], len(words) - 1)
    line = rng.choice(_WRAPS).replace("LINE", " ".join(words))
    return line.replace("OUT", str(outside))


def _picks(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(_OPERANDS) for _ in range(count)]


class UnapprovedShell:
    """A repository with links that lead out of it and files with hostile names, and a secret beside it."""

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        self.outside = root / "outside"
        self.project = self.outside / "project"
        self._environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.outside),
            "LC_ALL": "C.UTF-8",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "QZ": f"{_MARK} environment",
        }
        self._fill()
        self.rules = RuleSet(
            PermissionSettings(),
            str(self.project),
            real=os.path.realpath,
            expansions=expand_glob,
            programs=ProgramFiles(lambda: self._environment["PATH"]),
        )
        self._files = self._state()

    def _fill(self) -> None:
        for place in (self.project / "d", self.project / "e", self.project / "sub"):
            place.mkdir(parents=True)
        (self.outside / "key").write_text(f"{_MARK} outside\n")
        for name in ("a.txt", "b.txt", "d/y", "sub/a.txt", "list"):
            (self.project / name).write_text("foo\nbar\n")
        (self.project / "list").write_text(f"{self.outside}/key\n")
        for name in (
            "-la",
            "--files0-from=list",
            "http.extraHeader",
            'BEGIN{system("touch made")}',
            "cat",
            "awk",
            "env",
        ):
            (self.project / name).write_text("#!/bin/sh\ntouch made\n")
            (self.project / name).chmod(0o755)
        (self.project / "way").symlink_to(self.outside)
        (self.project / "d" / ".x").symlink_to(self.outside / "key")
        (self.project / "d" / "k").symlink_to(self.outside / "key")
        (self.project / "e" / ".x").symlink_to(self.outside / "key")
        (self.project / ".x").write_text("foo\n")
        (self.outside / ".gitconfig").write_text(f"[http]\n\textraHeader = {_MARK}\n[user]\n\tname = {_MARK}\n")
        self._git("init", "-q", str(self.outside))
        self._git("add", "project/a.txt", "project/d/y")
        self._git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "first")

    def _git(self, *words: str) -> None:
        if shutil.which("git"):
            subprocess.run(["git", *words], cwd=self.outside, env=self._environment, check=True, capture_output=True)

    def _state(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for path in [self.outside, *self.outside.rglob("*")]:
            if ".git" not in path.parts:
                about = path.lstat()
                found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_size)
        return found

    def needs_no_approval(self, line: str) -> bool:
        permit = Permit("bash", "execute", str(self.project), "", {}, line)
        return self.rules.judge(permit).decision == "allow"

    def violation(self, line: str) -> str:
        """Run the line and return its violation, or an empty string."""
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", "--", line],
                cwd=self.project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        if _MARK.encode() in done.stdout + done.stderr:
            return f"shows a secret: {line!r}"
        return "" if self._state() == self._files else f"changes files: {line!r}"


def try_unapproved(seed: int) -> None:
    """Raise `AssertionError` with the first line that ran without an approval and acted, or showed a secret."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-unasked-") as folder:
        shell = UnapprovedShell(Path(folder))
        for _ in range(_LINES):
            line = hostile_line(rng, shell.outside)
            if shell.needs_no_approval(line):
                found = shell.violation(line)
                assert not found, found
