"""The Python fold and the TypeScript fold yield the same view of the same events. This test compares the Python fold
with the recordings; `web/tests/fold.test.ts` does so for the page.
"""

from pathlib import Path

import msgspec
import pytest

from web.recordings import Recording, folded, recordings


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_the_python_fold_matches_the_recordings(path: Path) -> None:
    recording = msgspec.json.decode(path.read_bytes(), type=Recording)
    assert recording.steps
    for kind in ("all", "watched"):
        shown, digests = folded(recording.steps, keeps_all=kind == "all")
        assert shown == recording.shown[kind]
        assert digests == recording.digests[kind]


def test_the_recordings_contain_every_event_type() -> None:
    output = set()
    for path in recordings():
        for step in msgspec.json.decode(path.read_bytes(), type=Recording).steps:
            output.add(step["event"]["type"] if "event" in step else "snapshot")
    assert output >= {
        "snapshot", "hello", "gap", "message", "message_delta", "message_part", "tool_output", "session", "run",
        "run_complete", "file", "agent_event", "permission_request", "permission_notification", "config_changed",
        "question_batch_request", "question_batch_notification",
    }  # fmt: skip
