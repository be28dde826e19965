"""A server on another machine, through a real ssh server that forwards its socket."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, isolated_home
from holdfast.client.server_launcher import locate
from holdfast.client.server_paths import BadHost
from holdfast.client.ssh import SshTarget, parse_target
from holdfast.client.sync_client import SyncClient
from stream_servers import reserve_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Machine:
    """A simulated remote machine: an ssh server on loopback, with its own keys and environment."""

    def __init__(self, here: IsolatedHome, there: IsolatedHome, port: int) -> None:
        assert SSHD is not None
        self.there = there
        place = here.home / "ssh"
        place.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)], check=True)
        self.port = port
        names = ("XDG_RUNTIME_DIR", "HOLDFAST_DATA_DIR")
        given = [f'{name}="{there.environment[name]}"' for name in names]
        given += [f'XDG_CONFIG_HOME="{there.home}/.config"', f'PATH="{Path(sys.executable).parent}:/usr/bin:/bin"']
        given += [f'PYTHONPATH="{os.environ["PYTHONPATH"]}"'] if "PYTHONPATH" in os.environ else []
        (place / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {place}/user.pub\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nSetEnv {' '.join(given)}\n"
        )
        key = (place / "host.pub").read_text()
        (place / "known").write_text(f"[127.0.0.1]:{self.port} {key}")
        (place / "config").write_text(
            f"UserKnownHostsFile {place}/known\nGlobalKnownHostsFile /dev/null\nIdentityFile {place}/user\n"
            "IdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n"
        )
        here.environment["HOLDFAST_SSH"] = f"ssh -F {place}/config"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(place / "sshd_config")], stderr=subprocess.PIPE, env=dict(os.environ)
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if b"listening" in line:
                break

    def host(self, directory: str = "") -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{directory}"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def here() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        yield made


@pytest.fixture(scope="module")
def machine(here: IsolatedHome) -> Iterator[Machine]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd here: install openssh-server")
    with isolated_home() as there, reserve_port() as port:
        made = Machine(here, there, port)
        try:
            yield made
        finally:
            made.close()


def test_a_prompt_is_answered_on_the_remote_machine(here: IsolatedHome, machine: Machine) -> None:
    """The server is started and works on the remote machine, and leaves no files on this one, also after a killed
    client.
    """
    host = machine.host(str(machine.there.work))
    left = here.home / "r" / "holdfast" / "ssh-0.sock"
    left.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    os.utime(left, (0, 0))
    done = here.call("run", "--host", host, "words=3 tool=ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "word1 word2 word3\n", "")
    assert machine.there.server_process() is not None
    assert here.server_process() is None
    runs = msgspec.json.decode(machine.there.stdout_of("runs", "list", "--json"))
    assert [run["prompt"] for run in runs] == ["words=3 tool=ls"]
    status = msgspec.json.decode(here.stdout_of("server", "status", "--json", "--host", host))
    assert status["pid"] == machine.there.server_process()
    assert [file.name for file in (here.home / "r" / "holdfast").iterdir() if file.name.startswith("ssh-")] == []


def test_the_next_address_of_a_list_is_used(here: IsolatedHome, machine: Machine) -> None:
    """A connection over ssh is opened when its turn comes, and its failure is the reason for the next one."""
    directory = str(machine.there.work)
    gone = f"ssh://127.0.0.1:1{directory}"
    assert here.stdout_of("run", "--host", f"{gone},{machine.host(directory)}", "words=2") == "word1 word2"
    shown = here.stdout_of("server", "status", "--host", f"{gone},{machine.host(directory)}")
    assert f"address     {machine.host()}" in shown
    done = here.call("sessions", "--host", f"{gone},ssh://127.0.0.1:2{directory}")
    assert done.returncode == 4
    assert "No Holdfast server can be used: ssh://127.0.0.1:1: 127.0.0.1 cannot be reached: " in done.stderr
    assert "; ssh://127.0.0.1:2: 127.0.0.1 cannot be reached: " in done.stderr
    done = here.call("server", "stop", "--host", f"{gone},{machine.host(directory)}")
    assert (done.returncode, done.stderr) == (
        4,
        "holdfast: This stops one server: give its address alone, with --host.\n",
    )


def test_the_local_environment_is_not_sent(here: IsolatedHome, machine: Machine) -> None:
    here.environment["CANARY"] = "sings"
    host = machine.host(str(machine.there.work))
    output = here.stdout_of(
        "run", "--yolo", "--host", host, 'tool=bash {"command": "echo [$CANARY]", "description": "x"} words=1'
    )
    assert output == "word1"
    session = machine.there.stdout_of("sessions", "last", "--json")
    assert "sings" not in session
    assert "[]" in session


def test_a_broken_forwarding_is_opened_again(
    machine: Machine, here: IsolatedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in here.environment.items():
        monkeypatch.setenv(name, value)
    where = locate(machine.host(str(machine.there.work)))
    assert where.again is not None
    with SyncClient(where.address) as thin:
        assert thin.request("GET", "/v1/health")[0] == 200
    where.again()
    with SyncClient(where.address) as thin:
        assert thin.request("GET", "/v1/health")[0] == 200
    where.again.__self__.close()  # type: ignore[attr-defined]
    assert not os.path.exists(where.address.path)


def test_ssh_errors_are_one_line(here: IsolatedHome, machine: Machine) -> None:
    before = here.environment["HOLDFAST_SSH"]
    unknown_user = here.call("sessions", "--host", "ssh://nobody-here@127.0.0.1:1")
    assert unknown_user.returncode == 4
    assert "cannot be reached" in unknown_user.stderr
    assert len(unknown_user.stderr.splitlines()) == 1
    unknown = here.call("sessions", "--host", machine.host().replace("//", "//x", 1))
    assert "cannot be reached" in unknown.stderr
    here.environment["HOLDFAST_SSH"] = "no-such-ssh"
    missing = here.call("sessions", "--host", machine.host())
    assert "There is no no-such-ssh here" in missing.stderr
    here.environment["HOLDFAST_SSH"] = before
    gone = here.call("sessions", "--host", machine.host("/no/such/directory"))
    assert gone.returncode == 4
    assert "not a directory" in gone.stderr


def test_holdfast_is_not_installed_on_the_remote_machine(here: IsolatedHome, machine: Machine, tmp_path: Path) -> None:
    """A fake ssh with the responses of a machine without Holdfast."""
    before = here.environment["HOLDFAST_SSH"]
    for code, output, wanted in (
        (127, "sh: 1: holdfast: not found", "There is no holdfast on"),
        (2, "Error: No such command 'start'.", "cannot be used: Error: No such command"),
    ):
        fake = tmp_path / f"ssh{code}"
        fake.write_text(f'#!/bin/sh\necho "{output}" >&2\nexit {code}\n')
        fake.chmod(0o755)
        here.environment["HOLDFAST_SSH"] = str(fake)
        done = here.call("sessions", "--host", machine.host())
        assert (done.returncode, wanted in done.stderr) == (4, True), done.stderr
    chatty = tmp_path / "chatty"
    chatty.write_text("#!/bin/sh\necho Welcome\n")
    chatty.chmod(0o755)
    here.environment["HOLDFAST_SSH"] = str(chatty)
    assert "does its shell print text at login?" in here.call("sessions", "--host", machine.host()).stderr
    here.environment["HOLDFAST_SSH"] = before


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ssh://me@box", SshTarget("box", "me")),
        ("ssh://box:2222/srv/a%20b", SshTarget("box", "", 2222, "/srv/a b")),
        ("ssh://box/", SshTarget("box")),
    ],
)
def test_hosts_are_parsed(text: str, target: SshTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-l@box", "ssh://box:x", "ssh://a:b@box", "ssh://box?x"]
)
def test_invalid_hosts_are_refused(text: str) -> None:
    with pytest.raises(BadHost):
        parse_target(text)
