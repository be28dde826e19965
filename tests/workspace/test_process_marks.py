"""Marks of processes: the environment variable and the control group by which a server finds what it has started."""

import io
from pathlib import Path

import pytest

from holdfast.workspace.process import process_tag
from holdfast.workspace.process.guard_client import Containment
from workspace.commands import guarded, run_line


@pytest.mark.parametrize("containment", ["namespace", "tree"])
async def test_mark_of_an_outer_server_is_replaced(tmp_path: Path, containment: Containment) -> None:
    """A server may be a command of another one."""
    async with guarded(tmp_path, containment) as processes:
        given = {"HOLDFAST_RUN": "outer.7", "OTHER": "kept"}
        marks = [(await run_line(processes, "echo $HOLDFAST_RUN $OTHER", env=given))[0].split() for _ in range(2)]
        assert [other for _, other in marks] == ["kept", "kept"]
        names = [mark.rpartition(".") for mark, _ in marks]
        assert names[0][0] == names[1][0] != "outer"
        assert [number for _, _, number in names] == ["1", "2"]
        assert not processes.guard._trees, "trees that have ended are forgotten"


WHOLE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
PART = "30 23 0:26 /docker/x /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
OLD = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        ("0::/\n", WHOLE, "/sys/fs/cgroup"),
        ("0::/a/b\n", WHOLE, "/sys/fs/cgroup/a/b"),
        ("0::/docker/x\n", PART, "/sys/fs/cgroup"),
        ("0::/docker/x/y\n", PART, "/sys/fs/cgroup/y"),
        ("0::/docker/xy\n", PART, ""),
        ("0::/docker\n", PART, ""),
        ("0::/a\n", PART + WHOLE.replace("/sys/fs/cgroup", "/elsewhere"), "/elsewhere/a"),
        ("1:cpu:/a\n0::/b\n", OLD + WHOLE, "/sys/fs/cgroup/b"),
        ("1:cpu:/a\n", OLD + WHOLE, ""),
        ("0::/a\n", OLD, ""),
        ("0::/a\n", "", ""),
        ("0::/a\n", None, ""),
        (None, WHOLE, ""),
    ],
)
def test_control_group_of_this_process(
    monkeypatch: pytest.MonkeyPatch, groups: str | None, mounts: str | None, expected: str
) -> None:
    """In a container without a namespace for control groups, the root of the mount is the group itself."""
    files = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}

    def opens(path: str, **_: str) -> io.StringIO:
        if (text := files[path]) is None:
            raise PermissionError(13, "denied")
        return io.StringIO(text)

    monkeypatch.setattr(process_tag, "open", opens, raising=False)
    assert process_tag._own_cgroup() == expected
