"""`holdfast mcp`: MCP servers."""

import sys
import time
from typing import Any

import click
import msgspec

from holdfast.cli.common import DefaultGroup, Failure, sentences, table, where_options
from holdfast.cli.console.run_output import complain
from holdfast.cli.local_settings import configuration_for, directory_options, printable
from holdfast.cli.server_connection import ServerConnection, entered, wait_quietly
from holdfast.config.configuration import Configuration
from holdfast.domain.errors import NotFound
from holdfast.domain.extensions import McpInfo
from holdfast.protocol.extension_routes import McpLog, McpName

__all__ = ["command"]

_PATIENCE = 20.0
_BETWEEN_LOOKS = 0.1
_WORDS = {"needs auth": "needs login"}


@click.group("mcp", cls=DefaultGroup)
def command() -> None:
    """Servers of tools: see them, add and remove them, log in to them.

    \b
      holdfast mcp                                    those of this directory, and their state
      holdfast mcp add time -- uvx mcp-server-time    a program
      holdfast mcp add docs --url https://host/mcp    a server elsewhere
      holdfast mcp disable time
      holdfast mcp login docs
      holdfast mcp logs time

    They are part of the settings ([mcp.NAME]); a project's own count after holdfast trust.
    """


# State


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the names of all tools.")
@click.option("--no-wait", is_flag=True, help="Do not wait for servers that are starting.")
@where_options
def list_servers(*, as_json: bool, no_wait: bool, **where: Any) -> None:  # noqa: ANN401
    """List the servers of this directory, their state, and what they offer."""
    with sentences():
        link = entered(where)
        servers = _settled(link, patience=0.0 if no_wait else _PATIENCE)
        withheld = _withheld(where)
        if as_json:
            rows = [
                *(msgspec.to_builtins(info) for info in servers),
                *({"name": n, "state": "not trusted"} for n in withheld),
            ]
            click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
        else:
            _print(servers, withheld)


def _settled(link: ServerConnection, patience: float) -> list[McpInfo]:
    until = time.monotonic() + patience
    while True:
        found = list(link.ask(dict[str, McpInfo], "GET", link.path("mcp", "states")).values())
        if all(info.state != "starting" for info in found) or time.monotonic() >= until:
            return found
        wait_quietly(_BETWEEN_LOOKS)


def _withheld(where: dict[str, Any]) -> list[str]:
    """Return the servers of a project that is not trusted."""
    if where["host"]:
        return []
    reading = configuration_for(where["cwd"], where["data_dir"]).snapshot()
    return sorted({str(item.path[1]) for item in reading.withheld if item.path[0] == "mcp" and len(item.path) > 1})


def _print(servers: list[McpInfo], withheld: list[str]) -> None:
    if not servers and not withheld:
        complain("There are no MCP servers here yet: holdfast mcp add --help.")
        return
    rows = [
        (info.name, _WORDS.get(info.state, info.state), str(info.tool_count or ""), _about(info)) for info in servers
    ]
    rows += [(name, "not trusted", "", "the project's") for name in withheld]
    # The cells contain untrusted text.
    clean = [tuple(printable(cell) for cell in row) for row in rows]
    click.echo(table(("SERVER", "STATE", "TOOLS", "KIND"), clean))
    reasons = [f"{info.name}: {info.error}" for info in servers if info.error]
    if withheld:
        reasons.append("What the project names starts when you trust it: holdfast trust.")
    if reasons:
        complain("\n" + "\n".join(printable(reason) for reason in reasons))


def _about(info: McpInfo) -> str:
    more = ((info.prompt_count, "prompt"), (info.resource_count, "resource"))
    return ", ".join([info.type, *(_count(count, what) for count, what in more if count)])


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


@command.command()
@click.argument("name")
@where_options
def logs(*, name: str, **where: Any) -> None:  # noqa: ANN401
    """Show the output of a server since its start: its stderr, and its log messages."""
    with sentences():
        link = entered(where)
        _settled(link, _PATIENCE)
        said = link.ask(McpLog, "GET", link.path("mcp", "log"), query=[("name", name)]).text
        if said:
            click.echo("\n".join(printable(line) for line in said.splitlines()))
        else:
            complain(f"{printable(name)} has printed nothing.")


@command.command()
@click.argument("name")
@where_options
def restart(*, name: str, **where: Any) -> None:  # noqa: ANN401
    """Start a server again."""
    with sentences():
        link = entered(where)
        link.send("POST", link.path("mcp", "restart"), body=McpName(name))
        _say_state(link, name)


def _say_state(link: ServerConnection, name: str) -> None:
    info = next((info for info in _settled(link, _PATIENCE) if info.name == name), None)
    if info is None:
        raise Failure(f"{printable(name)} is not there any more.")
    word = _WORDS.get(info.state, info.state)
    if info.state in ("error", "needs auth"):
        raise Failure(f"{printable(name)}: {word}. {printable(info.error)}")
    complain(f"{printable(name)}: {word}, {_count(info.tool_count, 'tool')}.")


@command.command()
@click.argument("name")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@where_options
def login(*, name: str, no_browser: bool, **where: Any) -> None:  # noqa: ANN401
    """Log in to a server, in a browser of the machine that the server of Holdfast runs on.

    \b
      holdfast mcp login docs
    """
    import asyncio

    from holdfast.cli.mcp_login import log_in

    with sentences():
        link = entered(where)
        _settled(link, _PATIENCE)
        asyncio.run(log_in(link, name, opens=not no_browser and sys.stdout.isatty()))
        _say_state(link, name)


# Settings


def _file(configuration: Configuration, *, project: bool) -> str:
    return configuration.locations.project_file if project else configuration.locations.user_file


def _pairs(values: tuple[str, ...], what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--{what} takes NAME=VALUE.")
        pairs[name] = value
    return pairs


_in_project = click.option("--project", is_flag=True, help="In the project's file instead of yours.")


@command.command(context_settings={"ignore_unknown_options": False})
@click.argument("name")
@click.argument("program", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@click.option("--url", default="", help="Where it answers, if it is no program.")
@click.option("--type", "way", type=click.Choice(["stdio", "http", "sse"]), help="Transport; detected by default.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable for the program.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent with every request.")
@click.option("--tool", "tools", multiple=True, metavar="TOOL", help="Offer only this tool of it; may be repeated.")
@click.option("--timeout", type=click.IntRange(min=1), help="How many seconds it has to start.")
@_in_project
@directory_options
def add(  # noqa: PLR0913 - one for each option
    *,
    name: str,
    program: tuple[str, ...],
    url: str,
    way: str | None,
    variables: tuple[str, ...],
    headers: tuple[str, ...],
    tools: tuple[str, ...],
    timeout: int | None,
    project: bool,
    cwd: str,
    data_dir: str | None,
) -> None:
    """Add a server to your settings, or the project's. It starts at once where a workspace is open.

    \b
      holdfast mcp add git -- uvx mcp-server-git --repository .
      holdfast mcp add github --url https://api.example.com/mcp --header 'Authorization=Bearer $GITHUB_TOKEN'
      holdfast mcp add files --project --tool read_file -- npx -y @modelcontextprotocol/server-filesystem .
    """
    if bool(program) == bool(url):
        raise click.UsageError("Give a command after --, or an address with --url: one of them.")
    if way is not None and (way == "stdio") != bool(program):
        raise click.UsageError("A command is of the type stdio; an address is of the type http or sse.")
    settings: dict[str, Any] = {"type": way or ("stdio" if program else "http")}
    settings |= {"command": program[0], "args": list(program[1:])} if program else {"url": url}
    more: dict[str, Any] = {"env": _pairs(variables, "env"), "headers": _pairs(headers, "header")}
    more |= {"enabled_tools": list(tools), "timeout": timeout}
    settings |= {key: value for key, value in more.items() if value}
    with sentences():
        _add(configuration_for(cwd, data_dir), name, settings, project=project)


def _add(configuration: Configuration, name: str, settings: dict[str, Any], *, project: bool) -> None:
    from holdfast.config.toml_edit import set_value

    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 40:
        raise Failure("A server's name has letters, digits, - and _, at most 40 of them.")
    _refuse_secrets(settings)
    file = _file(configuration, project=project)
    known = [origin for path, origin in configuration.snapshot().origins.items() if path[:2] == ("mcp", name)]
    if any(origin.file == file for origin in known):
        raise Failure(f"There is a server called {name} in {printable(file)}: holdfast mcp remove {name}")
    set_value(file, ("mcp", name), settings, mode=None if project else 0o600)
    complain(f"{name} is set in {printable(file)}.")
    if project and not configuration.snapshot().project.is_trusted:
        complain("It has no effect until you trust this project: holdfast trust.")
    elif known:
        complain(f"Another file speaks of it too: {printable(str(known[0]))}.")


def _refuse_secrets(settings: dict[str, Any]) -> None:
    """Refuse secrets: they are already in the shell's history, and must not be stored in a file as well."""
    from holdfast.config.redaction import redact_text

    pairs = {**settings.get("env", {}), **settings.get("headers", {})}
    texts = [f"{name}={value}" for name, value in pairs.items()] + [settings.get("url", ""), *settings.get("args", ())]
    if any("$" not in text and redact_text(text) != text for text in texts):
        raise Failure(
            "A key on a command line can be read by others on this machine, and stays in your shell's history. "
            "Use a template such as '$MY_KEY'. Nothing was changed."
        )


@command.command()
@click.argument("name")
@_in_project
@directory_options
def remove(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Take a server out of your settings, or the project's."""
    from holdfast.config.toml_edit import unset_value

    with sentences():
        configuration = configuration_for(cwd, data_dir)
        file = _file(configuration, project=project)
        try:
            unset_value(file, ("mcp", name), mode=None if project else 0o600)
        except NotFound as error:
            raise Failure(f"{printable(str(error))}{_elsewhere(configuration, name)}") from None
        complain(f"{printable(name)} is no longer in {printable(file)}.{_elsewhere(configuration, name)}")


def _elsewhere(configuration: Configuration, name: str) -> str:
    """Name another file that configures a server, also one of a project that is not trusted."""
    reading = configuration.snapshot()
    places = [(origin.file, origin.line) for path, origin in reading.origins.items() if path[:2] == ("mcp", name)]
    places += [(item.file, item.line) for item in reading.withheld if item.path[:2] == ("mcp", name)]
    if not places:
        return ""
    file, line = places[0]
    how = " (--project)" if file == configuration.locations.project_file else ""
    return f" {printable(file)}:{line} speaks of it{how}."


def _switch(name: str, *, off: bool, project: bool, cwd: str, data_dir: str | None) -> None:
    from holdfast.config.toml_edit import set_value

    with sentences():
        configuration = configuration_for(cwd, data_dir)
        known = configuration.snapshot().settings.mcp
        if name not in known and name not in _withheld({"host": None, "cwd": cwd, "data_dir": data_dir}):
            raise Failure(
                f"There is no server called {printable(name)}. There is: {', '.join(sorted(known)) or 'none'}."
            )
        file = _file(configuration, project=project)
        set_value(file, ("mcp", name, "disabled"), off, mode=None if project else 0o600)
        above = configuration.snapshot().origins.get(("mcp", name, "disabled"))
        if above is not None and above.file != file:
            raise Failure(f"It has no effect here: {printable(str(above))} stands above it.")
        complain(f"{printable(name)} is switched {'off' if off else 'on'} in {printable(file)}.")


@command.command()
@click.argument("name")
@_in_project
@directory_options
def disable(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Leave a server alone: it is not started, its tools are not offered."""
    _switch(name, off=True, project=project, cwd=cwd, data_dir=data_dir)


@command.command()
@click.argument("name")
@_in_project
@directory_options
def enable(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Use a server again."""
    _switch(name, off=False, project=project, cwd=cwd, data_dir=data_dir)
