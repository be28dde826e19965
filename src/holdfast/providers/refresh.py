"""Fetches the package that the catalogue is made of, and puts what comes of it into the data directory. Blocking.

`npm` fetches it where it is installed, for it knows proxies and registries. Without it the registry that
`npm_config_registry` names is asked over HTTP, and what it sends is checked against the sum it tells.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, encode_catalog, parse_catalog, refreshed_file
from holdfast.providers.harvest import PACKAGE, harvest
from holdfast.providers.prices import completed, known_price, prices_version

__all__ = ["RefreshFailed", "fetch_package", "made_of", "refresh_catalog"]

_LIMIT = 60.0
_LARGEST = 64 * 1024 * 1024


class RefreshFailed(HoldfastError):
    """The catalogue could not be refreshed; the one that was there stays in use."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The catalogue could not be refreshed: {why}. The one that was there stays in use.")


def refresh_catalog(data_dir: Path, environment: Mapping[str, str]) -> Catalog:
    """Fetch the newest data and keep them. Raises `RefreshFailed`, and then nothing has changed."""
    try:
        catalog = made_of(fetch_package(environment))
        data = encode_catalog(catalog)
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
    """The catalogue of a package, with its prices completed. Raises `ValueError`."""

    def pricing(provider: str, model: str, price: Price) -> Price:
        is_free = model.endswith((":free", "-free"))
        return price if is_free else completed(price, known_price(provider, model))

    return harvest(tarball, pricing, prices_version())


def fetch_package(environment: Mapping[str, str]) -> bytes:
    """The newest tarball. Raises `RefreshFailed`."""
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
            done = subprocess.run(
                command, cwd=place, env=dict(environment), capture_output=True, timeout=_LIMIT, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            raise RefreshFailed("npm did not answer in time") from None
        tarballs = list(Path(place).glob("*.tgz"))
        if done.returncode != 0 or not tarballs:
            raise RefreshFailed(f"npm could not fetch {PACKAGE}: try `npm view {PACKAGE}`")
        return tarballs[0].read_bytes()


def _by_http(registry: str) -> bytes:
    import httpx2  # noqa: PLC0415 - a quarter of a second

    try:
        with httpx2.Client(timeout=_LIMIT, follow_redirects=True) as client:
            answer = client.get(f"{registry}/{quote(PACKAGE, safe='@')}/latest")
            answer.raise_for_status()
            dist: dict[str, Any] = msgspec.json.decode(answer.content)["dist"]
            tarball = client.get(dist["tarball"])
            tarball.raise_for_status()
    except httpx2.HTTPError:
        raise RefreshFailed("the registry did not answer as it should") from None
    except (ValueError, KeyError, TypeError):
        raise RefreshFailed(f"what npm_config_registry names is no npm registry, or has no {PACKAGE}") from None
    if len(tarball.content) > _LARGEST or _sum_of(tarball.content) != dist.get("integrity"):
        raise RefreshFailed("the package is not what the registry says it is")
    return tarball.content


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
