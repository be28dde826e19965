"""`scripts/bench cluster [options] [GROUP ...]`: several servers on one PostgreSQL, with goals."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from bench import cluster_faults, cluster_latency, cluster_load
from bench.cluster_nodes import Cluster, cluster
from bench.cluster_plan import FULL, QUICK, ClusterPlan
from bench.figures import Figure, table
from bench.servers import fake_provider

GROUPS: Mapping[str, Callable[[Cluster, ClusterPlan], list[Figure]]] = {
    "accept": cluster_latency.measure_accept,
    "standby": cluster_latency.measure_standby,
    "delivery": cluster_latency.measure_delivery,
    "cancel": cluster_latency.measure_cancel,
    "resume": cluster_latency.measure_resume,
    "takeover": cluster_faults.measure_takeover,
    "outage": cluster_faults.measure_outage,
    "events": cluster_load.measure_events,
    "nodes": cluster_load.measure_nodes,
    "workspaces": cluster_load.measure_workspaces,
    "readers": cluster_load.measure_readers,
    "length": cluster_load.measure_length,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench cluster", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="few trials and small sizes")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    figures: list[Figure] = []
    with fake_provider() as provider, cluster(provider) as running:
        for group in options.groups or GROUPS:
            print(f"measuring {group} ...", file=sys.stderr, flush=True)
            figures += GROUPS[group](running, plan)
    print(table(figures))
    return 0
