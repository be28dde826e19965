"""Processes that are forked from a server process which has imported the code under test.

A fork takes milliseconds; a new interpreter would import everything again. The server process reads its search path
from the environment only, so `PYTHONPATH` names this directory while it starts.
"""

import multiprocessing
import os
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

__all__ = ["forkserver_context"]

_MODULES = ["crash.scenarios", "trials.replaced_data_directory"]


@cache
def forkserver_context() -> ForkServerContext:
    """Return the context of the server process, which is started on the first call."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([kept] if kept else [])])
    try:
        forkserver.ensure_running()
    finally:
        if kept is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = kept
    return context
