"""What routing a request costs among 256 instances, printed by ``make bench``: every policy that looks at prompts.

The router's own work for one request: the choice, and the ledger and index at dispatch, first token and end. Block
events are fed in between and not timed. The limit is 30 us a request and 1 us a block of its prompt; a ratio above 1 is
over it. Two lengths of prompts tell the two parts apart.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import pytest

from simulator.prefix import Prefixes
from simulator.request import Request
from simulator.routing import PRESETS, ROUTERS, Send, make_router, parse_routing
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.step_time import FORMULAS

pytestmark = pytest.mark.benchmark

NUM_INSTANCES = 256
NUM_IN_FLIGHT = 4 * NUM_INSTANCES
BLOCK_SIZE = 16
NUM_WARM, NUM_TIMED, NUM_ROUNDS = 3000, 200, 8
MORE: list[Any] = [
    {"policy": "longest_prefix", "index": "events"},
    {"policy": "dynamo", "use_kv_events": False},
    {"policy": "dynamo", "router_predicted_ttl_secs": 5},
    {"policy": "dynamo", "overlap_score_credit_decay": 0.5},
    {"policy": "dynamo", "temperature": 0.5},
    {"policy": "lmetric", "load": "blocks"},
]
TIMES = FORMULAS["linear"](
    {"step_s": 1e-3, "prefill_token_s": 1e-4, "prefill_pair_s": 0.0, "decode_token_s": 1e-3, "decode_context_s": 1e-6}
)


def entries() -> list[Any]:
    """Each policy, each preset that differs from one, and some with other parameters, if they look at prompts."""
    named = [*ROUTERS, *(name for name, preset in PRESETS.items() if preset.values), *MORE]
    found = []
    for entry in named:
        router = make_router(parse_routing(entry), NUM_INSTANCES, random.Random(0))
        looks = router.needs_block_keys or router.make_own_index(fleet(Prefixes(BLOCK_SIZE))) is not None
        if looks and not router.sees_truth:
            found.append(entry)
    return found


class Busy:
    """An engine with a queue of some length."""

    def __init__(self, number: int) -> None:
        self.metrics = number % 5, number % 7, number % 10 / 10

    def metrics_at(self, time_s: float) -> tuple[int, int, float]:
        return self.metrics


def fleet(prefixes: Prefixes) -> Fleet:
    return Fleet(NUM_INSTANCES, BLOCK_SIZE, 40_000, 8192, 256, TIMES, 100_000, prefixes)


def conversations(num_requests: int, num_blocks: int, prefixes: Prefixes) -> list[Request]:
    """Turns of 2,000 sessions: a text that all share, one of 20 documents, three earlier turns, a question."""
    rng, requests = random.Random(1), []
    tokens = num_blocks * BLOCK_SIZE
    for number in range(num_requests):
        session = rng.randrange(2000)
        document = 100 + session % 20
        turn = rng.randrange(3)
        history = [(1000 + 10 * session + earlier, 0, tokens // 8) for earlier in range(3)]
        question = (10**6 + number, 0, tokens // 8)
        prompt = ((1, 0, tokens // 4), (document, 0, tokens // 4), *history[: turn + 1], question)
        made = Request(
            request_id=number, arrival_s=0.0, prompt=prompt, num_prompt_tokens=sum(run[2] for run in prompt),
            max_tokens=100, oracle_num_output_tokens=100, session=session,
        )  # fmt: skip
        made.block_keys, made.prompt_end = prefixes.keys(made.prompt, 0)
        requests.append(made)
    return requests


def seconds_a_request(entry: Any, num_blocks: int) -> tuple[float, float]:
    """CPU seconds of routing, the least of some rounds, and the mean number of blocks of a prompt."""
    prefixes = Prefixes(BLOCK_SIZE)
    router = make_router(parse_routing(entry), NUM_INSTANCES, random.Random(0))
    view = router.make_view(fleet(prefixes))
    if router.poll_s is not None:
        view.polled = PolledMetrics([Busy(number) for number in range(NUM_INSTANCES)], router.poll_s)
    requests = conversations(NUM_WARM + NUM_ROUNDS * NUM_TIMED, num_blocks, prefixes)
    in_flight: deque[Request] = deque()
    rounds, spent = [], 0.0
    for number, request in enumerate(requests):
        now_s = number * 0.01
        over = in_flight.popleft() if len(in_flight) >= NUM_IN_FLIGHT else None
        started = in_flight[-NUM_INSTANCES] if len(in_flight) >= NUM_INSTANCES else None
        if router.poll_s is not None:
            view.polled.refresh(now_s)
        began_s = time.process_time()
        if over is not None:
            view.finished(over, now_s)
        if started is not None:
            view.first_token(started, now_s)
        decision = router.choose(request, view, now_s)
        assert isinstance(decision, Send)
        view.dispatched(request, decision.instance, now_s, prefill_s=decision.prefill_s)
        spent += time.process_time() - began_s
        in_flight.append(request)
        if router.index == "events":
            held = view.index.overlap(decision.instance, request.block_keys)
            view.kv_events(decision.instance, request.block_keys[held:])
        if number >= NUM_WARM and (number - NUM_WARM + 1) % NUM_TIMED == 0:
            rounds.append(spent / NUM_TIMED)
        if number < NUM_WARM or (number - NUM_WARM + 1) % NUM_TIMED == 0:
            spent = 0.0
    return min(rounds), sum(len(one.block_keys) for one in requests) / len(requests)


@pytest.mark.parametrize("entry", entries(), ids=str)
def test_cost_of_routing_a_request(entry: Any) -> None:
    short_s, few = seconds_a_request(entry, 16)
    long_s, many = seconds_a_request(entry, 256)
    block_s = (long_s - short_s) / (many - few)
    print(
        f"\n{parse_routing(entry).label}: {1e6 * (short_s - few * block_s):.0f} us a request + {1e6 * block_s:.2f} us "
        f"a block; of {few:.0f} blocks {1e6 * short_s:.0f} us = {short_s / (30e-6 + 1e-6 * few):.2f} of the limit, "
        f"of {many:.0f} blocks {1e6 * long_s:.0f} us = {long_s / (30e-6 + 1e-6 * many):.2f}"
    )
    assert block_s > 0 or short_s > 0
