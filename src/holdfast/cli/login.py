"""`holdfast login` and `holdfast logout`: API keys of providers, stored so that only their owner can read them."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.cli.common import CommandError, report_errors, table
from holdfast.cli.local_settings import load_configuration, load_credentials, local_options
from holdfast.client.terminal_text import printable
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.config.variables import is_template

__all__ = ["login_command", "logout"]

_MAX_INPUT = 64 * 1024
_STORE_LABELS = {"keyring": "keyring", "file": "file", "token": "signed in"}


class _KeySource(NamedTuple):
    provider: str
    source: str
    what: str


@click.command("login")
@click.argument("provider", required=False)
@click.argument("key", nargs=-1, metavar="")
@click.option(
    "--list", "lists", is_flag=True, help="List providers with keys and the origin of each key, never the keys."
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@local_options
def login_command(
    *, provider: str | None, key: tuple[str, ...], lists: bool, as_json: bool, cwd: str, data_dir: str | None
) -> None:
    """Store the key of a provider: in the keyring of the system if there is one, else in a file that only you can read.

    The key is read from a prompt without echo, or from a pipe. It cannot be an argument, because arguments are visible
    to other users and stay in the history of your shell.

    \b
      holdfast login anthropic
      pass show openai | holdfast login openai
      holdfast login --list
      holdfast logout openai

    HOLDFAST_KEYRING=0 disables the keyring.
    """
    if key:
        # Do not repeat the key: the terminal may be visible to others.
        raise click.UsageError(
            "A key on a command line is visible to other users and stays in your shell's history: omit it, and "
            "enter it at the prompt. Consider replacing a key that was exposed."
        )
    with report_errors():
        if lists or as_json:
            shared = load_configuration(cwd, data_dir, with_store=True)
            _list(shared, load_credentials(shared), as_json=as_json)
            return
        configuration = load_configuration(cwd, data_dir)
        credentials = _credentials(configuration)
        if provider is None:
            raise click.UsageError("Give a provider, as in: holdfast login openai. See also --list.")
        _login(credentials, configuration, provider)


@click.command("logout")
@click.argument("provider")
@local_options
def logout(*, provider: str, cwd: str, data_dir: str | None) -> None:
    """Delete the stored key of a provider.

    \b
      holdfast logout openai
    """
    with report_errors():
        configuration = load_configuration(cwd, data_dir)
        credentials = _credentials(configuration)
        if provider not in credentials.providers():
            provider = _provider_id(configuration, provider) or provider
        if not credentials.remove(provider):
            raise CommandError(f"No key of {printable(provider)} is stored: see holdfast login --list.")
        click.echo(f"The key of {printable(provider)} is deleted.", err=True)
        for key in _other_keys(configuration):
            if key.provider == provider:
                click.echo(f"Another key remains in effect: {key.source} {printable(key.what)}.", err=True)


def _credentials(configuration: Configuration) -> Credentials:
    return Credentials(configuration.locations.credentials_file, os.environ)


def _login(credentials: Credentials, configuration: Configuration, name: str) -> None:
    provider = _provider_id(configuration, name) or name
    if sys.stdin.isatty():
        key = click.prompt(f"Key of {printable(provider)}", hide_input=True, err=True)
    else:
        key = sys.stdin.read(_MAX_INPUT)
    if not str(key).strip():
        raise CommandError("No key was given: enter it at a terminal, or pipe it in.")
    source = credentials.put(provider, str(key).strip())
    place = "the keyring" if source == "keyring" else printable(credentials.path)
    click.echo(f"The key of {printable(provider)} is stored in {place}.", err=True)
    if _provider_id(configuration, provider) is None:
        click.echo(_unknown_provider_hint(configuration, provider), err=True)


def _provider_id(configuration: Configuration, name: str) -> str | None:
    """Return the id under which a provider's key is stored. Names are matched loosely: OpenAI, or google for gemini."""
    from holdfast.providers.catalog import load_catalog

    if name in configuration.settings.providers:
        return name
    known = load_catalog(Path(configuration.locations.data_dir)).provider(name)
    return None if known is None else known.id


def _unknown_provider_hint(configuration: Configuration, provider: str) -> str:
    """Return advice for a key of an unknown provider."""
    from holdfast.providers.catalog import close_matches, load_catalog

    catalog = load_catalog(Path(configuration.locations.data_dir))
    close = close_matches(provider, [*configuration.settings.providers, *(known.id for known in catalog.providers)])
    suggestion = f" Did you mean {' or '.join(map(printable, close))}? Then holdfast logout {printable(provider)}."
    return (
        f"There is no provider of this name yet: configure it under providers.{printable(provider)} in your settings "
        f"(holdfast config edit).{suggestion if close else ''}"
    )


def _list(configuration: Configuration, credentials: Credentials, *, as_json: bool) -> None:
    stored = [
        _KeySource(name, _STORE_LABELS[store], "" if store == "keyring" else _location(credentials, name, store))
        for name, store in credentials.providers().items()
    ]
    if problem := credentials.problem():
        click.echo(f"holdfast: {printable(problem)}", err=True)
    keys = sorted([*_other_keys(configuration), *stored])
    if as_json:
        import msgspec

        rows = [{"provider": key.provider, "where": key.source, "name": key.what} for key in keys]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif not keys:
        click.echo("No provider has a key yet: use holdfast login PROVIDER, or set its environment variable.", err=True)
    else:
        rows_of_text = [(printable(key.provider), key.source, printable(key.what)) for key in keys]
        click.echo(table(("PROVIDER", "FROM", "NAME"), rows_of_text))


def _location(credentials: Credentials, name: str, store: str) -> str:
    return "database" if store == "token" and credentials.is_shared(name) else credentials.path


def _other_keys(configuration: Configuration) -> list[_KeySource]:
    """Return keys that were not stored by a login: in settings, and in variables that the catalogue names."""
    from holdfast.providers.catalog import load_catalog

    reading = configuration.snapshot()
    found: list[_KeySource] = []
    for name, provider in reading.settings.providers.items():
        origin = reading.origins.get(("providers", name, "api_key"))
        if provider.api_key and origin is not None:
            found.append(_KeySource(name, "template" if is_template(provider.api_key) else "settings", str(origin)))
    variables = configuration.environment()
    for known in load_catalog(Path(configuration.locations.data_dir)).providers:
        found += [_KeySource(known.id, "variable", name) for name in known.api_key if variables.get(name)][:1]
    return found
