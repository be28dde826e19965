"""Text that is typed while an approval or a question appears never answers it, in the real app."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trials.typed_text import try_typed_text


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 31))
def test_typed_text_never_answers(seed: int) -> None:
    try_typed_text(seed, words=3)
