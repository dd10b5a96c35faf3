"""A tenant's requests from its trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from simulator.errors import InputError
from simulator.request import Request
from simulator.streams import python_stream
from simulator.workload import mooncake, trace
from simulator.workload.segments import first_segment
from simulator.workload.spec import TenantSpec, TraceSpec


def replay(tenant: TenantSpec, index: int, seed: int, replication: int, base_dir: Path) -> Iterator[Request]:
    """Yield the trace's requests in order of arrival; reads no further than the last one taken needs.

    Random: the spread of arrivals (a stream a replication) and the window (one stream, see ``window_start_s``).
    Numbering is left to who merges the tenants. Raises InputError for a bad line once it is reached, for a window
    longer than the trace, and for one without a request.
    """
    spec = tenant.trace
    assert spec is not None  # who calls has looked
    base = first_segment(index)
    for arrival_s, record in _arrivals(spec, tenant.name, seed, replication, base_dir / spec.path):
        yield Request(
            request_id=-1,
            arrival_s=arrival_s,
            prompt=mooncake.prompt(record, base),
            num_prompt_tokens=record.input_length,
            max_tokens=record.output_length,
            oracle_num_output_tokens=record.output_length,
            tenant=index,
            session=mooncake.second_block(record, base) if spec.session_from else None,
            priority=tenant.priority,
            cache_salt=tenant.cache_salt,
            lora=tenant.lora,
            skip_reading_prefix_cache=tenant.skip_reading_prefix_cache,
        )


def _arrivals(
    spec: TraceSpec, name: str, seed: int, replication: int, path: Path
) -> Iterable[tuple[float, mooncake.Record]]:
    rows: Iterable[tuple[float, mooncake.Record]] = mooncake.read(path)
    if spec.smooth_s is not None:
        # Before the window is cut, so that its ends are as sharp as its middle.
        rows = trace.smooth(rows, spec.smooth_s, python_stream(seed, "workload", name, "smooth", replication))
    if spec.window is not None:
        span_s = mooncake.span_s(path) + (spec.smooth_s or 0.0)
        if spec.window > span_s:
            raise InputError(f"{path}: a window of {spec.window:g} s is longer than the trace ({span_s:g} s)")
        rng = python_stream(seed, "workload", name, "window")
        start_s = trace.window_start_s(span_s, spec.window, replication, rng)
        rows = _not_empty(trace.window(rows, start_s, spec.window), path, start_s)
    return islice(trace.compress(rows, spec.rate_scale), spec.limit)


def _not_empty(
    rows: Iterator[tuple[float, mooncake.Record]], path: Path, start_s: float
) -> Iterator[tuple[float, mooncake.Record]]:
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: the window that starts at {start_s:g} s holds no request")
    yield first
    yield from rows
