"""Sessions: their wire format, and patches that commute."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import SESSION, json_of, session
from holdfast.domain.ids import MessageId
from holdfast.domain.sessions import Session, SessionPatch, Todo, apply_patch

ALWAYS = {
    "id", "parent_session_id", "title", "message_count", "prompt_tokens", "completion_tokens", "summary_message_id",
    "cost", "created_at", "updated_at", "is_busy", "attached_clients",
}  # fmt: skip
FIELDS = ("title", "prompt_tokens", "completion_tokens", "estimated_usage", "summary_message_id", "todos")


def test_required_keys_are_always_encoded() -> None:
    assert set(msgspec.json.decode(json_of(session()))) == ALWAYS


def test_todos_and_estimates_are_encoded_if_set() -> None:
    full = msgspec.structs.replace(session(), todos=(Todo("test", "in_progress", "testing"),), estimated_usage=True)
    wire = json_of(full)
    assert wire.endswith(
        '"todos":[{"content":"test","status":"in_progress","active_form":"testing"}],"estimated_usage":true}'
    )
    assert msgspec.json.decode(wire, type=Session) == full


def test_a_patch_replaces_only_its_fields() -> None:
    before = msgspec.structs.replace(session("Old"), prompt_tokens=5, cost=1.0, message_count=3)
    after = apply_patch(before, SessionPatch(SESSION, 9, prompt_tokens=7, add_cost=0.5, add_messages=2))
    assert after == msgspec.structs.replace(before, prompt_tokens=7, cost=1.5, message_count=5, updated_at=9)


def test_empty_values_replace_too() -> None:
    before = msgspec.structs.replace(
        session("Old"), prompt_tokens=5, estimated_usage=True, summary_message_id=MessageId("m"),
        todos=(Todo("a", "pending", "a"),),
    )  # fmt: skip
    patch = SessionPatch(
        SESSION, 1, title="", prompt_tokens=0, estimated_usage=False, summary_message_id=MessageId(""), todos=()
    )
    assert apply_patch(before, patch) == session("")


def test_updated_time_never_decreases() -> None:
    later = apply_patch(session(), SessionPatch(SESSION, 10))
    assert apply_patch(later, SessionPatch(SESSION, 4)).updated_at == 10


_values = st.fixed_dictionaries(
    {},
    optional={
        "title": st.text(max_size=3),
        "prompt_tokens": st.integers(0, 99),
        "completion_tokens": st.integers(0, 99),
        "estimated_usage": st.booleans(),
        "summary_message_id": st.text(max_size=3).map(MessageId),
        "todos": st.just((Todo("a", "pending", "a"),)),
    },
)
_sums = st.tuples(st.integers(0, 9), st.integers(-1, 3), st.integers(0, 20))


@settings(deadline=None)
@given(_values, _sums, _sums, st.sets(st.sampled_from(FIELDS)))
def test_independent_patches_commute(
    values: dict[str, object], one: tuple[int, int, int], other: tuple[int, int, int], first: set[str]
) -> None:
    """Whole dollars, so that sums are exact."""
    patches = []
    for (cost, messages, at), chosen in ((one, first), (other, set(FIELDS) - first)):
        named = {name: value for name, value in values.items() if name in chosen}
        patch = SessionPatch(SESSION, at, add_cost=float(cost), add_messages=messages)
        patches.append(msgspec.structs.replace(patch, **named))
    start = session()
    there = apply_patch(apply_patch(start, patches[0]), patches[1])
    back = apply_patch(apply_patch(start, patches[1]), patches[0])
    assert there == back
    assert there.cost == one[0] + other[0]
