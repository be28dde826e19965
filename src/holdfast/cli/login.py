"""`holdfast login` and `holdfast logout`: API keys of providers, stored so that only their owner can read them."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.cli.common import Failure, sentences, table
from holdfast.cli.local_settings import configuration_for, directory_options, printable
from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.config.variables import is_template

__all__ = ["login_command", "logout"]

_LONGEST_INPUT = 64 * 1024
_WORDS = {"keyring": "keyring", "file": "file", "token": "signed in"}


class _Key(NamedTuple):
    provider: str
    where: str
    what: str


@click.command("login")
@click.argument("provider", required=False)
@click.argument("key", nargs=-1, metavar="")
@click.option("--list", "lists", is_flag=True, help="Which providers have keys, and where from. Never the keys.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@directory_options
def login_command(
    *, provider: str | None, key: tuple[str, ...], lists: bool, as_json: bool, cwd: str, data_dir: str | None
) -> None:
    """Store the key of a provider: in the system's keyring if there is one, else in a file only you can read.

    You are prompted for the key, which is not shown; or it is read from a pipe. It is never an argument, where
    others on this machine and your shell's history would see it.

    \b
      holdfast login anthropic
      pass show openai | holdfast login openai
      holdfast login --list
      holdfast logout openai

    HOLDFAST_KEYRING=0 leaves the keyring alone.
    """
    if key:
        # Do not repeat the key: the terminal may be visible to others.
        raise click.UsageError(
            "A key on a command line can be read by others, and stays in your shell's history: leave it out, it is "
            "asked for. One that was shown is better replaced."
        )
    with sentences():
        configuration = configuration_for(cwd, data_dir)
        credentials = _credentials(configuration)
        if lists or as_json:
            _list(configuration, credentials, as_json=as_json)
        elif provider is None:
            raise click.UsageError("Name the provider, such as: holdfast login openai. See also --list.")
        else:
            _login(credentials, configuration, provider)


@click.command("logout")
@click.argument("provider")
@directory_options
def logout(*, provider: str, cwd: str, data_dir: str | None) -> None:
    """Forget the key of a provider.

    \b
      holdfast logout openai
    """
    with sentences():
        configuration = configuration_for(cwd, data_dir)
        credentials = _credentials(configuration)
        if provider not in credentials.providers():
            provider = _known(configuration, provider) or provider
        if not credentials.remove(provider):
            raise Failure(f"No key of {printable(provider)} is stored: holdfast login --list names those that are.")
        click.echo(f"The key of {printable(provider)} is forgotten.", err=True)
        for key in _elsewhere(configuration):
            if key.provider == provider:
                click.echo(f"It still has one from another place: {key.where} {printable(key.what)}.", err=True)


def _credentials(configuration: Configuration) -> Credentials:
    return Credentials(configuration.locations.credentials_file, os.environ)


def _login(credentials: Credentials, configuration: Configuration, name: str) -> None:
    provider = _known(configuration, name) or name
    if sys.stdin.isatty():
        key = click.prompt(f"Key of {printable(provider)}", hide_input=True, err=True)
    else:
        key = sys.stdin.read(_LONGEST_INPUT)
    if not str(key).strip():
        raise Failure("No key came: type it at a terminal, or pipe it in.")
    where = credentials.put(provider, str(key).strip())
    place = "the keyring" if where == "keyring" else printable(credentials.path)
    click.echo(f"The key of {printable(provider)} is stored in {place}.", err=True)
    if _known(configuration, provider) is None:
        click.echo(_hint(configuration, provider), err=True)


def _known(configuration: Configuration, name: str) -> str | None:
    """Return the id under which a provider's key is stored. Names are matched loosely: OpenAI, or google for gemini."""
    from holdfast.providers.catalog import load_catalog

    if name in configuration.settings.providers:
        return name
    known = load_catalog(Path(configuration.locations.data_dir)).provider(name)
    return None if known is None else known.id


def _hint(configuration: Configuration, provider: str) -> str:
    """Return advice for a key of an unknown provider."""
    from holdfast.providers.catalog import close_matches, load_catalog

    catalog = load_catalog(Path(configuration.locations.data_dir))
    close = close_matches(provider, [*configuration.settings.providers, *(known.id for known in catalog.providers)])
    meant = f" Did you mean {' or '.join(map(printable, close))}? Then holdfast logout {printable(provider)}."
    return (
        f"No provider of that name is known yet: describe it under providers.{printable(provider)} in your settings "
        f"(holdfast config edit).{meant if close else ''}"
    )


def _list(configuration: Configuration, credentials: Credentials, *, as_json: bool) -> None:
    stored = [
        _Key(name, _WORDS[held], credentials.path if held != "keyring" else "")
        for name, held in credentials.providers().items()
    ]
    keys = sorted([*_elsewhere(configuration), *stored])
    if as_json:
        import msgspec

        rows = [{"provider": key.provider, "where": key.where, "name": key.what} for key in keys]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif not keys:
        click.echo("No provider has a key yet: holdfast login PROVIDER, or set its variable.", err=True)
    else:
        rows_of_text = [(printable(key.provider), key.where, printable(key.what)) for key in keys]
        click.echo(table(("PROVIDER", "FROM", "NAME"), rows_of_text))


def _elsewhere(configuration: Configuration) -> list[_Key]:
    """Return keys that were not stored by a login: in settings, and in variables that the catalogue names."""
    from holdfast.providers.catalog import load_catalog

    reading = configuration.snapshot()
    found: list[_Key] = []
    for name, provider in reading.settings.providers.items():
        origin = reading.origins.get(("providers", name, "api_key"))
        if provider.api_key and origin is not None:
            found.append(_Key(name, "template" if is_template(provider.api_key) else "settings", str(origin)))
    variables = configuration.environment()
    for known in load_catalog(Path(configuration.locations.data_dir)).providers:
        found += [_Key(known.id, "variable", name) for name in known.api_key if variables.get(name)][:1]
    return found
