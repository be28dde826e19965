"""The OpenAPI document against the server: every response is documented, and none is a 5xx."""

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, settings

from holdfast.protocol.openapi import document
from holdfast.protocol.routes import ROUTES
from server.helpers import in_process_server, server_directory

_LEFT_OUT = ("events", "control", "summarize")
"""An endless response, one that may stop the server, and one that waits for a run."""

_OPERATIONS = [
    (path, method)
    for path, item in document()["paths"].items()
    for method, operation in item.items()
    if operation["operationId"] not in _LEFT_OUT
]


@pytest.fixture(scope="module")
def build() -> Callable[[str, str, Callable[[Any], None]], Callable[[], None]]:
    """Return a function that builds the test of one operation.

    The plugin of schemathesis would build all of them at collection, in each worker.
    """
    import schemathesis  # noqa: PLC0415
    from schemathesis.generation.feedback import FeedbackSources  # noqa: PLC0415
    from schemathesis.pytest._test_builder import build_operation_test  # noqa: PLC0415

    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(document())))

    def test_of(path: str, method: str, check: Callable[[Any], None]) -> Callable[[], None]:
        made = build_operation_test(
            config=schema.config,
            operation=schema[path][method],
            test_func=check,
            given_kwargs={},
            feedback=FeedbackSources(),
        )
        return made

    return test_of


class Target:
    """The address of the server, and the ids of existing objects."""

    def __init__(self, url: str, token: str, known: dict[str, str]) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"}
        self.known = known
        self.session = requests.Session()
        """Kept, because building one takes longer than a request."""
        self.session.trust_env = False
        self.asked = 0


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    ready: queue.Queue[Target | BaseException] = queue.Queue()
    over = threading.Event()

    async def live() -> None:
        async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
            client, workspace = await server.open_workspace()
            session = await client.create_session(workspace, "s")
            known = {"id": workspace, "sid": session.id, "run_id": "r1", "client_id": client.client_id[::-1]}
            ready.put(Target(f"http://127.0.0.1:{server.tcp.port}", server.tcp.token, known))
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    found = ready.get(timeout=20)
    assert isinstance(found, Target)
    with found.session:
        yield found
    over.set()
    thread.join(20)


@pytest.mark.parametrize(("path", "method"), _OPERATIONS)
def test_every_response_is_documented(
    target: Target,
    build: Callable[[str, str, Callable[[Any], None]], Callable[[], None]],
    path: str,
    method: str,
) -> None:
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415
    from schemathesis.specs.openapi import checks  # noqa: PLC0415

    demanded = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    asked_before = target.asked

    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:  # noqa: ANN401 - of schemathesis
        target.asked += 1
        if target.asked % 4:
            # Most requests use existing ids: others end at the first check.
            for name in target.known.keys() & (case.path_parameters or {}).keys():
                case.path_parameters[name] = target.known[name]
        response = case.call(base_url=target.url, headers=target.headers, session=target.session)
        case.validate_response(response, checks=demanded)

    build(path, method, check)()
    assert target.asked > asked_before


def test_the_document_has_every_route() -> None:
    paths = document()["paths"]
    assert {(path, method.upper()) for path, item in paths.items() for method in item} == {
        (route.full_path, route.method) for route in ROUTES
    }
    assert document()["openapi"].startswith("3.1")
