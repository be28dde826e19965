"""Commands in settings, `aws_auth_refresh`, and tokens: every step fails once, with each kind of error."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.config.variables import COMMAND_TIMEOUT, MAX_OUTPUT_BYTES, ExpansionFailed
from holdfast.domain.errors import StorageUnavailable, ToolError
from holdfast.runtime import workspace_services
from holdfast.runtime.command_substitution import Substitution
from holdfast.runtime.workspace_services import WorkspaceServices
from holdfast.testing.seeded_loop import in_virtual_time


class FakeChild:
    """A program that prints `output` and ends, unless a step fails or never ends."""

    def __init__(self, output: bytes = b"", status: int = 0, fault: BaseException | None = None) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(output)
        self.stdout.feed_eof()
        self.status = status
        self.fault = fault
        self.closed = 0

    async def wait(self) -> int:
        if isinstance(self.fault, TimeoutError):
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault
        return self.status

    def close(self) -> None:
        self.closed += 1


def silent_child() -> FakeChild:
    child = FakeChild()
    child.stdout = asyncio.StreamReader()
    return child


Result = str | type[BaseException]
NO_START = "cannot be started"
ENDS: list[tuple[str, Callable[[], FakeChild], Result, str]] = [
    ("prints", lambda: FakeChild(b" key\n"), "key", ""),
    ("fails", lambda: FakeChild(b"key", 3), ExpansionFailed, "status 3"),
    ("prints too much", lambda: FakeChild(b"x" * (MAX_OUTPUT_BYTES + 1), 3), ExpansionFailed, "64 KiB"),
    ("prints as much as allowed", lambda: FakeChild(b"x" * MAX_OUTPUT_BYTES), "x" * MAX_OUTPUT_BYTES, ""),
    ("closes its output, but does not end", lambda: FakeChild(fault=TimeoutError()), ExpansionFailed, "10 seconds"),
    ("prints nothing", silent_child, ExpansionFailed, "10 seconds"),
    ("is lost", lambda: FakeChild(fault=ToolError("gone")), ExpansionFailed, NO_START),
    ("has a bug", lambda: FakeChild(fault=ZeroDivisionError("bug")), ZeroDivisionError, "bug"),
]


@pytest.mark.parametrize(("make", "result", "text"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_each_end_of_a_command_has_its_result_and_is_closed(
    make: Callable[[], FakeChild], result: Result, text: str
) -> None:
    async def main() -> None:
        child = make()

        async def spawn(argv: Sequence[str], directory: str, environment: Mapping[str, str]) -> Any:  # noqa: ANN401
            assert (argv[-1].endswith("\nget key"), directory, environment) == (True, "/", {"A": "1"})
            return child

        work = Substitution(cast(Any, spawn))._run("get key", {"A": "1"})
        began = asyncio.get_running_loop().time()
        if isinstance(result, str):
            assert await work == result
        else:
            with pytest.raises(result, match=text):
                await work
        assert child.closed == 1
        assert asyncio.get_running_loop().time() - began <= COMMAND_TIMEOUT

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("fault", "result", "text"),
    [
        (ToolError("no processes"), ExpansionFailed, NO_START),
        (asyncio.CancelledError(), ExpansionFailed, "shutting down"),
        (RuntimeError("the loop is closed"), ExpansionFailed, "shutting down"),
        (ZeroDivisionError("bug"), ZeroDivisionError, "bug"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, BaseException) else "",
)
async def test_a_command_that_cannot_start_has_one_known_error(
    fault: BaseException, result: type[BaseException], text: str
) -> None:
    async def spawn(*_: object) -> Any:  # noqa: ANN401 - a stand-in
        raise fault

    with pytest.raises(result, match=text):
        await asyncio.to_thread(Substitution(cast(Any, spawn)), "get key", {})


def services_with(**parts: object) -> Any:  # noqa: ANN401 - a stand-in for `WorkspaceServices`
    server = SimpleNamespace(guard=None, overrides=SimpleNamespace(settings=SimpleNamespace(grace=1.0)))
    record = SimpleNamespace(path="/work")
    return SimpleNamespace(_server=server, output_directory=Path("/data/output"), record=record, **parts)


@pytest.mark.parametrize(
    ("end", "result", "said"),
    [
        (0, True, ""),
        (1, False, ""),
        (ToolError("no shell"), False, "no shell"),
        (TimeoutError(), False, "took too long"),
        (ZeroDivisionError(), ZeroDivisionError, ""),
    ],
    ids=["succeeds", "fails", "cannot start", "does not end", "has a bug"],
)
def test_each_end_of_a_sign_in_has_its_result(
    end: int | Exception,
    result: bool | type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The command of `aws_auth_refresh` is limited; only its success leads to another request."""

    class FakeShell:
        def __init__(self, _: object) -> None:
            """Take the processes."""

        async def call(self, command: str, directory: str, environment: Mapping[str, str]) -> object:
            assert (command, directory, environment) == ("aws sso login", "/work", {"A": "1"})
            if isinstance(end, TimeoutError):
                await asyncio.Event().wait()
            if isinstance(end, Exception):
                raise end
            return SimpleNamespace(exit_code=end)

    monkeypatch.setattr(workspace_services, "Shell", FakeShell)
    monkeypatch.setattr(workspace_services, "Processes", lambda *_, **__: None)

    async def main() -> None:
        services = services_with(environment={"A": "1"})
        expected = pytest.raises(result) if isinstance(result, type) else contextlib.nullcontext()
        with expected:
            assert await WorkspaceServices._sign_in(services, "aws sso login") is result

    in_virtual_time(main)
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)


@pytest.mark.parametrize(
    ("stored", "end", "result"),
    [
        (None, "new", None),
        ("old", "new", "new"),
        ("old", StorageUnavailable(), None),
        ("old", ZeroDivisionError(), ZeroDivisionError),
    ],
    ids=["no account", "renewed", "refused", "has a bug"],
)
async def test_each_end_of_a_renewal_has_its_result(
    stored: str | None,
    end: str | Exception,
    result: str | type[Exception] | None,
) -> None:
    """A renewal that is refused leaves the provider's own refusal to be reported."""

    async def refresh(provider: str, _: object, *, used: str) -> object:
        assert (provider, used) == ("p", "old")
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(access_token=end)

    credentials = SimpleNamespace(token=lambda _: stored)
    services = services_with(credentials=credentials, token_refresher=SimpleNamespace(refresh=refresh))
    with pytest.raises(result) if isinstance(result, type) else contextlib.nullcontext():
        assert await WorkspaceServices._new_token(services, "p", "old") == result
