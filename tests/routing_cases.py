"""Requests, routers and a driver for the tests of routing."""

from __future__ import annotations

import random
from typing import Any

from simulator.request import Prompt, Request
from simulator.routing import ROUTERS, Router, Send, View, make_router, parse_routing
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.step_time import FORMULAS

BLOCK_SIZE = 64
VARIANTS = [
    *ROUTERS,
    {"policy": "longest_prefix", "index": "events"},
    {"policy": "consistent_hash", "key": "prompt", "prefix_tokens": 100},
    {"policy": "prefixaware", "prefix_min_match_length": 1024},
    {"policy": "kvaware", "threshold": 100, "fallback": "session"},
    {"policy": "cache_aware", "max_tree_size": 20_000, "eviction_interval_secs": 7, "miss": "smallest_tree"},
    {"policy": "aibrix_prefix_cache", "block_number": 5_000, "eviction_duration": 30},
    {"policy": "aibrix_prefix_cache", "use_kv_events": True},
    "gie-111",
    "gie-322-precise",
    {"policy": "weighted_scores", "prefix": 2, "token_load": 1, "no_hit_lru": 1, "lru_capacity_per_server": 200},
    {"policy": "weighted_scores", "active_request": 1, "session_affinity": 1, "picker": "weighted_random"},
    {"policy": "weighted_scores", "running_requests": 1, "load_aware": 1, "poll": 2, "poll_delay": 1},
    {"policy": "llmd_affinity", "precise": True, "speculative_ttl": 2, "max_ttft_penalty": 0.05},
    {"policy": "llmd_affinity", "auto_tune": True, "exploration_probability": 0.1},
    {"policy": "least_tokens", "until": "first_token"},
    {"policy": "vllm_dp", "dialect": "vllm-0.23", "stats_interval": 3},
    {"policy": "ascend_proxy", "role": "decode"},
    {"policy": "lmetric", "load": "blocks"},
    {"policy": "conductor", "balancing_threshold": 1.2, "transfer_bandwidth": "1 GB/s"},
    {"policy": "preble", "window": "10 s", "rebalance_interval": "3 s", "tokens_per_instance": 20_000},
    {"policy": "trtllm_adp", "fair_share_multiplier": 1, "match_rate_threshold": 0.5},
    {"policy": "dynamo", "router_predicted_ttl_secs": 5, "overlap_score_credit": 1.5, "zero_floor": True},
    {"policy": "dynamo", "use_kv_events": False},
    {"policy": "dynamo", "temperature": 0.7},
    {"policy": "dynamo", "overlap_score_credit_decay": 0.5, "decode_active_request_weight": 2},
]


# 1 ms a step, 0.1 ms a prompt token: predictions that can be worked out by hand.
TIMES = FORMULAS["linear"](
    {"step_s": 1e-3, "prefill_token_s": 1e-4, "prefill_pair_s": 0.0, "decode_token_s": 1e-3, "decode_context_s": 1e-6}
)


def fleet(num_instances: int, **changes: Any) -> Fleet:
    """What operators say of instances with 10,000-token budgets and 1,000 bytes of KV a token."""
    values = {"max_num_batched_tokens": 10_000, "step_time": TIMES, "kv_bytes_per_token": 1000} | changes
    return Fleet(num_instances, BLOCK_SIZE, **values)


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
        prompt=prompt_of(keys, tokens),
        num_prompt_tokens=tokens,
        max_tokens=10,
        oracle_num_output_tokens=10,
        session=session,
    )
    made.block_keys = keys
    return made


def prompt_of(keys: list[int], num_tokens: int) -> Prompt:
    """A block of text for each key, and private tokens up to ``num_tokens``."""
    blocks = tuple((key, 0, BLOCK_SIZE) for key in keys)
    rest = num_tokens - len(keys) * BLOCK_SIZE
    return (*blocks, (None, 0, rest)) if rest > 0 else blocks


def router_and_view(entry, num_instances: int, seed: int = 0) -> tuple[Router, View]:
    router = make_router(parse_routing(entry), num_instances, random.Random(seed))
    view = router.make_view(fleet(num_instances))
    if router.poll_s is not None:
        view.polled = PolledMetrics([Idle()] * num_instances, router.poll_s, router.poll_delay_s)
    if router.sees_truth:
        view.truth = Idle()
    return router, view


def send(router: Router, view: View, one: Request, now_s: float = 0.0) -> int:
    """Ask, and report the dispatch as the cluster does."""
    decision = router.choose(one, view, now_s)
    assert type(decision) is Send
    num_copied = decision.copy.num_blocks if decision.copy is not None else 0
    view.dispatched(one, decision.instance, now_s, num_copied=num_copied, prefill_s=decision.prefill_s)
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
