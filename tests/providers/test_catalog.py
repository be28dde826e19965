"""The snapshot that comes with the package, how it is made, and how a newer one takes its place."""

import base64
import hashlib
import io
import itertools
import json
import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.usage import Price
from holdfast.providers import catalog_refresh
from holdfast.providers.catalog import (
    Catalog,
    close_matches,
    encode_catalog,
    info_of,
    load_catalog,
    parse_catalog,
    refreshed_file,
)
from holdfast.providers.catalog_builder import PACKAGE, completed, harvest, known_price
from holdfast.providers.catalog_refresh import RefreshFailed, made_of, refresh_catalog
from holdfast.providers.provider_config import WIRES
from trials.hostile_commands import new_token, survivors

SNAPSHOT = Path(__file__).parents[2] / "src/holdfast/providers/catalog.json"


def plain(_provider: str, _model: str, price: Price) -> Price:
    return price


def model(id: str, **facts: object) -> dict[str, Any]:
    base = {
        "id": id, "name": id.upper(), "type": "chat", "baseUrl": "https://one.test/v1", "reasoning": False,
        "input": ["text"], "cost": {"input": 1, "output": 2, "cacheRead": 0.5, "cacheWrite": 0},
        "contextWindow": 100_000, "maxTokens": 8_000,
    }  # fmt: skip
    return base | facts


def package(files: dict[str, Any], *, name: str = PACKAGE, made: str = "2031-02-03T04:05:06Z") -> bytes:
    held = {
        "package/package.json": {"name": name, "version": "9.9.9", "license": "MIT"},
        "package/dist/providers/data/.manifest.json": {"generatedAt": made},
        **{f"package/dist/providers/data/{file}.json": data for file, data in files.items()},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, data in held.items():
            content = json.dumps(data).encode()
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def groq(*models: dict[str, Any]) -> Catalog:
    file = {"openai-completions": {f"chat:{item['id']}": item for item in models}}
    return harvest(package({"groq": file}), plain, "nobody")


# The snapshot


def test_the_snapshot_names_its_source_and_is_small() -> None:
    catalog = load_catalog()
    assert catalog.source.package == PACKAGE
    assert catalog.source.licence == "MIT"
    assert catalog.source.version
    assert SNAPSHOT.stat().st_size < 600_000
    assert len(catalog.providers) > 30
    assert sum(len(provider.models) for provider in catalog.providers) > 1_000


def test_the_snapshot_is_stable() -> None:
    catalog = load_catalog()
    assert encode_catalog(catalog) == SNAPSHOT.read_bytes()
    for provider in catalog.providers:
        names = [item.id for item in provider.models]
        assert names == sorted(set(names)), provider.id


def test_every_provider_of_the_snapshot_can_be_used() -> None:
    catalog = load_catalog()
    for provider in catalog.providers:
        assert provider.type in WIRES, provider.id
        assert provider.api_key, provider.id
        assert provider.model(provider.default_large), provider.id
        assert provider.model(provider.default_small), provider.id
        assert provider.base_url or provider.type in ("bedrock", "vertexai", "azure"), provider.id
        for item in provider.models:
            assert item.context_window > 0, item
            assert 0 < item.default_max_tokens <= item.context_window, item
            assert item.type in (*WIRES, ""), item
            assert not item.default_reasoning_effort or item.default_reasoning_effort in item.reasoning_levels
            assert item.can_reason or not item.reasoning_levels


def test_providers_have_other_names() -> None:
    catalog = load_catalog()
    names = [("google", "gemini"), ("gemini", "gemini"), ("amazon-bedrock", "bedrock"), ("Anthropic", "anthropic")]
    for name, id in [*names, ("vertex", "vertexai")]:
        provider = catalog.provider(name)
        assert provider is not None
        assert provider.id == id
    assert catalog.provider("nobody") is None


def test_nothing_is_read_before_somebody_asks() -> None:
    script = (
        "import holdfast.runtime.model_selection, holdfast.providers.catalog as c, sys;"
        "print(c._snapshot.cache_info().currsize, 'httpx2' in sys.modules, 'genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False", "False"]


def test_facts_reach_the_engine() -> None:
    catalog = load_catalog()
    provider = catalog.provider("anthropic")
    assert provider is not None
    known = provider.model(provider.default_large)
    assert known is not None
    info = info_of(provider.id, known)
    assert (info.provider, info.model) == ("anthropic", provider.default_large)
    assert info.name != info.model
    assert info.price.input > 0
    assert info.price.cache_read > 0
    assert info.supports_images
    assert info.can_reason
    assert "high" in info.reasoning_levels


# Names


def test_close_matches_find_what_was_meant() -> None:
    names = ["claude-sonnet-5-5", "claude-haiku-5-5", "gpt-6-luna", "anthropic/claude-opus-5"]
    assert close_matches("claude-sonet-5-5", names)[0] == "claude-sonnet-5-5"
    assert close_matches("CLAUDE-SONNET-5-5", names)[0] == "claude-sonnet-5-5"
    assert "claude-haiku-5-5" in close_matches("haiku", names)
    assert close_matches("claude-opus-5", names)[0] == "anthropic/claude-opus-5"
    assert close_matches("sonet", names) == ["claude-sonnet-5-5"]
    assert close_matches("xyzzy", names) == []


# Making one


def test_a_package_becomes_a_catalogue() -> None:
    catalog = groq(
        model("b", reasoning=True, input=["text", "image"], thinkingLevelMap={"minimal": None, "max": "max"}),
        model("a", contextWindow=8_000, maxTokens=8_000),
    )
    assert catalog.source == msgspec.convert(
        {"package": PACKAGE, "version": "9.9.9", "made": "2031-02-03", "licence": "MIT", "prices": "nobody"},
        type(catalog.source),
    )
    (provider,) = catalog.providers
    assert (provider.id, provider.type, provider.base_url) == ("groq", "openai-compat", "https://one.test/v1")
    assert provider.api_key == ("GROQ_API_KEY",)
    first, second = provider.models
    assert (first.id, first.default_max_tokens) == ("a", 4_000), "an answer cannot fill the whole context"
    assert second.reasoning_levels == ("low", "medium", "high", "max")
    assert second.default_reasoning_effort == "medium"
    assert second.images
    assert (second.cost_in, second.cost_out, second.cost_cache_read) == (1.0, 2.0, 0.5)


def test_levels_are_the_words_that_are_sent() -> None:
    off = {"off": "none", "low": None, "medium": None, "high": "high"}
    deaf = {"supportsReasoningEffort": False, "thinkingFormat": "deepseek"}
    catalog = groq(
        model("a", reasoning=True, thinkingLevelMap=off),
        model("b", reasoning=True, compat=deaf),
        model("c", thinkingLevelMap={"low": "low"}, compat={"thinkingFormat": "qwen"}),
    )
    a, b, c = catalog.providers[0].models
    assert (a.reasoning_levels, a.default_reasoning_effort) == (("none", "high"), "high")
    assert (b.reasoning_levels, b.thinking, b.can_reason) == ((), "deepseek", True)
    assert (c.reasoning_levels, c.thinking) == ((), "")


def test_what_is_no_chat_and_what_nobody_speaks_is_left_out() -> None:
    file = {
        "openai-completions": {"1": model("a"), "2": model("b", type="image"), "4": model("a:batch")},
        "pi-messages": {"3": model("c")},
    }
    catalog = harvest(package({"groq": file, "radius": file}), plain, "")
    assert [[item.id for item in provider.models] for provider in catalog.providers] == [["a"]]


def test_a_model_may_speak_another_wire_than_its_provider() -> None:
    other = "https://one.test/anthropic"
    file = {
        "openai-completions": {"1": model("a"), "2": model("b")},
        "anthropic-messages": {"3": model("c", baseUrl=other)},
    }
    (provider,) = harvest(package({"opencode": file}), plain, "").providers
    assert provider.type == "openai-compat"
    c = provider.model("c")
    assert c is not None
    assert (c.type, c.base_url) == ("anthropic", other)
    a = provider.model("a")
    assert a is not None
    assert (a.type, a.base_url) == ("", "")


def test_addresses_with_holes_become_templates() -> None:
    hole = "https://api.test/{CLOUDFLARE_ACCOUNT_ID}/v1"
    file = {"openai-completions": {"1": model("a", baseUrl=hole)}}
    (provider,) = harvest(package({"cloudflare-workers-ai": file}), plain, "").providers
    assert provider.base_url == "https://api.test/${CLOUDFLARE_ACCOUNT_ID}/v1"


@pytest.mark.parametrize(
    "tarball",
    [
        b"",
        b"<html>",
        package({})[:40],
        package({"groq": {"openai-completions": {"1": {"id": "a"}}}}),
        package({"groq": {"openai-completions": {"1": model("a")}}}, name="somebody-else"),
        package({"groq": ["a"]}),
    ],
    ids=itertools.count(),
)
def test_what_is_no_such_package_is_refused(tarball: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        harvest(tarball, plain, "")


# Prices


def test_prices_are_completed_never_contradicted() -> None:
    listed = Price(1.0, 2.0, 0.1, 1.25)
    assert completed(Price(), listed) == listed
    assert completed(Price(1.0, 2.0), listed) == listed
    assert completed(Price(1.0, 2.0, 0.2), listed) == Price(1.0, 2.0, 0.2, 1.25)
    assert completed(Price(9.0, 9.0), listed) == Price(9.0, 9.0), "another price is another model"
    assert completed(Price(3.0, 4.0), None) == Price(3.0, 4.0)


def test_the_price_list_is_asked_under_its_own_names() -> None:
    price = known_price("gemini", "gemini-2.5-pro")
    assert price is not None
    assert price.input > 0
    assert known_price("gemini", "no-such-model") is None
    assert known_price("nobody", "gpt-4o") is None


def test_free_models_stay_free() -> None:
    free = {"input": 0, "output": 0}
    file = {
        "openai-completions": {
            "1": model("openai/gpt-4o", cost=free),
            "2": model("openai/gpt-4o:free", cost=free),
        }
    }
    (provider,) = made_of(package({"openrouter": file})).providers
    assert [item.cost_out > 0 for item in provider.models] == [True, False]


# A newer one


def npm(tmp_path: Path, tarball: bytes | None) -> dict[str, str]:
    """An `npm` that packs what it was given, or fails."""
    (tmp_path / "made.tgz").write_bytes(tarball or b"")
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    ending = f"cp {tmp_path}/made.tgz ./made.tgz" if tarball is not None else "exit 1"
    script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{ending}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{script.parent}:{os.environ['PATH']}"}


def newer(made: str = "2031-02-03T00:00:00Z") -> bytes:
    return package({"groq": {"openai-completions": {"1": model("fresh")}}}, made=made)


def test_a_refreshed_catalogue_is_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refresh_catalog(data, npm(tmp_path, newer()))
    assert f"{PACKAGE}@latest" in (tmp_path / "asked").read_text()
    catalog = load_catalog(data)
    assert [item.id for item in catalog.providers[0].models] == ["fresh"]
    assert [path.name for path in data.iterdir()] == ["catalog.json"]


def test_an_older_one_is_not_used(tmp_path: Path) -> None:
    refresh_catalog(tmp_path, npm(tmp_path, newer("2020-01-01T00:00:00Z")))
    assert load_catalog(tmp_path) is load_catalog()


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1}', b'{"format":99}', b"\xff\xfe"])
def test_a_broken_one_is_not_used(tmp_path: Path, content: bytes) -> None:
    refreshed_file(tmp_path).write_bytes(content)
    assert load_catalog(tmp_path) is load_catalog()


def test_one_of_another_format_is_not_used(tmp_path: Path) -> None:
    other = encode_catalog(groq(model("a"))).replace(b'"format":1', b'"format":2')
    with pytest.raises(ValueError, match="format"):
        parse_catalog(other)
    refreshed_file(tmp_path).write_bytes(other)
    assert load_catalog(tmp_path) is load_catalog()


@pytest.mark.parametrize("tarball", [None, b"nonsense", package({})], ids=itertools.count())
def test_a_failing_refresh_leaves_what_was_there(tmp_path: Path, tarball: bytes | None) -> None:
    before = encode_catalog(groq(model("kept")))
    refreshed_file(tmp_path).write_bytes(before)
    with pytest.raises(RefreshFailed, match="stays in use"):
        refresh_catalog(tmp_path, npm(tmp_path, tarball))
    assert refreshed_file(tmp_path).read_bytes() == before


@contextmanager
def registry(tarball: bytes, integrity: str) -> Iterator[str]:
    """An npm registry that has one package."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            dist = {"tarball": f"http://{self.headers['host']}/made.tgz", "integrity": integrity}
            known = {"/@earendil-works%2Fpi-ai/latest": json.dumps({"dist": dist}).encode(), "/made.tgz": tarball}
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            self.wfile.write(known.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_without_npm_the_registry_is_asked_and_checked(tmp_path: Path) -> None:
    right = "sha512-" + base64.b64encode(hashlib.sha512(newer()).digest()).decode()
    with registry(newer(), right) as address:
        refresh_catalog(tmp_path, {"PATH": str(tmp_path), "npm_config_registry": address})
        assert load_catalog(tmp_path).source.version == "9.9.9"
        with pytest.raises(RefreshFailed, match="registry"):
            refresh_catalog(tmp_path, {"PATH": str(tmp_path), "npm_config_registry": f"{address}elsewhere"})
    with registry(newer() + b"more", right) as address, pytest.raises(RefreshFailed, match="not what"):
        refresh_catalog(tmp_path, {"PATH": str(tmp_path), "NPM_CONFIG_REGISTRY": address})


def test_an_npm_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what it has started, which is stopped with it."""
    monkeypatch.setattr(catalog_refresh, "LIMIT", 0.3)
    token = new_token()
    environment = npm(tmp_path, None)
    (tmp_path / "bin" / "npm").write_text(f"#!/bin/sh\nsleep {token} & sleep {token}\n")
    with pytest.raises(RefreshFailed, match=r"npm was not done within 0\.3 s"):
        refresh_catalog(tmp_path, environment)
    # A signal takes a moment.
    assert not all(survivors(token) for _ in range(1_000))


@pytest.mark.parametrize(("limit", "silence", "told"), [(60, 0.1, "said nothing"), (0.1, 60, "was not done")])
def test_a_registry_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, silence: float, told: str
) -> None:
    """Neither one that says nothing, nor one that never comes to its end."""
    monkeypatch.setattr(catalog_refresh, "LIMIT", limit)
    monkeypatch.setattr(catalog_refresh, "_SILENCE", silence)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        talking = threading.Thread(target=_talk_on, args=(listener, silence > limit), daemon=True)
        talking.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RefreshFailed, match=told):
            refresh_catalog(tmp_path, {"PATH": str(tmp_path), "npm_config_registry": address})
        talking.join(20)


def _talk_on(listener: socket.socket, is_talking: bool) -> None:
    with listener.accept()[0] as connection, suppress(OSError):
        connection.recv(4_096)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 60000000\r\n\r\n" if is_talking else b"")
        while is_talking:
            connection.sendall(b"x")
        connection.recv(1)


def test_without_npm_and_registry_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RefreshFailed, match="npm_config_registry"):
        refresh_catalog(tmp_path, {"PATH": str(tmp_path)})
