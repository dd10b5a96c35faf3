"""Small clusters and what they are asked, drawn by hypothesis: the space over which the laws are tested."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from cluster_cases import Case
from hypothesis import strategies as st

ROUTINGS: tuple[Any, ...] = (
    "round_robin",
    "random",
    "least_requests",
    "power_of_two",
    "session_hash",
    "longest_prefix",
    {"policy": "longest_prefix", "index": "events"},
    {"policy": "longest_prefix", "index": "events", "event_delay": 0.25},
    "dynamo",
    {"policy": "dynamo", "event_delay": 0.03},
    {"policy": "dynamo", "event_delay": 0.5},
    {"policy": "dynamo", "use_kv_events": False, "router_ttl_secs": 3},
    {"policy": "dynamo", "router_queue_threshold": 0.3, "router_queue_policy": "lcfs", "temperature": 0.5},
    {"policy": "dynamo", "router_queue_threshold": 0.1, "router_queue_policy": "wspt", "replicas": 2},
    {"policy": "dynamo-agentic", "router_predicted_ttl_secs": 1, "event_delay": 0.2, "overlap_score_credit_decay": 0.5},
    {"policy": "least_tokens", "replicas": 2},
    {"policy": "vllm-dp", "stats_interval": 0.3, "replicas": 2},
    {"policy": "vllm-dp-0.23", "stats_interval": 0.7},
    "ascend-proxy",
    {"policy": "lmetric", "load": "blocks", "event_delay": 0.1},
    "conductor",
    {"policy": "conductor", "transfer_bandwidth": 50, "ttft_slo": 0.5, "tbt_slo": 0.3, "event_delay": 0.05},
    {"policy": "preble", "window": 2, "rebalance_interval": 0.5, "tokens_per_instance": 60, "replicas": 2},
    {"policy": "trtllm_adp", "event_delay": 0.05},
    {"policy": "kubeai_prefix_hash", "prefix_char_length": 20, "replicas": 2},
    {"policy": "prefix_hash", "prefix_token_count": 5},
    "prodstack-prefix",
    {"policy": "prodstack-kv", "threshold": 10, "qps_window": 2},
    {"policy": "loadaware", "replicas": 2},
    {"policy": "cache_aware", "balance_abs_threshold": 1, "max_tree_size": 200, "eviction_interval_secs": 0.5},
    {"policy": "aibrix_prefix_cache", "block_number": 100, "eviction_duration": 2, "replicas": 2},
    {"policy": "aibrix_prefix_cache", "use_kv_events": True, "event_delay": 0.1},
    {"policy": "gie-322", "poll": 0.3, "poll_delay": 0.1, "block_size_tokens": 4, "lru_capacity_per_server": 20},
    {"policy": "gie-322-precise", "event_delay": 0.05, "speculative_ttl": 1, "replicas": 2},
    {
        "policy": "weighted_scores", "queue": 1, "running_requests": 1, "load_aware": 1, "poll": 0.5,
        "shed_from_priority": 2,
    },
    {"policy": "weighted_scores", "active_request": 1, "token_load": 1, "no_hit_lru": 1, "session_affinity": 1},
    {"policy": "llmd_affinity", "peak_prefill_throughput": 50, "max_ttft_penalty": 0.2},
    {"policy": "llmd_affinity", "precise": True, "event_delay": 0.05, "replicas": 2},
    "oracle",
    "moody",
    "nosy",
)


TENANTS = ("first", "second", "third")
EVICTIONS: tuple[Any, ...] = (
    "lru",
    "fifo",
    "lfu",
    {"policy": "lfu", "counts": "kept"},
    "slru",
    "s3fifo",
    "length_aware",
    "workload_aware",
    {"policy": "ttl", "ttl": 2},
    {"policy": "quota", "limit": {"first": 0.2}, "reserve": {"second": 0.3}},
)


@st.composite
def engines(draw: st.DrawFn, pressed: bool = False) -> dict[str, Any]:
    """Engine arguments that vLLM would start with, from a pool that holds one request of full length to a roomy one.

    ``pressed``: only small pools, and places for many requests.
    """
    size = draw(st.sampled_from([2, 3, 4, 8, 16, 32]))
    max_model_len = draw(st.sampled_from([24, 60, 150]))
    num_seqs = draw(st.integers(4 if pressed else 1, 8))
    chunked = draw(st.booleans() | st.just(True))
    least = num_seqs if chunked else max(num_seqs, max_model_len)
    dialect = draw(st.sampled_from(["vllm-0.23", "vllm-0.32"]))
    new = dialect == "vllm-0.32"
    needed = -(-max_model_len // size)
    threshold = draw(st.sampled_from([0, 0, 5]))
    small = st.integers(0, 3) | st.integers(0, needed)
    return {
        "dialect": dialect,
        "block_size": size,
        "max_model_len": max_model_len,
        "num_gpu_blocks": 1 + needed + draw(small if pressed else small | st.just(8 * needed)),
        "max_num_batched_tokens": least + draw(st.integers(0, 8) | st.integers(0, 2 * max_model_len)),
        "max_num_seqs": num_seqs,
        "max_num_active_seqs": draw(st.integers(1, num_seqs)) if new and draw(st.booleans()) else num_seqs,
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "long_prefill_token_threshold_adaptive": bool(threshold) and new and draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])) if new else 0.0,
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
    }


# Step times: with dyadic numbers sums are exact, so that arrivals tie with the ends of steps; 0.1 ties only at times.
TIMES: tuple[tuple[str, dict[str, float]], ...] = (
    ("linear", {"step_s": 0.25}),
    ("linear", {"step_s": 0.1}),
    ("linear", {"step_s": 0.25, "prefill_token_s": 2**-6}),
    ("linear", {"step_s": 0.125, "prefill_token_s": 2**-6, "decode_context_s": 2**-10}),
    ("linear", {
        "step_s": 0.008, "prefill_token_s": 5e-5, "prefill_pair_s": 1e-7, "decode_token_s": 3e-4,
        "decode_context_s": 1e-5,
    }),
    ("host_device", {
        "host_prefill_s": 0.037, "host_decode_s": 0.033, "prefill_token_s": 7e-4, "prefill_pair_s": 1e-5,
        "device_step_s": 0.001, "decode_token_s": 7e-4, "decode_context_s": 1e-4,
    }),
    ("host_device", {"host_prefill_s": 0.25, "host_decode_s": 0.25}),
)  # fmt: skip


@st.composite
def workloads(
    draw: st.DrawFn, max_model_len: int, size: int, step_s: float, most: int = 14
) -> tuple[dict[str, Any], ...]:
    """Requests in order of arrival: bursts, arrivals at ends of steps, shared beginnings, follow-ups, early stops."""
    tied = st.sampled_from([0.0, 0.0, step_s, 2 * step_s, 7 * step_s])
    gaps = tied | st.floats(0, 6 * step_s) | st.floats(0, 60 * step_s)
    times = list(accumulate(draw(st.lists(gaps, min_size=1, max_size=most))))
    found: list[dict[str, Any]] = []
    ranks: set[tuple[int, float]] = set()
    for number, arrival_s in enumerate(times):
        # Two running requests of equal rank may preempt each other for ever under the priority policy: vLLM's victim is
        # the first of equals in the running list, hence the one that has got further. Its arrival times never tie.
        priority = draw(st.integers(0, 2))
        while (priority, arrival_s) in ranks:
            priority += 1
        ranks.add((priority, arrival_s))
        prompt = draw(_prompts(number, found, max_model_len, size))
        num_prompt_tokens = sum(length for _, _, length in prompt)
        room = max_model_len - num_prompt_tokens
        max_tokens = draw(st.integers(1, room) | st.integers(1, min(room, 12)) | st.just(room))
        if draw(st.integers(0, 19)) == 19:
            max_tokens = room + 1  # one too many: refused
        found.append({
            "request_id": number,
            "arrival_s": arrival_s,
            "prompt": prompt,
            "num_prompt_tokens": num_prompt_tokens,
            "max_tokens": max_tokens,
            "oracle_num_output_tokens": draw(st.just(max_tokens) | st.integers(1, max_tokens + 1)),
            "output_segment": draw(st.sampled_from([1000 + number, None])),
            "session": draw(st.integers(0, 3)),
            "priority": priority,
            "cache_salt": draw(st.sampled_from([None, None, None, "salt"])),
            "skip_reading_prefix_cache": draw(st.integers(0, 9)) == 9,
            "tenant": draw(st.integers(0, len(TENANTS) - 1)),
        })  # fmt: skip
    return tuple(found)


@st.composite
def _prompts(draw: st.DrawFn, number: int, earlier: list[dict[str, Any]], max_model_len: int, size: int) -> tuple:
    kind = draw(st.sampled_from(["own", "shared", "shared", "follow-up", "again", "whole blocks"]))
    own = (draw(st.sampled_from([None, 100 + number])), 0, draw(st.integers(1, max(1, max_model_len // 4))))
    if kind == "shared":
        length = draw(st.integers(1, max_model_len // 2))
        return ((draw(st.integers(0, 1)), 0, length), own)
    if kind == "whole blocks" and size < max_model_len:
        return ((2, 0, draw(st.integers(1, min(3, (max_model_len - 1) // size))) * size),)
    if kind == "again" and earlier:
        return draw(st.sampled_from(earlier))["prompt"]
    if kind == "follow-up" and earlier:
        first = draw(st.sampled_from(earlier))
        answer = (first["output_segment"], 0, first["oracle_num_output_tokens"])
        grown = (*first["prompt"], answer, own)
        if sum(length for _, _, length in grown) < max_model_len:
            return grown
    return (own,)


@st.composite
def cases(draw: st.DrawFn, most: int = 14, pressed: bool = False) -> Case:
    """Engines, times, routers, workloads; ``pressed``: memory is scarce, and one instance has it all to serve."""
    engine = draw(engines(pressed))
    formula, coefficients = draw(st.sampled_from(TIMES))
    routing = draw(st.sampled_from(ROUTINGS))
    step_s = max(coefficients.get("step_s", 0.0), coefficients.get("host_decode_s", 0.0))
    return Case(
        engine=engine,
        formula=formula,
        coefficients=coefficients,
        overhead=draw(st.sampled_from([(0.0, 0.0), (0.0, 0.0), (0.25, 0.0), (0.01, 1e-4)])),
        routing=routing,
        watch=routing in ("round_robin", "random", "least_requests", "session_hash") and draw(st.booleans()),
        num_instances=1 if pressed else draw(st.integers(1, 3)),
        requests=draw(workloads(engine["max_model_len"], engine["block_size"], step_s, most)),
        eviction=draw(st.just("vllm") | st.sampled_from(EVICTIONS)),
        tenants=TENANTS,
    )
