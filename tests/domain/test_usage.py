"""Token counts and prices."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.usage import Price, Usage, cost_of, estimate_tokens

PRICE = Price(input=1.0, output=10.0, cache_read=100.0, cache_write=1000.0)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(), 0.0),
        (Usage(input_tokens=1_000_000), 1.0),
        (Usage(output_tokens=1_000_000), 10.0),
        (Usage(cache_read_tokens=1_000_000), 100.0),
        (Usage(cache_write_tokens=1_000_000), 1000.0),
        (Usage(2_000_000, 3_000_000, 4_000_000, 5_000_000), 5432.0),
        (Usage(input_tokens=500), 0.0005),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, cost: float) -> None:
    assert cost_of(usage, PRICE) == pytest.approx(cost)
    assert cost_of(usage, Price()) == 0.0


@pytest.mark.parametrize("usage", [Usage(1), Usage(0, 1), Usage(0, 0, 1), Usage(0, 0, 0, 1)])
def test_any_nonzero_count_is_a_report(usage: Usage) -> None:
    assert usage.is_reported


def test_all_zero_is_no_report() -> None:
    assert not Usage().is_reported


@pytest.mark.parametrize(("characters", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_an_estimate_is_a_quarter_rounded_up(characters: int, tokens: int) -> None:
    assert estimate_tokens(characters) == tokens


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_an_estimate_covers_all_characters(characters: int) -> None:
    assert 4 * estimate_tokens(characters) >= characters > 4 * (estimate_tokens(characters) - 1)
