"""A server and a client of different ages: a newer client replaces an older idle server, never a busy one."""

import msgspec

from cli.isolated_home import IsolatedHome, Process
from holdfast.client.sync_client import SyncClient
from holdfast.protocol.bodies import VersionInfo

OLD = "import holdfast\nholdfast.__version__ = '0.0.1'\n"
SERVE = "import sys\nfrom holdfast.cli.main import main\nmain()\n"
OTHER = "import holdfast.protocol as number\nnumber.PROTOCOL = {}\n"


def _serve(home: IsolatedHome, code: str, *options: str) -> Process:
    process = home.start("serve", *options, code=code + SERVE)
    assert process.stderr is not None
    assert any(b"listening" in line for line in process.stderr)
    return process


def _version(home: IsolatedHome) -> VersionInfo:
    with SyncClient(home.where.address) as thin:
        return msgspec.json.decode(thin.request("GET", "/v1/version")[1], type=VersionInfo)


def test_an_older_idle_server_started_by_a_client_is_replaced(alone: IsolatedHome) -> None:
    old = _serve(alone, OLD, "--started-by-client")
    assert _version(alone).version == "0.0.1"
    assert alone.stdout_of("run", "words=2") == "word1 word2"
    assert old.wait(10) == 0
    assert _version(alone).version != "0.0.1"


def test_an_older_busy_server_is_used(alone: IsolatedHome) -> None:
    old = _serve(alone, OLD, "--started-by-client")
    named = str(alone.where.address)
    working = alone.stdout_of("run", "--host", named, "--detach", "words=5000 pause=20")
    assert alone.server_process() == old.pid
    assert alone.stdout_of("run", "words=2") == "word1 word2"
    assert alone.server_process() == old.pid
    assert '"state":"active"' in alone.stdout_of("runs", "show", "--json", "--host", named, working)


def test_a_manually_started_server_is_not_replaced(alone: IsolatedHome) -> None:
    old = _serve(alone, OLD)
    assert alone.stdout_of("run", "words=2") == "word1 word2"
    assert alone.server_process() == old.pid


def test_an_incompatible_server_is_reported_and_not_used(alone: IsolatedHome) -> None:
    old = _serve(alone, OLD + OTHER.format(0))
    done = alone.call("run", "words=2")
    assert (done.returncode, done.stdout) == (4, "")
    assert "older version (0.0.1)" in done.stderr
    assert "holdfast server stop" in done.stderr
    assert old.poll() is None


def test_a_newer_server_is_not_replaced(alone: IsolatedHome) -> None:
    new = _serve(alone, OTHER.format(99), "--started-by-client")
    done = alone.call("run", "words=2")
    assert (done.returncode, "newer" in done.stderr) == (4, True)
    assert new.poll() is None
