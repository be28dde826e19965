"""A newer catalogue in the data directory takes effect in workspaces that are open."""

from pathlib import Path

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.config.locations import locate_settings
from holdfast.providers.catalog import CatalogModel, encode_catalog, load_catalog, newer_catalog_file
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.runtime.model_selection import SelectedModels, model_sources


async def test_open_workspace_detects_a_newer_catalogue(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "data").mkdir()
    environment = {"HOME": str(tmp_path), "GROQ_API_KEY": "k"}
    places = locate_settings(str(tmp_path / "project"), environment, data_dir=str(tmp_path / "data"))
    configuration = Configuration(places, environment)
    discovery = ModelDiscovery()
    means = model_sources(configuration, Credentials(places.credentials_file, environment), tmp_path / "data")
    models = SelectedModels(means, discovery)

    async def known() -> set[str]:
        view = await models.usable_view()
        return {model.id for provider in view if provider.id == "groq" for model in provider.models}

    before = await known()
    chosen = (await models.large()).info
    catalog = load_catalog()
    groq = next(provider for provider in catalog.providers if provider.id == "groq")
    more = msgspec.structs.replace(
        groq, models=(CatalogModel("brand-new", "New"), *groq.models), default_large="brand-new"
    )
    others = tuple(more if provider is groq else provider for provider in catalog.providers)
    source = msgspec.structs.replace(catalog.source, made="2999-01-01")
    newer = msgspec.structs.replace(catalog, providers=others, source=source)
    newer_catalog_file(tmp_path / "data").write_bytes(encode_catalog(newer))
    assert (before, await known() - before) == (before, {"brand-new"})
    assert ((await models.large()).info.model, chosen.model != "brand-new") == ("brand-new", True)
    newer_catalog_file(tmp_path / "data").unlink()
    assert await known() == before
    await models.close()
    await discovery.close()
