"""Refresh of the catalogue: download the source package, convert it, and store the result. Blocking.

`npm` downloads the package if it is installed, because it knows proxies and registries. Otherwise the registry in
`npm_config_registry` is requested over HTTP, and the tarball is verified against its published checksum.
"""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, encode_catalog, parse_catalog, refreshed_file
from holdfast.providers.catalog_builder import PACKAGE, completed, harvest, known_price, prices_version

__all__ = ["LIMIT", "RefreshFailed", "fetch_package", "made_of", "refresh_catalog"]

LIMIT = 30.0
"""Maximum duration of the whole refresh in seconds; a longer one indicates a network problem."""

_SILENCE = 10.0
_LARGEST = 64 * 1024 * 1024

_NPM_PATIENCE = {"npm_config_fetch_timeout": f"{_SILENCE * 1_000:.0f}", "npm_config_fetch_retries": "1"}
"""By default npm retries for minutes."""


class RefreshFailed(HoldfastError):
    """The catalogue could not be refreshed; the one that was there stays in use."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The catalogue could not be refreshed: {why}. The one that was there stays in use.")


def refresh_catalog(data_dir: Path, environment: Mapping[str, str]) -> Catalog:
    """Download and store the newest data. Raises `RefreshFailed`; the stored catalogue is then unchanged."""
    try:
        catalog = made_of(fetch_package(environment))
        data = encode_catalog(catalog)
        # Validate before replacing the stored file.
        parse_catalog(data)
    except ValueError as error:
        raise RefreshFailed(str(error)) from error
    path = refreshed_file(data_dir)
    try:
        _replace(path, data)
    except OSError as error:
        raise RefreshFailed(f"{path} cannot be written ({error.strerror})") from error
    return catalog


def made_of(tarball: bytes) -> Catalog:
    """Build a catalogue from a package and complete its prices. Raises `ValueError`."""

    def pricing(provider: str, model: str, price: Price) -> Price:
        is_free = model.endswith((":free", "-free"))
        return price if is_free else completed(price, known_price(provider, model))

    return harvest(tarball, pricing, prices_version())


def fetch_package(environment: Mapping[str, str]) -> bytes:
    """Download the newest tarball. Raises `RefreshFailed`."""
    npm = shutil.which("npm", path=environment.get("PATH"))
    if npm is not None:
        return _by_npm(npm, environment)
    registry = environment.get("npm_config_registry") or environment.get("NPM_CONFIG_REGISTRY") or ""
    if not registry.startswith(("https://", "http://")):
        raise RefreshFailed("install npm, or set npm_config_registry to the address of an npm registry")
    return _by_http(registry.rstrip("/"))


def _by_npm(npm: str, environment: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as place:
        command = [npm, "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@latest"]
        try:
            status = _run(command, place, {**_NPM_PATIENCE, **environment})
        except OSError as error:
            raise RefreshFailed(f"npm cannot be started ({error.strerror})") from None
        tarballs = list(Path(place).glob("*.tgz"))
        if status != 0 or not tarballs:
            raise RefreshFailed(f"npm could not fetch {PACKAGE}: try `npm view {PACKAGE}`")
        return tarballs[0].read_bytes()


def _run(command: list[str], place: str, environment: Mapping[str, str]) -> int:
    """Run a command and return its exit status. On timeout its whole process group is killed."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=place, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    ) as process:
        try:
            return process.wait(LIMIT)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _late("npm") from None
            raise


def _late(who: str) -> RefreshFailed:
    return RefreshFailed(f"{who} was not done within {LIMIT:g} s, so the registry may be out of reach")


def _by_http(registry: str) -> bytes:
    import httpx2  # noqa: PLC0415 - a quarter of a second

    end = time.monotonic() + LIMIT

    def fetched(client: httpx2.Client, address: str) -> bytes:
        data = b""
        with client.stream("GET", address) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                data += piece
                if time.monotonic() > end:
                    raise _late("the registry")
                if len(data) > _LARGEST:
                    raise RefreshFailed("the package is not what the registry says it is")
        return data

    try:
        with httpx2.Client(timeout=_SILENCE, follow_redirects=True) as client:
            answer = fetched(client, f"{registry}/{quote(PACKAGE, safe='@')}/latest")
            dist: dict[str, Any] = msgspec.json.decode(answer)["dist"]
            tarball = fetched(client, dist["tarball"])
    except httpx2.TimeoutException:
        raise RefreshFailed(f"the registry {registry} has said nothing for {_SILENCE:g} s") from None
    except httpx2.HTTPError:
        raise RefreshFailed("the registry did not answer as it should") from None
    except (ValueError, KeyError, TypeError):
        raise RefreshFailed(f"what npm_config_registry names is no npm registry, or has no {PACKAGE}") from None
    if _sum_of(tarball) != dist.get("integrity"):
        raise RefreshFailed("the package is not what the registry says it is")
    return tarball


def _sum_of(data: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix="catalog-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
