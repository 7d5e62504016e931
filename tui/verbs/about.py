"""Verbs about the command line itself: shell completion and the manual page."""

import os
from pathlib import Path

import click

_SHELLS = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/autoscout.fish"}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)), required=False)
def completion(shell: str | None) -> None:
    """Print a script that completes verbs, options and names in your shell.

    \b
    bash:  autoscout completion bash >> ~/.bashrc
    zsh:   autoscout completion zsh >> ~/.zshrc
    fish:  autoscout completion fish > ~/.config/fish/completions/autoscout.fish
    """
    from click.shell_completion import get_completion_class

    name = shell or Path(os.environ.get("SHELL", "bash")).name
    kind = get_completion_class(name)
    if kind is None:
        raise click.UsageError(f"there is no completion for {name}; it exists for {', '.join(_SHELLS)}")
    root = click.get_current_context().find_root()
    click.echo(kind(root.command, {}, "autoscout", "_AUTOSCOUT_COMPLETE").source())


@click.command()
def man() -> None:
    """Print the manual page: autoscout man > ~/.local/share/man/man1/autoscout.1"""
    from tui.printing.manual import page

    click.echo(page(click.get_current_context().find_root()), nl=False)
