"""The schema in PostgreSQL: numbered migrations, executed by one server at a time."""

from importlib.resources import files

from holdfast.domain.errors import StoreMisconfigured
from holdfast.storage.postgres.connection_pool import Connection

__all__ = ["SCHEMA_LOCK", "migrate", "newest_version"]

SCHEMA_LOCK = 0x484C4446
"""Key of the advisory lock: the letters HLDF."""

_HAS_VERSION = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = 'holdfast' AND c.relname = 'schema_version')"
)


def _migrations() -> list[tuple[int, str]]:
    """Return the numbers and the SQL of all migrations, in order."""
    scripts = [item for item in files(__package__).joinpath("migrations").iterdir() if item.name.endswith(".sql")]
    return sorted((int(item.name.split("_")[0]), item.read_text("utf-8")) for item in scripts)


def newest_version() -> int:
    """Return the version that the last migration creates."""
    return _migrations()[-1][0]


async def migrate(connection: Connection) -> None:
    """Execute the pending migrations in one transaction.

    Raises `StoreMisconfigured` for a schema of a newer program, and the errors of asyncpg.
    """
    version = await _version(connection)
    if version == newest_version():
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        version = await _version(connection)
        if version > newest_version():
            raise StoreMisconfigured(
                f"The database of the store was written by a newer Holdfast (schema {version}, this one knows "
                f"{newest_version()}): update this server."
            )
        if version == 0:
            await _create_schema(connection)
        for number, script in _migrations():
            if number > version:
                await connection.execute(script)
        await connection.execute("UPDATE holdfast.schema_version SET version = $1", newest_version())


async def _version(connection: Connection) -> int:
    """Return the version of the schema, 0 if there is none."""
    # Not to_regclass: after waiting for the lock it may still answer from a cache.
    if not await connection.fetchval(_HAS_VERSION):
        return 0
    version = await connection.fetchval("SELECT version FROM holdfast.schema_version")
    if version is None:
        raise StoreMisconfigured(
            "The schema of the store is not complete, as after an interrupted restore: restore it again, or remove it "
            "(DROP SCHEMA holdfast CASCADE) to start with an empty store."
        )
    return int(version)


async def _create_schema(connection: Connection) -> None:
    """Create the schema `holdfast`, unless the operator did, and the table of its version."""
    # CREATE SCHEMA IF NOT EXISTS requires the right to create schemas even if there is one.
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'holdfast')"):
        await connection.execute("CREATE SCHEMA holdfast")
    await connection.execute("CREATE TABLE holdfast.schema_version (version integer NOT NULL)")
    await connection.execute("INSERT INTO holdfast.schema_version VALUES (0)")
