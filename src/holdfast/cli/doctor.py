"""`holdfast doctor`: lists problems and their remedies."""

import os
import sys
import time
from collections.abc import Iterable, Sequence

import click
import msgspec

from holdfast import __version__
from holdfast.cli.common import where_options
from holdfast.cli.link import Link
from holdfast.cli.place import in_terminal, printable
from holdfast.client.age import WrongAge
from holdfast.client.errors import ClientError, StartFailed, Unreachable, UnsafePlace
from holdfast.client.locate import Where, locate, secure_directory
from holdfast.client.wire import Address
from holdfast.distribution import DISTRIBUTION, FOREIGN_DISTRIBUTION, REPAIR
from holdfast.domain.errors import HoldfastError
from holdfast.domain.health import Finding, Health, Severity
from holdfast.protocol.bodies import VersionInfo

__all__ = ["command"]

_PATIENCE = 90.0
_MARKS: dict[Severity, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "cyan"),
    "warning": ("!", "yellow"),
    "error": ("✗", "red"),
}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--area", "areas", multiple=True, metavar="NAME", help="Only this area, such as models; may be repeated.")
@where_options
def command(*, as_json: bool, areas: tuple[str, ...], **where: str | None) -> None:
    """Check everything that is needed here, and list remedies. Sends a short request to the models.

    Exits with 1 if there are errors.

    \b
      holdfast doctor
      holdfast doctor --area models --area skills
      holdfast doctor --json
    """
    findings = _look(where["host"], where["data_dir"], str(where["cwd"]), areas)
    shown = [item for item in findings if not areas or item.area in areas]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(Health(tuple(shown)))))
    else:
        _tell(shown)
        if areas and not shown:
            click.echo(f"There is nothing to say about {', '.join(areas)}.", err=True)
    sys.exit(1 if any(item.severity == "error" for item in shown) else 0)


def _look(host: str | None, data_dir: str | None, directory: str, areas: Sequence[str]) -> list[Finding]:
    """Run the local checks first, then those of the server."""
    try:
        place = locate(host, data_dir)
    except HoldfastError as error:
        return [Finding("server", "error", str(error))]
    found = [*_foreign_distribution(), *(_directories(place) if place.can_be_started else ())]
    if any(item.severity == "error" for item in found):
        return found
    link = Link(place, directory)
    link.patience = _PATIENCE
    began = time.monotonic()
    try:
        link.enter()
        known = link.ask(VersionInfo, "GET", "/v1/version")
        found.append(_server(known, link.address, time.monotonic() - began))
        query = (("areas", ",".join(areas) or None),)
        return [*found, *link.ask(Health, "GET", link.path("doctor"), query=query).findings]
    except HoldfastError as error:
        return [*found, Finding("server", "error", str(error), _advice(error))]
    finally:
        link.close()


def _foreign_distribution() -> Iterable[Finding]:
    """Warn of the unrelated distribution that installs an import package of the same name."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version(FOREIGN_DISTRIBUTION)
    except PackageNotFoundError:
        return
    what = f"{FOREIGN_DISTRIBUTION} {installed} is installed in this environment: it is another project, and overwrites"
    yield Finding("installation", "warning", f"{what} files of {DISTRIBUTION}.", f"Run: {REPAIR}.")


def _directories(place: Where) -> Iterable[Finding]:
    """Check the two directories that a server needs to start."""
    runtime = os.path.dirname(place.address.path)
    try:
        secure_directory(runtime)
        yield Finding("socket", "ok", f"{place.address.path} is yours alone.")
    except UnsafePlace as error:
        yield Finding("socket", "error", str(error), file=runtime)
    data = place.data_dir
    above = data
    while not os.path.exists(above):
        above = os.path.dirname(above)
    other = "choose another with --data-dir or $HOLDFAST_DATA_DIR."
    if not os.path.isdir(above):
        yield Finding("data directory", "error", f"{above} is a file.", f"Move it away, or {other}", data)
    elif not os.access(above, os.W_OK | os.X_OK):
        yield Finding("data directory", "error", "cannot be written.", f"Make it writable for you, or {other}", data)


def _server(known: VersionInfo, address: Address, seconds: float) -> Finding:
    what = f"process {known.pid}, version {known.version}, answers at {address} ({seconds:.1f} s)."
    if known.version != __version__:
        todo = "When it is idle: holdfast server stop. The next command starts a new one."
        return Finding("server", "warning", f"{what} This command is version {__version__}.", todo)
    return Finding("server", "ok", what)


def _advice(error: HoldfastError) -> str:
    match error:
        case WrongAge():
            return ""
        case StartFailed():
            return "holdfast logs shows what it said."
        case Unreachable():
            return "Look at the address, and whether a server runs there: holdfast serve."
        case ClientError():
            return "Look at holdfast logs; holdfast server stop --force lets the next command start a new one."
        case _:
            return ""


def _tell(findings: Sequence[Finding]) -> None:
    width = max((len(item.area) for item in findings), default=0)
    area = ""
    for item in findings:
        name = item.area if item.area != area else ""
        area = item.area
        mark, colour = _MARKS[item.severity]
        shown = click.style(mark, fg=colour, bold=True) if in_terminal() else mark
        click.echo(f"{name:<{width}}  {shown} {_placed(item)}{_lines(item.what, width + 4)}")
        if item.what_to_do:
            click.echo(f"{'':<{width}}    → {printable(item.what_to_do)}")
    counts = {name: sum(item.severity == name for item in findings) for name in ("error", "warning")}
    said = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
    if findings:
        click.echo(f"\n{' and '.join(said)}." if said else "\nAll is well.")


def _lines(text: str, indent: int) -> str:
    """Indent the lines of a message; the output of a failed server start has several."""
    return f"\n{'':<{indent}}".join(printable(line) for line in text.splitlines())


def _placed(item: Finding) -> str:
    if not item.file:
        return ""
    home = os.path.expanduser("~")
    file = f"~{item.file[len(home) :]}" if item.file.startswith(f"{home}/") else item.file
    return f"{printable(file)}:{item.line}: " if item.line else f"{printable(file)}: "
