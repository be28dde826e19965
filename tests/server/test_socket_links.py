"""A symlink at the path of the server's socket belongs to the user: it is neither followed nor removed."""

import socket
from pathlib import Path

import pytest

from holdfast.server.http.listen import UnixListener, UnsafeDirectory


@pytest.mark.parametrize("target", ["a socket", "a file", "nothing"])
def test_symlink_at_socket_path_is_kept(tmp_path: Path, target: str) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    path, elsewhere = tmp_path / "run" / "s", tmp_path / "elsewhere"
    with socket.socket(socket.AF_UNIX) as stale:
        if target == "a socket":
            stale.bind(str(elsewhere))
        elif target == "a file":
            elsewhere.write_text("mine")
        path.symlink_to(elsewhere)
        with pytest.raises(UnsafeDirectory, match="not a socket"):
            UnixListener(path)
    assert path.is_symlink()
    assert elsewhere.exists() == (target != "nothing")
