"""Gaps of a sandbox that are reported, for every combination of kernel, bubblewrap and network."""

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.workspace.sandbox import sandbox
from holdfast.workspace.sandbox.privileges import SCOPES_VERSION
from holdfast.workspace.sandbox.sandbox import Sandbox


def test_reported_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = ["/w/inside", "/elsewhere", "/w-other/x"]
    monkeypatch.setattr(sandbox, "bound_sockets", lambda: iter(sockets))
    cases = product((True, False), (-1, 0, 1), (True, False), (None, "plain", "set-uid"))
    for has_network, version, filters, bubblewrap in cases:
        monkeypatch.setattr(sandbox, "landlock_version", lambda version=version: SCOPES_VERSION + version)
        monkeypatch.setattr(sandbox, "can_filter", lambda filters=filters: filters)
        monkeypatch.setattr(sandbox, "_is_setuid", {"plain": False, "set-uid": True}.__getitem__)
        policy = SimpleNamespace(network=has_network, workspace="/w")
        gaps = Sandbox._gaps(cast(Any, SimpleNamespace(_bubblewrap=bubblewrap, policy=policy)))
        is_setuid = bubblewrap == "set-uid"
        expected = (
            ("Abstract unix sockets" if has_network and (version < 0 or is_setuid) else ""),
            ("Kernel keyrings" if not filters or is_setuid else ""),
            "The socket /w/inside",
        )
        starts = [start for start in expected if start]
        assert len(gaps) == len(starts), (has_network, version, filters, bubblewrap)
        assert all(gap.startswith(start) for gap, start in zip(gaps, starts, strict=True))
