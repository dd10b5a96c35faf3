"""Law 10: the model agrees with queueing theory within its own confidence interval.

One request at a time (``max_num_seqs`` 1), one answer token, and a step that costs a fixed time a prompt token and
nothing else: the instance is then a single server whose service time is the prompt's length times that. Waits are
``first_scheduled_s - queued_s``. Means are those of the stationary queue:

M/G/1 (Pollaczek 1930, Khinchine 1932):  E[wait] = rate E[S^2] / (2 (1 - rho));  M/D/1 and M/M/1 are special cases.

Each of 40 seeds gives one 95 % interval by *batch means*: consecutive waits are correlated, so that their plain
standard error is far too small; means of 20 batches, each many correlation times long, are nearly independent and
normal, and Student's t with 19 degrees of freedom applies to them (Law and Kelton, Simulation Modeling and Analysis,
section on batch means). Waits from the empty start are dropped. Of 40 intervals at 95 %, 34 or more cover with
probability 0.997 (binomial), and the seeds are fixed: the outcome is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import pytest
from cluster_cases import config, request, step_time
from scipy.stats import binom
from scipy.stats import t as student

from simulator.cluster import Cluster
from simulator.metrics import Metrics
from simulator.request import Request
from simulator.routing import make_router, parse_routing
from simulator.streams import python_stream, stream

TOKEN_S = 0.001  # service time a prompt token
MEAN_TOKENS = 400
MEAN_S = MEAN_TOKENS * TOKEN_S
SEEDS = range(40)
NUM_BATCHES = 20
NUM_WARM_UP = 200


def lengths(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Prompt lengths in tokens with mean MEAN_TOKENS."""
    if kind == "fixed":
        return np.full(count, MEAN_TOKENS)
    if kind == "exponential":
        # Geometric on 1, 2, ...: the exponential's discrete kin, with E[n] = m and E[n^2] = 2 m^2 - m exactly.
        return rng.geometric(1 / MEAN_TOKENS, count)
    return np.where(rng.random(count) < 0.5, MEAN_TOKENS // 4, MEAN_TOKENS * 7 // 4)


def mean_square_tokens(kind: str) -> float:
    """E[n^2] of `lengths`."""
    if kind == "fixed":
        return MEAN_TOKENS**2
    if kind == "exponential":
        return 2 * MEAN_TOKENS**2 - MEAN_TOKENS
    return ((MEAN_TOKENS / 4) ** 2 + (MEAN_TOKENS * 7 / 4) ** 2) / 2


def mean_wait_s(kind: str, rho: float) -> float:
    """Pollaczek and Khinchine's mean wait."""
    return rho / MEAN_S * mean_square_tokens(kind) * TOKEN_S**2 / (2 * (1 - rho))


def arrivals(kind: str, rate_per_s: float, count: int, seed: int) -> Iterator[Request]:
    rng = stream(seed, "queueing", kind)
    times_s = np.cumsum(rng.exponential(1 / rate_per_s, count)).tolist()
    for number, (time_s, length) in enumerate(zip(times_s, lengths(kind, rng, count).tolist(), strict=True)):
        yield request(number, time_s, length, 1)


def simulate(
    requests: Iterator[Request], num_instances: int = 1, policy: str = "round_robin", seed: int = 0
) -> tuple[Metrics, list[Request]]:
    """Serve one request at a time on each instance; longest prompt 20,000 tokens, in one step."""
    longest = 20_000
    engine = config(
        block_size=256, num_gpu_blocks=2 + longest // 256 + 1, max_model_len=longest + 1, max_num_seqs=1,
        max_num_batched_tokens=longest + 1, enable_prefix_caching=False,
    )  # fmt: skip
    metrics = Metrics(num_instances)
    served: list[Request] = []

    def kept() -> Iterator[Request]:
        for one in requests:
            served.append(one)
            yield one

    # A prompt of one token counts as a decode; it takes as long as any other token.
    times = step_time(prefill_token_s=TOKEN_S, decode_token_s=TOKEN_S)
    router = make_router(parse_routing(policy), num_instances, python_stream(seed, "router"))
    Cluster(engine, times, router, num_instances, metrics).run(kept())
    return metrics, served


def waits_s(served: list[Request]) -> np.ndarray:
    return np.array([one.first_scheduled_s - one.queued_s for one in served])


def interval(waits: np.ndarray) -> tuple[float, float]:
    """95 % for the mean, by batch means."""
    size = (len(waits) - NUM_WARM_UP) // NUM_BATCHES
    batches = waits[NUM_WARM_UP : NUM_WARM_UP + size * NUM_BATCHES].reshape(NUM_BATCHES, size).mean(axis=1)
    half = student.ppf(0.975, NUM_BATCHES - 1) * batches.std(ddof=1) / math.sqrt(NUM_BATCHES)
    return batches.mean() - half, batches.mean() + half


def test_the_number_of_covering_intervals_to_expect() -> None:
    assert 1 - binom.cdf(33, 40, 0.95) > 0.995


@pytest.mark.parametrize("kind", ["fixed", "exponential", "two lengths"])
def test_law_10_mean_waits_are_those_of_queueing_theory(kind: str) -> None:
    rho, covering = 0.5, 0
    for seed in SEEDS:
        _, served = simulate(arrivals(kind, rho / MEAN_S, 3200, seed))
        low, high = interval(waits_s(served))
        covering += low <= mean_wait_s(kind, rho) <= high
    assert 34 <= covering <= 40


@pytest.mark.parametrize(("kind", "rho"), [("fixed", 0.8), ("exponential", 0.3)])
def test_law_10_littles_law_and_utilisation(kind: str, rho: float) -> None:
    """The time average of requests present is the arrival rate times the mean time in the system, exactly over a whole
    run; and the server is busy as long as there is service.
    """
    metrics, served = simulate(arrivals(kind, rho / MEAN_S, 20_000, 1))
    span_s = metrics.horizon_s
    present = sum(one.finish_s - one.queued_s for one in served)
    assert _time_average(served) * span_s == pytest.approx(present, rel=1e-9)
    busy_s = sum(metrics.busy_s)
    assert busy_s == pytest.approx(sum(one.num_prompt_tokens for one in served) * TOKEN_S, rel=1e-9)
    # The share of busy time is rho, within four standard errors of the number that came and of their lengths.
    assert busy_s / served[-1].arrival_s == pytest.approx(rho, rel=4 * math.sqrt(2 / len(served)))


def _time_average(served: list[Request]) -> float:
    """Requests present, averaged over time: the area under the counting process divided by its length."""
    changes = sorted([(one.queued_s, 1) for one in served] + [(one.finish_s, -1) for one in served])
    area, present = 0.0, 0
    for (time_s, change), (next_s, _) in pairwise(changes):
        present += change
        area += present * (next_s - time_s)
    return area / changes[-1][0]


def test_each_wait_is_lindleys() -> None:
    """One server in order of arrival: wait' = max(0, wait + service - gap) (Lindley 1952), request by request."""
    _, served = simulate(arrivals("exponential", 0.8 / MEAN_S, 3000, 2))
    wait_s, expected = 0.0, [0.0]
    for one, other in pairwise(served):
        wait_s = max(0.0, wait_s + one.num_prompt_tokens * TOKEN_S - (other.arrival_s - one.arrival_s))
        expected.append(wait_s)
    assert waits_s(served) == pytest.approx(expected, abs=1e-9)


def test_turns_among_servers_of_fixed_service_are_one_queue_for_all() -> None:
    """With equal services requests end in order of arrival: M/D/c's next free server is always the next in turn."""
    _, served = simulate(arrivals("fixed", 3 * 0.8 / MEAN_S, 3000, 2), 3)
    free_s, expected = [0.0, 0.0, 0.0], []
    for one in served:
        start_s = max(one.arrival_s, heappop(free_s))
        heappush(free_s, start_s + MEAN_S)
        expected.append(start_s - one.arrival_s)
    assert waits_s(served) == pytest.approx(expected, abs=1e-9)


def test_policies_come_in_the_order_that_theory_gives() -> None:
    """Exponential service: the shortest queue is best (Winston 1977), turns beat chance, one queue for all beats each.

    That last is M/M/3, whose mean wait is C / (3 mu - rate) with Erlang's C.
    """
    rho, count = 0.7, 20_000
    found = {}
    for policy in ("random", "round_robin", "least_requests"):
        _, served = simulate(arrivals("exponential", 3 * rho / MEAN_S, count, 3), 3, policy, 3)
        found[policy] = interval(waits_s(served))
    load = 3 * rho
    busy = load**3 / (6 * (1 - rho))
    erlang_c = busy / (1 + load + load**2 / 2 + busy)
    assert erlang_c * MEAN_S / (3 * (1 - rho)) < found["least_requests"][1]
    assert found["least_requests"][1] < found["round_robin"][0]
    assert found["round_robin"][1] < found["random"][0]
    low, high = found["random"]  # chance splits a Poisson stream into three: M/M/1 each
    assert low <= mean_wait_s("exponential", rho) <= high
