"""`python -m bench.floor SOCKET PORT TOKEN PROVIDER`: the floor, a server that does the minimum.

An in-memory aiohttp server on the event loop of the standard library. It accepts prompts, requests the response from
the provider over HTTP and forwards each token to a queue per reader. It stores nothing, has no tools, and keeps no
conversation. Over TCP it checks the token. Its routes and event types are those of Holdfast that the benchmarks use, so
that the same client measures both.
"""

import asyncio
import hmac
import json
import sys
from itertools import count
from typing import Any

from aiohttp import ClientSession, web

from holdfast.tasks import TaskOwner

__all__ = ["Floor", "main"]


def _event(kind: str, payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"type": kind, "payload": payload}, separators=(",", ":")).encode() + b"\n\n"


class Floor:
    """The routes of the floor."""

    def __init__(self, provider: str, token: str) -> None:
        self._provider = provider
        self._token = f"Bearer {token}"
        self._readers: dict[str, set[asyncio.Queue[bytes]]] = {}
        self._active: dict[str, list[asyncio.Task[None]]] = {}
        self._tasks = TaskOwner()
        self._numbers = count(1)
        self._client: ClientSession | None = None

    def application(self) -> web.Application:
        """Return the application with all routes."""

        async def check(request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
            response: web.StreamResponse = await handler(request) if self._admits(request) else web.Response(status=401)
            return response

        application = web.Application(middlewares=[web.middleware(check)])
        workspace = "/v1/workspaces/{workspace}"
        application.add_routes(
            [
                web.get("/v1/health", self._health),
                web.get("/v1/version", self._health),
                web.post("/v1/workspaces", self._create),
                web.post(f"{workspace}/sessions", self._create),
                web.post(f"{workspace}/agent", self._prompt),
                web.post(f"{workspace}/agent/sessions/{{session}}/cancel", self._cancel),
                web.get(f"{workspace}/events", self._events),
            ]
        )
        return application

    def _admits(self, request: web.Request) -> bool:
        # As with Holdfast, the unix socket needs no token; it has no remote address.
        return not request.remote or hmac.compare_digest(request.headers.get("Authorization", ""), self._token)

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _create(self, request: web.Request) -> web.Response:
        await request.json()
        return web.json_response({"id": f"x{next(self._numbers)}"})

    async def _prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        session, run = body["session_id"], body["run_id"]
        task = self._tasks.start(
            self._run(request.match_info["workspace"], session, run, body["prompt"]), name="run", done=lambda _: None
        )
        self._active.setdefault(session, []).append(task)
        return web.json_response({"run_id": run, "session_id": session, "delivery": "queue", "position": 0}, status=202)

    async def _cancel(self, request: web.Request) -> web.Response:
        for task in self._active.pop(request.match_info["session"], []):
            task.cancel()
        return web.json_response({"cancelled": []})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        readers = self._readers.setdefault(request.match_info["workspace"], set())
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queue.put_nowait(_event("gap", {}))
        readers.add(queue)
        try:
            while True:
                frames = [await queue.get()]
                while not queue.empty():
                    frames.append(queue.get_nowait())
                await response.write(b"".join(frames))
        finally:
            readers.discard(queue)

    async def _run(self, workspace: str, session: str, run: str, prompt: str) -> None:
        outcome = "cancelled"
        try:
            await self._stream(workspace, session, run, prompt)
            outcome = "completed"
        finally:
            self._publish(workspace, _event("run_complete", {"run_id": run, "outcome": outcome}))

    async def _stream(self, workspace: str, session: str, run: str, prompt: str) -> None:
        if self._client is None:
            self._client = ClientSession()
        body = {"model": "large", "stream": True, "messages": [{"role": "user", "content": prompt}]}
        offset = 0
        async with self._client.post(f"{self._provider}/chat/completions", json=body) as response:
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: {"):
                        continue
                    text = json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                    if text:
                        delta = {"session_id": session, "message_id": run, "part": 0, "offset": offset, "text": text}
                        self._publish(workspace, _event("message_delta", delta))
                        offset += len(text)

    def _publish(self, workspace: str, frame: bytes) -> None:
        for queue in self._readers.get(workspace, ()):
            queue.put_nowait(frame)


async def _serve(path: str, port: int, token: str, provider: str) -> None:
    runner = web.AppRunner(Floor(provider, token).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await web.UnixSite(runner, path).start()
    await asyncio.get_running_loop().create_future()


def main() -> None:
    """Serve until the process is terminated."""
    path, port, token, provider = sys.argv[1:]
    asyncio.run(_serve(path, int(port), token, provider))


if __name__ == "__main__":
    main()
