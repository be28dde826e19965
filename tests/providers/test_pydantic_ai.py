"""Requests of the pydantic-ai adapter, and its errors when a library or a key is missing."""

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, ToolCallEnd, ToolCallStart
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.pydantic_ai import PydanticModel
from holdfast.providers.sdk.anthropic import marked
from model_server.script import Reply, Say, event
from providers.adapters import ALL, KEY, LIBRARIES, AdapterCase, collect, message, prompt, serving

pytestmark = LIBRARIES

ANTHROPIC = next(adapter for adapter in ALL if adapter.name == "anthropic")
GEMINI = next(adapter for adapter in ALL if adapter.name == "gemini")
MISTRAL = next(adapter for adapter in ALL if adapter.name == "mistral")
SDKS = [adapter for adapter in ALL if adapter.name != "compatible"]
DONE = Reply((Say(("done",)),))
IMAGE = base64.b64encode(b"\x89PNG").decode()


def conversation(*, data: str = "") -> ModelRequest:
    call = ToolCallPart(ToolCall(ToolCallId("a"), "ls", '{"path":"."}', finished=True))
    result = ToolResult(
        ToolCallId("a"), "ls", "a b", "", is_error=True, data=data, mime_type="image/png" if data else ""
    )
    return prompt(
        message("user", TextPart(Text("See:")), BinaryPart(Binary("/a.png", "image/png", b"\x89PNG"))),
        message("assistant", TextPart(Text("Looking.")), call, provider="acme"),
        message("tool", ToolResultPart(result)),
        message("user", TextPart(Text("And?"))),
    )


async def sent_body(adapter: AdapterCase, request: ModelRequest, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    async with serving(DONE) as server:
        info = fields.pop("info", ModelInfo("acme", adapter.model, supports_images=True))
        access = fields.pop("access", ModelAccess())
        url = server.base_url(adapter.wire)
        reach = msgspec.structs.replace(access, base_url=url, api_key=adapter.key, extras=adapter.extras)
        await collect(adapter.make(info, reach, Selection(**fields)), request)
        return dict(server.requests[0].json)


@pytest.mark.parametrize("adapter", SDKS, ids=str)
async def test_a_conversation_is_sent_completely(adapter: AdapterCase) -> None:
    body = msgspec.json.encode(await sent_body(adapter, conversation(data=IMAGE))).decode()
    for piece in ("Be brief.", "See:", "Looking.", "a b", "And?", IMAGE, "Lists a directory."):
        assert piece in body, piece
    assert body.count(IMAGE) == 2


@pytest.mark.parametrize("adapter", SDKS, ids=str)
async def test_sampling_and_options_are_sent(adapter: AdapterCase) -> None:
    access = ModelAccess(body={"custom_key": 5}, system_prefix="First of all.")
    model = "gpt-4.1" if "openai" in adapter.name else adapter.model
    info = ModelInfo("acme", model)
    body = msgspec.json.encode(
        await sent_body(adapter, prompt(), info=info, access=access, temperature=0.25, max_tokens=77)
    )
    for piece in (b"0.25", b"77", b"First of all.", b'"custom_key":5'):
        assert piece in body, piece


async def test_images_stay_in_results_if_the_wire_accepts_them() -> None:
    info = ModelInfo("acme", "claude-opus-x", supports_images=True, takes_media_in_results=True)
    body = await sent_body(ANTHROPIC, conversation(data=IMAGE), info=info)
    result = next(
        block
        for item in body["messages"]
        for block in item["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    )
    assert IMAGE in str(result)
    assert result["is_error"] is True


def marks_in(value: Any) -> int:  # noqa: ANN401
    return str(value).count("cache_control")


async def test_cache_marks_of_claude(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tool, the end of the system prompt, the last two messages; unless caching is disabled."""
    body = await sent_body(ANTHROPIC, conversation())
    assert [marks_in(body[name]) for name in ("tools", "system")] == [1, 1]
    assert [marks_in(item) for item in body["messages"]] == [0, 1, 1]
    monkeypatch.setenv("HOLDFAST_DISABLE_ANTHROPIC_CACHE", "1")
    assert marks_in(await sent_body(ANTHROPIC, conversation())) == 0


def test_cache_marks_skip_reasoning_and_empty_messages() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "S"}
    text = {"type": "text", "text": "so"}
    body = marked({"messages": [{"role": "assistant", "content": [text, thought]}, {"role": "user", "content": ""}]})
    assert [marks_in(block) for block in body["messages"][0]["content"]] == [1, 0]
    assert marks_in(body["messages"][1]) == 0
    assert marked({}) == {"messages": []}


async def test_unknown_kind() -> None:
    with pytest.raises(ProviderError, match="anthropic, azure, bedrock") as caught:
        await collect(PydanticModel(ModelInfo("acme", "m"), ModelAccess(api_key=KEY), Selection(), kind="telepathy"))
    assert caught.value.trouble == "refused"


async def test_without_a_key_no_request_is_sent() -> None:
    with pytest.raises(ProviderError, match="holdfast login acme") as caught:
        await collect(PydanticModel(ModelInfo("acme", "m"), ModelAccess(), Selection(), kind="anthropic"))
    assert caught.value.trouble == "credentials"


@pytest.mark.parametrize(("kind", "library"), [("bedrock", "boto3"), ("mistral", "mistralai")])
async def test_a_missing_extra_is_named(kind: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"holdfast.providers.sdk.{kind}", raising=False)
    monkeypatch.delitem(sys.modules, f"pydantic_ai.models.{kind}", raising=False)
    monkeypatch.delitem(sys.modules, f"pydantic_ai.providers.{kind}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ProviderError, match=rf"holdfast-agent\[{kind}\]") as caught:
        await collect(PydanticModel(ModelInfo("acme", "m"), ModelAccess(api_key=KEY), Selection(), kind=kind))
    assert caught.value.trouble == "refused"


async def test_an_invalid_chunk_is_not_retried() -> None:
    """Gemini with an invalid signature: the next response would have the same."""
    part = {"text": "hm", "thought": True, "thoughtSignature": "%%% the-secret"}
    piece = {"candidates": [{"content": {"role": "model", "parts": [part]}}]}
    async with serving(Reply(raw=(b"data: " + msgspec.json.encode(piece) + b"\r\n\r\n",))) as server:
        with pytest.raises(ProviderError, match=r"not understood.*thoughtSignature.*base64") as caught:
            await collect(GEMINI.on(server.base_url("gemini")))
    assert caught.value.trouble == "refused"
    assert "the-secret" not in str(caught.value)


@pytest.fixture(scope="module")
def machine_key() -> str:
    made = rsa.generate_private_key(65537, 2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.mark.parametrize("is_good", [True, False], ids=["known", "unknown"])
async def test_vertex_uses_the_credentials_of_the_machine(
    is_good: bool, machine_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is stored: a project, a location, and the credentials of Google's tools on this machine."""
    async with serving(DONE) as server:
        server.pages["/token"] = {"access_token": "fresh", "expires_in": 3600} if is_good else {"error": "unknown"}
        account = {"type": "service_account", "client_email": "me@p", "private_key": machine_key}
        account |= {"token_uri": f"{server.root}/token", "project_id": "p"}
        (tmp_path / "account.json").write_bytes(msgspec.json.encode(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        access = ModelAccess(server.root, extras={"project": "p", "location": "europe-west1"})
        model = PydanticModel(ModelInfo("acme", GEMINI.model), access, Selection(), kind="vertexai")
        if not is_good:
            with pytest.raises(ProviderError) as caught:
                await collect(model)
            assert caught.value.trouble == "credentials"
            return
        assert (await collect(model))[-1] == FinishedPart("stop")
        assert "/projects/p/locations/europe-west1/" in server.requests[-1].path
        assert server.requests[-1].headers["authorization"] == "Bearer fresh"


def mistral_piece(finish: str | None = None, **delta: Any) -> bytes:  # noqa: ANN401 - any JSON
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "model": "m", "choices": [choice]})


def mistral_call(id: str | None) -> dict[str, Any]:
    return {"function": {"name": "ls", "arguments": "{}"}, "index": 0} | ({"id": id} if id else {})


async def test_mistral_calls_in_several_pieces_are_several_calls() -> None:
    """Each is the first of its piece; and some servers send no ids."""
    pieces = [mistral_piece(tool_calls=[mistral_call(id)]) for id in ("D681PevKs", "E792QfwLt", None, None)]
    async with serving(Reply(raw=(*pieces, mistral_piece("tool_calls", content="")))) as server:
        parts = await collect(MISTRAL.on(server.base_url("mistral")))
    begun = [part.id for part in parts if isinstance(part, ToolCallStart)]
    assert begun == [part.id for part in parts if isinstance(part, ToolCallEnd)]
    assert begun[:2] == ["D681PevKs", "E792QfwLt"]
    assert len(set(begun) - {"null"}) == 4


async def test_call_ids_are_converted_for_mistral() -> None:
    """It refuses all others, and the conversation may have started with another provider."""
    ids = ("toolu_01A09q90qw90lq917835lq9", "D681PevKs")
    calls = [ToolCallPart(ToolCall(ToolCallId(id), "ls", "{}", finished=True)) for id in ids]
    results = [ToolResultPart(ToolResult(ToolCallId(id), "ls", "a b", "", is_error=False)) for id in ids]
    user_message = message("user", TextPart(Text("Hi.")))
    body = await sent_body(MISTRAL, prompt(user_message, message("assistant", *calls), message("tool", *results)))
    called = [call["id"] for item in body["messages"] for call in item.get("tool_calls") or ()]
    assert called == [item["tool_call_id"] for item in body["messages"] if item["role"] == "tool"]
    assert called[1] == "D681PevKs"
    assert re.fullmatch("[a-zA-Z0-9]{9}", called[0])


@pytest.mark.parametrize("name", ["mistral", "bedrock"])
async def test_response_with_an_error_finish_reason_is_not_complete(name: str) -> None:
    """Some providers have such finish reasons: `error`, `malformed_model_output`."""
    adapter = next(adapter for adapter in SDKS if adapter.name == name)
    async with serving(Reply((Say(("so",)),), finish="other")) as server:
        with pytest.raises(ProviderError) as caught:
            await collect(adapter.on(server.base_url(adapter.wire)))
    assert caught.value.trouble == "cut"


def test_no_library_is_loaded_before_it_is_needed() -> None:
    script = (
        "import sys, holdfast.providers.pydantic_ai, holdfast.providers.openai_compatible\n"
        "print([name for name in ('httpx2', 'pydantic_ai', 'openai', 'anthropic', 'google.genai', 'boto3')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_imported_sdks_are_excluded_from_garbage_collection() -> None:
    """A collection of a library's objects would pause every stream of the server for a quarter of a second."""
    script = (
        "import asyncio, gc\n"
        "from holdfast.providers.shared_http_clients import in_thread\n"
        "searched = []\n"
        "async def load():\n"
        "    gc.callbacks.append(lambda *_: searched.append(1))\n"
        "    await in_thread('httpx2')\n"
        "    gc.callbacks.clear()\n"
        "asyncio.run(load())\n"
        "print(len(searched) < 8, gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True True"


async def test_headers_and_options_reach_every_kind() -> None:
    """Those of the provider, of the model, and of the selection."""
    sent_there = ModelAccess(headers={"X-Team": "blue"}, body={"extra": 1}, options={"option": 2})
    chosen = Selection(provider_options={"chosen": 3})
    async with serving(DONE) as server:
        for adapter in SDKS:
            await collect(adapter.on(server.base_url(adapter.wire), selection=chosen, access=sent_there))
            request = server.requests[-1]
            assert request.headers["x-team"] == "blue", adapter
            for piece in (b'"extra":1', b'"option":2', b'"chosen":3'):
                assert piece in request.body.replace(b" ", b""), (adapter, piece)
