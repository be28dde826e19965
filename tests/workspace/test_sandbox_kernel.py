"""Kernel calls of a sandboxed command before it starts: privileges, Landlock, the system-call filter.

The kernel is replaced by one that records its calls; the filter is executed as the kernel does.
"""

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.workspace.process import tree_supervisor
from holdfast.workspace.sandbox import privileges


class Kernel:
    """Records its calls in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.program = b""

    def prctl(self, option: int, *arguments: Any) -> int:  # noqa: ANN401
        if option == 22:
            program = arguments[1]._obj
            raw = ctypes.string_at(ctypes.addressof(program), ctypes.sizeof(program))
            (address,) = struct.unpack_from("=Q", raw, type(program).code.offset)
            self.program = ctypes.string_at(address, program.length * 8)
            self.calls.append((option, arguments[0]))
        else:
            self.calls.append((option, *arguments))
        return 0


def run_filter(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """Run a filter as the kernel does. Returns its result."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *(*arguments, *[0] * 6)[:6])
    place, loaded = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, place * 8)
        place += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x15:
            place += if_true if loaded == value else if_false
        elif code == 0x35:
            place += if_true if loaded >= value else if_false
        else:
            assert code == 0x06
            return int(value)


ALLOWED, NOT_PERMITTED, NO_CALL, NO_FAMILY = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050061
MACHINES = {
    "x86_64": {
        0xC000003E: (41, 16, {
            "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298,
            "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
            "open_by_handle_at": 304,
        }),
        0x40000003: (359, 54, {
            "userfaultfd": 374, "keyctl": 288, "add_key": 286, "request_key": 287, "bpf": 357, "perf_event_open": 336,
            "kexec_load": 283, "init_module": 128, "finit_module": 350, "delete_module": 129,
            "open_by_handle_at": 342, "socketcall": 102,
        }),
    },
    "aarch64": {
        0xC00000B7: (198, 29, {
            "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241,
            "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
            "open_by_handle_at": 265,
        }),
    },
}  # fmt: skip
"""For each processor the audit identifiers with the numbers of `socket`, `ioctl` and the refused calls."""


@pytest.mark.parametrize("name", MACHINES)
def test_filter_refuses_exactly_listed_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kernel = Kernel()
    monkeypatch.setattr(privileges, "_libc", kernel)
    monkeypatch.setattr(privileges.platform, "machine", lambda: name)  # type: ignore[attr-defined]
    assert privileges.can_filter()
    privileges.install_filter()
    assert kernel.calls == [(22, 2)]
    program = kernel.program
    for machine, (opening, control, refused) in MACHINES[name].items():
        numbers = {425, 426, 427, *refused.values()}
        for number in range(460):
            if number not in (opening, control):
                expected = NOT_PERMITTED if number in numbers else ALLOWED
                assert run_filter(program, machine, number) == expected, number
        for family in range(50):
            expected = ALLOWED if family in (1, 2, 10, 16) else NO_FAMILY
            assert run_filter(program, machine, opening, family) == expected, family
        for request in range(0x5400, 0x5430):
            expected = NOT_PERMITTED if request in (0x5412, 0x541C) else ALLOWED
            assert run_filter(program, machine, control, 0, request) == expected, request
    assert run_filter(program, 0x12345678, 0) == NO_CALL
    x32 = run_filter(program, 0xC000003E, 0x40000000) if name == "x86_64" else NO_CALL
    assert x32 == NO_CALL


def test_another_processor_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(privileges, "_libc", kernel)
    monkeypatch.setattr(privileges.platform, "machine", lambda: "riscv64")  # type: ignore[attr-defined]
    privileges.install_filter()
    assert (kernel.calls, privileges.can_filter()) == ([], False)


def test_capabilities_that_root_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(privileges, "_libc", kernel)
    privileges.drop_capabilities()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    assert kernel.calls == [(24, number, 0, 0, 0) for number in range(last + 1) if number not in (0, 1, 3, 4, 5, 6, 7)]
    kernel.calls.clear()
    privileges.forbid_new_privileges()
    assert kernel.calls == [(38, 1, 0, 0, 0)]


def test_a_kernel_that_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def prctl(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(privileges, "_libc", Refusing())
    steps = (
        privileges.drop_capabilities,
        privileges.forbid_new_privileges,
        privileges.install_filter,
    )
    for step in steps:
        with pytest.raises(OSError, match=":"):
            step()


@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize("user", [0, 1_000])
def test_privileges_are_dropped_in_order(monkeypatch: pytest.MonkeyPatch, user: int, landlock: bool) -> None:
    """Capabilities while they can be changed, then no new privileges, then Landlock, which needs that; the filter
    last.
    """
    order: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        return lambda *_: order.append(name)

    for name in ("drop_capabilities", "forbid_new_privileges", "install_filter"):
        monkeypatch.setattr(privileges, name, noted(name))
    for name in ("restrict", "restrict_scopes"):
        monkeypatch.setattr(tree_supervisor, name, noted(name))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    request = {"restricted": True, "landlock": ["/work"] if landlock else []}
    tree_supervisor._give_up_privileges(request)
    expected = ["forbid_new_privileges", "restrict_scopes", *["restrict"] * landlock, "install_filter"]
    assert order == ["drop_capabilities"] * (landlock and user == 0) + expected
    order.clear()
    tree_supervisor._give_up_privileges({"landlock": ["/work"]})
    assert order == []


class Rules:
    """A kernel with Landlock of some version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.made: list[tuple[int, int, int, int]] = []
        self.allowed: dict[int, int] = {}
        self.enforced = 0

    def syscall(self, number: int, *arguments: Any) -> int:  # noqa: ANN401
        if number == 444:
            if arguments[0] is None:
                return self.version
            rules = arguments[0]._obj
            self.made.append((rules.files, rules.network, rules.scopes, arguments[1].value))
            return os.open("/", os.O_PATH)
        if number == 445:
            rule = arguments[2]._obj
            self.allowed[os.fstat(rule.parent).st_ino] = rule.allowed
            return 0
        self.enforced += 1
        return 0


@pytest.mark.parametrize(("version", "more"), [(1, 0), (2, 1 << 13), (3, 1 << 13 | 1 << 14), (7, 1 << 13 | 1 << 14)])
def test_landlock_restrictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, more: int) -> None:
    kernel = Rules(version)
    monkeypatch.setattr(privileges, "_libc", kernel)
    file = tmp_path / "file"
    file.touch()
    before = len(os.listdir("/proc/self/fd"))
    privileges.restrict([str(tmp_path), str(file), str(tmp_path / "nothing")])
    # Writing (1), removing and creating of every kind (4 to 12), and the rights of later versions.
    changes = 1 << 1 | sum(1 << bit for bit in range(4, 13)) | more
    assert kernel.made == [(changes, 0, 0, 8)]
    assert kernel.allowed == {
        tmp_path.stat().st_ino: changes,
        file.stat().st_ino: 1 << 1 | more & 1 << 14,
    }
    assert kernel.enforced == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_landlock_can_restrict_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, made in ((6, [(0, 0, 3, 24)]), (5, [])):
        kernel = Rules(version)
        monkeypatch.setattr(privileges, "_libc", kernel)
        privileges.restrict_scopes()
        assert (kernel.made, kernel.enforced) == (made, len(made))
    monkeypatch.setattr(privileges, "_libc", Rules(0))
    with pytest.raises(OSError, match="no Landlock"):
        privileges.restrict(["/"])
    monkeypatch.setattr(privileges, "_libc", Rules(-1))
    assert privileges.landlock_version() == 0
