"""`holdfast trust`: allow the settings of a project to take effect."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.common import CommandError, report_errors
from holdfast.cli.local_settings import load_configuration, uses_color
from holdfast.client.terminal_text import printable
from holdfast.config.configuration import Configuration
from holdfast.config.problems import format_key
from holdfast.config.redaction import redact
from holdfast.config.validate import leaves
from holdfast.extensions.trust import (
    TrustableFile,
    find_trustable_files,
    grant_trust,
    revoke_trust,
    untrusted_files,
)

__all__ = ["command"]

_MAX_SHOWN = 200
_NO_SETTINGS = """There are no settings in {}. Trusting it allows language servers to run code of the project:
programs in .venv and node_modules, plugins, build scripts."""


@click.command("trust")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--show", "only_shows", is_flag=True, help="Only show what would take effect.")
@click.option("--revoke", is_flag=True, help="Revoke trust.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--data-dir", metavar="DIR", help="Data directory of the server; default: $HOLDFAST_DATA_DIR.")
def command(*, directory: str, only_shows: bool, revoke: bool, yes: bool, data_dir: str | None) -> None:
    """Allow the settings of a project to take effect: servers, hooks, URLs, permissions of commands and agents.

    Until then its files can only select models, name context files and tighten permissions, and language servers run
    no code of the project. Trust applies to the current contents of the files: when one of them changes, it has to
    be given again.

    \b
      holdfast trust              show what would take effect, and decide
      holdfast trust --show       only show it
      holdfast trust --revoke     revoke trust
    """
    if only_shows + revoke + yes > 1:
        raise click.UsageError("--show, --revoke and --yes cannot be combined.")
    with report_errors():
        configuration = load_configuration(os.path.realpath(directory), data_dir, with_store=True)
        if revoke:
            _revoke(configuration)
        else:
            _trust(configuration, only_shows=only_shows, yes=yes)


def _revoke(configuration: Configuration) -> None:
    project = configuration.snapshot().project
    anchor = project.anchor
    if revoke_trust(configuration.trust, project, _trustable_files(configuration)):
        click.echo(f"{printable(anchor)} is no longer trusted.", err=True)
    else:
        click.echo(f"{printable(anchor)} was not trusted.", err=True)


def _trustable_files(configuration: Configuration) -> tuple[TrustableFile, ...]:
    return find_trustable_files(configuration.locations, os.environ)


def _trust(configuration: Configuration, *, only_shows: bool, yes: bool) -> None:
    reading = configuration.snapshot()
    project = reading.project
    files = _trustable_files(configuration)
    broken = [
        problem
        for problem in reading.problems
        if problem.severity == "error" and _is_project(configuration, problem.file)
    ]
    for problem in broken:
        click.echo(f"holdfast: {printable(str(problem))}", err=True)
    anchor = project.anchor
    _show(configuration)
    _show_files(files)
    if not project.files and not files:
        click.echo(_NO_SETTINGS.format(printable(anchor)), err=True)
    is_trusted = project.is_trusted and not untrusted_files(files, configuration.trust)
    if is_trusted or only_shows:
        click.echo(f"{printable(anchor)} is {'' if is_trusted else 'not '}trusted.", err=True)
        return
    if broken:
        # Trust applies to the contents of files: contents that cannot be parsed cannot be shown for a decision.
        raise CommandError("Correct these files first: they cannot be parsed.")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Use --yes to trust a project without a confirmation.")
        what = "these files" if project.files or files else "it"
        click.confirm(f"Do you trust {what}?", abort=True, err=True)
    grant_trust(configuration.trust, project, files, at=time.time())
    until = "one of these files changes" if project.files or files else "it contains settings"
    click.echo(f"{printable(anchor)} is trusted, until {until}.", err=True)


def _is_project(configuration: Configuration, file: str) -> bool:
    return any(source.kind == "project" and source.path == file for source in configuration.locations.sources)


def _show(configuration: Configuration) -> None:
    """Print all settings of the project's files; those that need trust are marked."""
    for layer, withheld in configuration.project_layers():
        click.echo(printable(layer.file))
        needs = {item.path for item in withheld}
        rows = list(leaves(redact(layer.tree)))
        for path, value in rows[:_MAX_SHOWN]:
            needs_trust = any(path[:length] in needs for length in range(1, len(path) + 1))
            _print_value(path, value, layer.lines.get(path, 0), needs_trust=needs_trust)
        if len(rows) > _MAX_SHOWN:
            click.echo(f"  … and {len(rows) - _MAX_SHOWN} more: read the file before you trust it.")


def _show_files(files: Sequence[TrustableFile]) -> None:
    """Print the hooks, and the permissions of commands and agents. Their texts are in the files."""
    for file in files:
        click.echo(printable(file.path))
        for key, line, value in file.entries[:_MAX_SHOWN]:
            _print_setting(f"{key} = {value}" if value else key, line, needs_trust=True)


def _print_value(path: tuple[str | int, ...], value: Any, line: int, *, needs_trust: bool) -> None:  # noqa: ANN401 - any JSON
    import msgspec

    _print_setting(f"{format_key(path)} = {msgspec.json.encode(value).decode()}", line, needs_trust=needs_trust)


def _print_setting(text: str, line: int, *, needs_trust: bool) -> None:
    text = printable(text)
    mark = "!" if needs_trust else " "
    where = f"  (line {line})" if line else ""
    shown = click.style(f"{mark} {text}", fg="yellow") if needs_trust and uses_color() else f"{mark} {text}"
    click.echo(f"  {shown}{where}")
