"""Requests, routers and a driver for the tests of routing."""

from __future__ import annotations

import random

from simulator.request import Request
from simulator.routing import ROUTERS, Router, Send, View, make_router, parse_routing
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics

BLOCK_SIZE = 64
VARIANTS = [
    *ROUTERS,
    {"policy": "longest_prefix", "index": "events"},
    {"policy": "dynamo", "use_kv_events": False},
    {"policy": "dynamo", "temperature": 0.7},
    {"policy": "dynamo", "overlap_score_credit_decay": 0.5, "decode_active_request_weight": 2},
]


class Idle:
    """An engine that has nothing to do and nothing cached."""

    def metrics_at(self, time_s: float) -> tuple[int, int, float]:
        return 0, 0, 0.0

    def cached_blocks(self, request: Request, instance: int) -> int:
        return 0

    def queued_tokens(self, instance: int) -> int:
        return 0


def request(number: int, keys: list[int], num_prompt_tokens: int | None = None, session: int | None = 0) -> Request:
    tokens = len(keys) * BLOCK_SIZE if num_prompt_tokens is None else num_prompt_tokens
    made = Request(
        request_id=number,
        arrival_s=0.0,
        prompt=((number, 0, tokens),),
        num_prompt_tokens=tokens,
        max_tokens=10,
        oracle_num_output_tokens=10,
        session=session,
    )
    made.block_keys = keys
    return made


def router_and_view(entry, num_instances: int, seed: int = 0) -> tuple[Router, View]:
    router = make_router(parse_routing(entry), num_instances, random.Random(seed))
    view = router.make_view(Fleet(num_instances, BLOCK_SIZE))
    if router.poll_s is not None:
        view.polled = PolledMetrics([Idle()] * num_instances, router.poll_s, router.poll_delay_s)
    if router.sees_truth:
        view.truth = Idle()
    return router, view


def send(router: Router, view: View, one: Request, now_s: float = 0.0) -> int:
    """Ask, and report the dispatch as the cluster does."""
    decision = router.choose(one, view, now_s)
    assert type(decision) is Send
    view.dispatched(one, decision.instance, now_s)
    return decision.instance


def drive(router: Router, view: View, requests: list[Request], most_in_flight: int = 20) -> list[int]:
    """Dispatch one request after another, one second apart; the oldest finishes when too many are in flight."""
    chosen = []
    for now_s, one in enumerate(requests):
        chosen.append(send(router, view, one, float(now_s)))
        if router.index == "events":
            held = view.index.overlap(chosen[-1], one.block_keys)
            view.kv_events(chosen[-1], one.block_keys[held:])
        if now_s >= most_in_flight:
            view.first_token(requests[now_s - most_in_flight], float(now_s))
            view.finished(requests[now_s - most_in_flight], float(now_s))
    return chosen


def conversations(kind=request, num_requests: int = 300) -> list[Request]:
    """Growing prompts of 12 sessions that share their first block."""
    rng, histories, requests = random.Random(1), {}, []
    for number in range(num_requests):
        session = rng.randrange(12)
        history = histories.setdefault(session, [0])
        history += [1 + number * 10 + i for i in range(rng.randrange(1, 6))]
        requests.append(kind(number, list(history), session=session))
    return requests
