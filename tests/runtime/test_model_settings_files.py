"""Model selection of a workspace whose settings, keys and catalogue are in files: each change is detected."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from config.settings_files import SettingsFiles
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.domain.errors import ProviderError
from holdfast.providers.catalog import CatalogModel, encode_catalog, load_catalog, newer_catalog_file
from holdfast.runtime.model_selection import SelectedModels, model_sources

OFF = {"HOLDFAST_KEYRING": "0"}


class FileSources:
    """A workspace whose sources are files."""

    def __init__(self, top: Path) -> None:
        self.settings = SettingsFiles(top)
        self.settings.data.mkdir()
        self.configuration: Configuration = self.settings.open()
        self.credentials = Credentials(str(self.settings.home / "credentials.toml"), OFF)
        self.models = SelectedModels(model_sources(self.configuration, self.credentials, self.settings.data))

    async def large(self) -> str:
        info = (await self.models.large()).info
        return f"{info.provider}/{info.model}"

    def refresh(self, model: str) -> None:
        """Store a newer catalogue in the data directory, in which Groq has this model."""
        known = load_catalog()
        groq = next(item for item in known.providers if item.id == "groq")
        fresh = msgspec.structs.replace(
            groq, default_large=model, default_small=model, models=(CatalogModel(model, context_window=9),)
        )
        source = msgspec.structs.replace(known.source, made="2031-01-01")
        data = encode_catalog(msgspec.structs.replace(known, source=source, providers=(fresh,)))
        newer_catalog_file(self.settings.data).write_bytes(data)


@pytest.fixture
async def sources(tmp_path: Path) -> AsyncIterator[FileSources]:
    made = FileSources(tmp_path)
    yield made
    await made.models.close()


async def test_newer_catalogue_is_detected(sources: FileSources) -> None:
    """Even by an open workspace, and again when it is refreshed once more."""
    sources.credentials.put("groq", "k")
    before = await sources.large()
    sources.refresh("fresh")
    assert before != "groq/fresh"
    assert await sources.large() == "groq/fresh"
    assert (await sources.models.large()).info.context_window == 9
    sources.refresh("fresher")
    assert await sources.large() == "groq/fresher"
    assert (await sources.models.small()).info.model == "fresher"
    newer_catalog_file(sources.settings.data).unlink()
    assert await sources.large() == before


CHANGES: dict[str, tuple[Callable[[FileSources], object], str]] = {
    "a key is stored": (lambda sources: sources.credentials.put("groq", "k"), "groq"),
    "a client brings a key": (lambda sources: sources.configuration.add_environment({"GROQ_API_KEY": "k"}), "groq"),
    "a setting": (lambda sources: sources.settings.write_user("[env]\nGROQ_API_KEY = 'k'\n"), "groq"),
    "a provider": (
        lambda sources: sources.settings.write_user("[providers.mine]\nbase_url = 'http://x'\nmodels = [{id = 'm'}]\n"),
        "mine",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_every_change_is_detected(sources: FileSources, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    change, provider = CHANGES[name]
    assert (await sources.models.large()).info.is_scripted
    change(sources)
    assert (await sources.models.large()).info.provider == provider


async def test_a_key_that_is_removed_is_not_used_any_more(
    sources: FileSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    sources.credentials.put("groq", "k")
    assert (await sources.large()).startswith("groq/")
    sources.credentials.remove("groq")
    assert (await sources.models.large()).info.is_scripted


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("[providers.p\n", True),
        ("[providers.p]\ntimeout = 'x'\n", True),
        ("[models.large]\nmodel = 5\n", True),
        ("[options]\nmax_steps = 'x'\n", False),
    ],
)
async def test_unreadable_settings_file_blocks_the_selection(
    tmp_path: Path, text: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model settings are unknown; problems in other settings do not matter."""
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    sources = FileSources(tmp_path)
    sources.settings.write_user(text)
    sources.configuration = sources.settings.open()
    sources.models = SelectedModels(model_sources(sources.configuration, sources.credentials, sources.settings.data))
    try:
        if is_held:
            with pytest.raises(ProviderError, match="No model is selected until this is corrected"):
                await sources.models.large()
        else:
            assert (await sources.models.large()).info.is_scripted
    finally:
        await sources.models.close()
