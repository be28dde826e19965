"""A workspace on a disk that is full for a while, in a process of its own because the limit applies to the process."""

import asyncio
import json
import resource
import sys
from pathlib import Path

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import AgentEvent, RunCompleteEvent, decode_event
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Prompt
from holdfast.engine.ports import Outlet
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, open_workspace
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.gates import GatedModel, until
from holdfast.testing.harness import FixedModels, PublishedEvents


async def scenario(data_dir: Path, project: str) -> dict[str, object]:
    model = GatedModel(ScriptedModel(lambda _: Step((Say("many words " * 50),))))
    model.before.shut()
    recorded: list[PublishedEvents] = []

    def wrap_outlet(outlet: Outlet) -> Outlet:
        recorded.append(PublishedEvents(outlet))
        return recorded[0]

    ledger = SqliteLedger(data_dir)
    settings = EngineSettings(titles=False, retry_first=30.0, retry_longest=30.0)
    workspace = await open_workspace(
        project, FixedServices(ledger, FixedModels(model), settings=settings, wrap_outlet=wrap_outlet)
    )
    session = (await workspace.sessions.create()).id
    await workspace.inputs.submit(Prompt(session, "one", run_id=RunId("r1")))
    await model.before.reached.wait()
    fill_disk()
    model.before.open()
    await until(lambda: workspace.engine.storage_fails)
    refused = False
    try:
        await workspace.inputs.submit(Prompt(session, "two", run_id=RunId("r2")))
    except StorageUnavailable:
        refused = True
    ends_meanwhile = sum(isinstance(event, RunCompleteEvent) for _, event in recorded[0].events)
    notices = [event.change.object.type for _, event in recorded[0].events if isinstance(event, AgentEvent)]
    free_space()
    await workspace.inputs.submit(Prompt(session, "three", run_id=RunId("r3")))
    await workspace.engine.wait_until_idle(session)
    log = [decode_event(body) for _, body in await ledger.events_after(workspace.record.id, 0, 10_000)]
    ends = [event.change.object for event in log if isinstance(event, RunCompleteEvent)]
    await workspace.close()
    await ledger.close()
    return {
        "refused": refused,
        "ends_meanwhile": ends_meanwhile,
        "notices": notices,
        "ends": {end.run_id: end.outcome for end in ends},
    }


def fill_disk() -> None:
    """Prevent all file growth in this process: the log has preallocated space."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))


def free_space() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


if __name__ == "__main__":
    found = asyncio.run(scenario(Path(sys.argv[1]), sys.argv[2]))
    sys.stdout.write(json.dumps(found))
