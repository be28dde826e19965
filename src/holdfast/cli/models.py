"""`holdfast models`: the available models, their prices, and whether they can be used."""

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.common import report_errors
from holdfast.cli.local_settings import load_configuration, load_credentials, local_options, uses_color
from holdfast.client.terminal_text import printable

if TYPE_CHECKING:
    from holdfast.providers.model_registry import ModelView, ProviderView
    from holdfast.runtime.model_selection import SelectedModels

__all__ = ["command", "progress_dots"]

_DOT_INTERVAL = 1.0


_NO_KEY = (
    "No provider has a key, so the scripted tour answers. Run `holdfast login anthropic` (or openai, openrouter "
    "…), set its variable, or start Ollama. `holdfast models --all` lists everything."
)


@click.command("models")
@click.argument("term", nargs=-1)
@click.option("--all", "shows_all", is_flag=True, help="Include providers without a key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all details.")
@click.option("--refresh", is_flag=True, help="Query providers for models that are newer than the catalogue.")
@local_options
def command(
    *, term: tuple[str, ...], shows_all: bool, as_json: bool, refresh: bool, cwd: str, data_dir: str | None
) -> None:
    """List models with their context size, prices and availability. TERM searches all models.

    Prices are in dollars per million tokens. `think` marks models that can reason, `image` models that accept images.
    The large model does the work; the small one writes titles.

    \b
      holdfast models                    models that you can use
      holdfast models sonnet             models of this name, of any provider
      holdfast models openrouter qwen    models of a provider
      holdfast models --all --json
      holdfast config set models.large.provider anthropic
    """
    with report_errors():
        _list_models(" ".join(term), cwd, data_dir, shows_all=shows_all, as_json=as_json, refresh=refresh)


def _list_models(term: str, cwd: str, data_dir: str | None, *, shows_all: bool, as_json: bool, refresh: bool) -> None:
    from holdfast.runtime.model_selection import SelectedModels, model_sources

    configuration = load_configuration(cwd, data_dir, with_store=True)
    # Model data is cached in the data directory.
    data = Path(configuration.locations.data_dir)
    models = SelectedModels(model_sources(configuration, load_credentials(configuration), data))
    with progress_dots("Querying providers for their models") if refresh else nullcontext():
        chosen, views, problem = asyncio.run(_query_models(models, refresh=refresh))
    found = _matching(views, term) if term else [view for view in views if shows_all or _is_shown(view)]
    if as_json:
        _print_json(chosen, found, problem)
    else:
        _print_models(chosen, found)
        _print_hints(views, term, found, problem)
    if term and not found:
        sys.exit(1)


async def _query_models(
    models: "SelectedModels", *, refresh: bool
) -> tuple[dict[str, tuple[str, str]], list["ProviderView"], str]:
    """Return the selected models, all providers, and why no model could be selected."""
    from holdfast.domain.errors import ProviderError
    from holdfast.providers.shared_http_clients import close_connections

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


def _print_models(chosen: dict[str, tuple[str, str]], views: list["ProviderView"]) -> None:
    rows = {view.id: [_row(view, model, chosen) for model in view.models] for view in views}
    widths = [max((len(row[place]) for group in rows.values() for row in group), default=0) for place in range(5)]
    is_first = True
    for view in sorted(views, key=lambda view: (bool(view.lack), view.origin == "scripted")):
        if not is_first:
            click.echo()
        is_first = False
        head = f"{printable(view.name)} ({printable(view.id)})" if view.name != view.id else printable(view.id)
        click.echo(f"{_emphasize(head)}  {printable(view.lack.removeprefix(f'{view.name} ')) or _state(view)}")
        for row in rows[view.id]:
            name, *numbers = row[:4]
            cells = [
                name.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False)),
            ]
            line = "  ".join([*cells, row[4].ljust(widths[4]), row[5]]).rstrip()
            click.echo(_emphasize(f"* {line}") if row[5] else f"  {line}")


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
        return "scripted; no real model"
    return "on this machine" if view.origin == "local" else "ready"


def _emphasize(text: str) -> str:
    return click.style(text, bold=True) if uses_color() else text


def _print_hints(views: list["ProviderView"], term: str, found: list["ProviderView"], problem: str) -> None:
    if term and not found:
        from holdfast.providers.catalog import close_matches

        names = [f"{view.id}/{model.id}" for view in views for model in view.models]
        close = close_matches(term, [*names, *(view.id for view in views)])
        hint = f" Did you mean {', '.join(map(printable, close))}?" if close else ""
        click.echo(f"No model matches {printable(term)}.{hint}", err=True)
    if problem:
        click.echo(f"holdfast: {printable(problem)}", err=True)
    elif not term and not any(_is_shown(view) and view.origin != "scripted" for view in views):
        click.echo(_NO_KEY, err=True)


def _print_json(chosen: dict[str, tuple[str, str]], views: list["ProviderView"], problem: str) -> None:
    import msgspec

    output: dict[str, Any] = {
        size: {"provider": provider, "model": model} for size, (provider, model) in chosen.items()
    }
    output["providers"] = [{**msgspec.to_builtins(view), "usable": view.is_usable} for view in views]
    if problem:
        output["problem"] = problem
    click.echo(msgspec.json.format(msgspec.json.encode(output)).decode())


@contextmanager
def progress_dots(what: str) -> Iterator[None]:
    """Print a message, and on a terminal a dot every second until the block is left."""
    if not sys.stderr.isatty():
        click.echo(f"{what} ...", err=True)
        yield
        return
    click.echo(f"{what} ", nl=False, err=True)
    stop = threading.Event()
    thread = threading.Thread(target=_print_dots, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        click.echo(err=True)


def _print_dots(stop: threading.Event) -> None:
    while not stop.wait(_DOT_INTERVAL):
        click.echo(".", nl=False, err=True)
