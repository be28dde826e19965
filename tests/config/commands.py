"""Configuration commands, called in this process or in one of their own, with a home directory of the test."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click
from click.testing import CliRunner, Result

from config.settings_files import SettingsFiles

__all__ = ["SCRIPT", "Commands"]

COMMANDS = {
    "config": ("holdfast.cli.config", "command"),
    "trust": ("holdfast.cli.trust", "command"),
    "login": ("holdfast.cli.login", "login_command"),
    "logout": ("holdfast.cli.login", "logout"),
}

SCRIPT = (
    "import sys; from importlib import import_module; module, name, *rest = sys.argv[1:];"
    "getattr(import_module(module), name)(rest, prog_name='holdfast')"
)


class Commands(SettingsFiles):
    """`call` runs a command in this process, `process` in a new one."""

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH", "TERM")}
        return {**kept, **self.environment, "HOLDFAST_DATA_DIR": str(self.data), "HOLDFAST_KEYRING": "0"}

    def call(self, name: str, *arguments: str, stdin: str = "", cwd: Path | None = None) -> Result:
        module, attribute = COMMANDS[name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        environment: Mapping[str, str | None] = {**dict.fromkeys(os.environ), **self.variables()}
        files = [] if name == "trust" else ["--cwd", str(cwd or self.project)]
        if name == "config":
            arguments = (*arguments, *([] if arguments[0] == "schema" else files))
        elif name == "trust":
            arguments = (*arguments, str(cwd or self.project))
        else:
            arguments = (*arguments, *files)
        return CliRunner().invoke(command, list(arguments), input=stdin, env=environment)

    def call_ok(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Return the output of a command that must succeed."""
        done = self.call(name, *arguments, stdin=stdin)
        assert done.exit_code == 0, done.output
        return done.stdout

    def arguments(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", SCRIPT, *COMMANDS[name], *arguments]

    def process(self, name: str, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.arguments(name, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.project,
            env=self.variables(),
        )
