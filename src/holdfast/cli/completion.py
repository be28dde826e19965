"""`holdfast completion`: the completion script for a shell."""

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

    For zsh the directory must be known before compinit runs, in ~/.zshrc: fpath=(~/.zfunc $fpath)
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.click_group import holdfast

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE")
    script = made.source_template % made.source_vars()
    # Descriptions may contain commas, at which click's script for fish would cut them.
    click.echo(script.replace('string split ","', 'string split -m 1 ","'))
