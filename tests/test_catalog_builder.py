"""`scripts/catalog_builder.py`: conversion of an npm package to the catalogue, and completion of its prices."""

import io
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from catalog_builder import PACKAGE, build_catalog, complete_price, download_package, listed_price, main

from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, load_catalog, parse_catalog


def unchanged(_provider: str, _model: str, price: Price) -> Price:
    return price


def model(id: str, **facts: object) -> dict[str, Any]:
    base = {
        "id": id, "name": id.upper(), "type": "chat", "baseUrl": "https://one.test/v1", "reasoning": False,
        "input": ["text"], "cost": {"input": 1, "output": 2, "cacheRead": 0.5, "cacheWrite": 0},
        "contextWindow": 100_000, "maxTokens": 8_000,
    }  # fmt: skip
    return base | facts


def package(files: dict[str, Any], *, name: str = PACKAGE) -> bytes:
    members = {
        "package/package.json": {"name": name, "version": "9.9.9", "license": "MIT"},
        "package/dist/providers/data/.manifest.json": {"generatedAt": "2031-02-03T04:05:06Z"},
        **{f"package/dist/providers/data/{file}.json": data for file, data in files.items()},
    }
    tarball = io.BytesIO()
    with tarfile.open(fileobj=tarball, mode="w:gz") as archive:
        for path, data in members.items():
            content = json.dumps(data).encode()
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tarball.getvalue()


def groq(*models: dict[str, Any]) -> Catalog:
    file = {"openai-completions": {f"chat:{item['id']}": item for item in models}}
    return build_catalog(package({"groq": file}), unchanged, "no list")


def test_a_package_is_converted_to_a_catalogue() -> None:
    catalog = groq(
        model("b", reasoning=True, input=["text", "image"], thinkingLevelMap={"minimal": None, "max": "max"}),
        model("a", contextWindow=8_000, maxTokens=8_000),
    )
    assert catalog.source == msgspec.convert(
        {"package": PACKAGE, "version": "9.9.9", "made": "2031-02-03", "licence": "MIT", "prices": "no list"},
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


def test_reasoning_levels_have_the_names_that_are_sent() -> None:
    off = {"off": "none", "low": None, "medium": None, "high": "high"}
    no_effort = {"supportsReasoningEffort": False, "thinkingFormat": "deepseek"}
    catalog = groq(
        model("a", reasoning=True, thinkingLevelMap=off),
        model("b", reasoning=True, compat=no_effort),
        model("c", thinkingLevelMap={"low": "low"}, compat={"thinkingFormat": "qwen"}),
    )
    a, b, c = catalog.providers[0].models
    assert (a.reasoning_levels, a.default_reasoning_effort) == (("none", "high"), "high")
    assert (b.reasoning_levels, b.thinking, b.can_reason) == ((), "deepseek", True)
    assert (c.reasoning_levels, c.thinking) == ((), "")


def test_models_without_chat_and_unsupported_wires_are_skipped() -> None:
    file = {
        "openai-completions": {"1": model("a"), "2": model("b", type="image"), "4": model("a:batch")},
        "pi-messages": {"3": model("c")},
    }
    catalog = build_catalog(package({"groq": file, "radius": file}), unchanged, "")
    assert [[item.id for item in provider.models] for provider in catalog.providers] == [["a"]]


def test_a_model_can_have_another_wire_than_its_provider() -> None:
    other = "https://one.test/anthropic"
    file = {
        "openai-completions": {"1": model("a"), "2": model("b")},
        "anthropic-messages": {"3": model("c", baseUrl=other)},
    }
    (provider,) = build_catalog(package({"opencode": file}), unchanged, "").providers
    assert provider.type == "openai-compat"
    c = provider.model("c")
    assert c is not None
    assert (c.type, c.base_url) == ("anthropic", other)
    a = provider.model("a")
    assert a is not None
    assert (a.type, a.base_url) == ("", "")


def test_placeholders_in_addresses_become_templates() -> None:
    hole = "https://api.test/{CLOUDFLARE_ACCOUNT_ID}/v1"
    file = {"openai-completions": {"1": model("a", baseUrl=hole)}}
    (provider,) = build_catalog(package({"cloudflare-workers-ai": file}), unchanged, "").providers
    assert provider.base_url == "https://api.test/${CLOUDFLARE_ACCOUNT_ID}/v1"


@pytest.mark.parametrize(
    "tarball",
    [
        b"",
        b"<html>",
        package({})[:40],
        package({"groq": {"openai-completions": {"1": {"id": "a"}}}}),
        package({"groq": {"openai-completions": {"1": model("a")}}}, name="another-package"),
        package({"groq": ["a"]}),
    ],
    ids=itertools.count(),
)
def test_an_unexpected_package_is_rejected(tarball: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        build_catalog(tarball, unchanged, "")


# Prices


def test_missing_prices_are_filled_and_known_ones_unchanged() -> None:
    listed = Price(1.0, 2.0, 0.1, 1.25)
    assert complete_price(Price(), listed) == listed
    assert complete_price(Price(1.0, 2.0), listed) == listed
    assert complete_price(Price(1.0, 2.0, 0.2), listed) == Price(1.0, 2.0, 0.2, 1.25)
    assert complete_price(Price(9.0, 9.0), listed) == Price(9.0, 9.0), "another price is another model"
    assert complete_price(Price(3.0, 4.0), None) == Price(3.0, 4.0)


def test_the_price_list_is_queried_with_its_own_provider_ids() -> None:
    price = listed_price("gemini", "gemini-2.5-pro")
    assert price is not None
    assert price.input > 0
    assert listed_price("gemini", "no-such-model") is None
    assert listed_price("no-provider", "gpt-4o") is None


def test_free_models_stay_free() -> None:
    free = {"input": 0, "output": 0}
    file = {
        "openai-completions": {
            "1": model("openai/gpt-4o", cost=free),
            "2": model("openai/gpt-4o:free", cost=free),
        }
    }
    (provider,) = build_catalog(package({"openrouter": file})).providers
    assert [item.cost_out > 0 for item in provider.models] == [True, False]


# Command


def fake_npm(directory: Path, action: str) -> str:
    """Write an `npm` that runs a shell command in place of a download, and return the search path to it."""
    script = directory / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >{directory}/arguments\n{action}\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


def test_the_command_writes_the_catalogue_of_the_downloaded_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.tgz").write_bytes(package({"groq": {"openai-completions": {"1": model("fresh")}}}))
    monkeypatch.setenv("PATH", fake_npm(tmp_path, f"cp {tmp_path}/made.tgz ."))
    summary = main([], tmp_path / "catalog.json")
    assert f"{PACKAGE}@latest" in (tmp_path / "arguments").read_text()
    assert "1 providers, 1 models, 1 added" in summary
    (provider,) = parse_catalog((tmp_path / "catalog.json").read_bytes()).providers
    assert [item.id for item in provider.models] == ["fresh"]


@pytest.mark.parametrize("content", [b"nonsense", package({})], ids=itertools.count())
def test_an_unusable_package_leaves_the_catalogue_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "made.tgz").write_bytes(content)
    (tmp_path / "catalog.json").write_bytes(b"kept")
    with pytest.raises(ValueError, match=r".+"):
        main([str(tmp_path / "made.tgz")], tmp_path / "catalog.json")
    assert (tmp_path / "catalog.json").read_bytes() == b"kept"


def test_a_failed_download_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_npm(tmp_path, "exit 1"))
    with pytest.raises(OSError, match="could not download"):
        download_package()


def test_the_shipped_catalogue_is_of_the_named_package() -> None:
    assert load_catalog().source.package == PACKAGE
