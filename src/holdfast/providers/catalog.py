"""Catalogue of providers and models: the snapshot shipped with the package, or a newer one in the data directory.

It is read on first use. `scripts/update-catalog` generates the snapshot. A `catalog.json` in the data directory is used
instead if it is valid and not older than the snapshot.
"""

import difflib
import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path

import msgspec

from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.usage import Price

__all__ = [
    "CATALOG_FORMAT",
    "Catalog",
    "CatalogModel",
    "CatalogProvider",
    "CatalogSource",
    "close_matches",
    "encode_catalog",
    "info_of",
    "load_catalog",
    "newer_catalog_file",
    "parse_catalog",
]

CATALOG_FORMAT = 1
_WORD = re.compile(r"[a-z]{3,}")


class CatalogModel(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One model of a provider. Prices are in dollars per million tokens; 0 means free or unknown."""

    id: str
    name: str = ""
    context_window: int = 0
    default_max_tokens: int = 0
    cost_in: float = 0.0
    cost_out: float = 0.0
    cost_cache_read: float = 0.0
    cost_cache_write: float = 0.0
    can_reason: bool = False
    reasoning_levels: tuple[str, ...] = ()
    default_reasoning_effort: str = ""
    images: bool = False
    thinking: str = ""
    """Dialect for reasoning parameters on the OpenAI chat wire, if it is not the standard one."""
    type: str = ""
    """Wire protocol, if it differs from the provider's; `base_url` is then its address."""
    base_url: str = ""


class CatalogProvider(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A provider: wire protocol, environment variables of its key, and models.

    `api_key` lists environment variables in order of preference. `base_url` is a template, expanded later.
    """

    id: str
    name: str
    type: str
    api_key: tuple[str, ...] = ()
    base_url: str = ""
    default_large: str = ""
    default_small: str = ""
    aliases: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    models: tuple[CatalogModel, ...] = ()

    @cached_property
    def _by_id(self) -> dict[str, CatalogModel]:
        return {model.id: model for model in self.models}

    def model(self, id: str) -> CatalogModel | None:
        """Return the model with this id, or None."""
        return self._by_id.get(id)


class CatalogSource(msgspec.Struct, frozen=True):
    """Origin of the catalogue data."""

    package: str
    version: str
    made: str
    """Date on which the package's data were generated, as YYYY-MM-DD."""
    licence: str
    prices: str = ""


class Catalog(msgspec.Struct, frozen=True, dict=True):
    """All providers, in the order of automatic selection."""

    source: CatalogSource
    providers: tuple[CatalogProvider, ...]
    format: int = CATALOG_FORMAT

    @cached_property
    def _by_name(self) -> dict[str, CatalogProvider]:
        names = {alias: provider for provider in self.providers for alias in provider.aliases}
        return names | {provider.id: provider for provider in self.providers}

    def provider(self, name: str) -> CatalogProvider | None:
        """Look up a provider by id or alias, case-insensitively."""
        return self._by_name.get(name) or self._by_name.get(name.lower())


def info_of(provider: str, model: CatalogModel) -> ModelInfo:
    """Convert a catalogue entry to the engine's model type."""
    return ModelInfo(
        provider=provider,
        model=model.id,
        context_window=model.context_window,
        max_output_tokens=model.default_max_tokens,
        price=Price(model.cost_in, model.cost_out, model.cost_cache_read, model.cost_cache_write),
        supports_images=model.images,
        name=model.name or model.id,
        can_reason=model.can_reason,
        reasoning_levels=model.reasoning_levels,
        default_reasoning_effort=model.default_reasoning_effort,
    )


def parse_catalog(data: bytes) -> Catalog:
    """Decode a catalogue. Raises `ValueError` if the data are invalid or have another format version."""
    catalog = msgspec.json.decode(data, type=Catalog)
    if catalog.format != CATALOG_FORMAT:
        raise ValueError(f"its format is {catalog.format}, not {CATALOG_FORMAT}")
    if not any(provider.models for provider in catalog.providers):
        raise ValueError("it names no models")
    return catalog


def encode_catalog(catalog: Catalog) -> bytes:
    """Encode with one model per line, so that diffs are readable."""
    encode = msgspec.json.encode
    lines = [b'{"format":%d,"source":%s,"providers":[' % (catalog.format, encode(catalog.source))]
    for number, provider in enumerate(catalog.providers):
        head = encode(msgspec.structs.replace(provider, models=()))
        lines.append((b"," if number else b"") + head[:-1] + b',"models":[')
        last = len(provider.models) - 1
        lines += [encode(model) + (b"" if index == last else b",") for index, model in enumerate(provider.models)]
        lines.append(b"]}")
    return b"\n".join([*lines, b"]}", b""])


def newer_catalog_file(data_dir: Path) -> Path:
    """Return the path of a newer catalogue in a data directory."""
    return data_dir / "catalog.json"


def load_catalog(data_dir: Path | None = None) -> Catalog:
    """Return the catalogue of the data directory if it is valid and not older than the snapshot, else the snapshot."""
    snapshot = _snapshot()
    if data_dir is None:
        return snapshot
    path = newer_catalog_file(data_dir)
    try:
        newer = _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return snapshot
    return newer if newer.source.made >= snapshot.source.made else snapshot


@cache
def _snapshot() -> Catalog:
    return parse_catalog(Path(__file__).with_name("catalog.json").read_bytes())


# Decoded catalogues by path, each with the modification time of the file when it was read.
_decoded: dict[Path, tuple[int, Catalog]] = {}


def _read(path: Path, modified: int) -> Catalog:
    known = _decoded.get(path)
    if known is None or known[0] != modified:
        known = _decoded[path] = (modified, parse_catalog(path.read_bytes()))
    return known[1]


def close_matches(name: str, names: Iterable[str], *, most: int = 4) -> list[str]:
    """Return known names similar to a misspelled one, the closest first."""
    by_key: dict[str, str] = {}
    by_word: dict[str, list[str]] = {}
    for known in names:
        key = known.lower()
        by_key.setdefault(key, known)
        for word in _WORD.findall(key):
            by_word.setdefault(word, []).append(key)
    wanted = name.lower()
    tails = {key.rpartition("/")[2]: key for key in by_key}
    found = [*difflib.get_close_matches(wanted, by_key, most, 0.6)]
    found += [tails[tail] for tail in difflib.get_close_matches(wanted.rpartition("/")[2], tails, most, 0.7)]
    found += [key for key in by_key if len(wanted) >= 3 and (wanted in key or key in wanted)]
    found += [key for word in difflib.get_close_matches(wanted, by_word, 2, 0.75) for key in by_word[word]]
    return [by_key[key] for key in dict.fromkeys(found)][:most]
