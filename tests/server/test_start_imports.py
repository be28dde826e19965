"""A new server answers its first request before it has loaded the modules of a workspace."""

import subprocess
import sys

LATE = ("engine.engine", "engine.agent_loop", "tools.registry", "extensions.extensions", "runtime.workspace_services")


def test_the_server_starts_without_the_modules_of_a_workspace() -> None:
    script = "import sys, holdfast.server.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "holdfast.storage.sqlite_ledger" in loaded, "an answer requires an open store"
    assert not loaded & {f"holdfast.{name}" for name in LATE}
    assert not {name.split(".")[0] for name in loaded} & {"httpx2", "pydantic_ai", "openai", "anthropic", "click"}
