"""Running commands: their output, live and final, and complete termination after a cancel."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from holdfast.testing.gates import start, until
from holdfast.workspace.process.command_process import _LiveOutput, _OutputChannel
from holdfast.workspace.process.output_capture import MAX_SHOWN, OutputFiles
from trials.hostile_commands import new_token, survivors
from workspace.commands import guarded, line, run_line


async def test_stdout_and_stderr_are_separate(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        stdout, stderr, end = await run_line(processes, "echo out; echo err >&2; exit 2", tmp_path)
    assert (stdout, stderr, end.code) == ("out\n", "err\n", 2)


async def test_there_is_no_input(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        stdout, _, end = await run_line(processes, "cat; read x; echo $?")
    assert (stdout, end.code) == ("1\n", 0)


async def test_no_descriptor_of_ours_reaches_a_command(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        stdout, _, _ = await run_line(processes, "ls /proc/self/fd")
    assert stdout.split() == ["0", "1", "2", "3"], "the fourth is the directory being listed"


async def test_large_output_is_stored_in_file(tmp_path: Path) -> None:
    spills = tmp_path / "spills"
    async with guarded(spills) as processes:
        stdout, _, end = await run_line(processes, "seq 1 400000; echo end >&2")
    assert end.code == 0
    assert stdout.startswith("1\n2\n3\n")
    assert "lines truncated] ..." in stdout
    named = re.search(r"399999\n400000\n\n\[All of it is in (\S+): view that file to see more\.\]$", stdout)
    assert named
    [file] = spills.iterdir()
    assert str(file) == named[1]
    assert file.read_text() == "".join(f"{n}\n" for n in range(1, 400_001))
    assert len(stdout) < MAX_SHOWN + 400


async def test_output_file_is_bounded(tmp_path: Path) -> None:
    spills = tmp_path / "spills"
    async with guarded(spills) as processes:
        stdout, _, end = await run_line(processes, "head -c 40000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert end.code == 0
    assert "Its first 16 MiB is in" in stdout
    assert "\nlast\n" in stdout
    [file] = spills.iterdir()
    assert file.stat().st_size < 17_000_000
    assert file.read_bytes().endswith(b"x\n[The rest was not kept.]\n")
    assert file.stat().st_mode & 0o077 == 0 or spills.stat().st_mode & 0o077 == 0


async def test_short_output_creates_no_file(tmp_path: Path) -> None:
    async with guarded(tmp_path / "spills") as processes:
        await run_line(processes, f"head -c {MAX_SHOWN} /dev/zero | tr '\\0' x")
    assert not (tmp_path / "spills").exists()


def test_oldest_output_files_are_removed(tmp_path: Path) -> None:
    spills = OutputFiles(tmp_path)
    for number in range(70):
        file = spills.new_file("out")
        file.add(str(number))
        file.close()
        assert file.path is not None
        os.utime(file.path, ns=(number, number))
    texts = {file.read_text() for file in tmp_path.iterdir()}
    assert texts == {str(number) for number in range(6, 70)}


async def test_disk_failure_loses_only_output_file(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    async with guarded(tmp_path / "blocked") as processes:
        stdout, _, end = await run_line(processes, "seq 1 20000")
    assert end.code == 0
    assert "truncated" in stdout
    assert "view that file" not in stdout


async def test_output_is_published_while_the_command_runs(tmp_path: Path) -> None:
    received: list[str] = []
    first = asyncio.Event()

    def record(text: str) -> None:
        received.append(text)
        first.set()

    async with guarded(tmp_path) as processes:
        go = tmp_path / "go"
        running = processes.start(
            line(f"echo first; until [ -e {go} ]; do sleep 0.01; done; printf 'a\\xe2'"), on_output=record
        )
        await first.wait()
        assert received == ["first\n"]
        assert not running.ended.done()
        go.touch()
        await running.wait()
    assert "".join(received) == "first\na�" == running.stdout.excerpt()


async def test_live_output_is_batched_and_bounded(tmp_path: Path) -> None:
    received: list[str] = []
    async with guarded(tmp_path) as processes:
        running = processes.start(line("yes | head -n 2000000"), on_output=received.append)
        await running.wait()
    assert running.stdout.output.size == 4_000_000
    assert sum(map(len, received)) < 1_100_000
    assert len(received) < 200
    assert "not shown" in received[-1]


async def test_no_live_output_after_stop(tmp_path: Path) -> None:
    received: list[str] = []
    async with guarded(tmp_path) as processes:
        running = processes.start(line("echo x"), on_output=received.append)
        running.stop_live_output()
        await running.wait()
    assert received == []
    assert running.stdout.excerpt() == "x\n"


async def test_a_process_outside_the_tree_that_holds_stdout_does_not_delay_the_end(tmp_path: Path) -> None:
    """C-53: the test holds the other end of the pipe and never closes it."""
    token = new_token()
    async with guarded(tmp_path) as processes:
        running = processes.start(line(f"echo ready; exec sleep {token}"))
        await until(lambda: survivors(token) and "ready" in running.stdout.output.buffered)
        link = f"/proc/{survivors(token)[0].partition(':')[0]}/fd/1"
        held = os.open(link, os.O_WRONLY)
        try:
            end = await running.stop_and_wait(0)
        finally:
            os.close(held)
    assert end.was_killed
    assert running.stdout.excerpt() == "ready\n"


async def test_buffered_output_is_read_at_end(tmp_path: Path) -> None:
    received: list[str] = []
    reading, writing = os.pipe()
    live = _LiveOutput(received.append)
    channel = _OutputChannel(reading, OutputFiles(tmp_path).new_file("out"), live)
    os.write(writing, b"last words\xe2")
    channel.drain()
    live.end()
    assert channel.excerpt() == "".join(received) == "last words�"
    os.close(writing)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_c45_cancel_at_any_point_leaves_no_process(tmp_path: Path, turns: int) -> None:
    """C-45: before the command exists, while it starts, while it runs."""
    token = new_token()
    async with guarded(tmp_path, grace=0.05) as processes:
        task = start(processes.run(line(f"setsid sleep {token} & trap '' INT; sleep {token}")))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not survivors(token)


async def test_second_cancel_does_not_interrupt_first(tmp_path: Path) -> None:
    token = new_token()
    ready = asyncio.Event()
    async with guarded(tmp_path, grace=0.2) as processes:
        text = f"trap '' INT TERM; echo ready; while :; do sleep {token}; done"
        task = start(processes.run(line(text), on_output=lambda _: ready.set()))
        await ready.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not survivors(token)
