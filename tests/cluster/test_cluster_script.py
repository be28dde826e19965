"""`scripts/cluster`, as a real process."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_demo import Demonstration, Screen, print_result

from scratch import new_directory
from trials.client_log_rules import Accepted, Fault

CLUSTER = Path(__file__).resolve().parents[2] / "scripts" / "cluster"


@pytest.fixture
def started() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([CLUSTER, "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_demonstration_shows_a_takeover_with_figures() -> None:
    """R1, R2, R6: its exit code is that of the checked result."""
    done = subprocess.run([CLUSTER, "--break"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"killed +n\d, after \d+ words of the long answer", done.stdout)
    assert re.search(r"takeover +\d\.\d\d s from kill -9", done.stdout)
    assert re.search(r"events +1 to \d+, each once and in this order, on n\d and n\d", done.stdout)
    assert re.search(r"tool +\d+ lines written, 0 of them after the takeover", done.stdout)
    ends = re.findall(r"^  (.+?)  +n\d +(\w+) +1 end +1 end", done.stdout, re.MULTILINE)
    assert ends == [
        ("tool that writes a file", "interrupted"),
        ("long answer", "interrupted"),
        ("answer that waits for it", "completed"),
        ("prompt without an owner", "completed"),
    ]


def test_a_demonstration_that_shows_a_loss_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demonstration = Demonstration(Screen(), [], tmp_path)
    fault = Fault("kill", 1.0, "n2", "w", "long")
    demonstration.log.faults.append(fault)
    demonstration.log.accepted.append(Accepted("w", "long", "n1", 0.5))
    demonstration.log.streams["w", "n1"] = []
    demonstration.prompts["long"] = "long answer"
    assert print_result(demonstration, fault) == 1
    shown = capsys.readouterr().out
    assert "✘ w: n1 received no end of long, which n1 accepted" in shown
    assert "✘ long is None, not interrupted" in shown
    assert "Nothing was lost" not in shown


def test_printed_commands_work_and_nothing_remains(started: "subprocess.Popen[str]") -> None:
    assert started.stdout is not None
    printed = ""
    for line in started.stdout:
        printed += line
        if "Ctrl-C" in line:
            break
    directory = new_directory()
    command = next(line for line in printed.splitlines() if "run --stream" in line).replace(
        "words=200 pause=50", "words=3"
    )
    answer = subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "word1 word2 word3", answer.stderr
    sockets = [Path(found) for found in re.findall(r"unix://(\S+)", printed)]
    assert len(set(sockets)) == 2
    processes = [int(found) for found in re.findall(r"n\d, process (\d+)", printed)]
    started.send_signal(signal.SIGTERM)
    assert "everything was removed" in started.communicate(timeout=30)[0]
    assert started.returncode == 0
    assert not any(socket.exists() for socket in sockets)
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize("arguments", [["1"], ["--brake"]])
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([CLUSTER, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: scripts/cluster [N] | scripts/cluster --break   (N: 2 to 8)\n"
