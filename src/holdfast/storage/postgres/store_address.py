"""The address of a PostgreSQL database: a connection URL as libpq reads it. Does not import asyncpg.

A URL may contain a password. It is never shown: messages contain `shown`, and the fields are not part of a `repr`.
"""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from holdfast.domain.errors import StoreMisconfigured

__all__ = ["VARIABLE", "StoreAddress", "address_of", "check_argument"]

VARIABLE = "HOLDFAST_STORE"
_SCHEMES = ("postgresql", "postgres")
_ALTERNATIVES = (
    "Leave it out of the address and put it into the file that storage.password_file names, into the file that "
    f"PGPASSFILE names, or give the whole address in {VARIABLE}."
)


class StoreAddress(NamedTuple):
    """A URL, and the file with the password if it is in a file of its own."""

    url: str
    password_file: str = ""

    def __repr__(self) -> str:
        return f"StoreAddress({self.shown})"

    @property
    def shown(self) -> str:
        """The database without users, passwords and options, for messages."""
        parts = urlsplit(self.url)
        options = dict(parse_qsl(parts.query))
        hosts = parts.netloc.rpartition("@")[2] or options.get("host") or "localhost"
        return f"{options.get('dbname') or parts.path.lstrip('/') or 'the default database'} at {hosts}"

    @property
    def has_password(self) -> bool:
        """True if the URL contains a password."""
        parts = urlsplit(self.url)
        login = parts.netloc.rpartition("@")[0]
        return ":" in login or any("password" in name.lower() for name, _ in parse_qsl(parts.query))


def address_of(
    argument: str | None, environment: Mapping[str, str], url: str, password_file: str
) -> StoreAddress | None:
    """Return the address from the command line, the environment or the settings, in this order; None for SQLite.

    Raises `StoreMisconfigured`.
    """
    if argument:
        check_argument("--store", argument)
    chosen = argument or environment.get(VARIABLE) or url
    if not chosen:
        return None
    _check_form(chosen)
    return StoreAddress(chosen, password_file)


def check_argument(option: str, url: str) -> None:
    """Refuse a password on the command line, where other users of the machine can read it."""
    _check_form(url)
    if StoreAddress(url).has_password:
        raise StoreMisconfigured(
            f"{option} contains a password, which other users can read in the list of processes. {_ALTERNATIVES}"
        )


def _check_form(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in _SCHEMES and url.startswith(f"{parts.scheme}://")
    except ValueError:
        is_known = False
    if not is_known:
        raise StoreMisconfigured(
            "The address of the store is not valid: write it as postgresql://user@host:5432/database."
        )
    if "#" in url or "@" in parts.path or any("@" in pair.partition("=")[0] for pair in parts.query.split("&")):
        # A password with such a character ends early. Its rest would be taken for a host or a database, and be shown.
        raise StoreMisconfigured(
            "The address of the store is not valid: in a user, password or database, write @ as %40, / as %2F, "
            "? as %3F and # as %23."
        )
