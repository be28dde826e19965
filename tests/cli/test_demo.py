"""The demonstration, as its user runs it: a real process, a real kill, a real terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from holdfast.cli import demo_worker
from holdfast.providers.scripted_model import ScriptedModel
from holdfast.testing.harness import Harness
from holdfast.tools.ls import Ls
from holdfast.tools.view import ViewTool
from holdfast.tools.write import WriteTool

HOLDFAST = [sys.executable, "-m", "holdfast"]


def test_the_demonstration_shows_all_sections(tmp_path: Path) -> None:
    """R2, R9: every prompt ends once, also those a kill -9 cut off or kept waiting."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "100"}
    done = subprocess.run(
        [*HOLDFAST, "demo", "--fast"], capture_output=True, text=True, timeout=50, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table = done.stdout.split("Every prompt ended exactly once")[1]
    rows = dict(re.findall(r"^(\S.*?)\s{2,}(completed|cancelled|interrupted|failed)\s*$", table, re.MULTILINE))
    assert list(rows.values()) == ["completed", "cancelled", "cancelled", "completed", "interrupted", "completed"]
    for ending in ("completed look", "cancelled story", "cancelled again", "interrupted count", "completed tide"):
        assert done.stdout.count(ending) == 1
    assert "SIGKILL" in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


async def test_the_scripted_prompt_changes_the_file(tmp_path: Path) -> None:
    """Each of its calls succeeds, with the same texts as the demonstration announces."""
    file = tmp_path / "notes.txt"
    file.write_text(demo_worker.NOTES)
    model = ScriptedModel(demo_worker.script)
    harness = await Harness.open(model, tools=[Ls(), ViewTool(), WriteTool()], path=str(tmp_path))
    await harness.prompt(demo_worker.LIST_PROMPT, "r1")
    await harness.wait_until_idle()
    results = [result for message in await harness.messages() for result in message.tool_results]
    assert [(result.name, result.is_error) for result in results] == [("ls", False), ("view", False), ("write", False)]
    assert file.read_text() == f"{demo_worker.NOTES}- hello from Holdfast\n"
    assert harness.end_of("r1").text.startswith("Done:")
    for prompt in (demo_worker.HELLO, demo_worker.COUNT, demo_worker.TIDE):
        await harness.prompt(prompt, f"r-{prompt[:3]}")
        await harness.wait_until_idle()
        assert harness.end_of(f"r-{prompt[:3]}").text == demo_worker._ANSWERS[prompt]


def test_on_a_terminal_it_has_colours() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen([*HOLDFAST, "demo", "--fast"], stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 65_536):
            seen += chunk
    except OSError:
        pass  # The terminal is gone when the process is.
    finally:
        os.close(leader)
    assert process.wait(timeout=30) == 0
    assert b"\x1b[" in seen


def test_usage_errors_are_one_line() -> None:
    done = subprocess.run([*HOLDFAST, "nonsense"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "No such command 'nonsense'" in done.stderr
    assert "Traceback" not in done.stderr
