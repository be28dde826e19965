"""Repositories in every layout git accepts, whose configuration runs a program wherever git lets it.

Every program creates a file named after its configuration key, so the key that was obeyed is known.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from holdfast.workspace.git.readonly_check import EXECUTES

__all__ = ["FORMS", "KEYS", "Arena"]

_SUBSECTIONS = {"remote": "origin", "submodule": "sub", "credential": "https://example.org", "gpg": "openpgp"}
_FIXED = {
    "core.hookspath": "{traps}/hooks",
    "diff.*.cachetextconv": "true",
    "diff.submodule": "diff",
    "extensions.partialclone": "origin",
    "format.pretty": "%G? %h",
    "gpg.format": "openpgp",
    "help.autocorrect": "immediate",
    "init.templatedir": "{traps}",
    "log.showsignature": "true",
    "merge.verifysignatures": "true",
    "pager.*": "{trap}",
    "pretty.*": "%G? %h",
    "protocol.allow": "always",
    "protocol.*.allow": "always",
    "remote.*.promisor": "true",
    "remote.*.url": "ext::{trap}",
    "status.submodulesummary": "true",
    "submodule.*.update": "!{trap}",
    "submodule.recurse": "true",
}
_NAMES = {"alias": "status", "pager": "log", "bundle": "uri", "pretty": "medium"}
_SECOND = {"process", "command"}
"""These take precedence over `clean` and `textconv`, so they belong to a driver of their own."""
_ATTRIBUTES = "*.txt filter=x diff=x merge=x\n*.dat filter=y diff=y\n"
_HOOKS = ("post-index-change", "post-checkout", "pre-commit", "reference-transaction", "fsmonitor-watchman")
_IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
_SIGNATURE = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEz\n -----END PGP SIGNATURE-----\n"


def _key(pattern: str) -> str:
    section, _, rest = pattern.partition(".")
    _, dot, name = rest.rpartition(".")
    name = _NAMES.get(section, "x") if name == "*" else name
    if not dot:
        return f"{section}.{name}"
    return f"{section}.{_SUBSECTIONS.get(section, 'y' if name in _SECOND else 'x')}.{name}"


KEYS = {_key(pattern): pattern for pattern in sorted(EXECUTES)}
"""One key for each pattern of the table of executing keys."""
_LAZY = frozenset(("extensions.partialclone", "remote.*.promisor"))
_SIGNED = frozenset(("gpg.*.program", "gpg.format", "gpg.program", "log.showsignature", "format.pretty", "pretty.*"))


class Arena:
    """A directory with traps and a template repository, in which hostile repositories are built."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self.ran = self.base / "ran"
        self._traps = self.base / "traps"
        self._template = self.base / "template"
        for folder in (self.ran, self._traps / "hooks", self._template / "src"):
            folder.mkdir(parents=True)
        (self.base / "home").mkdir()
        for hook in _HOOKS:
            self._trap(f"hooks/{hook}")
        self._fill()

    def _trap(self, key: str) -> Path:
        """Return a program that leaves a file with the name of a key."""
        path = self._traps / key.replace("/", "_") if not key.startswith("hooks/") else self._traps / key
        path.write_text(f"#!/bin/sh\n: > '{self.ran}/{key.replace('/', '_')}'\nexec cat\n")
        path.chmod(0o755)
        return path

    def git(self, folder: Path, *words: str, stdin: str = "") -> str:
        """Run git as an attacker would, without configuration outside the repository."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.base / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", *_IDENTITY, "-c", "protocol.file.allow=always", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, input=stdin.encode()
        )
        return done.stdout.decode()

    def _fill(self) -> None:
        """Two commits, the second with a signature, and a change that is not committed."""
        top = self._template
        for name, text in {
            "a.txt": "one\n",
            "b.dat": "two\n",
            "src/c.txt": "three\n",
            ".gitattributes": _ATTRIBUTES,
        }.items():
            (top / name).write_text(text)
        self.git(top, "init", "-q")
        self.git(top, "add", ".")
        self.git(top, "commit", "-q", "-m", "first")
        commit = self.git(top, "cat-file", "commit", "HEAD")
        tree = commit.partition("\n")[0]
        head = self.git(top, "rev-parse", "HEAD").strip()
        people = "author A <a@example.org> 1700000000 +0000\ncommitter A <a@example.org> 1700000000 +0000\n"
        signed = f"{tree}\nparent {head}\n{people}{_SIGNATURE}\nsecond\n"
        second = self.git(top, "hash-object", "-t", "commit", "-w", "--stdin", stdin=signed).strip()
        self.git(top, "update-ref", "refs/heads/main", second)
        for name in ("a.txt", "b.dat"):
            (top / name).write_text("one and more\n")

    def payload(self, keys: Collection[str]) -> str:
        """Return configuration text in which each key names its trap."""
        lines = []
        for key in keys:
            section, _, rest = key.partition(".")
            subsection, dot, name = rest.rpartition(".")
            trap = self._trap(key)
            value = _FIXED.get(KEYS[key], "{trap}").format(trap=trap, traps=self._traps)
            head = f'[{section} "{subsection}"]' if dot else f"[{section}]"
            lines.append(f"{head}\n\t{name} = {value}\n")
        if _SIGNED & {KEYS[key] for key in keys}:
            lines.append(f"[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {self._trap('signature check')}\n")
        if _LAZY & {KEYS[key] for key in keys}:
            url = f"ext::{self._trap('lazy fetch')}"
            lines.append(
                f'[core]\n\trepositoryFormatVersion = 1\n[remote "origin"]\n\turl = {url}\n\tpromisor = true\n'
            )
            lines.append("[extensions]\n\tpartialClone = origin\n[protocol]\n\tallow = always\n")
        return "".join(lines)

    def repository(self, name: str) -> Path:
        """Return a copy of the template. Its files have other inodes, so git compares their content."""
        place = self.base / name
        shutil.copytree(self._template, place, symlinks=True)
        shutil.rmtree(place / ".git" / "hooks", ignore_errors=True)
        return place

    def fired(self) -> list[str]:
        """Return the keys whose programs ran since the last call."""
        found = sorted(os.listdir(self.ran))
        for name in found:
            (self.ran / name).unlink()
        return found


Form = Callable[[Arena, str], Sequence[Path]]


def _add(config: Path, text: str) -> None:
    config.write_text(config.read_text() + text if config.exists() else text)


def _plain(arena: Arena, text: str) -> Sequence[Path]:
    top = arena.repository("plain")
    _add(top / ".git/config", text)
    return top, top / "src"


def _odd_spelling(arena: Arena, text: str) -> Sequence[Path]:
    """Spellings that readers of configuration files get wrong."""
    top = arena.repository("odd")
    lines = text.replace("[core]\n\t", "[CORE] ").replace("]\n\t", "] # ]\n\t").replace("\n", " ; [\n")
    config = top / ".git/config"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes() + lines.encode())
    return (top,)


def _hooks(arena: Arena, _: str) -> Sequence[Path]:
    top = arena.repository("hooks")
    (top / ".git/hooks").symlink_to(arena.base / "traps/hooks")
    return (top,)


def _include(arena: Arena, text: str) -> Sequence[Path]:
    top = arena.repository("include")
    (top / "settings").write_text(text)
    _add(top / ".git/config", "[include]\n\tpath = ../settings\n")
    return (top,)


def _include_if(arena: Arena, text: str) -> Sequence[Path]:
    tops = []
    for number, condition in enumerate(("gitdir/i:**/.GIT", "onbranch:main", "hasconfig:remote.*.url:**")):
        top = arena.repository(f"include-if-{number}")
        (top / "settings").write_text(text)
        url = '[remote "other"]\n\turl = https://example.org/x\n' if "hasconfig" in condition else ""
        _add(top / ".git/config", f'{url}[includeIf "{condition}"]\n\tpath = ../settings\n')
        tops.append(top)
    return tops


def _linked_config(arena: Arena, text: str) -> Sequence[Path]:
    top = arena.repository("linked-config")
    config = top / ".git/config"
    (top / "settings").write_text(config.read_text() + text)
    config.unlink()
    config.symlink_to("../settings")
    return (top,)


def _worktree(arena: Arena, text: str) -> Sequence[Path]:
    top, beside = arena.repository("main"), arena.base / "beside"
    arena.git(top, "worktree", "add", "-q", "-b", "side", str(beside))
    _add(top / ".git/config", text)
    (beside / "a.txt").write_text("changed\n")
    return beside, beside / "src", top


def _config_worktree(arena: Arena, text: str) -> Sequence[Path]:
    top, beside = arena.repository("main-2"), arena.base / "beside-2"
    arena.git(top, "worktree", "add", "-q", "-b", "side", str(beside))
    arena.git(top, "config", "extensions.worktreeConfig", "true")
    _add(top / ".git/config.worktree", text)
    _add(top / ".git/worktrees/beside-2/config.worktree", text)
    (beside / "a.txt").write_text("changed\n")
    return beside, top


def _submodule(arena: Arena, text: str) -> Sequence[Path]:
    top, other = arena.repository("super"), arena.repository("other")
    arena.git(top, "submodule", "--quiet", "add", str(other), "sub")
    arena.git(top, "commit", "-q", "-m", "submodule")
    _add(top / ".git/modules/sub/config", text)
    (top / "sub/a.txt").write_text("changed\n")
    return top, top / "sub", top / "sub/src"


def _gitlink(arena: Arena, text: str) -> Sequence[Path]:
    """A nested repository that the index of the outer one names, without `.gitmodules`."""
    top = arena.repository("outer")
    arena.repository("inner").rename(top / "inner")
    arena.git(top, "add", "inner")
    arena.git(top, "commit", "-q", "-m", "gitlink")
    _add(top / "inner/.git/config", text)
    return top, top / "inner"


def _nested(arena: Arena, text: str) -> Sequence[Path]:
    top = arena.repository("around")
    arena.repository("within").rename(top / "src/within")
    _add(top / "src/within/.git/config", text)
    return top, top / "src", top / "src/within"


def _commondir(arena: Arena, text: str) -> Sequence[Path]:
    """Files that a plain clone can carry: HEAD and `commondir`, and elsewhere the rest of a repository."""
    top, evil = arena.repository("carrier"), arena.repository("evil")
    _add(evil / ".git/config", text + "[core]\n\tbare = false\n\tworktree = ..\n")
    (evil / ".git").rename(top / "data")
    shutil.copy(top / "data/HEAD", top / "src/HEAD")
    shutil.copy(top / "data/index", top / "src/index")
    (top / "src/commondir").write_text("../data\n")
    return top / "src", top, top / "data"


def _bare(arena: Arena, text: str) -> Sequence[Path]:
    top, evil = arena.repository("carrier-2"), arena.repository("evil-2")
    _add(evil / ".git/config", text + "[core]\n\tbare = false\n\tworktree = ..\n")
    (evil / ".git").rename(top / "src/bare")
    bare = arena.repository("evil-3")
    _add(bare / ".git/config", text + "[core]\n\tbare = true\n")
    (bare / ".git").rename(top / "src/really-bare")
    return top / "src/bare", top / "src/bare/refs", top / "src/really-bare", top


def _gitfile(arena: Arena, text: str) -> Sequence[Path]:
    """A `.git` file, with and without characters after the path that readers tend to remove."""
    tops = []
    for number, end in enumerate(("\n", "", " ", " \n", "\r\n", "\n\n", "\t\n", "/.\n", "/\n")):
        top = arena.repository(f"gitfile-{number}")
        _add(top / ".git/config", text)
        name = f"evil{end.rstrip(chr(10)).rstrip(chr(13)) if '/' not in end else ''}"
        (top / ".git").rename(top / name)
        (top / ".git").write_text(f"gitdir: evil{end}")
        tops.append(top)
    return tops


def _separate(arena: Arena, text: str) -> Sequence[Path]:
    top = arena.repository("separate")
    arena.git(top, "init", "-q", "--separate-git-dir", str(arena.base / "elsewhere"))
    _add(arena.base / "elsewhere/config", text)
    return top, top / "src"


def _links(arena: Arena, text: str) -> Sequence[Path]:
    """`.git` is a link to a directory, or to a file that names one; HEAD and the index are links."""
    directory, file, parts = (arena.repository(f"links-{number}") for number in range(3))
    for top in (directory, file, parts):
        _add(top / ".git/config", text)
    for top in (directory, file):
        (top / ".git").rename(top / "evil")
    (directory / ".git").symlink_to("evil")
    (file / "pointer").write_text(f"gitdir: {file}/evil\n")
    (file / ".git").symlink_to("pointer")
    for name, target in {"HEAD": "refs/heads/main", "index": "../moved"}.items():
        (parts / ".git" / name).rename(parts / "moved" if name == "index" else parts / "old-head")
        (parts / ".git" / name).symlink_to(target)
    return directory, file, parts


def _index_extensions(arena: Arena, text: str) -> Sequence[Path]:
    """An index with the extensions of monitor, untracked cache and split index."""
    monitored, split = arena.repository("monitored"), arena.repository("split")
    arena.git(monitored, "update-index", "--untracked-cache")
    arena.git(monitored, "-c", "core.fsmonitor=true", "update-index", "--fsmonitor")
    arena.git(split, "update-index", "--split-index")
    for top in (monitored, split):
        _add(top / ".git/config", text)
    return monitored, split


def _partial(arena: Arena, text: str) -> Sequence[Path]:
    """A partial clone with a missing object: git would fetch it through a program."""
    top = arena.repository("partial")
    blob = arena.git(top, "rev-parse", "HEAD:a.txt").strip()
    (top / ".git/objects" / blob[:2] / blob[2:]).unlink()
    lazy = arena.payload(["remote.origin.promisor"])
    _add(top / ".git/config", text + lazy)
    return (top,)


def _alternates(arena: Arena, text: str) -> Sequence[Path]:
    top, store = arena.repository("borrower"), arena.repository("store")
    shutil.rmtree(top / ".git/objects")
    (top / ".git/objects/info").mkdir(parents=True)
    (top / ".git/objects/info/alternates").write_text(f"{store}/.git/objects\n")
    _add(top / ".git/config", text)
    _add(store / ".git/config", text)
    return (top,)


def _inside(arena: Arena, text: str) -> Sequence[Path]:
    """The git directory itself as a workspace."""
    top = arena.repository("inside")
    _add(top / ".git/config", text)
    return top / ".git", top / ".git/refs"


FORMS: dict[str, Form] = {
    "plain": _plain, "odd spelling": _odd_spelling, "hooks": _hooks, "include": _include, "includeIf": _include_if,
    "linked config": _linked_config, "worktree": _worktree, "config.worktree": _config_worktree,
    "submodule": _submodule, "gitlink": _gitlink, "nested": _nested, "commondir": _commondir, "bare": _bare,
    "gitfile": _gitfile, "separate git dir": _separate, "links": _links, "index extensions": _index_extensions,
    "partial clone": _partial, "alternates": _alternates, "inside": _inside,
}  # fmt: skip
