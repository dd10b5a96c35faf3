"""The format `kvcast`: JSON lines that hold everything a `Record` does.

First ``{"kvcast_trace": 1, "block_tokens": ..., "source": ..., "sessions_start_together": ...}``, then a line a
request; a key is left out where there is nothing to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from simulator.trace_tools.stream import Stream
from simulator.workload.records import Record

_VERSION = 1


def own_lines(stream: Stream) -> Iterator[str]:
    """The lines of a file with all of the stream's records."""
    yield json.dumps({
        "kvcast_trace": _VERSION, "block_tokens": stream.block_tokens, "source": stream.source,
        "sessions_start_together": stream.sessions_start_together,
    })  # fmt: skip
    for record in stream.records():
        yield json.dumps(_fields(record), separators=(",", ":"), allow_nan=False)


def _fields(record: Record) -> dict[str, Any]:
    fields: Iterable[tuple[str, Any]] = (
        ("t", record.arrival_s), ("in", record.num_prompt_tokens), ("out", record.num_output_tokens),
        ("runs", record.prompt), ("session", record.session), ("after", record.after_s), ("tenant", record.tenant),
        ("out_segment", record.output_segment), ("parent", record.parent),
    )  # fmt: skip
    return {key: value for key, value in fields if value is not None}
