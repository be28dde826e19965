"""`holdfast config`: show, check and change settings."""

import os
import sys
from typing import Any

import click

from holdfast.cli.common import DefaultGroup, Failure, sentences
from holdfast.cli.local_settings import configuration_for, directory_options, in_terminal, printable
from holdfast.config.configuration import ConfigSnapshot, Configuration
from holdfast.config.problems import Problem, format_key, parse_key

__all__ = ["command"]

_LONGEST_PIPED = 1024 * 1024


class _ShowGroup(DefaultGroup):
    default = "show"


@click.group("config", cls=_ShowGroup)
def command() -> None:
    """See, check and change settings.

    \b
      holdfast config                                      the settings in effect here
      holdfast config show --origin                        with the file of each
      holdfast config get models.large.model
      holdfast config set options.max_steps 200            for all your projects
      holdfast config set --project models.large.model X   for this one
      holdfast config unset options.max_steps
      holdfast config edit                                 with $EDITOR
      holdfast config check                                check all files
      holdfast config path                                 all files, lowest first

    Keys are stored with holdfast login, not here.
    """


@command.command()
@click.option("--origin", is_flag=True, help="Which file and line each setting comes from.")
@click.option("--all", "shows_all", is_flag=True, help="Include defaults.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@directory_options
def show(*, origin: bool, shows_all: bool, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Show the settings in effect here. Keys and tokens are never shown."""
    with sentences():
        reading = configuration_for(cwd, data_dir).snapshot()
        rows = _rows(reading, shows_all=shows_all)
        if as_json:
            _show_json(reading, rows, origin=origin)
        else:
            _show_lines(rows, origin=origin)
        _hint(reading)


@command.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@directory_options
def get(*, key: str, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Print one setting, or a whole table of them.

    \b
      holdfast config get models.large
      holdfast config get 'providers."my.own".base_url'
    """
    import msgspec

    from holdfast.config.redaction import redact

    with sentences():
        path = parse_key(key)
        reading = configuration_for(cwd, data_dir).snapshot()
        value: Any = redact(msgspec.to_builtins(_whole(reading)))
        for index, name in enumerate(path):
            try:
                value = value[name]
            except (KeyError, IndexError, TypeError):
                raise Failure(_unknown(path[: index + 1])) from None
    is_plain = isinstance(value, str) and not as_json
    click.echo(printable(value) if is_plain else msgspec.json.format(msgspec.json.encode(value)).decode())


@command.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--project", is_flag=True, help="In the project's file instead of yours.")
@directory_options
def set_(*, key: str, value: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Change one setting in your file, or the project's. VALUE is TOML, or text; - reads it from stdin.

    \b
      holdfast config set models.large.model gpt-5
      holdfast config set options.disabled_tools '["fetch"]'
      holdfast config set providers.openai.api_key '$OPENAI_API_KEY'
    """
    from holdfast.config.toml_edit import parse_value, set_value

    with sentences():
        path = parse_key(key)
        _refuse_secret(path, value)
        text = sys.stdin.read(_LONGEST_PIPED).rstrip("\n") if value == "-" else value
        configuration = configuration_for(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        set_value(file, path, parse_value(text, path), mode=None if project else 0o600)
        _tell(configuration, path, file)


@command.command()
@click.argument("key")
@click.option("--project", is_flag=True, help="In the project's file instead of yours.")
@directory_options
def unset(*, key: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Take one setting, or a whole table, out of your file or the project's."""
    from holdfast.config.toml_edit import unset_value

    with sentences():
        path = parse_key(key)
        configuration = configuration_for(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        unset_value(file, path, mode=None if project else 0o600)
        origin = configuration.snapshot().origins.get(path)
        rest = f"; it is still set in {printable(str(origin))}" if origin else ""
        click.echo(f"{format_key(path)} is no longer set in {printable(file)}{rest}.", err=True)


@command.command()
@click.option("--project", is_flag=True, help="The project's file instead of yours.")
@directory_options
def edit(*, project: bool, cwd: str, data_dir: str | None) -> None:
    """Open your file, or the project's, in $VISUAL or $EDITOR, and check it afterwards."""
    import shlex
    import subprocess

    with sentences():
        configuration = configuration_for(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        _begin(file, is_private=not project)
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        try:
            code = subprocess.run([*shlex.split(editor), file], check=False).returncode
        except (OSError, ValueError):
            raise Failure(f"{printable(editor)} cannot be started: set EDITOR.") from None
        if code:
            raise Failure(f"{printable(editor)} ended with {code}.")
        if _print_problems(configuration.snapshot()):
            sys.exit(1)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@directory_options
def check(*, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """List all problems of the files in effect here; exit 1 if there are any."""
    with sentences():
        configuration = configuration_for(cwd, data_dir)
        if _print_problems(configuration.snapshot(), configuration, as_json=as_json):
            sys.exit(1)
        files = [source.path for source in configuration.locations.sources if os.path.isfile(source.path)]
        click.echo(f"{len(files)} {'file' if len(files) == 1 else 'files'}, nothing wrong.", err=True)


@command.command()
def schema() -> None:
    """Print the JSON schema of the settings, for editors.

    \b
      holdfast config schema > holdfast.schema.json
    """
    import msgspec

    from holdfast.config.schema import settings_schema

    click.echo(msgspec.json.format(msgspec.json.encode(settings_schema())).decode())


@command.command()
@click.option("--project", is_flag=True, help="Only the project's own file.")
@click.option("--user", is_flag=True, help="Only your own file.")
@click.option("--json", "as_json", is_flag=True, help="All of them as JSON.")
@directory_options
def path(*, project: bool, user: bool, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """All files that are looked at, lowest first; those that are there have a mark."""
    with sentences():
        places = configuration_for(cwd, data_dir).locations
        if project or user:
            click.echo(printable(places.project_file if project else places.user_file))
            return
        if as_json:
            import msgspec

            known = ((source, os.path.lexists(source.path)) for source in places.sources)
            rows = [{"path": source.path, "kind": source.kind, "is_there": there} for source, there in known]
            click.echo(msgspec.json.encode(rows))
            return
        for source in places.sources:
            mark = "*" if os.path.lexists(source.path) else " "
            click.echo(f"{mark} {source.kind:<8}{printable(source.path)}")


# Output


def _whole(reading: ConfigSnapshot) -> object:
    """Return the settings with every default."""
    from holdfast.config.schema import with_defaults

    return with_defaults(reading.settings)


def _rows(reading: ConfigSnapshot, *, shows_all: bool) -> list[tuple[str, str, str]]:
    """Return key, value as JSON, and origin of each setting."""
    import msgspec

    from holdfast.config.redaction import redact
    from holdfast.config.validate import leaves

    tree: Any = msgspec.to_builtins(_whole(reading)) if shows_all else reading.tree
    found = []
    for path, value in leaves(redact(tree)):
        if path:
            origin = reading.origins.get(path)
            found.append((format_key(path), msgspec.json.encode(value).decode(), str(origin or "default")))
    return found


def _show_json(reading: ConfigSnapshot, rows: list[tuple[str, str, str]], *, origin: bool) -> None:
    import msgspec

    from holdfast.config.redaction import redact

    if origin:
        found: object = [
            {"key": key, "value": msgspec.Raw(text.encode()), "origin": where} for key, text, where in rows
        ]
    else:
        found = redact(reading.tree)
    click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())


def _show_lines(rows: list[tuple[str, str, str]], *, origin: bool) -> None:
    if not rows:
        click.echo(
            "Nothing is set here: everything is as it comes. Begin with holdfast login, or config set.", err=True
        )
        return
    if not in_terminal():
        for key, text, where in rows:
            click.echo(printable(f"{key} = {text}" + (f"  # {where}" if origin else "")))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=origin, header_style="dim")
    table.add_column("KEY", no_wrap=True)
    table.add_column("VALUE", overflow="fold")
    if origin:
        table.add_column("FROM", style="dim", overflow="fold")
    for key, text, where in rows:
        cells = [Text(printable(cell)) for cell in (key, text, *([_short(where)] if origin else []))]
        cells[0].stylize("cyan")
        table.add_row(*cells)
    Console().print(table)


def _short(path: str) -> str:
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path.startswith(f"{home}/") else path


def _hint(reading: ConfigSnapshot) -> None:
    errors = sum(problem.severity == "error" for problem in reading.problems)
    if errors:
        what = "1 error" if errors == 1 else f"{errors} errors"
        click.echo(f"There is {what} in these files: holdfast config check names them.", err=True)
    if reading.withheld:
        count = len(reading.withheld)
        what = "1 setting of this project has" if count == 1 else f"{count} settings of this project have"
        click.echo(f"{what} no effect until you trust it: holdfast trust.", err=True)


def _print_problems(
    reading: ConfigSnapshot, configuration: Configuration | None = None, *, as_json: bool = False
) -> bool:
    """Print the problems to stdout, because they are the result. Returns True if there are any."""
    problems: list[Problem] = list(reading.problems)
    if configuration is not None:
        problems += [*_open_to_others(configuration), *_unresolved(configuration), *_elsewhere(configuration)]
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(problems))
        return bool(problems)
    styles = {"error": "red", "warning": "yellow"}
    for problem in problems:
        word = click.style(problem.severity, fg=styles[problem.severity]) if in_terminal() else problem.severity
        click.echo(f"{word}: {printable(str(problem))}")
    return bool(problems)


def _elsewhere(configuration: Configuration) -> list[Problem]:
    """Return problems of hooks in Claude Code's files, and saved rules that are out of date."""
    from holdfast.extensions.hooks.hooks import load_claude_settings
    from holdfast.extensions.search_paths import claude_settings_files
    from holdfast.runtime.permission_rules import outdated_rules

    files = (load_claude_settings(folder) for folder in claude_settings_files(configuration.locations, os.environ))
    found = [problem for file in files if file is not None for problem in file.hooks.problems]
    saved = configuration.locations.sources[-1].path
    return [*found, *outdated_rules(configuration.snapshot(), saved)]


def _unresolved(configuration: Configuration) -> list[Problem]:
    """Return variables that are not set. Commands are not run for a check, and a stored key replaces a template."""
    settings = configuration.settings
    stored = {format_key(("providers", name, "api_key")) for name in _stored_keys(configuration)}
    quiet = Configuration(
        configuration.locations, os.environ, trust=configuration.trust, run=lambda _command, _env: "-"
    )
    found: list[Problem] = []
    for name, provider in settings.providers.items():
        found += () if provider.disable else quiet.provider(name)[1]
    for name, server in settings.mcp.items():
        found += () if server.disabled else quiet.mcp(name)[1]
    for name, language in settings.lsp.items():
        found += () if language.disabled else quiet.lsp(name)[1]
    return [problem for problem in found if problem.key not in stored]


def _open_to_others(configuration: Configuration) -> list[Problem]:
    """Return files with plain keys that other users of the machine can read."""
    from holdfast.config.redaction import is_secret, redact_value

    reading = configuration.snapshot()
    files = {configuration.locations.credentials_file}
    for path, origin in reading.origins.items():
        value: Any = reading.tree
        for name in path:
            value = value[name]
        if is_secret(path) and redact_value(value, path) == "set":
            files.add(origin.file)
    mine = [source.path for source in configuration.locations.sources if source.kind in ("user", "crush")]
    return [
        Problem("warning", file, 0, "", f"holds keys, and others may read it: chmod 600 {file}")
        for file in (*mine, configuration.locations.credentials_file)
        if file in files and os.path.isfile(file) and os.stat(file).st_mode & 0o077
    ]


def _stored_keys(configuration: Configuration) -> list[str]:
    from holdfast.config.credentials import Credentials

    return list(Credentials(configuration.locations.credentials_file, os.environ).providers())


# Changes


def _refuse_secret(path: tuple[str | int, ...], value: str) -> None:
    from holdfast.config.redaction import is_named_secret, redact_value

    if value != "-" and is_named_secret(path) and redact_value(value, path) != value:
        names = [name for name in path if isinstance(name, str)]
        how = f"holdfast login {names[1]}" if names[0] == "providers" and names[-1] == "api_key" else "- and stdin"
        raise Failure(
            "A key on a command line can be read by others on this machine, and stays in your shell's history. Use "
            f"{how}, or a template such as '$MY_KEY'. Nothing was changed."
        )


def _tell(configuration: Configuration, path: tuple[str | int, ...], file: str) -> None:
    reading = configuration.snapshot()
    click.echo(f"{printable(format_key(path))} is set in {printable(file)}.", err=True)
    above = reading.origins.get(path)
    if any(item.path[: len(path)] == path[: len(item.path)] for item in reading.withheld if item.file == file):
        click.echo("It has no effect until you trust this project: holdfast trust.", err=True)
    elif above is not None and above.file != file:
        click.echo(f"It has no effect here: {printable(str(above))} stands above it.", err=True)


def _begin(file: str, *, is_private: bool) -> None:
    """Create the file with the right mode, which an editor would not do."""
    if not os.path.lexists(file):
        from holdfast.atomic_files import replace_file

        replace_file(file, b"", mode=0o600 if is_private else 0o644)


def _unknown(path: tuple[str | int, ...]) -> str:
    from holdfast.config.validate import key_type

    known = key_type(path) is not None
    return (
        f"{printable(format_key(path))} is not set."
        if known
        else f"{printable(format_key(path))} is not a key that is known."
    )
