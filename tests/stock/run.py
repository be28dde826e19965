"""The stock command that runs one prompt and prints the final text."""

import asyncio
import secrets
import uuid
from pathlib import Path
from typing import Any

import msgspec

from stock.client import StockClient, new_session
from stock.decode import decode_event
from stock.screen import label_of
from stock.wire import ClientFailure

__all__ = ["CommandResult", "StockRun"]


class CommandResult(msgspec.Struct, frozen=True):
    """Exit code and standard output of the process."""

    status: int
    text: str


class StockRun(StockClient):
    """One process that runs one prompt."""

    run_id = ""
    session_id = ""

    def __init__(self, socket: Path, project: Path | str, *, has_proxy: bool = False) -> None:
        super().__init__(socket, project, has_proxy=has_proxy)
        self.accepted = asyncio.Event()

    async def run(
        self, words: str, *, stdin: str = "", is_continued: bool = False, model: tuple[str, str] | None = None
    ) -> CommandResult:
        """Run the whole command. The prompt is standard input followed by the words of the command line."""
        await self.prepare(model)
        session = await self._session(is_continued=is_continued)
        if is_continued and model is None:
            await self._restore_model(session)
        await self.subscribe()
        self.run_id = str(uuid.UUID(hex=secrets.token_hex(16)))
        self.session_id = session
        prompt = f"{stdin}\n\n{words}" if stdin else words
        await self.call("POST", "/agent", {"session_id": session, "run_id": self.run_id, "prompt": prompt})
        self.accepted.set()
        printed = await self._wait()
        await self.leave()
        return printed

    async def prepare(self, model: tuple[str, str] | None = None) -> None:
        await self.bootstrap()
        await self.create()
        await self.call("POST", "/agent/init", {"interactive": False})
        if model is not None:
            await self._choose(model)
        if not (await self.call("GET", "/agent", into="agent"))["is_ready"]:
            raise ClientFailure("the agent is not ready: the run would wait, and give up")
        await self.call("POST", "/agent/update")

    async def _choose(self, model: tuple[str, str]) -> None:
        await self.call("GET", "/config", into="config")
        choice = {"model": model[1], "provider": model[0]}
        await self.call("POST", "/config/model", {"scope": 1, "model_type": "large", "model": choice})
        small = await self.call("GET", f"/agent/default-small-model?provider_id={model[0]}", into="choice")
        await self.call("POST", "/config/model", {"scope": 1, "model_type": "small", "model": small})
        await self.call("POST", "/agent/update")

    async def _session(self, *, is_continued: bool) -> str:
        if not is_continued:
            made = await self.call("POST", "/sessions", new_session("non-interactive"), into="session")
            return str(made["id"])
        sessions = await self.call("GET", "/sessions", into="sessions")
        top = [item for item in sessions if not item["parent_session_id"]]
        return str(max(top, key=lambda item: int(item["updated_at"]))["id"])

    async def _restore_model(self, session: str) -> None:
        """Select the model of the last response again if it differs."""
        messages = await self.call("GET", f"/sessions/{session}/messages", into="messages")
        answers = [item for item in messages if item["role"] == "assistant" and not item.get("is_summary_message")]
        chosen = self.workspace["config"]["models"]["large"]
        last = answers[-1] if answers else {"model": chosen["model"], "provider": chosen["provider"]}
        if (last["model"], last["provider"]) != (chosen["model"], chosen["provider"]):
            await self._choose((last["provider"], last["model"]))

    async def _wait(self) -> CommandResult:
        """Messages are ignored: the end of the run contains the text. An end of the stream counts as success."""
        assert self.stream is not None
        while (event := await self.stream.next()) is not None:
            kind, change, thing = decode_event(event)
            self.screen.labels.append(label_of(kind, change, thing))
            if kind == "run_complete" and thing.get("run_id") == self.run_id:
                if thing.get("error") and not thing.get("cancelled"):
                    return CommandResult(1, "\n")
                return CommandResult(0, self._shown(thing) + "\n")
            if kind == "agent_event" and thing.get("error") and self._is_ours(thing):
                return CommandResult(1, "\n")
        return CommandResult(0, "\n")

    def _shown(self, thing: dict[str, Any]) -> str:
        text = str(thing.get("text", "")).lstrip(" \t")
        return text if thing["message_id"] and text.strip() else ""

    def _is_ours(self, thing: dict[str, Any]) -> bool:
        if thing.get("run_id"):
            return bool(thing["run_id"] == self.run_id)
        return bool(thing.get("session_id") == self.session_id)
