"""The catalogue shipped with the package, and a newer one in the data directory."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.providers.catalog import (
    CatalogModel,
    close_matches,
    encode_catalog,
    info_of,
    load_catalog,
    newer_catalog_file,
    parse_catalog,
)
from holdfast.providers.effective_providers import WIRES

SNAPSHOT = Path(__file__).parents[2] / "src/holdfast/providers/catalog.json"


# The snapshot


def test_the_snapshot_names_its_source_and_is_small() -> None:
    catalog = load_catalog()
    assert catalog.source.package
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


def test_every_provider_of_the_snapshot_is_complete() -> None:
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


def test_providers_have_aliases() -> None:
    catalog = load_catalog()
    names = [("google", "gemini"), ("gemini", "gemini"), ("amazon-bedrock", "bedrock"), ("Anthropic", "anthropic")]
    for name, id in [*names, ("vertex", "vertexai")]:
        provider = catalog.provider(name)
        assert provider is not None
        assert provider.id == id
    assert catalog.provider("no-provider") is None


def test_the_catalogue_is_read_on_first_use() -> None:
    script = (
        "import holdfast.runtime.model_selection, holdfast.providers.catalog as c, sys;"
        "print(c._snapshot.cache_info().currsize, 'httpx2' in sys.modules, 'genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False", "False"]


def test_catalogue_entries_are_converted_for_the_engine() -> None:
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


def test_close_matches_find_similar_names() -> None:
    names = ["claude-sonnet-5-5", "claude-haiku-5-5", "gpt-6-luna", "anthropic/claude-opus-5"]
    assert close_matches("claude-sonet-5-5", names)[0] == "claude-sonnet-5-5"
    assert close_matches("CLAUDE-SONNET-5-5", names)[0] == "claude-sonnet-5-5"
    assert "claude-haiku-5-5" in close_matches("haiku", names)
    assert close_matches("claude-opus-5", names)[0] == "anthropic/claude-opus-5"
    assert close_matches("sonet", names) == ["claude-sonnet-5-5"]
    assert close_matches("xyzzy", names) == []


# A newer catalogue in the data directory


def dated(made: str) -> bytes:
    """Return a catalogue with one model, generated on this day."""
    known = load_catalog()
    groq = msgspec.structs.replace(known.providers[0], models=(CatalogModel("fresh"),))
    source = msgspec.structs.replace(known.source, made=made)
    return encode_catalog(msgspec.structs.replace(known, source=source, providers=(groq,)))


def test_a_newer_catalogue_is_used(tmp_path: Path) -> None:
    newer_catalog_file(tmp_path).write_bytes(dated("2031-02-03"))
    assert [item.id for item in load_catalog(tmp_path).providers[0].models] == ["fresh"]


def test_a_catalogue_of_the_same_day_is_used(tmp_path: Path) -> None:
    newer_catalog_file(tmp_path).write_bytes(dated(load_catalog().source.made))
    assert [item.id for item in load_catalog(tmp_path).providers[0].models] == ["fresh"]


def test_an_older_catalogue_is_ignored(tmp_path: Path) -> None:
    newer_catalog_file(tmp_path).write_bytes(dated("2020-01-01"))
    assert load_catalog(tmp_path) is load_catalog()


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1}', b'{"format":99}', b"\xff\xfe"])
def test_an_invalid_catalogue_is_ignored(tmp_path: Path, content: bytes) -> None:
    newer_catalog_file(tmp_path).write_bytes(content)
    assert load_catalog(tmp_path) is load_catalog()


def test_a_catalogue_of_another_format_is_ignored(tmp_path: Path) -> None:
    other = dated("2031-02-03").replace(b'"format":1', b'"format":2')
    with pytest.raises(ValueError, match="format"):
        parse_catalog(other)
    newer_catalog_file(tmp_path).write_bytes(other)
    assert load_catalog(tmp_path) is load_catalog()
