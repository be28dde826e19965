"""A directory that is exchanged with a link during a search: nothing from outside may be shown."""

import asyncio
import ctypes
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.domain.errors import ToolError
from holdfast.tools.ls import Listing
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.safe_open import locate, open_directory
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope

__all__ = ["SECRET", "SwappedProject", "exchange", "try_swap"]

SECRET = "outside-secret"
_AT_FDCWD, _EXCHANGE = -100, 2
_ROUNDS = 4

_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, two: Path) -> None:
    """Exchange two names in one step."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class SwappedProject:
    """A project with the directories `d` and `d/e`, and beside each a link of the same depth that leads outside."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.outside = folder / "outside"
        for project, text in ((self.root / "d", "inside"), (self.outside, SECRET)):
            (project / "e").mkdir(parents=True)
            for path in (
                project / "f.txt",
                project / "e" / "f.txt",
                project / f"{text}.txt",
                project / "e" / f"{text}.txt",
            ):
                path.write_text(f"needle {text}\n")
        self.pairs = ((self.root / "d", self.root / "x"), (self.root / "d" / "e", self.root / "d" / "y"))
        for (_, link), target in zip(self.pairs, (self.outside, self.outside / "e"), strict=True):
            link.symlink_to(target)

    @contextmanager
    def racing(self, pair: tuple[Path, Path]) -> Iterator[None]:
        """Exchange a directory and a link as fast as possible."""
        stop = threading.Event()

        def race() -> None:
            while not stop.is_set():
                exchange(*pair)

        racer = threading.Thread(target=race)
        racer.start()
        try:
            yield
        finally:
            stop.set()
            racer.join()


async def _search(project: SwappedProject, chance: random.Random) -> str:
    root, path = str(project.root), chance.choice((".", "d", "d/e"))
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    way = chance.choice(("ripgrep", "git", "own"))
    git = PrivateGit(str(project.root.parent / "private-git")) if way == "git" else None
    searcher = Searcher(git=git, uses_ripgrep=way == "ripgrep")
    found = locate(root, path)
    if not found.is_inside:
        return ""
    where = SearchScope(root, found.path, environment, 30)
    match chance.choice(("grep", "glob", "ls")):
        case "grep":
            return str((await searcher.grep(where, GrepRequest("needle"))).matches)
        case "glob":
            return str((await searcher.files(where, "**/*.txt")).paths)
        case _:
            try:
                listing = Listing(found, open_directory(found.path), IgnoreRules(found.path), 1_000, 0)
            except OSError:
                return ""
            await asyncio.to_thread(listing.walk)
            return "\n".join(listing.lines())


def try_swap(seed: int) -> None:
    """Search while directories are exchanged with links: for `scripts/long`."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        project = SwappedProject(Path(folder).resolve())
        with project.racing(chance.choice(project.pairs)):
            for _ in range(_ROUNDS):
                try:
                    shown = asyncio.run(_search(project, chance))
                except ToolError as error:
                    shown = str(error)
                # The name of a link's target is the link's own content.
                bare = "\n".join(line for line in shown.splitlines() if " -> " not in line)
                assert SECRET not in bare, shown
