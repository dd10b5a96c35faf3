"""A few lines of each trace format, as its own documentation has them, and what opening them takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "traces"
SHIPPED = Path(__file__).parents[1] / "scenarios" / "traces"
BENCH = Path(__file__).parent / "data" / "bench_formats" / "vllm_serve_detailed.json"


def lines(*rows: Any) -> bytes:
    """JSON lines; texts stay as they are."""
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()


def stored(time_s: float, parent: int | None, *hashes: int, **more: Any) -> dict[str, Any]:
    """A batch with one BlockStored of 16-token blocks."""
    event = {
        "type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": [],
        "block_size": 16, "lora_id": None, "medium": "GPU", **more,
    }  # fmt: skip
    return {"ts": time_s, "events": [event], "data_parallel_rank": 0}


SAMPLES: dict[str, bytes] = {
    "mooncake": lines(
        {"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]},
        {"timestamp": 30535, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 2366]},
        {"timestamp": 30535, "input_length": 512, "output_length": 1, "hash_ids": [46]},
    ),
    "mooncake_arxiv": lines(
        {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46]},
        {"timestamp": 1000.5, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 48]},
    ),
    "bailian": lines(
        {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132,
         "type": "text", "turn": 1, "hash_ids": [1089, 1090, 6326]},
        {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 65, "output_length": 80,
         "type": "text", "turn": 2, "hash_ids": [1089, 1090, 7, 8, 9]},
        {"chat_id": 161, "parent_chat_id": 159, "timestamp": 63.0, "input_length": 33, "output_length": 8,
         "type": "search", "turn": 2, "hash_ids": [1089, 1090, 11]},
    ),
    "weka": lines(
        {"session": "trace_1", "i": 0, "t": 0.0, "input_length": 200, "output_length": 20, "api_time": 5.0,
         "think_time": 0.0, "hash_runs": [[1, 3]]},
        {"session": "trace_1", "agent": "agent_001", "i": 1, "t": 9.0, "input_length": 130, "output_length": 9,
         "api_time": 2.0, "think_time": 0.0, "hash_runs": [[1, 1], [9, 1]]},
        {"session": "trace_1", "i": 2, "t": 16.0, "input_length": 300, "output_length": 30, "think_time": 11.0,
         "hash_runs": [[1, 3], [7, 1]]},
        {"session": "trace_2", "i": 0, "t": 0.0, "input_length": 200, "output_length": 0, "hash_runs": [[1, 3]]},
    ),
    "aiperf": lines(
        {"session_id": "a", "input_length": 1536, "output_length": 320, "hash_ids": [0, 1, 2], "timestamp": 0.0,
         "group_id": 4},
        {"session_id": "a", "input_length": 768, "output_length": 180, "hash_ids": [1000, 1001], "delay": 2450.0},
        {"session_id": "b", "input_length": 600, "output_length": 5, "hash_ids": [0, 1], "timestamp": 1000},
    ),
    "azure": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
        b"2023-11-16 18:17:04.0319600,3180,8\r\n"
    ),
    "burstgpt": (
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
        b"19440161.5,d5983bf9,2,ChatGPT,36,29,65,Conversation log\n"
    ),
    "servegen": (DATA / "servegen_rates.csv").read_bytes(),
    "vllm_bench": BENCH.read_bytes(),
    "openai": lines(
        {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 20, "created": 1700000000},
        {"custom_id": "2", "method": "POST", "url": "/v1/completions", "created": 1700000003.5,
         "body": {"prompt": "user\nWhy is the sky red?", "max_tokens": 7, "user": "acme"}},
        {"text_input": "user\nWhy", "output_length": 4, "timestamp": 1700000004000},
    ),
    "kv_events": lines(
        stored(100.0, None, 1, 2, 3), stored(100.5, 3, 4), stored(100.9, 2, 5, 6), stored(101.0, 4, 7),
        stored(130.0, 7, 8, 9), [131.0, [["BlockRemoved", [5], "GPU"], ["AllBlocksCleared"]]],
    ),
    "kvcast": lines(
        {"kvcast_trace": 1, "block_tokens": 16, "source": "made up", "sessions_start_together": False},
        {"t": 0.0, "in": 40, "out": 3, "runs": [[0, 0, 32], [None, 0, 8]], "session": "a", "out_segment": 5},
        {"t": 0.5, "in": 7, "out": 1, "tenant": "acme"},
        {"t": 9.0, "in": 80, "out": 2, "runs": [[0, 0, 80]], "session": "a", "after": 2.5, "parent": 0},
    ),
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {"servegen": {"lengths": DATA / "servegen_lengths.jsonl.gz", "seed": 3}}
