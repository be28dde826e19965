"""`holdfast models`: the available models, their prices, and whether they can be used."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.common import sentences
from holdfast.cli.local_settings import configuration_for, directory_options, in_terminal, printable

__all__ = ["command", "waiting"]


# Progress dots on stderr.

_SECOND = 1.0


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Print a message at once, and a dot for every second. Dots are printed only at a terminal."""
    if not sys.stderr.isatty():
        click.echo(f"{what} ...", err=True)
        yield
        return
    click.echo(f"{what} ", nl=False, err=True)
    over = threading.Event()
    ticking = threading.Thread(target=_tick, args=(over,), daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()
        click.echo(err=True)


def _tick(over: threading.Event) -> None:
    while not over.wait(_SECOND):
        click.echo(".", nl=False, err=True)


# `holdfast models`: the available models, their prices, and whether they can be used.

if TYPE_CHECKING:
    from holdfast.providers.model_registry import ModelView, ProviderView
    from holdfast.runtime.model_selection import SelectedModels


_NO_KEY = (
    "No provider has a key, so the scripted tour answers. Run `holdfast login anthropic` (or openai, openrouter …), "
    "set its variable, or start Ollama. `holdfast models --all` lists everything."
)


@click.command("models")
@click.argument("term", nargs=-1)
@click.option("--all", "shows_all", is_flag=True, help="Include providers without a key.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with all facts.")
@click.option("--refresh", is_flag=True, help="Query providers for models that are newer than the catalogue.")
@directory_options
def command(
    *, term: tuple[str, ...], shows_all: bool, as_json: bool, refresh: bool, cwd: str, data_dir: str | None
) -> None:
    """List models: what they hold, what they cost, whether they can be used. TERM finds some of all of them.

    Prices are dollars for a million tokens. `think` marks models that reason, `image` those that see.
    The large model does the work; the small one writes titles.

    \b
      holdfast models                    those you can use
      holdfast models sonnet             those of that name, anywhere
      holdfast models openrouter qwen    those of a provider
      holdfast models --all --json
      holdfast config set models.large.provider anthropic
    """
    with sentences():
        _models(" ".join(term), cwd, data_dir, shows_all=shows_all, as_json=as_json, refresh=refresh)


def _models(term: str, cwd: str, data_dir: str | None, *, shows_all: bool, as_json: bool, refresh: bool) -> None:
    from holdfast.config.credentials import Credentials
    from holdfast.runtime.model_selection import SelectedModels, model_sources

    configuration = configuration_for(cwd, data_dir)
    data = Path(configuration.locations.trust_file).parent
    credentials = Credentials(configuration.locations.credentials_file, os.environ)
    models = SelectedModels(model_sources(configuration, credentials, data))
    with waiting("Querying providers for their models") if refresh else nullcontext():
        chosen, views, problem = asyncio.run(_asked(models, refresh=refresh))
    found = _matching(views, term) if term else [view for view in views if shows_all or _is_shown(view)]
    if as_json:
        _tell_json(chosen, found, problem)
    else:
        _tell(chosen, found)
        _advise(views, term, found, problem)
    if term and not found:
        sys.exit(1)


async def _asked(
    models: "SelectedModels", *, refresh: bool
) -> tuple[dict[str, tuple[str, str]], list["ProviderView"], str]:
    """Return the selected models, all providers, and why no model could be selected."""
    from holdfast.domain.errors import ProviderError
    from holdfast.providers.http_client import close_connections

    chosen: dict[str, tuple[str, str]] = {}
    problem = ""
    try:
        views = list(await models.providers_view(refresh=refresh))
        for size, choose in (("large", models.large), ("small", models.small)):
            try:
                info = (await choose()).info
            except ProviderError as error:
                problem = problem or f"models.{size}: {error}"
            else:
                chosen[size] = (info.provider, info.model)
    finally:
        await models.close()
        await close_connections()
    return chosen, views, problem


def _is_shown(view: "ProviderView") -> bool:
    return view.is_usable and bool(view.models)


def _matching(views: Iterable["ProviderView"], term: str) -> list["ProviderView"]:
    """Return models whose names, or whose provider's names, contain every word."""
    import msgspec

    words = term.lower().split()
    found: list[ProviderView] = []
    for view in views:
        about = f"{view.id} {view.name}"
        models = tuple(
            model
            for model in view.models
            if all(word in f"{about} {view.id}/{model.id} {model.name}".lower() for word in words)
        )
        if models:
            found.append(msgspec.structs.replace(view, models=models))
    return found


# As text


def _tell(chosen: dict[str, tuple[str, str]], views: list["ProviderView"]) -> None:
    rows = {view.id: [_row(view, model, chosen) for model in view.models] for view in views}
    widths = [max((len(row[place]) for group in rows.values() for row in group), default=0) for place in range(5)]
    is_first = True
    for view in sorted(views, key=lambda view: (bool(view.lack), view.origin == "scripted")):
        if not is_first:
            click.echo()
        is_first = False
        head = f"{printable(view.name)} ({printable(view.id)})" if view.name != view.id else printable(view.id)
        click.echo(f"{_bold(head)}  {printable(view.lack.removeprefix(f'{view.name} ')) or _state(view)}")
        for row in rows[view.id]:
            name, *numbers = row[:4]
            cells = [
                name.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False)),
            ]
            line = "  ".join([*cells, row[4].ljust(widths[4]), row[5]]).rstrip()
            click.echo(_bold(f"* {line}") if row[5] else f"  {line}")


def _row(view: "ProviderView", model: "ModelView", chosen: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    used = [size for size, choice in chosen.items() if choice == (view.id, model.id)]
    marks = [word for word, is_so in (("think", model.can_reason), ("image", model.supports_attachments)) if is_so]
    prices = ("", "")
    if model.cost_per_1m_in or model.cost_per_1m_out:
        prices = (f"${model.cost_per_1m_in:.3g} in", f"${model.cost_per_1m_out:.3g} out")
    return printable(model.id), _size(model.context_window), *prices, " ".join(marks), " and ".join(used)


def _size(tokens: int) -> str:
    if not tokens:
        return "?"
    if tokens >= 1_000_000:
        return f"{tokens / 1_000_000:.3g}M"
    return f"{round(tokens / 1000)}k" if tokens >= 1000 else str(tokens)


def _state(view: "ProviderView") -> str:
    if view.origin == "scripted":
        return "plays a script; there is no model behind it"
    return "on this machine" if view.origin == "local" else "ready"


def _bold(text: str) -> str:
    return click.style(text, bold=True) if in_terminal() else text


def _advise(views: list["ProviderView"], term: str, found: list["ProviderView"], problem: str) -> None:
    if term and not found:
        from holdfast.providers.catalog import close_matches

        names = [f"{view.id}/{model.id}" for view in views for model in view.models]
        close = close_matches(term, [*names, *(view.id for view in views)])
        hint = f" Did you mean {', '.join(map(printable, close))}?" if close else ""
        click.echo(f"Nothing is called {printable(term)}.{hint}", err=True)
    if problem:
        click.echo(f"holdfast: {printable(problem)}", err=True)
    elif not term and not any(_is_shown(view) and view.origin != "scripted" for view in views):
        click.echo(_NO_KEY, err=True)


# As JSON


def _tell_json(chosen: dict[str, tuple[str, str]], views: list["ProviderView"], problem: str) -> None:
    import msgspec

    whole: dict[str, Any] = {size: {"provider": provider, "model": model} for size, (provider, model) in chosen.items()}
    whole["providers"] = [{**msgspec.to_builtins(view), "usable": view.is_usable} for view in views]
    if problem:
        whole["problem"] = problem
    click.echo(msgspec.json.format(msgspec.json.encode(whole)).decode())
