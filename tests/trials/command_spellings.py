"""Spellings of a denied program and of a write to a denied file, and the check that none runs without approval.

A line is a core, such as `denied x`, inside random layers: quotes, wrappers, nested shells, substitutions, control
flow. The rules decide about it as they would with approvals skipped; every line they allow is run by a real bash, and
is a violation if the denied program ran or the denied file changed.
"""

import os
import random
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.domain.approvals import Verdict
from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.process.program_files import ProgramFiles, expand_glob

__all__ = ["SpellingProject", "damaged_line", "spell_program", "spell_write", "try_data", "try_spellings"]

_PROGRAM = "canary"
_LINES = 60
_TIMEOUT = 10.0
Layer = Callable[[str], str]


def _items(text: str) -> list[str]:
    """Return the parts of a table, which is written with Python's escapes."""
    parts = [item.strip() for line in text.splitlines() for item in line.split("¦")]
    return [item.encode("ascii").decode("unicode_escape") for item in parts if item]


def _q(text: str) -> str:
    return shlex.quote(text)


_COMMAND_LAYERS: tuple[Layer, ...] = (
    lambda line: f"env {line}",
    lambda line: f"env A=1 {line}",
    lambda line: f"env -i {line}",
    lambda line: f"env -u A {line}",
    lambda line: f"env -C . {line}",
    lambda line: f"env -S {_q(line)}",
    lambda line: f"nice {line}",
    lambda line: f"nice -n 5 {line}",
    lambda line: f"nice -5 {line}",
    lambda line: f"timeout 5 {line}",
    lambda line: f"timeout -s KILL 5 {line}",
    lambda line: f"nohup {line}",
    lambda line: f"stdbuf -oL {line}",
    lambda line: f"setsid -w {line}",
    lambda line: f"command {line}",
    lambda line: f"command -p env PATH=$PATH {line}",
    lambda line: f"exec {line}",
    lambda line: f"exec -a ls {line}",
    lambda line: f"time {line}",
    lambda line: f"! {line}",
    lambda line: f"time -p ! {line}",
    lambda line: f"echo a | xargs {line}",
    lambda line: f"echo a | xargs -I{{}} {line}",
    lambda line: f"echo a | xargs -I % -n 1 {line}",
    lambda line: f"find . -maxdepth 0 -exec {line} \\;",
    lambda line: f"find . -maxdepth 0 -execdir {line} {{}} +",
    lambda line: f"A=1 {line}",
    lambda line: f"</dev/null {line}",
    lambda line: f"2>/dev/null {line}",
    lambda line: f"$(echo) {line}",
    lambda line: f"$none {line}",
    lambda line: f"eval {line}",
    lambda line: f"coproc {line}; wait",
    lambda line: f"chroot / {line}",
    lambda line: f"flock . {line}",
    lambda line: f"jobs -x {line}",
    lambda line: f"git -c alias.z={_q('!' + line)} z",
)
"""Layers around one simple command."""

_LINE_LAYERS: tuple[Layer, ...] = (
    lambda line: f"true; {line}",
    lambda line: f"true && {line}",
    lambda line: f"false || {line}",
    lambda line: f"true\n{line}\n",
    lambda line: f"true &\n{line}",
    lambda line: f"true | {line}",
    lambda line: f"({line})",
    lambda line: f"{{ {line}\n}}",
    lambda line: f"if true; then {line}\nfi",
    lambda line: f"if {line}\nthen :; fi",
    lambda line: f"for i in 1; do {line}\ndone",
    lambda line: f"while :; do {line}\nbreak; done",
    lambda line: f"case a in a) {line}\n;; esac",
    lambda line: f"f() {{ {line}\n}}; f",
    lambda line: f"function f {{ {line}\n}}; f",
    lambda line: f"f() ( {line}\n); f",
    lambda line: f"select x in a; do {line}\nbreak; done <<< 1",
    lambda line: f"for ((i=0;i<1;i++)); do {line}\ndone",
    lambda line: f"echo $({line}\n)",
    lambda line: f'echo "$({line}\n)"',
    lambda line: f"echo ${{none:-$({line}\n)}}",
    lambda line: f"echo `{line}`" if "`" not in line and "\\" not in line else f"true; {line}",
    lambda line: f"cat <({line}\n)",
    lambda line: f": > >({line}\n); sleep 0.05",
    lambda line: f"[[ -n $({line}\n) ]]",
    lambda line: f"a=$({line}\n)",
    lambda line: f"cat <<< $({line}\n)",
    lambda line: f"cat <<E\n$({line}\n)\nE",
    lambda line: f"eval {_q(line)}",
    lambda line: f"bash -c {_q(line)}",
    lambda line: f"sh -c {_q(line)}",
    lambda line: f"bash --norc -c {_q(line)}",
    lambda line: f"bash --norc --noprofile -e -c {_q(line)} x y",
    lambda line: f"bash -xc {_q(line)}",
    lambda line: f"bash -O extglob -c {_q(line)}",
    lambda line: f"bash -o pipefail -c {_q(line)}",
    lambda line: f"bash <<< {_q(line)}",
    lambda line: f"bash -s <<< {_q(line)}",
    lambda line: f"echo {_q(line)} | bash",
    lambda line: f"bash <<'END'\n{line}\nEND",
    lambda line: f"bash /dev/stdin <<< {_q(line)}",
    lambda line: f"bash <(echo {_q(line)})",
    lambda line: f". /dev/stdin <<< {_q(line)}",
    lambda line: f"source <(echo {_q(line)})",
    lambda line: f"echo {_q(line)} > made.sh; bash made.sh",
    lambda line: f"trap {_q(line)} EXIT",
    lambda line: f"trap {_q(line)} DEBUG; :",
    lambda line: f"x={_q(line)}; eval $x",
    lambda line: f'x={_q(line)}; bash -c "$x"',
    lambda line: f"export x={_q(line)}; bash -c 'eval \"$x\"'",
    lambda line: f"echo a | xargs bash -c {_q(line)}",
    lambda line: f"find . -maxdepth 0 -exec bash -c {_q(line)} \\;",
    lambda line: f"timeout 5 bash -c {_q(line)}",
    lambda line: f"shopt -s expand_aliases\nalias z={_q(line)}\nz",
    lambda line: f"PS4={_q('$(' + line + ')')}; set -x; :",
    lambda line: f"BASH_ENV=<(echo {_q(line)}) bash -c :",
    lambda line: f"mapfile -C {_q(line + ' #')} -c 1 <<< a",
    lambda line: f"compgen -C {_q(line)} a",
    lambda line: f"declare {_q('a[$(' + line + ')0]=1')}",
    lambda line: f"printf -v {_q('a[$(' + line + ')0]')} x",
    lambda line: f"read {_q('a[$(' + line + ')0]')} <<< x",
    lambda line: f"unset {_q('a[$(' + line + ')0]')}",
    lambda line: f"a=1; [[ -v {_q('a[$(' + line + ')0]')} ]]",
    lambda line: f"a=1; test -v {_q('a[$(' + line + ')0]')}",
    lambda line: f"[[ {_q('a[$(' + line + ')0]')} -eq 0 ]]",
    lambda line: f"let {_q('a[$(' + line + ')0]=1')}",
    lambda line: f"x={_q('a[$(' + line + ')0]')}; echo $((x))",
    lambda line: f"echo $(( $({line}\n) 1 ))",
    lambda line: f"((a[$({line}\n)0]))",
    lambda line: f"exec {{x}}> >({line}\n); sleep 0.05",
    lambda line: f"script -qc {_q(line)} /dev/null",
    lambda line: f"git -c core.pager={_q(line)} -p version",
    lambda line: f": {'x' * 9000}; {line}",
    lambda line: f"{line} # {'x' * 9000}",
    lambda line: f"# a\n{line}",
    lambda line: f": 'a\n'\n{line}",
    lambda line: f"cat <<'E' >/dev/null\nit's\nE\n{line}",
    lambda line: f"{line}\r" if line.endswith("x") else f"true;\t{line}",
)
"""Layers around any line."""


def _quote_parts(rng: random.Random, word: str) -> str:
    """Write a word with quotes, escapes and continuations in it, which bash removes."""
    made = ""
    while word:
        size = rng.randint(1, len(word))
        part, word = word[:size], word[size:]
        forms = [part, part, f"'{part}'", f'"{part}"', f"\\{part}", f"{part}''", f'""{part}', f"{part}\\\n"]
        forms += [f"$'{part}'", "$'" + "".join(f"\\x{ord(char):02x}" for char in part) + "'", f"{part}$none"]
        made += rng.choice(forms)
    return made


def spell_program(rng: random.Random, project: "SpellingProject") -> str:
    """Return a line that runs the denied program, as far as bash accepts its layers."""
    program = rng.choice((
        _PROGRAM, _PROGRAM, _PROGRAM,
        f"{project.bin}/{_PROGRAM}", f"./../bin/{_PROGRAM}", "./link", "./copy", "sub/../link",
        f"{project.bin}/./{_PROGRAM}",
    ))  # fmt: skip
    spelt = rng.choice((
        program, program, program, _quote_parts(rng, program), _quote_parts(rng, program), f"{{{program},a}}",
        f"{program[:-1]}[{program[-1]}]" if "/" in program else program, f"$(echo {program})", f"`echo {program}`",
        f"{program[:-2]}??" if "/" in program else program, f"$'{program}'",
    ))  # fmt: skip
    line = f"{spelt} x"
    kinds = [
        f"c={program[:3]}; ${{c}}{program[3:]} x",
        f"c={program}; $c x",
        f'c="{program} x"; $c',
        f"set -- {program}; $1 x",
    ]
    kinds += [
        f"hash -p {project.bin}/{_PROGRAM} ls; ls x",
        f"alias ls={program}; eval ls x",
        f"a=({program} x); ${{a[@]}}",
    ]
    kinds += [f"ln -sf {project.bin}/{_PROGRAM} made; ./made x", f"cp {project.bin}/{_PROGRAM} made; ./made x"]
    kinds += [
        f"PATH={project.bin}; export PATH; {_PROGRAM} x",
        f"cd ../bin && ./{_PROGRAM} x",
        f"cd ../bin; PATH=.; {_PROGRAM} x",
    ]
    if rng.random() < 0.15:
        line = rng.choice(kinds)
    else:
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            line = rng.choice(_COMMAND_LAYERS)(line)
    return _layered(rng, line)


def spell_write(rng: random.Random, target_project: "SpellingProject") -> str:
    """Return a line that writes to the denied file."""
    project = target_project.project
    target = rng.choice((
        "keep/f", "./keep/f", "keep/../keep/f", f"{project}/keep/f", "way/f", "door", "sub/../keep/f", "keep//f",
        "sub/back/keep/f", f"../{project.name}/keep/f",
    ))  # fmt: skip
    spelt = rng.choice(
        (target, target, _quote_parts(rng, target), f"$(echo {target})", f"$PWD/{target}", f"{target[:-1]}?")
    )
    forms = [f"echo x {operator} {spelt}" for operator in (">", ">>", ">|", "&>", "&>>", "<>", "1>", ">&", "2>")]
    forms += [f"echo x >{spelt}", f">{spelt} echo x", f"> {spelt}", f": > {spelt}", f"exec 3> {spelt}; echo x >&3"]
    forms += [f"exec {{fd}}> {spelt}; echo x >&$fd", f"{{ echo x; }} > {spelt}", f"(echo x) > {spelt}"]
    forms += [f"while :; do echo x; break; done > {spelt}", f"f() {{ echo x; }} > {spelt}; f", f"echo x | tee {target}"]
    forms += [f"dd if=/dev/zero of={target} count=1", f"cp /etc/passwd {target}", f"ln -sf /etc/passwd {target}"]
    forms += [f"cat <<E > {spelt}\nx\nE", f"coproc echo x > {spelt}; wait", f"F={target}; echo x > $F"]
    forms += [
        "cd keep && echo x > f",
        "cd keep; cd ../keep; echo x > ./f",
        "(cd keep; echo x > f)",
        "pushd keep; echo x > f",
    ]
    forms += ["cd way && echo x > ../keep/f", "cd $PWD/keep && echo x > f", "D=keep; cd $D; echo x > f"]
    forms += [
        f"echo x > {target}; true",
        f"[[ -n a ]] > {target}",
        f"echo x 2>&1 1>{spelt}",
        f"cp /etc/passwd -t {project}/keep",
    ]
    forms += ["mv f.txt keep/f", "install -m 600 f.txt keep/f", "truncate -s 0 keep/f"]
    return _layered(rng, rng.choice(forms))


def _layered(rng: random.Random, line: str) -> str:
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        line = rng.choice(_LINE_LAYERS)(line)
    return line


_AS_DATA = _items(r"""
echo 'a; canary x' b ¦ # canary x\nls ¦ cat <<'E'\ncanary x\nE\nls
cat <<E >made\ncanary x $y\nE\nls 'a b' ¦ grep "canary x" f.txt ¦ git commit -m "a; canary x"
for f in a 'canary x'; do echo "$f"; done ¦ case $x in a) echo 'canary x';; b) ls;; esac
if [ -f a ]; then echo "canary x"; fi ¦ x='canary x'; echo "$x" ¦ echo "$(echo 'canary x')" a
f() { echo "canary x"; }; f ¦ [[ $a == 'canary x' ]] && ls ¦ echo a # canary x\nls
cat <<-'E'\n\tcanary x\n\tE\nls ¦ echo `ls canary` b ¦ echo ${x:-canary x} b ¦ echo "a\\"; canary x"
echo 'it'\\''s; canary x' ¦ ( cd sub; echo 'canary x' ) ¦ ls <(echo canary x)
printf '%s\\n' "canary x" ¦ find . -name 'canary x' -exec echo canary {} \\;
while read -r l; do echo canary; break; done < f.txt
cat <<A; cat <<B\ncanary x\nA\ncanary x\nB\nls ¦ export X="canary x"; ls ¦ { echo 'canary x'; }
a=1 b='canary x' ls ¦ bash -c 'echo "canary x"' ¦ timeout 5 echo 'canary x' ¦ env A='canary x' ls
git commit -m "$(cat <<'E'\ncanary x\nE\n)"
""")
"""Lines that name the denied program without running it."""
_PIECES = _items(r"""
' ¦ " ¦ \\ ¦ \n ¦ $( ¦ ` ¦ ) ¦ ( ¦ { ¦ } ¦ ; ¦ & ¦ # ¦ < ¦ > ¦ <<E\n ¦ <<'E'\n ¦ E\n ¦ \\\n ¦ $ ¦ $'
&& ¦ ;; ¦ esac ¦ done ¦ fi ¦ do ¦ then ¦ in ¦ ! ¦ [[ ¦ ]] ¦ ${ ¦ a[ ¦ ] ¦ = ¦ * ¦ ? ¦ ~ ¦ \t ¦ <(
>( ¦ &> ¦ 2> ¦ <<< ¦ if ¦ f() ¦ function ¦ time ¦ coproc ¦ eval ¦ - ¦ += ¦ (( ¦ )) ¦ $(( ¦ $[ ¦ %
@( ¦ '' ¦ "" ¦ <<\\E\n ¦ <<-E\n ¦ , ¦ .. ¦ x(){
""")


def damaged_line(rng: random.Random) -> str:
    """Return a line in which the denied program is data, with pieces inserted or removed: it may no longer be data."""
    line = rng.choice(_AS_DATA)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(line))
        piece = rng.choice((*_PIECES, "|", " ", "canary x", "; canary x\n", "$(canary x)"))
        line = line[:at] + piece + line[at + rng.choice((0, 0, 1, 2)) :]
    return line


class SpellingProject:
    """A project, a denied program beside it that records its runs, links to it, and a file that must not be written."""

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        self.project = root / "project"
        self.bin = root / "bin"
        self._note = root / "note"
        (self.project / "sub").mkdir(parents=True)
        (self.project / "keep").mkdir()
        self.bin.mkdir()
        canary = self.bin / _PROGRAM
        canary.write_text(f"#!/bin/sh\n: > '{self._note}'\n")
        canary.chmod(0o755)
        (self.project / "link").symlink_to(canary)
        (self.project / "copy").write_bytes(canary.read_bytes())
        (self.project / "copy").chmod(0o755)
        (self.project / "way").symlink_to("keep")
        (self.project / "door").symlink_to("keep/f")
        (self.project / "sub" / "back").symlink_to("..")
        self._environment = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "HOME": str(root), "LC_ALL": "C.UTF-8"}
        self.rules = RuleSet(
            PermissionSettings(deny=(f"bash({_PROGRAM} *)", "write(keep/**)"), allow=("bash",)),
            str(self.project),
            real=os.path.realpath,
            expansions=expand_glob,
            programs=ProgramFiles(lambda: self._environment["PATH"]),
        )
        self.reset()

    def reset(self) -> None:
        self._note.unlink(missing_ok=True)
        (self.project / "keep" / "f").unlink(missing_ok=True)
        (self.project / "keep" / "f").write_text("kept\n")
        (self.project / "f.txt").write_text("other\n")
        for made in ("made", "made.sh", "nohup.out"):
            (self.project / made).unlink(missing_ok=True)

    def judge(self, line: str) -> Verdict:
        permit = Permit("bash", "execute", str(self.project), "", {}, line)
        return self.rules.judge(permit)

    def is_stopped(self, line: str) -> bool:
        """Return true if the line does not run without approval, although approvals are skipped."""
        verdict = self.judge(line)
        return verdict.decision == "deny" or verdict.insists

    def is_violated(self, line: str) -> bool:
        """Run the line; return true if the denied program ran or the denied file changed."""
        self.reset()
        shell = ["/bin/bash", "-c", "--", line]
        quiet = subprocess.DEVNULL
        try:
            subprocess.run(
                shell,
                cwd=self.project,
                env=self._environment,
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        kept = self.project / "keep" / "f"
        return self._note.exists() or kept.is_symlink() or not kept.exists() or kept.read_text("latin-1") != "kept\n"


def try_spellings(seed: int) -> None:
    """Raise `AssertionError` with the first line that ran although a rule denies its effect."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-spellings-") as folder:
        project = SpellingProject(Path(folder))
        for number in range(_LINES):
            line = (spell_program if number % 2 else spell_write)(rng, project)
            if not project.is_stopped(line):
                assert not project.is_violated(line), line


def try_data(seed: int) -> None:
    """Raise `AssertionError` with the first line that ran the denied program although it was taken for data."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-spellings-") as folder:
        project = SpellingProject(Path(folder))
        for line in (damaged_line(rng) for _ in range(_LINES)):
            if not project.is_stopped(line):
                assert not project.is_violated(line), line
