"""`holdfast config`: show, check and change settings."""

import os
import sys
from typing import Any

import click

from holdfast.cli.common import CommandError, DefaultGroup, report_errors
from holdfast.cli.local_settings import load_configuration, local_options, uses_color
from holdfast.client.terminal_text import printable
from holdfast.config.configuration import ConfigSnapshot, Configuration
from holdfast.config.problems import FileProblem, format_key, parse_key

__all__ = ["command"]

_MAX_PIPED = 1024 * 1024


class _ShowGroup(DefaultGroup):
    default = "show"


@click.group("config", cls=_ShowGroup)
def command() -> None:
    """Show, check and change settings.

    \b
      holdfast config                                      the settings in effect here
      holdfast config show --origin                        with the file of each setting
      holdfast config get models.large.model
      holdfast config set options.max_steps 200            for all projects
      holdfast config set --project models.large.model X   for this project
      holdfast config unset options.max_steps
      holdfast config edit                                 with $EDITOR
      holdfast config check                                check all files
      holdfast config path                                 all files, lowest precedence first

    API keys are stored with holdfast login instead.
    """


@command.command()
@click.option("--origin", is_flag=True, help="Show the file and line of each setting.")
@click.option("--all", "shows_all", is_flag=True, help="Include defaults.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@local_options
def show(*, origin: bool, shows_all: bool, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Show the settings in effect in this directory. Keys and tokens are never shown."""
    with report_errors():
        reading = load_configuration(cwd, data_dir, with_store=True).snapshot()
        rows = _rows(reading, shows_all=shows_all)
        if as_json:
            _show_json(reading, rows, origin=origin)
        else:
            _show_lines(rows, origin=origin)
        _print_hints(reading)


@command.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@local_options
def get(*, key: str, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Print one setting or a table of settings.

    \b
      holdfast config get models.large
      holdfast config get 'providers."my.own".base_url'
    """
    import msgspec

    from holdfast.config.redaction import redact

    with report_errors():
        path = parse_key(key)
        reading = load_configuration(cwd, data_dir, with_store=True).snapshot()
        value: Any = redact(msgspec.to_builtins(_all_settings(reading)))
        for index, name in enumerate(path):
            try:
                value = value[name]
            except (KeyError, IndexError, TypeError):
                raise CommandError(_missing_key_message(path[: index + 1])) from None
    is_plain = isinstance(value, str) and not as_json
    click.echo(printable(value) if is_plain else msgspec.json.format(msgspec.json.encode(value)).decode())


@command.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--project", is_flag=True, help="Use the file of the project instead of yours.")
@local_options
def set_(*, key: str, value: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Set a value in your file or in that of the project. VALUE is TOML or text; - reads it from stdin.

    \b
      holdfast config set models.large.model gpt-5
      holdfast config set options.disabled_tools '["fetch"]'
      holdfast config set providers.openai.api_key '$OPENAI_API_KEY'
    """
    from holdfast.config.toml_edit import parse_value, set_value

    with report_errors():
        path = parse_key(key)
        _refuse_secret(path, value)
        text = sys.stdin.read(_MAX_PIPED).rstrip("\n") if value == "-" else value
        configuration = load_configuration(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        set_value(file, path, parse_value(text, path), mode=None if project else 0o600)
        _confirm_set(configuration, path, file)


@command.command()
@click.argument("key")
@click.option("--project", is_flag=True, help="Use the file of the project instead of yours.")
@local_options
def unset(*, key: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Remove a setting or a table from a settings file."""
    from holdfast.config.toml_edit import unset_value

    with report_errors():
        path = parse_key(key)
        configuration = load_configuration(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        unset_value(file, path, mode=None if project else 0o600)
        origin = configuration.snapshot().origins.get(path)
        rest = f"; it is still set in {printable(str(origin))}" if origin else ""
        click.echo(f"{format_key(path)} is no longer set in {printable(file)}{rest}.", err=True)


@command.command()
@click.option("--project", is_flag=True, help="Use the file of the project instead of yours.")
@local_options
def edit(*, project: bool, cwd: str, data_dir: str | None) -> None:
    """Open a settings file in $VISUAL or $EDITOR. The file is checked afterwards."""
    import shlex
    import subprocess

    with report_errors():
        configuration = load_configuration(cwd, data_dir)
        file = configuration.locations.project_file if project else configuration.locations.user_file
        _create_file(file, is_private=not project)
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        try:
            code = subprocess.run([*shlex.split(editor), file], check=False).returncode
        except (OSError, ValueError):
            raise CommandError(f"{printable(editor)} cannot be started: set EDITOR.") from None
        if code:
            raise CommandError(f"{printable(editor)} exited with code {code}.")
        if _print_problems(configuration.snapshot()):
            sys.exit(1)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@local_options
def check(*, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """List all problems of the files in effect here. Exits with 1 if there are any."""
    with report_errors():
        configuration = load_configuration(cwd, data_dir, with_store=True)
        if _print_problems(configuration.snapshot(), configuration, as_json=as_json):
            sys.exit(1)
        files = [source.path for source in configuration.locations.sources if os.path.isfile(source.path)]
        click.echo(f"{len(files)} {'file' if len(files) == 1 else 'files'}, no problems.", err=True)


@command.command()
def schema() -> None:
    """Print the JSON schema of the settings, for editors.

    \b
      holdfast config schema > holdfast.schema.json
    """
    import msgspec

    from holdfast.config.json_schema import settings_schema

    click.echo(msgspec.json.format(msgspec.json.encode(settings_schema())).decode())


@command.command()
@click.option("--project", is_flag=True, help="Print the file of the project only.")
@click.option("--user", is_flag=True, help="Print your file only.")
@click.option("--json", "as_json", is_flag=True, help="Print all files as JSON.")
@local_options
def path(*, project: bool, user: bool, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """List all settings files, lowest precedence first. Existing files are marked."""
    with report_errors():
        places = load_configuration(cwd, data_dir, with_store=True).locations
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


def _all_settings(reading: ConfigSnapshot) -> object:
    """Return the settings with every default."""
    from holdfast.config.json_schema import with_defaults

    return with_defaults(reading.settings)


def _rows(reading: ConfigSnapshot, *, shows_all: bool) -> list[tuple[str, str, str]]:
    """Return key, value as JSON, and origin of each setting."""
    import msgspec

    from holdfast.config.redaction import redact
    from holdfast.config.validate import leaves

    tree: Any = msgspec.to_builtins(_all_settings(reading)) if shows_all else reading.tree
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
            "No settings are set here: all defaults apply. Start with holdfast login or holdfast config set.", err=True
        )
        return
    if not uses_color():
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
        cells = [Text(printable(cell)) for cell in (key, text, *([_abbreviate_home(where)] if origin else []))]
        cells[0].stylize("cyan")
        table.add_row(*cells)
    Console().print(table)


def _abbreviate_home(path: str) -> str:
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path.startswith(f"{home}/") else path


def _print_hints(reading: ConfigSnapshot) -> None:
    errors = sum(problem.severity == "error" for problem in reading.problems)
    if errors:
        what = "1 error" if errors == 1 else f"{errors} errors"
        click.echo(f"{what} in these files: see holdfast config check.", err=True)
    if reading.withheld:
        count = len(reading.withheld)
        what = "1 setting of this project has" if count == 1 else f"{count} settings of this project have"
        click.echo(f"{what} no effect until it is trusted: holdfast trust.", err=True)


def _print_problems(
    reading: ConfigSnapshot, configuration: Configuration | None = None, *, as_json: bool = False
) -> bool:
    """Print the problems to stdout, because they are the result. Returns True if there are any."""
    problems: list[FileProblem] = list(reading.problems)
    if configuration is not None:
        problems += [
            *_readable_key_files(configuration),
            *_unset_variables(configuration),
            *_hook_and_rule_problems(configuration),
        ]
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(problems))
        return bool(problems)
    styles = {"error": "red", "warning": "yellow"}
    for problem in problems:
        word = click.style(problem.severity, fg=styles[problem.severity]) if uses_color() else problem.severity
        click.echo(f"{word}: {printable(str(problem))}")
    return bool(problems)


def _hook_and_rule_problems(configuration: Configuration) -> list[FileProblem]:
    """Return problems of hooks in Claude Code's files, and saved rules that are out of date."""
    from holdfast.extensions.hooks.hooks import load_claude_settings
    from holdfast.extensions.search_paths import claude_settings_files
    from holdfast.runtime.workspace_permissions import outdated_rules

    files = (load_claude_settings(folder) for folder in claude_settings_files(configuration.locations, os.environ))
    found = [problem for file in files if file is not None for problem in file.hooks.problems]
    saved = configuration.locations.saved_settings[1]
    return [*found, *outdated_rules(configuration.snapshot(), saved)]


def _unset_variables(configuration: Configuration) -> list[FileProblem]:
    """Return variables that are not set. Commands are not run for a check, and a stored key replaces a template."""
    settings = configuration.settings
    stored = {format_key(("providers", name, "api_key")) for name in _stored_keys(configuration)}
    # Commands in templates are replaced by a constant instead of being run.
    quiet = Configuration(
        configuration.locations,
        os.environ,
        trust=configuration.trust,
        run=lambda _command, _env: "-",
        documents=configuration.documents,
    )
    found: list[FileProblem] = []
    for name, provider in settings.providers.items():
        found += () if provider.disable else quiet.provider(name)[1]
    for name, server in settings.mcp.items():
        found += () if server.disabled else quiet.mcp(name)[1]
    for name, language in settings.lsp.items():
        found += () if language.disabled else quiet.lsp(name)[1]
    return [problem for problem in found if problem.key not in stored]


def _readable_key_files(configuration: Configuration) -> list[FileProblem]:
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
        FileProblem("warning", file, 0, "", f"contains keys and is readable by other users: chmod 600 {file}")
        for file in (*mine, configuration.locations.credentials_file)
        if file in files and os.path.isfile(file) and os.stat(file).st_mode & 0o077
    ]


def _stored_keys(configuration: Configuration) -> list[str]:
    from holdfast.config.credentials import Credentials

    return list(Credentials(configuration.locations.credentials_file, os.environ).providers())


def _refuse_secret(path: tuple[str | int, ...], value: str) -> None:
    from holdfast.config.redaction import is_named_secret, redact_value

    if value != "-" and is_named_secret(path) and redact_value(value, path) != value:
        names = [name for name in path if isinstance(name, str)]
        how = f"holdfast login {names[1]}" if names[0] == "providers" and names[-1] == "api_key" else "- and stdin"
        raise CommandError(
            "A key on a command line is visible to other users of this machine and stays in your shell's history. Use "
            f"{how}, or a template such as '$MY_KEY'. Nothing was changed."
        )


def _confirm_set(configuration: Configuration, path: tuple[str | int, ...], file: str) -> None:
    reading = configuration.snapshot()
    click.echo(f"{printable(format_key(path))} is set in {printable(file)}.", err=True)
    above = reading.origins.get(path)
    if any(item.path[: len(path)] == path[: len(item.path)] for item in reading.withheld if item.file == file):
        click.echo("It has no effect until this project is trusted: holdfast trust.", err=True)
    elif above is not None and above.file != file:
        click.echo(f"It has no effect here: {printable(str(above))} overrides it.", err=True)


def _create_file(file: str, *, is_private: bool) -> None:
    """Create the file with the right mode, which an editor would not do."""
    if not os.path.lexists(file):
        from holdfast.atomic_files import replace_file

        replace_file(file, b"", mode=0o600 if is_private else 0o644)


def _missing_key_message(path: tuple[str | int, ...]) -> str:
    from holdfast.config.validate import key_type

    known = key_type(path) is not None
    return (
        f"{printable(format_key(path))} is not set." if known else f"{printable(format_key(path))} is not a known key."
    )
