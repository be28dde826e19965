"""A catalogue that `holdfast models --refresh` has fetched is used by workspaces that are open already."""

import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from config.place import Place
from holdfast.cli.click_group import holdfast
from holdfast.config.credentials import Credentials
from holdfast.providers.catalog import Catalog, encode_catalog, load_catalog, refreshed_file
from holdfast.runtime.model_selection import SelectedModels, means_of


def newer() -> Catalog:
    """The catalogue of this version, with one more model of a provider, made later."""
    known = load_catalog()
    provider = next(item for item in known.providers if item.id == "openai")
    added = msgspec.structs.replace(provider.models[0], id="a-new-model", name="A new model")
    changed = msgspec.structs.replace(provider, models=(*provider.models, added))
    providers = tuple(changed if item.id == "openai" else item for item in known.providers)
    return msgspec.structs.replace(
        known, providers=providers, source=msgspec.structs.replace(known.source, made="2999-01-01")
    )


async def _models(chosen: SelectedModels) -> set[str]:
    views = await chosen.providers_view()
    return {model.id for view in views if view.id == "openai" for model in view.models}


async def test_an_open_workspace_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    place = Place(tmp_path)
    credentials = Credentials(str(tmp_path / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    chosen = SelectedModels(means_of(place.open(), credentials, place.data))
    assert "a-new-model" not in await _models(chosen)
    place.write(refreshed_file(place.data), encode_catalog(newer()))
    assert "a-new-model" in await _models(chosen)
    await chosen.close()


def test_the_command_writes_it_where_the_server_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    monkeypatch.setattr("holdfast.providers.catalog_refresh.fetch_package", lambda _: b"a package")
    monkeypatch.setattr("holdfast.providers.catalog_refresh.made_of", lambda _: newer())
    place = Place(tmp_path)
    environment: dict[str, str | None] = {
        **{name: None for name in os.environ if name.endswith("_API_KEY")},
        **place.environment,
        "HOLDFAST_DATA_DIR": str(place.data),
        "HOLDFAST_KEYRING": "0",
        "OLLAMA_HOST": "127.0.0.1:9",
    }
    line = ["models", "--refresh", "a-new-model", "--cwd", str(place.project)]
    done = CliRunner().invoke(holdfast, line, env=environment, prog_name="holdfast")
    assert done.exit_code == 0, done.output
    assert "The catalogue is now that of 2999-01-01" in done.stderr
    assert "a-new-model" in done.stdout
    assert refreshed_file(place.data).is_file()
