"""`holdfast completion`: the script that completes commands in a shell."""

import click

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print the script that completes commands in your shell.

    \b
      bash   holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
      zsh    holdfast completion zsh > ~/.zfunc/_holdfast
      fish   holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.group import holdfast

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE")
    click.echo(made.source_template % made.source_vars())
