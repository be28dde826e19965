"""The means of a workspace whose settings, keys and catalogue are in files: each change is noticed."""

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


class Files:
    """A workspace in files."""

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
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    made = Files(tmp_path)
    yield made
    await made.models.close()


async def test_a_newer_catalogue_is_noticed(files: Files) -> None:
    """Also by a workspace that is open, and again when it is refreshed once more."""
    files.credentials.put("groq", "k")
    before = await files.large()
    files.refresh("fresh")
    assert before != "groq/fresh"
    assert await files.large() == "groq/fresh"
    assert (await files.models.large()).info.context_window == 9
    files.refresh("fresher")
    assert await files.large() == "groq/fresher"
    assert (await files.models.small()).info.model == "fresher"
    newer_catalog_file(files.settings.data).unlink()
    assert await files.large() == before


CHANGES: dict[str, tuple[Callable[[Files], object], str]] = {
    "a key is stored": (lambda files: files.credentials.put("groq", "k"), "groq"),
    "a client brings a key": (lambda files: files.configuration.add_environment({"GROQ_API_KEY": "k"}), "groq"),
    "a setting": (lambda files: files.settings.write_user("[env]\nGROQ_API_KEY = 'k'\n"), "groq"),
    "a provider": (
        lambda files: files.settings.write_user("[providers.mine]\nbase_url = 'http://x'\nmodels = [{id = 'm'}]\n"),
        "mine",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_changes_is_noticed(files: Files, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    change, provider = CHANGES[name]
    assert (await files.models.large()).info.is_scripted
    change(files)
    assert (await files.models.large()).info.provider == provider


async def test_a_key_that_is_removed_is_not_used_any_more(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    files.credentials.put("groq", "k")
    assert (await files.large()).startswith("groq/")
    files.credentials.remove("groq")
    assert (await files.models.large()).info.is_scripted


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("[providers.p\n", True),
        ("[providers.p]\ntimeout = 'x'\n", True),
        ("[models.large]\nmodel = 5\n", True),
        ("[options]\nmax_steps = 'x'\n", False),
    ],
)
async def test_a_file_that_cannot_be_read_holds_the_choice(
    tmp_path: Path, text: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was to say about models is not known; what it was to say about something else does not matter."""
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    files = Files(tmp_path)
    files.settings.write_user(text)
    files.configuration = files.settings.open()
    files.models = SelectedModels(model_sources(files.configuration, files.credentials, files.settings.data))
    try:
        if is_held:
            with pytest.raises(ProviderError, match="No model is selected until this is corrected"):
                await files.models.large()
        else:
            assert (await files.models.large()).info.is_scripted
    finally:
        await files.models.close()
