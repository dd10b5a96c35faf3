"""What products ship, by name: a policy with the parameters of one release or one way of starting it.

A preset stands wherever a policy's name may, and its parameters can be changed like a policy's. Names follow the
products'; one that is a policy's own name (``random``, ``oracle``) needs no entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """``policy`` with ``values``, as ``source`` has it."""

    policy: str
    summary: str
    source: str
    values: Mapping[str, object] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "rr": Preset("round_robin", "each instance in turn", "vLLM production-stack roundrobin (a6c01db)"),
        "p2c": Preset(
            "power_of_two", "fewer in flight of two random instances", "vllm-router power_of_two (fa999f9)"
        ),
        "least-request": Preset("least_requests", "fewest requests in flight", "AIBrix least-request (e3e10f9)"),
        "session-hash": Preset(
            "session_hash", "each session to one instance", "vLLM production-stack session (a6c01db)"
        ),
        "dynamo-2026": Preset(
            "dynamo", "Dynamo's defaults of August 2026: the least cost wins", "NVIDIA Dynamo (config 0243c51)"
        ),
        "dynamo-2025": Preset(
            "dynamo",
            "Dynamo as documented in mid-2025: drawn by cost, at temperature 0.5",
            "NVIDIA Dynamo, documents of mid-2025",
            {"temperature": 0.5},
        ),
        "dynamo-agentic": Preset(
            "dynamo",
            "Dynamo as proposed for agents: credit 2, prefill counts 4, a request 64 blocks",
            "NVIDIA Dynamo, open PR #13447",
            {"overlap_score_credit": 2.0, "prefill_load_scale": 4.0, "decode_active_request_weight": 64.0},
        ),
        "vllm-dp": Preset("vllm_dp", "vLLM's data-parallel balancer of 0.32", "vLLM DPLBAsyncMPClient (0.32.0)"),
        "vllm-dp-0.23": Preset(
            "vllm_dp",
            "vLLM's data-parallel balancer before its start rotated: 4 * waiting + running",
            "vLLM DPLBAsyncMPClient (0.23.0)",
            {"dialect": "vllm-0.23"},
        ),
        "ascend-proxy": Preset(
            "ascend_proxy", "least estimated prefill work, whatever is cached", "vllm-ascend proxy (182b75e)"
        ),
        "sglang-cli": Preset(
            "cache_aware", "SGLang gateway as its command line has it", "SGLang gateway (053b63f), Python command line"
        ),
        "sglang-rust": Preset(
            "cache_aware",
            "SGLang gateway and vllm-router by the defaults in code",
            "SGLang gateway (053b63f), vllm-router (16917f4), Rust struct",
            {
                "cache_threshold": 0.5,
                "balance_abs_threshold": 32,
                "balance_rel_threshold": 1.1,
                "eviction_interval_secs": 30,
                "max_tree_size": 10_000,
            },
        ),
        "sglang-2024": Preset(
            "cache_aware",
            "SGLang's first cache-aware router: a miss goes to the smallest tree",
            "SGLang router, November 2024",
            {
                "cache_threshold": 0.5,
                "balance_abs_threshold": 32,
                "balance_rel_threshold": 1.0001,
                "eviction_interval_secs": 60,
                "max_tree_size": 2**24,
                "miss": "smallest_tree",
            },
        ),
        "aibrix-prefix": Preset("aibrix_prefix_cache", "AIBrix's prefix-cache", "AIBrix prefix-cache (e3e10f9)"),
        "gie-111": Preset(
            "weighted_scores",
            "llm-d's chart before GIE PR #1827: queue 1, KV usage 1, approximate prefix 1",
            "GIE chart before PR #1827",
            {"queue": 1, "kv_cache_utilization": 1, "prefix": 1},
        ),
        "gie-322": Preset(
            "weighted_scores",
            "llm-d's chart since GIE PR #1827: approximate prefix 3, queue 2, KV usage 2",
            "GIE chart since PR #1827 (84436a9)",
            {"queue": 2, "kv_cache_utilization": 2, "prefix": 3},
        ),
        "gie-111-precise": Preset(
            "weighted_scores",
            "weights 1, 1, 1 with prefixes from block events",
            "GIE chart before PR #1827, with llm-d's precise-prefix-cache-scorer",
            {"queue": 1, "kv_cache_utilization": 1, "prefix": 1, "precise": True},
        ),
        "gie-322-precise": Preset(
            "weighted_scores",
            "llm-d's guide to precise prefixes: 3, 2, 2 with block events",
            "llm-d precise-prefix-cache-scorer (520af47)",
            {"queue": 2, "kv_cache_utilization": 2, "prefix": 3, "precise": True},
        ),
        "llmd-affinity": Preset("llmd_affinity", "llm-d's default since mid-2026", "llm-d-router (ebab687)"),
        "prodstack-prefix": Preset(
            "prefixaware", "production-stack's prefixaware", "vLLM production-stack prefixaware (a6c01db)"
        ),
        "prodstack-kv": Preset("kvaware", "production-stack's kvaware", "vLLM production-stack kvaware (a6c01db)"),
        "kubeai-chwbl": Preset(
            "kubeai_prefix_hash", "KubeAI's consistent hashing with bounded loads", "KubeAI PrefixHash (f442a2c)"
        ),
    }
)
