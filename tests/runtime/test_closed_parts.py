"""The order and the errors of closing several parts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.errors import StoreMisconfigured
from holdfast.runtime.open_store import PLACE_FILE, copy_to_postgres, read_or_make_place
from holdfast.runtime.server_services import close_each
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.seeded_loop import in_virtual_time


async def endless() -> None:
    await asyncio.Event().wait()


def failing(error: BaseException) -> Callable[[], "asyncio.Future[None]"]:
    def fail() -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future

    return fail


@pytest.mark.parametrize(
    ("first", "seconds", "raised", "closed", "said"),
    [
        (endless, 5.0, None, ["last"], "endless did not end within 5.0 seconds"),
        (failing(ZeroDivisionError()), 5.0, ZeroDivisionError, ["last"], ""),
        (failing(asyncio.CancelledError()), None, asyncio.CancelledError, [], ""),
    ],
    ids=["does not end", "fails", "is cancelled"],
)
def test_each_part_is_closed_whatever_becomes_of_the_one_before(
    first: Callable[[], "asyncio.Future[None]"],
    seconds: float | None,
    raised: type[BaseException] | None,
    closed: list[str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[str]:
        done: list[str] = []

        async def last() -> None:
            done.append("last")

        if raised is None:
            await close_each([first, last], seconds)
            return done
        with pytest.raises(raised):
            await close_each([first, last], seconds)
        return done

    assert in_virtual_time(main) == closed
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)


async def test_a_copy_that_fails_releases_the_data_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured):
        await copy_to_postgres(tmp_path, StoreAddress("postgresql://none", str(tmp_path / "absent")))
    await SqliteLedger(tmp_path).close()


@pytest.mark.parametrize("before", [None, "", "\n"], ids=["absent", "empty", "blank"])
def test_the_id_of_a_place_is_made_once(before: str | None, tmp_path: Path) -> None:
    if before is not None:
        (tmp_path / PLACE_FILE).write_text(before)
    place = read_or_make_place(tmp_path)
    assert len(place) == 32
    assert read_or_make_place(tmp_path) == place


def test_an_id_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / PLACE_FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        read_or_make_place(tmp_path)
