"""Real clients of the protocol: acpx, which has no screen, and Toad, in a real terminal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome
from tui.test_terminal import Terminal, terminal

__all__ = ["terminal"]

ROOT = Path(__file__).parents[2]
ACPX = ROOT / "tests" / "extensions" / "node" / "node_modules" / ".bin" / "acpx"
TOAD = ROOT / ".venv" / "clients" / "toad" / "toad"
AGENT = f"{sys.executable} -m holdfast acp"
WRITE = 'tool=write {"file_path": "made.txt", "content": "one\\ntwo\\n"}'


@pytest.mark.skipif(not ACPX.exists() or shutil.which("node") is None, reason="scripts/test installs it")
def test_acpx_prompt_and_approval(home: IsolatedHome) -> None:
    command = [str(ACPX), "--agent", AGENT, "--approve-all", "--format", "json", "exec", f"think words=4 {WRITE}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=home.work, env=home.environment
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    updates = [item["params"]["update"] for item in messages if item.get("method") == "session/update"]
    text = "".join(item["content"]["text"] for item in updates if item["sessionUpdate"] == "agent_message_chunk")
    assert text == "word1 word2 word3 word4"
    assert any(item.get("method") == "session/request_permission" for item in messages)
    assert (home.work / "made.txt").read_text() == "one\ntwo\n"
    assert messages[-1]["result"] == {"stopReason": "end_turn"}


@pytest.mark.timeout(180)
@pytest.mark.skipif(not TOAD.exists(), reason="scripts/toad puts it there")
def test_toad_shows_a_session(terminal: Terminal) -> None:
    """A turn, a question with its answer, a cancel; and the session is visible to other clients."""
    agent = terminal.root / "agent"
    agent.write_text(f"#!/bin/sh\nunset PYTHONHOME PYTHONPATH\n{_path()}exec {AGENT}\n")
    agent.chmod(0o755)
    terminal.environment |= {"HOME": str(terminal.root), "XDG_STATE_HOME": str(terminal.root / "state")}
    terminal.open(f"{TOAD} acp {agent} .")
    terminal.until("How can I help you")
    terminal.until("Ask")
    _send(terminal, "words=4 think please")
    terminal.until("word1 word2 word3 word4")
    assert "I pretend to think" in terminal.screen()
    _send(terminal, f"please {WRITE}")
    terminal.until("Allow for this session")
    terminal.keys("a")
    terminal.until("write made.txt ✔")
    assert (terminal.project / "made.txt").read_text() == "one\ntwo\n"
    terminal.until("built-in scripted model")  # short enough to stay on one line
    terminal.until("How can I help you")
    _send(terminal, "words=9000 pause=50 slowly")
    terminal.until("word9")
    for _ in range(10):
        # Twice, and the second soon enough to count.
        terminal.tmux("send-keys", "Escape", ";", "run-shell", "sleep 0.2", ";", "send-keys", "Escape")
        if (outcomes := _outcomes(terminal)) == ["cancelled", "completed", "completed"]:
            return
    pytest.fail(f"the runs ended so: {outcomes}")


def _outcomes(terminal: Terminal) -> list[str | None]:
    """Return the outcomes of the runs of its directory, newest first, as another client sees them."""
    command = [sys.executable, "-m", "holdfast", "runs", "list", "--json"]
    output = subprocess.run(command, capture_output=True, check=True, cwd=terminal.project, env=terminal.environment)
    return [run.get("outcome") for run in json.loads(output.stdout)]


def _send(terminal: Terminal, text: str) -> None:
    terminal.type(text)
    terminal.until(text[:12])
    terminal.keys("Enter")


def _path() -> str:
    """Return the location of this package, if it is not installed."""
    return f"export PYTHONPATH={os.environ['PYTHONPATH']}\n" if "PYTHONPATH" in os.environ else ""


def test_missing_package_is_explained(alone: IsolatedHome) -> None:
    missing = "import sys; sys.modules['acp'] = None; sys.argv = ['holdfast', 'acp']"
    code = f"{missing}\nfrom holdfast.cli.main import main\nmain()"
    process = alone.start(code=code)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    assert (
        err.decode() == "holdfast: This needs the package agent-client-protocol: pip install 'holdfast-agent[acp]'.\n"
    )
