"""Entry point of `holdfast`.

`run` and `serve` are parsed without click, because importing click takes longer than the rest of their start-up. All
other commands are listed here with a summary and are imported when they are called. An error of the user, a closed
standard stream or an output that cannot be written leads to a message and an exit code, never to a traceback.
"""

import os
import sys

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "tui": ("holdfast.cli.frontends:tui_command", "Open the terminal app (the default)."),
    "web": ("holdfast.cli.frontends:web_command", "Open the web page in the browser."),
    "run": ("holdfast.cli.run", "Send a prompt and print the answer."),
    "runs": ("holdfast.cli.runs", "List runs, wait for one, cancel one."),
    "sessions": ("holdfast.cli.sessions", "List, read, rename, delete and export sessions."),
    "attach": ("holdfast.cli.attach", "Follow a session as plain text; send prompts to it."),
    "serve": ("holdfast.cli.server:serve_command", "Run the server in the foreground."),
    "server": ("holdfast.cli.server:server_command", "Show the status of the server; start and stop it."),
    "nodes": ("holdfast.cli.nodes", "List the servers of a cluster; drain one, evict one."),
    "models": ("holdfast.cli.models", "List models with their context size, prices and availability."),
    "login": ("holdfast.cli.login:login_command", "Store the key of a provider."),
    "logout": ("holdfast.cli.login:logout", "Delete the stored key of a provider."),
    "config": ("holdfast.cli.config", "Show, check and change settings."),
    "trust": ("holdfast.cli.trust", "Allow the settings of a project to take effect."),
    "lsp": ("holdfast.cli.lsp", "List and restart language servers; show their logs."),
    "mcp": ("holdfast.cli.mcp", "List, add, remove and log in to MCP servers."),
    "skills": (
        "holdfast.cli.extension_files:skills_command",
        "List and show skills: instructions that a model loads for a task.",
    ),
    "commands": (
        "holdfast.cli.extension_files:commands_command",
        "List commands: stored prompts that are sent by name.",
    ),
    "agents": (
        "holdfast.cli.extension_files:agents_command",
        "List agents: sub-agents with their own instructions, tools and model.",
    ),
    "prompt": ("holdfast.cli.diagnostics:prompt_command", "Show the system prompt."),
    "undo": ("holdfast.cli.undo", "Revert the file changes of a run."),
    "acp": (
        "holdfast.cli.frontends:acp_command",
        "Serve the Agent Client Protocol for an editor, on stdin and stdout.",
    ),
    "doctor": ("holdfast.cli.diagnostics:doctor_command", "Check the installation and list problems with remedies."),
    "stats": ("holdfast.cli.stats", "Show usage statistics: runs, models, tools, cost."),
    "logs": ("holdfast.cli.diagnostics:logs_command", "Show the server's log."),
    "dirs": ("holdfast.cli.diagnostics:dirs_command", "Print the directories and files in use."),
    "completion": ("holdfast.cli.click_group:completion_command", "Print the completion script for a shell."),
    "migrate": ("holdfast.cli.migrate", "Copy the database of a data directory to PostgreSQL."),
    "demo": ("holdfast.cli.demo", "Demonstrate a prompt, a cancel, a kill -9 and a recovery. No key, no network."),
}
"""Each command with its module and its summary, so that help is printed without importing them."""


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.platform == "win32":
        sys.exit("Holdfast runs on Linux and macOS, not on Windows.")
    _check_package()
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from holdfast.cli.console.stdio_errors import replace_closed_streams

        replace_closed_streams()
    try:
        code = None if "_HOLDFAST_COMPLETE" in os.environ else _run_without_click(sys.argv[1:])
        if code is not None:
            sys.exit(code)
        from holdfast.cli.click_group import holdfast
        from holdfast.cli.console.stdio_errors import escape_unencodable

        escape_unencodable()
        holdfast(prog_name="holdfast")
    except KeyboardInterrupt:
        # Also while modules are still being imported.
        sys.exit(130)
    except OSError as error:
        from holdfast.cli.console.stdio_errors import handle_write_error

        sys.exit(handle_write_error(error))
    finally:
        _ignore_signals()


def _check_package() -> None:
    """Exit with a message if another project's `holdfast` distribution has replaced this package's `__init__`."""
    if not hasattr(sys.modules["holdfast"], "__version__"):
        from holdfast.distribution_names import OVERWRITTEN

        sys.exit(OVERWRITTEN)


def _ignore_signals() -> None:
    """Ignore signals: one that arrives during interpreter shutdown must not change the exit code."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _run_without_click(arguments: list[str]) -> int | None:
    """Run a command that can be parsed without click; returns its exit code, or None."""
    if arguments[:1] == ["run"]:
        from holdfast.cli.run_client.run_command import run_fast

        return run_fast(arguments[1:])
    if arguments[:1] == ["serve"]:
        from holdfast.cli.serve import serve_fast

        return serve_fast(arguments[1:])
    return None
