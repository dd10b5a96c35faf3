"""One benchmark in a process of its own, so that its peak memory is its own: ``measure.py CASE NUM_REQUESTS``.

Prints JSON: CPU seconds, requests, peak megabytes, and the CPU seconds of a bare SimPy timeout in the same process.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import simpy

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cost_cases import prepare

NUM_TIMEOUTS = 200_000


def timeout_s() -> float:
    """CPU seconds of one timeout of one process, the least that anything on SimPy's clock can cost."""

    def ticking(environment: simpy.Environment) -> Iterator[simpy.Event]:
        for _ in range(NUM_TIMEOUTS):
            yield environment.timeout(1)

    environment = simpy.Environment()
    environment.process(ticking(environment))
    began_s = time.process_time()
    environment.run()
    return (time.process_time() - began_s) / NUM_TIMEOUTS


def main(name: str, num_requests: int) -> None:
    prepared = prepare(name, num_requests)
    before_s = timeout_s()
    gc.collect()
    began_s = time.process_time()
    prepared.run()
    cpu_s = time.process_time() - began_s
    per_timeout_s = (before_s + timeout_s()) / 2
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({
        "cpu_s": cpu_s, "num_requests": prepared.metrics.num_requests, "peak_mb": peak_bytes / 1e6,
        "timeout_s": per_timeout_s,
    }))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
