"""`holdfast doctor`, `dirs`, `logs` and `prompt`: what a user needs to find the cause of a problem.

`doctor` checks the installation, `dirs` prints the files in use, `logs` the log of the server, and `prompt` the system
prompt that a model receives.
"""

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence

import click
import msgspec

from holdfast import __version__
from holdfast.cli.common import CommandError, location_options, report_errors, server_options
from holdfast.cli.local_settings import load_configuration, local_options, uses_color
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.errors import ClientError, StartFailed, Unreachable, UnsafePath
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_check import VersionMismatch
from holdfast.client.server_launcher import ServerLocation, locate, secure_directory
from holdfast.client.terminal_text import printable, sanitize
from holdfast.distribution_names import DISTRIBUTION, FOREIGN_DISTRIBUTION, REPAIR
from holdfast.domain.doctor import Finding, Health, Severity
from holdfast.domain.errors import HoldfastError
from holdfast.protocol.bodies import VersionInfo

__all__ = ["dirs_command", "doctor_command", "logs_command", "prompt_command"]


_POLL_INTERVAL = 0.2
"""Seconds between two reads of a log that is followed."""
_CHECK_TIMEOUT = 90.0
"""Maximum seconds for the checks of the server, which send requests to models."""
_MARKS: dict[Severity, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "cyan"),
    "warning": ("!", "yellow"),
    "error": ("✗", "red"),
}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--area", "areas", multiple=True, metavar="NAME", help="Check only this area, such as models; can be repeated."
)
@location_options
def doctor_command(*, as_json: bool, areas: tuple[str, ...], **location: str | None) -> None:
    """Check the installation and list problems with remedies. Sends a short request to the models.

    Exits with 1 if there are errors.

    \b
      holdfast doctor
      holdfast doctor --area models --area skills
      holdfast doctor --json
    """
    findings = _collect_findings(location["host"], location["data_dir"], str(location["cwd"]), areas)
    shown = [item for item in findings if not areas or item.area in areas]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(Health(tuple(shown)))))
    else:
        _print_findings(shown)
        if areas and not shown:
            click.echo(f"There are no results for {', '.join(areas)}.", err=True)
    sys.exit(1 if any(item.severity == "error" for item in shown) else 0)


def _collect_findings(host: str | None, data_dir: str | None, directory: str, areas: Sequence[str]) -> list[Finding]:
    """Run the local checks first, then those of the server."""
    try:
        place = locate(host, data_dir)
    except HoldfastError as error:
        return [Finding("server", "error", str(error))]
    found = [*_check_distribution(), *(_check_directories(place) if place.can_be_started else ())]
    if any(item.severity == "error" for item in found):
        return found
    connection = ServerConnection(place, directory)
    connection.timeout = _CHECK_TIMEOUT
    began = time.monotonic()
    try:
        connection.open()
        known = connection.request(VersionInfo, "GET", "/v1/version")
        found.append(_server_finding(known, connection.address, time.monotonic() - began))
        query = (("areas", ",".join(areas) or None),)
        return [*found, *connection.request(Health, "GET", connection.path("doctor"), query=query).findings]
    except HoldfastError as error:
        return [*found, Finding("server", "error", str(error), _remedy(error))]
    finally:
        connection.close()


def _check_distribution() -> Iterable[Finding]:
    """Warn of the unrelated distribution that installs an import package of the same name."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version(FOREIGN_DISTRIBUTION)
    except PackageNotFoundError:
        return
    what = f"{FOREIGN_DISTRIBUTION} {installed} is installed in this environment: it is another project, and overwrites"
    yield Finding("installation", "warning", f"{what} files of {DISTRIBUTION}.", f"Run: {REPAIR}.")


def _check_directories(place: ServerLocation) -> Iterable[Finding]:
    """Check the two directories that a server needs to start."""
    runtime = os.path.dirname(place.address.path)
    try:
        secure_directory(runtime)
        yield Finding("socket", "ok", f"{place.address.path} is accessible to you only.")
    except UnsafePath as error:
        yield Finding("socket", "error", str(error), file=runtime)
    data = place.data_dir
    above = data
    while not os.path.exists(above):
        above = os.path.dirname(above)
    other = "choose another with --data-dir or $HOLDFAST_DATA_DIR."
    if not os.path.isdir(above):
        yield Finding("data directory", "error", f"{above} is a file.", f"Move it, or {other}", data)
    elif not os.access(above, os.W_OK | os.X_OK):
        yield Finding("data directory", "error", "cannot be written.", f"Make it writable for you, or {other}", data)


def _server_finding(known: VersionInfo, address: ServerAddress, seconds: float) -> Finding:
    what = f"process {known.pid}, version {known.version}, answers at {address} ({seconds:.1f} s)."
    if known.version != __version__:
        todo = "When it is idle: holdfast server stop. The next command starts a new one."
        return Finding("server", "warning", f"{what} This command is version {__version__}.", todo)
    return Finding("server", "ok", what)


def _remedy(error: HoldfastError) -> str:
    match error:
        case VersionMismatch():
            return ""
        case StartFailed():
            return "See its output: holdfast logs."
        case Unreachable():
            return "Check the address, and that a server is running there: holdfast serve."
        case ClientError():
            return "See holdfast logs. After holdfast server stop --force, the next command starts a new server."
        case _:
            return ""


def _print_findings(findings: Sequence[Finding]) -> None:
    width = max((len(item.area) for item in findings), default=0)
    area = ""
    for item in findings:
        name = item.area if item.area != area else ""
        area = item.area
        mark, colour = _MARKS[item.severity]
        shown = click.style(mark, fg=colour, bold=True) if uses_color() else mark
        click.echo(f"{name:<{width}}  {shown} {_location_prefix(item)}{_lines(item.what, width + 4)}")
        if item.what_to_do:
            click.echo(f"{'':<{width}}    → {printable(item.what_to_do)}")
    counts = {name: sum(item.severity == name for item in findings) for name in ("error", "warning")}
    parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
    if findings:
        click.echo(f"\n{' and '.join(parts)}." if parts else "\nNo problems.")


def _lines(text: str, indent: int) -> str:
    """Indent the lines of a message; the output of a failed server start has several."""
    return f"\n{'':<{indent}}".join(printable(line) for line in text.splitlines())


def _location_prefix(item: Finding) -> str:
    if not item.file:
        return ""
    home = os.path.expanduser("~")
    file = f"~{item.file[len(home) :]}" if item.file.startswith(f"{home}/") else item.file
    return f"{printable(file)}:{item.line}: " if item.line else f"{printable(file)}: "


@click.command("dirs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
def dirs_command(*, as_json: bool, data_dir: str | None, host: str | None) -> None:
    """Print the locations of settings, keys, data, log and socket. Starts and creates nothing.

    Settings of projects and clients override yours: holdfast config path lists all files.

    \b
      holdfast dirs
      holdfast dirs --json
    """
    from holdfast.config.locations import locate_settings

    with report_errors():
        where = locate(host, data_dir)
    known = {**os.environ, "HOME": os.environ.get("HOME") or os.path.expanduser("~")}
    mine = locate_settings("/", known, data_dir=where.data_dir)
    places = {
        "settings": mine.user_file,
        "keys": mine.credentials_file,
        "data": where.data_dir,
        "database": os.path.join(where.data_dir, "holdfast.db"),
        "config": os.path.join(where.data_dir, "config.json"),
        "log": where.log,
        "server": str(where.address),
    }
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(places))
        return
    for name, path in places.items():
        click.echo(f"{name:<10}{path}")


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Number of lines to print first."
)
@click.option("--data-dir", metavar="DIR", help="Data directory of the server; default: $HOLDFAST_DATA_DIR.")
def logs_command(*, follow: bool, lines: int, data_dir: str | None) -> None:
    """Show the log of a server in the background. `holdfast serve` logs to its own terminal instead.

    \b
      holdfast logs
      holdfast logs -n 20 --follow
    """
    with report_errors():
        path = locate(None, data_dir).log
        try:
            _show_log(path, lines, follow=follow)
        except OSError as error:
            if error.filename is None:
                # Reading succeeded; writing failed.
                raise
            raise CommandError(f"The log {path} cannot be read: {error.strerror}.") from None


def _show_log(path: str, lines: int, *, follow: bool) -> None:
    from holdfast.cli.server_connection import sleep

    file = open(path, "rb")  # noqa: SIM115
    try:
        _echo_log(b"".join(deque(file, maxlen=lines)))
        while follow:
            if piece := file.read():
                _echo_log(piece)
            elif _is_rotated(path, file.fileno(), file.tell()):
                file.close()
                file = open(path, "rb")  # noqa: SIM115
            else:
                sleep(_POLL_INTERVAL)
    finally:
        file.close()


def _echo_log(piece: bytes) -> None:
    if os.isatty(1):
        click.echo(sanitize(piece.decode("utf-8", "replace")), nl=False)
    else:
        click.echo(piece, nl=False)


def _is_rotated(path: str, descriptor: int, position: int) -> bool:
    """Return True if the log was rotated or truncated."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or there.st_size < position


@click.command("prompt")
@click.option("--json", "as_json", is_flag=True, help="Print its inputs as JSON.")
@local_options
def prompt_command(*, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Show the system prompt: instructions, your context files, the state of this directory.

    \b
      holdfast prompt
      holdfast prompt | wc -c
      holdfast prompt --json
    """
    with report_errors():
        click.echo(asyncio.run(_render_prompt(cwd, data_dir, as_json=as_json)))


async def _render_prompt(cwd: str, data_dir: str | None, *, as_json: bool) -> str:
    import msgspec

    from holdfast.domain.ids import SessionId
    from holdfast.engine.system_prompt import system_prompt
    from holdfast.extensions.skills.skills import find_skills
    from holdfast.runtime.engine_settings import context_loader

    configuration = load_configuration(cwd, data_dir)
    skills = find_skills(configuration, os.environ)
    loader = context_loader(configuration.locations.directory, configuration.current, os.environ, skills.notes)
    place = await loader.load(SessionId(""))
    return json.dumps(msgspec.to_builtins(place), indent=2) if as_json else system_prompt(place)
