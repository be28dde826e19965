"""The list of models: those that can be used, then providers that need a key. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.protocol.bodies import ModelChoice
from holdfast.tui.screens.picker import Choice
from holdfast.tui.status import price, thousands

__all__ = ["effort_choices", "lack_of", "model_choices"]


def model_choices(providers: Sequence[Mapping[str, Any]], now: str) -> list[Choice]:
    """Return the list entries; `now` is the model in use. Models that cannot be used yet are shown only in searches,
    because there are thousands.
    """
    ready = [item for item in providers if not item.get("lack")]
    lacking = [item for item in providers if item.get("lack")]
    choices = [choice for item in ready for choice in _models(item, now)]
    choices += [Choice(f"{item['id']}/", _name(item), _reason(item), group="Not set up yet") for item in lacking]
    choices += [choice for item in lacking for choice in _models(item, now)]
    return choices


def lack_of(providers: Sequence[Mapping[str, Any]], provider: str) -> str:
    """Return why a provider cannot be used, and the remedy; empty if it can."""
    return next((str(item.get("lack") or "") for item in providers if item.get("id") == provider), "")


def _name(provider: Mapping[str, Any]) -> str:
    return str(provider.get("name") or provider.get("id"))


def _reason(provider: Mapping[str, Any]) -> str:
    """Return what a provider needs, without the hint about other ways to set a key, which can be entered here."""
    return str(provider["lack"]).removeprefix(_name(provider)).strip().partition(", or run ")[0].rstrip(".")


def _models(provider: Mapping[str, Any], now: str) -> list[Choice]:
    name, lacks = _name(provider), bool(provider.get("lack"))
    choices: list[Choice] = []
    for model in provider.get("models") or ():
        value = f"{provider['id']}/{model['id']}"
        facts = [name, "not set up yet"] if lacks else [_window(model), _prices(model)]
        choices.append(
            Choice(
                value,
                str(model.get("name") or model["id"]),
                " · ".join(fact for fact in facts if fact),
                "●" if value == now else "",
                group=name,
                is_rare=lacks and value != now,
            )
        )
    return choices


def _window(model: Mapping[str, Any]) -> str:
    window = int(model.get("context_window") or 0)
    return f"{thousands(window)} tokens" if window else ""


def _prices(model: Mapping[str, Any]) -> str:
    """Return the prices of a million input and output tokens."""
    asked, said = model.get("cost_per_1m_in"), model.get("cost_per_1m_out")
    return f"{price(asked)} in, {price(said or 0)} out" if asked else ""


def effort_choices(facts: Mapping[str, Any], now: ModelChoice) -> list[Choice]:
    """Return the reasoning levels of a model, or on and off; empty if it does not reason."""
    if not facts.get("can_reason"):
        return []
    default = str(facts.get("default_reasoning_effort") or "")
    levels = [str(level) for level in facts.get("reasoning_levels") or ()] or ["on"]
    own = Choice("", "as the model does by itself", default, "" if now.reasoning_effort or now.think else "●")
    current = now.reasoning_effort or ("on" if now.think else "")
    return [own, *(Choice(level, level, "", "●" if level == current else "") for level in levels)]
