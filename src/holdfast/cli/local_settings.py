"""Settings of a directory for commands that read local files and send no requests."""

import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import quote

import click

from holdfast.atomic_files import FILES
from holdfast.cli.common import directory_option
from holdfast.client.server_paths import data_directory
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.config.locations import locate_settings
from holdfast.domain.settings import StorageSettings
from holdfast.storage.postgres.store_address import StoreAddress, address_of

__all__ = ["load_configuration", "load_credentials", "local_options", "uses_color"]

F = TypeVar("F", bound=Callable[..., Any])


def local_options(function: F) -> F:
    """Add the options that select a directory and a data directory."""
    data = click.option("--data-dir", metavar="DIR", help="Data directory of the server; default: $HOLDFAST_DATA_DIR.")
    return directory_option(data(function))


def load_configuration(cwd: str, data_dir: str | None, *, with_store: bool = False) -> Configuration:
    """Return the configuration of a directory.

    `with_store` includes what a cluster shares, if the settings or the environment name its store. Raises
    `StoreUnreachable` or `StoreMisconfigured` then.
    """
    environment = dict(os.environ)
    environment.setdefault("HOME", os.path.expanduser("~"))
    data = os.path.realpath(data_directory(data_dir, environment, environment["HOME"]))
    places = locate_settings(cwd, environment, data_dir=data, workspace_id=_workspace_id(data, cwd))
    configuration = Configuration(places, environment)
    address = _store_address(configuration, environment) if with_store else None
    if address is None:
        return configuration
    # It needs the extra, and most users have no store.
    from holdfast.runtime.open_store import StoreReader

    store = StoreReader(address)
    click.get_current_context().call_on_close(store.close)
    places = locate_settings(cwd, environment, data_dir=data, workspace_id=store.workspace_id(cwd), is_shared=True)
    return Configuration(places, environment, documents=store.documents)


def load_credentials(configuration: Configuration) -> Credentials:
    """Return the stored keys, with the tokens of the cluster if the configuration was loaded with its store."""
    path, documents = configuration.locations.credentials_file, configuration.documents
    key_file = _storage(configuration).key_file
    if documents is FILES or not key_file:
        return Credentials(path, os.environ)
    # They need the extra, and most users have no store.
    from holdfast.config.sealed_documents import KeyFile, SharedTokens
    from holdfast.storage.postgres.shared_documents import SharedDocuments

    assert isinstance(documents, SharedDocuments)
    return Credentials(path, os.environ, tokens=SharedTokens(documents, KeyFile(os.path.expanduser(key_file))))


def _storage(configuration: Configuration) -> StorageSettings:
    import msgspec

    return msgspec.convert(configuration.settings_from_files("storage"), StorageSettings)


def _store_address(configuration: Configuration, environment: Mapping[str, str]) -> StoreAddress | None:
    storage = _storage(configuration)
    return address_of(None, environment, storage.url, storage.password_file)


def _workspace_id(data_dir: str, directory: str) -> str:
    """Return the workspace id that the server has stored; empty if there is none."""
    database = os.path.join(data_dir, "holdfast.db")
    if not os.path.isfile(database):
        return ""
    address = f"file:{quote(os.fsencode(database))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=1.0)) as connection:
            row = connection.execute("SELECT id FROM workspaces WHERE path = ?", (os.fsencode(directory),)).fetchone()
    except sqlite3.Error:
        return ""
    return str(row[0]) if row else ""


def uses_color() -> bool:
    """Return True if stdout is a terminal that may show colours."""
    is_disabled = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return not is_disabled and sys.stdout is not None and sys.stdout.isatty()
