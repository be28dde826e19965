"""Errors of model selection: each caller handles those that it expects, and passes on the others unchanged."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection
from holdfast.runtime.model_selection import SelectedModels

REFUSED = ProviderError("no key", title="No key", trouble="credentials")
ABSENT = ProviderError("no answer", trouble="connection")
BUG = ZeroDivisionError("bug")
SELECTION = Selection("m", "p")


class FailingParts:
    """The parts of a `SelectedModels` whose registry has no model because of an error."""

    def __init__(self, error: Exception, problem: str = "") -> None:
        self._error = error
        self._inputs = SimpleNamespace(
            settings=lambda: None, stamp=lambda: None, selection_problem=lambda: problem, sign_in=None
        )
        self._registries: list[object] = []

    async def large(self) -> object:
        raise self._error

    pick = _pick_or_explain = cast(Any, lambda self, *_: self.large())

    async def _registry(self, *_: object) -> object:
        return self


def parts(error: Exception, problem: str = "") -> Any:  # noqa: ANN401 - a stand-in
    return FailingParts(error, problem)


MADE: Any = SimpleNamespace(
    pick=SimpleNamespace(
        provider=SimpleNamespace(id="p", type="openai", settings=SimpleNamespace(aws_auth_refresh="")),
        model=SimpleNamespace(info=SimpleNamespace(model="m")),
    )
)


@pytest.mark.parametrize("error", [REFUSED, ABSENT, BUG], ids=["refused", "absent", "bug"])
async def test_each_caller_handles_its_own_errors(error: Exception) -> None:
    """A server that is not running yet may be selected; a queued prompt waits for a client only if no model is usable;
    and a renewal that fails leaves the earlier refusal.
    """
    calls = {
        "check": lambda: SelectedModels.check(parts(error), SELECTION),
        "can answer": lambda: SelectedModels.can_answer(parts(error), ("p",)),
        "renew": lambda: SelectedModels._renew(parts(error), MADE),
    }
    handled: dict[Exception, dict[str, object]] = {
        REFUSED: {"can answer": False, "renew": None},
        ABSENT: {"check": SELECTION, "can answer": False, "renew": None},
        BUG: {},
    }
    for name, call in calls.items():
        if name in handled[error]:
            assert await cast(Any, call)() == handled[error][name], name
            continue
        with pytest.raises(type(error)) as caught:
            await cast(Any, call)()
        assert caught.value is error, name


@pytest.mark.parametrize(
    ("error", "problem", "text"),
    [
        (REFUSED, "config.json is damaged.", "config.json is damaged. Its settings have no effect until this"),
        (REFUSED, "", "no key"),
        (ABSENT, "config.json is damaged.", "no answer"),
        (BUG, "config.json is damaged.", "bug"),
    ],
    ids=["explained", "settings are readable", "absent", "bug"],
)
async def test_a_refusal_names_settings_that_cannot_be_read(error: Exception, problem: str, text: str) -> None:
    failing = parts(error, problem)
    with pytest.raises(type(error)) as caught:
        await SelectedModels._pick_or_explain(failing, failing, SELECTION)
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith(str(error))
    if isinstance(error, ProviderError) and isinstance(caught.value, ProviderError):
        assert (caught.value.title, caught.value.trouble) == (error.title, error.trouble)
