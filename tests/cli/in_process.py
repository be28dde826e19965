"""Commands called in this process against a real server, with their output, exit codes and requests recorded."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from click.testing import CliRunner, Result

from cli.isolated_home import IsolatedHome
from holdfast.cli.click_group import holdfast
from holdfast.client.sync_client import SyncClient

__all__ = ["Caller", "Request", "commands", "given_in"]


class Request(msgspec.Struct, frozen=True):
    """One request; `W` replaces the workspace id."""

    method: str
    path: str
    query: dict[str, str] = {}
    body: Any = None


class Caller:
    """Calls commands in a directory of a home. Requests that every command makes are left out of `requests`."""

    def __init__(self, home: IsolatedHome, directory: str) -> None:
        hidden = [name for name in os.environ if name.startswith(("HOLDFAST", "XDG"))]
        self.environment: dict[str, str | None] = {**dict.fromkeys(hidden), **home.environment}
        self.directory = directory
        self.requests: list[Request] = []

    def call(self, *arguments: str, stdin: str = "") -> Result:
        self.requests = []
        before = os.getcwd()
        os.chdir(self.directory)
        try:
            with self._recorded():
                return CliRunner().invoke(
                    holdfast, list(arguments), input=stdin, env=self.environment, prog_name="holdfast"
                )
        finally:
            os.chdir(before)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        original = SyncClient.request
        used: list[SyncClient] = []

        def request(
            thin: SyncClient,
            method: str,
            path: str,
            query: Any = (),  # noqa: ANN401
            body: bytes | None = None,
            **more: Any,  # noqa: ANN401
        ) -> tuple[int, bytes]:
            self._note(method, path, query, body)
            used.append(thin)
            return original(thin, method, path, query, body, **more)

        SyncClient.request = request  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            SyncClient.request = original  # type: ignore[method-assign]
            # A command leaves its connection to the end of its process.
            for thin in used:
                thin.close()

    def _note(self, method: str, path: str, query: Any, body: bytes | None) -> None:  # noqa: ANN401
        if path in ("/v1/workspaces", "/v1/version", "/v1/health"):
            return
        head, _, rest = path.removeprefix("/v1/workspaces/").partition("/")
        shown = f"W/{rest}".rstrip("/") if path.startswith("/v1/workspaces/") and head else path
        given = {name: str(value) for name, value in query if value is not None}
        self.requests.append(Request(method, shown, given, json.loads(body) if body else None))


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be called, by its words."""

    def walk(name: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield name, command
            return
        below = click.Context(command, context)
        for word in command.list_commands(below):
            found = command.get_command(below, word)
            assert found is not None
            yield from walk(f"{name} {word}".strip(), found, below)

    yield from walk("", holdfast, click.Context(holdfast))


def given_in(arguments: tuple[str, ...]) -> tuple[str, set[str]]:
    """The command of a command line, and the names of the parameters that the line gives."""
    known = dict(commands())
    words = list(arguments)
    name = next((found for length in (2, 1) if (found := " ".join(words[:length])) in known), "")
    rest = words[len(name.split()) :]
    if not name:
        # A group without a word is its default command, and gives nothing.
        return f"{words[0]} list", set()
    context = known[name].make_context(name, rest, resilient_parsing=True)
    source = click.core.ParameterSource.COMMANDLINE
    return name, {param for param in context.params if context.get_parameter_source(param) is source}
