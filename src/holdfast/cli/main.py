"""The command `holdfast`. The most frequent commands are parsed by hand; the others by click, which is slow to
import.
"""

import os
import sys

__all__ = ["COMMANDS", "main"]


COMMANDS = {
    "tui": ("holdfast.cli.clients:tui_command", "Open the terminal app; also without any command."),
    "web": ("holdfast.cli.clients:web_command", "Open the page in the browser."),
    "run": ("holdfast.cli.run", "Send a prompt and print the answer."),
    "runs": ("holdfast.cli.runs", "List runs, wait for one, cancel one."),
    "sessions": ("holdfast.cli.sessions", "List, read, rename, delete and export sessions."),
    "attach": ("holdfast.cli.attach", "Follow a session as plain text."),
    "serve": ("holdfast.cli.server:serve_command", "Run the server here, until Ctrl-C."),
    "server": ("holdfast.cli.server:server_command", "See whether the server runs; stop it."),
    "models": ("holdfast.cli.models", "List models: what they hold, what they cost, which can be used."),
    "login": ("holdfast.cli.login:login_command", "Store the key of a provider."),
    "logout": ("holdfast.cli.login:logout", "Forget the key of a provider."),
    "config": ("holdfast.cli.config", "See, check and change settings."),
    "trust": ("holdfast.cli.trust", "Let a project's settings take effect."),
    "lsp": ("holdfast.cli.lsp", "Language servers: see them, start them again, read what they printed."),
    "mcp": ("holdfast.cli.mcp", "Servers of tools: see them, add and remove them, log in to them."),
    "skills": (
        "holdfast.cli.extension_files:skills_command",
        "List and read skills: instructions that models load when they need them.",
    ),
    "commands": (
        "holdfast.cli.extension_files:commands_command",
        "List commands: prompts that are sent by their names.",
    ),
    "agents": (
        "holdfast.cli.extension_files:agents_command",
        "List agents: helpers with instructions, tools and models of their own.",
    ),
    "prompt": ("holdfast.cli.diagnostics:prompt_command", "Show what a model is told before the conversation."),
    "undo": ("holdfast.cli.undo", "Take back what a run changed."),
    "acp": ("holdfast.cli.clients:acp_command", "Serve an editor: the Agent Client Protocol on stdin and stdout."),
    "doctor": ("holdfast.cli.diagnostics:doctor_command", "See what is wrong here, and what to do about it."),
    "stats": ("holdfast.cli.stats", "Count what was done: runs, models, tools, cost; also as a page with charts."),
    "logs": ("holdfast.cli.diagnostics:logs_command", "Show the server's log."),
    "dirs": ("holdfast.cli.diagnostics:dirs_command", "Say where things are kept."),
    "completion": ("holdfast.cli.completion", "Print the script that completes commands in your shell."),
    "demo": ("holdfast.cli.demo", "See it work: a prompt, a cancel, a kill -9 and a recovery. No key, no network."),
}
"""Each command with its module and its summary, so that help is printed without importing them."""


def main() -> None:
    """Run the command line; a user error is a one-line message, never a traceback."""
    if sys.platform == "win32":
        sys.exit("Holdfast runs on Linux and macOS, not on Windows.")
    _check_package()
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from holdfast.cli.console.standard_streams import replace_closed

        replace_closed()
    try:
        code = None if "_HOLDFAST_COMPLETE" in os.environ else _quickly(sys.argv[1:])
        if code is not None:
            sys.exit(code)
        from holdfast.cli.click_group import holdfast
        from holdfast.cli.console.standard_streams import accept_all

        accept_all()
        holdfast(prog_name="holdfast")
    except KeyboardInterrupt:
        # Also while modules are still being imported.
        sys.exit(130)
    except OSError as error:
        from holdfast.cli.console.standard_streams import unwritten

        sys.exit(unwritten(error))
    finally:
        _be_deaf()


def _check_package() -> None:
    """Exit with a sentence if another project's `holdfast` distribution has replaced this package's `__init__`."""
    if not hasattr(sys.modules["holdfast"], "__version__"):
        from holdfast.distribution import OVERWRITTEN

        sys.exit(OVERWRITTEN)


def _be_deaf() -> None:
    """Ignore signals: one that arrives during interpreter shutdown must not change the exit code."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _quickly(arguments: list[str]) -> int | None:
    """Run a command that can be parsed without click; returns its exit code, or None."""
    if arguments[:1] == ["run"]:
        from holdfast.cli.run_client.run_prompt import run_quickly

        return run_quickly(arguments[1:])
    if arguments[:1] == ["serve"]:
        from holdfast.cli.server_boot import serve_quickly

        return serve_quickly(arguments[1:])
    return None
