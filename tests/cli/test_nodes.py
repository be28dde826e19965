"""`holdfast nodes`: the table, and the node that an abbreviated id names. `test_cluster_operation.py` has real ones."""

import pytest

from holdfast.cli.common import CommandError
from holdfast.cli.nodes import _find, _table
from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import NodeId
from holdfast.protocol.bodies import NodeBody, NodeList

A, B, C = (NodeId(name.ljust(32, "0")) for name in ("aaaa", "aaaa00001", "c"))


def node(name: NodeId, *, places: tuple[str, ...] = ("nfs",), is_self: bool = False) -> NodeBody:
    return NodeBody(name, "ready", 7_300.0, places, "1.2", "http://10.0.0.11:7437", 3, 1, 2, is_self=is_self)


NODES = NodeList(is_cluster=True, nodes=(node(A), node(B), node(C, is_self=True)))


@pytest.mark.parametrize(("prefix", "found"), [("c", C), ("aaaa00001", B), (A, A), (None, C)])
def test_an_unambiguous_prefix_names_a_node(prefix: str | None, found: NodeId) -> None:
    assert _find(NODES, prefix).id == found


@pytest.mark.parametrize(
    ("nodes", "prefix", "error", "text"),
    [
        (NODES, "aaaa", BadRequest, "aaaa is ambiguous"),
        (NODES, "d", CommandError, "There is no node d: holdfast nodes lists them."),
        (NODES, "", CommandError, "There is no node : holdfast nodes lists them."),
        (NodeList(is_cluster=True, nodes=(node(A),)), None, CommandError, "joins the cluster now"),
        (NodeList(is_cluster=True, nodes=(node(A),)), "", CommandError, "There is no node"),
        (NodeList(is_cluster=False), "c", CommandError, "it is the only node"),
    ],
)
def test_other_ids_are_refused(nodes: NodeList, prefix: str | None, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _find(nodes, prefix)


def test_ids_in_the_table_are_as_long_as_necessary() -> None:
    shown = _table([node(A), node(B, places=("f" * 32,)), node(C, is_self=True, places=("a" * 20, "b"))])
    assert shown.splitlines()[1:] == [
        "aaaa00000   ready  2 h  nfs               3           1     2        1.2      10.0.0.11…",
        "aaaa00001   ready  2 h  own disk          3           1     2        1.2      10.0.0.11…",
        "c00000000*  ready  2 h  aaaaaaaaaaaaaaa…  3           1     2        1.2      10.0.0.11…",
    ]
    assert shown.splitlines()[0].split() == [
        *("NODE", "STATE", "UP", "PLACE", "WORKSPACES", "RUNS", "CLIENTS", "VERSION", "ADDRESS"),
    ]
