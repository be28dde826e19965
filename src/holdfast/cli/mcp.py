"""`holdfast mcp`: the MCP servers of a directory, their settings, and logging in to them."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.common import CommandError, DefaultGroup, location_options, report_errors, table
from holdfast.cli.console.run_output import print_stderr
from holdfast.cli.local_settings import load_configuration, local_options
from holdfast.cli.server_connection import ServerConnection, open_connection, sleep
from holdfast.client.terminal_text import printable
from holdfast.config.configuration import Configuration
from holdfast.domain.errors import NotFound
from holdfast.domain.extensions import McpInfo
from holdfast.protocol.extension_routes import McpLog, McpServerName

if TYPE_CHECKING:
    import asyncio

    from holdfast.client.client import Client
    from holdfast.client.stream import EventStream
    from holdfast.domain.ids import WorkspaceId

__all__ = ["command"]

_START_TIMEOUT = 20.0
_POLL_INTERVAL = 0.1
_STATE_LABELS = {"needs auth": "needs login"}


@click.group("mcp", cls=DefaultGroup)
def command() -> None:
    """List, add, remove and log in to MCP servers.

    \b
      holdfast mcp                                    servers of this directory and their state
      holdfast mcp add time -- uvx mcp-server-time    a local program
      holdfast mcp add docs --url https://host/mcp    a remote server
      holdfast mcp disable time
      holdfast mcp login docs
      holdfast mcp logs time

    They are part of the settings ([mcp.NAME]). Those of a project start once it is trusted: holdfast trust.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the names of all tools.")
@click.option("--no-wait", is_flag=True, help="Do not wait for servers that are starting.")
@location_options
def list_servers(*, as_json: bool, no_wait: bool, **location: Any) -> None:  # noqa: ANN401
    """List servers with their state and number of tools."""
    with report_errors():
        connection = open_connection(location)
        servers = _wait_until_started(connection, timeout=0.0 if no_wait else _START_TIMEOUT)
        withheld = _untrusted_servers(location)
        if as_json:
            rows = [
                *(msgspec.to_builtins(info) for info in servers),
                *({"name": n, "state": "not trusted"} for n in withheld),
            ]
            click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
        else:
            _print_servers(servers, withheld)


def _wait_until_started(connection: ServerConnection, timeout: float) -> list[McpInfo]:
    until = time.monotonic() + timeout
    while True:
        found = list(connection.request(dict[str, McpInfo], "GET", connection.path("mcp", "states")).values())
        if all(info.state != "starting" for info in found) or time.monotonic() >= until:
            return found
        sleep(_POLL_INTERVAL)


def _untrusted_servers(location: dict[str, Any]) -> list[str]:
    """Return the servers of a project that is not trusted."""
    if location["host"]:
        return []
    reading = load_configuration(location["cwd"], location["data_dir"]).snapshot()
    return sorted({str(item.path[1]) for item in reading.withheld if item.path[0] == "mcp" and len(item.path) > 1})


def _print_servers(servers: list[McpInfo], withheld: list[str]) -> None:
    if not servers and not withheld:
        print_stderr("There are no MCP servers here yet: holdfast mcp add --help.")
        return
    rows = [
        (info.name, _STATE_LABELS.get(info.state, info.state), str(info.tool_count or ""), _kind(info))
        for info in servers
    ]
    rows += [(name, "not trusted", "", "of the project") for name in withheld]
    # The cells contain untrusted text.
    clean = [tuple(printable(cell) for cell in row) for row in rows]
    click.echo(table(("SERVER", "STATE", "TOOLS", "KIND"), clean))
    reasons = [f"{info.name}: {info.error}" for info in servers if info.error]
    if withheld:
        reasons.append("Servers of the project start once it is trusted: holdfast trust.")
    if reasons:
        print_stderr("\n" + "\n".join(printable(reason) for reason in reasons))


def _kind(info: McpInfo) -> str:
    more = ((info.prompt_count, "prompt"), (info.resource_count, "resource"))
    return ", ".join([info.type, *(_count(count, what) for count, what in more if count)])


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


@command.command()
@click.argument("name")
@location_options
def logs(*, name: str, **location: Any) -> None:  # noqa: ANN401
    """Show the output of a server since its start. It consists of stderr and log messages."""
    with report_errors():
        connection = open_connection(location)
        _wait_until_started(connection, _START_TIMEOUT)
        text = connection.request(McpLog, "GET", connection.path("mcp", "log"), query=[("name", name)]).text
        if text:
            click.echo("\n".join(printable(line) for line in text.splitlines()))
        else:
            print_stderr(f"{printable(name)} has printed nothing.")


@command.command()
@click.argument("name")
@location_options
def restart(*, name: str, **location: Any) -> None:  # noqa: ANN401
    """Restart a server."""
    with report_errors():
        connection = open_connection(location)
        connection.send("POST", connection.path("mcp", "restart"), body=McpServerName(name))
        _print_state(connection, name)


def _print_state(connection: ServerConnection, name: str) -> None:
    info = next((info for info in _wait_until_started(connection, _START_TIMEOUT) if info.name == name), None)
    if info is None:
        raise CommandError(f"{printable(name)} is no longer configured.")
    word = _STATE_LABELS.get(info.state, info.state)
    if info.state in ("error", "needs auth"):
        raise CommandError(f"{printable(name)}: {word}. {printable(info.error)}")
    print_stderr(f"{printable(name)}: {word}, {_count(info.tool_count, 'tool')}.")


@command.command()
@click.argument("name")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@location_options
def login(*, name: str, no_browser: bool, **location: Any) -> None:  # noqa: ANN401
    """Log in to an MCP server in a browser. The browser has to run on the machine of the Holdfast server.

    \b
      holdfast mcp login docs
    """
    import asyncio

    with report_errors():
        connection = open_connection(location)
        _wait_until_started(connection, _START_TIMEOUT)
        asyncio.run(_log_in(connection, name, opens_browser=not no_browser and sys.stdout.isatty()))
        _print_state(connection, name)


async def _log_in(connection: ServerConnection, name: str, *, opens_browser: bool) -> None:
    """Print the address of the login and wait until it is complete. Raises the server's refusal."""
    # Imported here: the other commands of this group need no event loop.
    from holdfast.client.client import Client
    from holdfast.domain.ids import WorkspaceId
    from holdfast.tasks import TaskOwner

    workspace = WorkspaceId(connection.workspace)
    tasks = TaskOwner()
    async with Client(connection.address, client_id=connection.client_id) as client:
        cursor = (await client.snapshot(workspace)).cursor
        # The event stream keeps the workspace open for the duration of the login.
        async with client.events(workspace, since=cursor) as events:
            reading = tasks.start(_drain(events), name="read events", done=_consume_exception)
            login = tasks.start(client.mcp_auth(workspace, name), name="log in", done=_consume_exception)
            address = _show_address(client, workspace, name, opens_browser=opens_browser)
            showing = tasks.start(address, name="show the address", done=_consume_exception)
            try:
                await login
            finally:
                reading.cancel()
                showing.cancel()
                login.cancel()
                await tasks.drain()


def _consume_exception(task: "asyncio.Task[Any]") -> None:
    """Mark the exception as retrieved: only that of the login is reported, by awaiting it."""
    if not task.cancelled():
        task.exception()


async def _drain(events: "EventStream") -> None:
    async for _ in events:
        pass


async def _show_address(client: "Client", workspace: "WorkspaceId", name: str, *, opens_browser: bool) -> None:
    import asyncio

    while not (url := (await client.mcp_auth_url(workspace, name)).auth_url):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(_POLL_INTERVAL)
    print_stderr(f"Open this address to log in to {printable(name)}:\n\n  {printable(url)}\n")
    if opens_browser and url.startswith(("https://", "http://")):
        import webbrowser

        await asyncio.to_thread(webbrowser.open, url)


def _settings_file(configuration: Configuration, *, project: bool) -> str:
    return configuration.locations.project_file if project else configuration.locations.user_file


def _pairs(values: tuple[str, ...], what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--{what} takes NAME=VALUE.")
        pairs[name] = value
    return pairs


_project_option = click.option("--project", is_flag=True, help="Use the file of the project instead of yours.")


@command.command(context_settings={"ignore_unknown_options": False})
@click.argument("name")
@click.argument("program", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@click.option("--url", default="", help="URL of a remote server.")
@click.option(
    "--type",
    "transport",
    type=click.Choice(["stdio", "http", "sse"]),
    help="Transport; detected from --url or the command by default.",
)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Environment variable of the program.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every request.")
@click.option("--tool", "tools", multiple=True, metavar="TOOL", help="Offer only this tool; can be repeated.")
@click.option("--timeout", type=click.IntRange(min=1), help="Maximum seconds to start.")
@_project_option
@local_options
def add(  # noqa: PLR0913 - one for each option
    *,
    name: str,
    program: tuple[str, ...],
    url: str,
    transport: str | None,
    variables: tuple[str, ...],
    headers: tuple[str, ...],
    tools: tuple[str, ...],
    timeout: int | None,
    project: bool,
    cwd: str,
    data_dir: str | None,
) -> None:
    """Add a server to your settings or to those of the project. Open workspaces start it at once.

    \b
      holdfast mcp add git -- uvx mcp-server-git --repository .
      holdfast mcp add github --url https://api.example.com/mcp --header 'Authorization=Bearer $GITHUB_TOKEN'
      holdfast mcp add files --project --tool read_file -- npx -y @modelcontextprotocol/server-filesystem .
    """
    if bool(program) == bool(url):
        raise click.UsageError("Give either a command after --, or a URL with --url.")
    if transport is not None and (transport == "stdio") != bool(program):
        raise click.UsageError("A command has the type stdio; a URL has the type http or sse.")
    settings: dict[str, Any] = {"type": transport or ("stdio" if program else "http")}
    settings |= {"command": program[0], "args": list(program[1:])} if program else {"url": url}
    more: dict[str, Any] = {"env": _pairs(variables, "env"), "headers": _pairs(headers, "header")}
    more |= {"enabled_tools": list(tools), "timeout": timeout}
    settings |= {key: value for key, value in more.items() if value}
    with report_errors():
        _add(load_configuration(cwd, data_dir), name, settings, project=project)


def _add(configuration: Configuration, name: str, settings: dict[str, Any], *, project: bool) -> None:
    from holdfast.config.toml_edit import set_value

    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 40:
        raise CommandError("The name of a server consists of at most 40 letters, digits, - and _.")
    _refuse_secrets(settings)
    file = _settings_file(configuration, project=project)
    reading = configuration.snapshot()
    known = [origin for path, origin in reading.origins.items() if path[:2] == ("mcp", name)]
    # A server of a project that is not trusted would be lost, too.
    withheld = [item.file for item in reading.withheld if item.path[:2] == ("mcp", name)]
    if file in (*(origin.file for origin in known), *withheld):
        how = f"holdfast mcp remove {name}{' --project' * project}"
        raise CommandError(f"{name} is already set in {printable(file)}. To replace it: {how}")
    set_value(file, ("mcp", name), settings, mode=None if project else 0o600)
    print_stderr(f"{name} is set in {printable(file)}.")
    if project and not configuration.snapshot().project.is_trusted:
        print_stderr("It has no effect until this project is trusted: holdfast trust.")
    elif known:
        print_stderr(f"Another file sets it, too: {printable(str(known[0]))}.")


def _refuse_secrets(settings: dict[str, Any]) -> None:
    """Refuse secrets: they are already in the shell's history, and must not be stored in a file as well."""
    from holdfast.config.redaction import redact_text

    pairs = {**settings.get("env", {}), **settings.get("headers", {})}
    texts = [f"{name}={value}" for name, value in pairs.items()] + [settings.get("url", ""), *settings.get("args", ())]
    if any("$" not in text and redact_text(text) != text for text in texts):
        raise CommandError(
            "A key on a command line is visible to other users of this machine and stays in your shell's history. "
            "Use a template such as '$MY_KEY'. Nothing was changed."
        )


@command.command()
@click.argument("name")
@_project_option
@local_options
def remove(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Remove a server from your settings or from those of the project."""
    from holdfast.config.toml_edit import unset_value

    with report_errors():
        configuration = load_configuration(cwd, data_dir)
        file = _settings_file(configuration, project=project)
        try:
            unset_value(file, ("mcp", name), mode=None if project else 0o600)
        except NotFound as error:
            raise CommandError(f"{printable(str(error))}{_other_file(configuration, name)}") from None
        print_stderr(f"{printable(name)} is no longer in {printable(file)}.{_other_file(configuration, name)}")


def _other_file(configuration: Configuration, name: str) -> str:
    """Name another file that configures a server, also one of a project that is not trusted."""
    reading = configuration.snapshot()
    places = [(origin.file, origin.line) for path, origin in reading.origins.items() if path[:2] == ("mcp", name)]
    places += [(item.file, item.line) for item in reading.withheld if item.path[:2] == ("mcp", name)]
    if not places:
        return ""
    file, line = places[0]
    how = " (--project)" if file == configuration.locations.project_file else ""
    return f" It is also set in {printable(file)}:{line}{how}."


def _set_disabled(name: str, *, off: bool, project: bool, cwd: str, data_dir: str | None) -> None:
    from holdfast.config.toml_edit import set_value

    with report_errors():
        configuration = load_configuration(cwd, data_dir)
        known = configuration.snapshot().settings.mcp
        if name not in known and name not in _untrusted_servers({"host": None, "cwd": cwd, "data_dir": data_dir}):
            raise CommandError(
                f"There is no server {printable(name)}. Configured: {', '.join(sorted(known)) or 'none'}."
            )
        file = _settings_file(configuration, project=project)
        path = ("mcp", name, "disabled")
        set_value(file, path, off, mode=None if project else 0o600)
        reading = configuration.snapshot()
        above = reading.origins.get(path)
        if above is not None and above.file != file:
            raise CommandError(f"It has no effect here: {printable(str(above))} overrides it.")
        print_stderr(f"{printable(name)} is {'disabled' if off else 'enabled'} in {printable(file)}.")
        if any(item.file == file and item.path == path[: len(item.path)] for item in reading.withheld):
            print_stderr("It has no effect until this project is trusted: holdfast trust.")


@command.command()
@click.argument("name")
@_project_option
@local_options
def disable(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Disable a server. It is not started, and its tools are not offered."""
    _set_disabled(name, off=True, project=project, cwd=cwd, data_dir=data_dir)


@command.command()
@click.argument("name")
@_project_option
@local_options
def enable(*, name: str, project: bool, cwd: str, data_dir: str | None) -> None:
    """Enable a server."""
    _set_disabled(name, off=False, project=project, cwd=cwd, data_dir=data_dir)
