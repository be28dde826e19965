"""A workspace or a server that cannot be opened leaves nothing open, and closing goes on where one part fails."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from holdfast.bus.bus import Subscription
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError, WorkspaceClosing
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import WorkspaceRecord
from holdfast.domain.runs import Prompt
from holdfast.engine.ports import Ledger, Outlet
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, ScriptedModels, Step
from holdfast.runtime.services import ServerServices, ServiceOverrides, WorkspaceServices
from holdfast.runtime.workspace import App, Services, Workspace, WorkspaceParts
from holdfast.storage.ledger import SqliteLedger
from holdfast.testing.gates import Gate, start

STAGES = ("furnish", "parts", "can answer", "engine")


class Broken(HoldfastError):
    """It broke, as it was told to."""


class Shop:
    """Furnishes workspaces; breaks where a test wants it to, and notes what is open and what was closed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.breaks: set[str] = set()
        self.open: list[str] = []
        self.closed: list[str] = []
        self.answers = Gate(is_open=True)

    def reach(self, stage: str) -> None:
        if stage in self.breaks:
            raise Broken

    def furnish(self, record: WorkspaceRecord, _: Mapping[str, str]) -> Services:
        self.reach("furnish")
        self.open.append(record.path)
        return Shelf(self, record.path)

    async def close(self) -> None:
        self.closed.append("shop")
        self.reach("close shop")


class Shelf:
    def __init__(self, shop: Shop, path: str) -> None:
        self.shop = shop
        self.path = path

    def parts(self) -> WorkspaceParts:
        self.shop.reach("parts")

        def wrap_outlet(outlet: Outlet) -> Outlet:
            self.shop.reach("engine")
            return outlet

        models = ScriptedModels(ScriptedModel(lambda _: Step((Say("done"),))))
        return WorkspaceParts(self.shop.ledger, models, settings=EngineSettings(titles=False), wrap_outlet=wrap_outlet)

    async def can_answer(self, _: Collection[str]) -> bool:
        await self.shop.answers()
        self.shop.reach("can answer")
        return True

    async def close(self) -> None:
        self.shop.open.remove(self.path)
        self.shop.closed.append(Path(self.path).name)
        self.shop.reach(f"close {Path(self.path).name}")


class Place:
    """A data directory with two projects, the first of which has a prompt that waits."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.projects = [directory / "one", directory / "two"]
        for project in self.projects:
            project.mkdir()

    def app(self) -> tuple[App, Shop]:
        shops: list[Shop] = []

        def furnisher(ledger: Ledger) -> Shop:
            shops.append(Shop(ledger))
            return shops[0]

        app = App(self.data, furnisher)
        return app, shops[0]

    async def assert_free(self) -> None:
        """Nobody has the data directory: it can be opened at once."""
        app, _ = self.app()
        await app.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_server_that_cannot_be_furnished_gives_its_directory_back(place: Place) -> None:
    def furnisher(_: Ledger) -> Shop:
        raise Broken

    with pytest.raises(Broken):
        App(place.data, furnisher)
    await place.assert_free()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_workspace_that_cannot_be_opened_leaves_nothing_open(place: Place, stage: str) -> None:
    """Who asks again gets a new attempt."""
    await _leave_a_waiting_run(place)
    app, shop = place.app()
    shop.breaks = {stage}
    for _ in range(2):
        with pytest.raises(Broken):
            await app.workspace(place.projects[0], unattended=True)
        assert shop.open == []
    assert shop.closed == ([] if stage == "furnish" else ["one", "one"])
    shop.breaks = set()
    workspace = await app.workspace(place.projects[0], unattended=True)
    assert shop.open == [str(place.projects[0])]
    for run in workspace.recovered.requeued:
        await workspace.engine.wait_until_idle(run.session_id)
    await app.close()
    assert shop.open == []
    await place.assert_free()


async def _leave_a_waiting_run(place: Place) -> None:
    """One that had not begun when its server stopped."""
    app, _ = place.app()
    workspace = await app.workspace(place.projects[0])
    session = await workspace.sessions.create()
    submitted = start(workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId("r1"))))
    # The lane is told to stop in the same moment in which it accepts: the run is parked.
    workspace.engine.on_busy = lambda is_busy: _close_if(workspace, is_busy=is_busy)
    await submitted
    await app.close()


def _close_if(workspace: Workspace, *, is_busy: bool) -> None:
    if is_busy:
        start(workspace.engine.close())


@pytest.mark.parametrize("fails", ["", "close one", "close two", "close shop"])
async def test_everything_is_closed_also_if_one_part_fails(place: Place, fails: str) -> None:
    app, shop = place.app()
    for project in place.projects:
        await app.workspace(project)
    shop.breaks = {fails}
    if fails:
        with pytest.raises(Broken):
            await app.close()
    else:
        await app.close()
    assert sorted(shop.closed[:2]) == ["one", "two"]
    assert shop.closed[2:] == ["shop"], "what workspaces share is closed after them"
    await place.assert_free()


async def test_closing_waits_for_nothing_that_is_being_opened(place: Place) -> None:
    """What it had is closed, and who waits for it is told why it does not come."""
    await _leave_a_waiting_run(place)
    app, shop = place.app()
    shop.answers.shut()
    opening = start(app.workspace(place.projects[0], unattended=True))
    await shop.answers.reached.wait()
    await app.close()
    assert shop.closed == ["one", "shop"]
    with pytest.raises(WorkspaceClosing):
        await opening
    await place.assert_free()


async def test_who_gives_up_waiting_does_not_stop_the_opening(place: Place) -> None:
    await _leave_a_waiting_run(place)
    app, shop = place.app()
    shop.answers.shut()
    first = start(app.workspace(place.projects[0], unattended=True))
    await shop.answers.reached.wait()
    second = start(app.workspace(place.projects[0]))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    shop.answers.open()
    workspace = await second
    for run in workspace.recovered.requeued:
        await workspace.engine.wait_until_idle(run.session_id)
    assert len(shop.open) == 1
    await app.close()


async def test_the_streams_of_a_workspace_end_also_if_its_furniture_cannot_be_closed(place: Place) -> None:
    app, shop = place.app()
    workspace = await app.workspace(place.projects[0])
    reader = start(_read(workspace.bus.subscribe(None)))
    shop.breaks = {"close one"}
    with pytest.raises(Broken):
        await app.close_workspace(workspace)
    await reader
    shop.breaks = set()
    again = await app.workspace(place.projects[0])
    assert again is not workspace
    await app.close()


async def _read(stream: Subscription) -> None:
    while await stream.take():
        pass


def closable(thing: object) -> set[str]:
    """The names of the attributes that have to be closed."""
    names = (name for name in vars(thing) if not name.startswith("_"))
    return {name for name in names if callable(getattr(getattr(thing, name), "close", None))}


class Closing:
    """Notes who was closed, and lets one of them fail."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.names: list[str] = []

    def of(self, name: str) -> object:
        async def close() -> None:
            self.names.append(name)
            if name == self.fails:
                raise Broken

        return close


OUTFIT = ("scan", "jobs", "extensions", "choice", "refresher")
"""In the order in which they are closed: nothing is looked at or run when what it needs goes."""


@pytest.mark.parametrize("fails", ["", *OUTFIT])
async def test_an_outfit_closes_all_it_has(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SqliteLedger(tmp_path / "data")
    house = ServerServices(tmp_path / "data", ledger, ServiceOverrides())
    services = WorkspaceServices(house, await ledger.open_workspace(str(tmp_path)), {})
    assert closable(services) == {*OUTFIT, "git"}, "git is the house's"
    closing = Closing(fails)
    for name in OUTFIT:
        monkeypatch.setattr(getattr(services, name), "close", closing.of(name))
    if fails:
        with pytest.raises(Broken):
            await services.close()
    else:
        await services.close()
    assert closing.names == list(OUTFIT)
    monkeypatch.undo()
    await services.close()
    await house.close()
    await ledger.close()


@pytest.mark.parametrize("fails", ["", "guard", "discovery", "git"])
async def test_a_house_closes_all_it_has(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SqliteLedger(tmp_path / "data")
    house = ServerServices(tmp_path / "data", ledger, ServiceOverrides())
    assert closable(house) == {"guard", "discovery", "git", "ledger"}, "the ledger is the application's"
    closing = Closing(fails)
    for name in ("guard", "discovery"):
        monkeypatch.setattr(getattr(house, name), "close", closing.of(name))

    def close_git() -> None:
        closing.names.append("git")
        if fails == "git":
            raise Broken

    monkeypatch.setattr(house.git, "close", close_git)
    if fails:
        with pytest.raises(Broken):
            await house.close()
    else:
        await house.close()
    assert closing.names == ["guard", "discovery", "git"]
    monkeypatch.undo()
    await house.close()
    await ledger.close()


async def test_a_directory_that_is_in_use_is_not_touched(place: Place) -> None:
    app, _ = place.app()
    with pytest.raises(DataDirectoryBusy):
        place.app()
    workspace = await app.workspace(place.projects[0])
    await workspace.sessions.create()
    await app.close()
