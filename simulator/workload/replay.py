"""A tenant's requests from its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from simulator.errors import InputError
from simulator.request import Prompt, Request
from simulator.streams import python_stream
from simulator.workload import mooncake, trace
from simulator.workload.paced import Paced
from simulator.workload.patience import Patience
from simulator.workload.recorded import Recorded
from simulator.workload.records import Record
from simulator.workload.segments import first_segment
from simulator.workload.spec import TenantSpec, TraceSpec

Row = TypeVar("Row")
Accept = Callable[[int], Iterator[int]]


def replay(
    tenant: TenantSpec, index: int, seed: int, replication: int, base_dir: Path, texts: int | None = None
) -> Iterator[Request]:
    """Yield the trace's requests in order of arrival; where the file is in that order, it is read no further than the
    last one taken needs.

    ``texts`` is the number of the tenant whose texts it shares: its own, where it is None.

    Random: the spread of arrivals (a stream a replication), the window (one stream, see ``window_start_s``) and what
    ``Recorded`` draws. Numbering is left to who merges the tenants. Raises InputError for a bad line once it is
    reached, for a window longer than the trace, and for one without a request.
    """
    spec = tenant.trace
    assert spec is not None  # who calls has looked
    source: _Mooncake | Recorded
    describe: Callable[[Any], dict[str, Any]]
    base = first_segment(index)
    if _is_fast(spec):
        source, describe = _Mooncake(base_dir / spec.path), _of_mooncake(spec, base)
    else:
        source = Recorded(spec, tenant.name, seed, replication, base_dir)
        describe = _of_record(spec, base, base if texts is None else first_segment(texts))
    for arrival_s, record in _arrivals(spec, tenant.name, seed, replication, source):
        yield _request(tenant, index, arrival_s, describe(record))


def replay_paced(
    tenant: TenantSpec, index: int, seed: int, replication: int, base_dir: Path, accept: Accept | None = None,
    patience: Patience | None = None, texts: int | None = None,
) -> Paced:  # fmt: skip
    """The trace's requests, each after the end of the one that it waited for. Reads the whole file.

    ``accept(place)``: the accepted drafts of the request at that place among the tenant's. ``texts``: as for `replay`.
    """
    spec = tenant.trace
    assert spec is not None  # who calls has looked
    rows = Recorded(spec, tenant.name, seed, replication, base_dir).in_file_order()
    base = first_segment(index)
    describe = _of_record(spec, base, base if texts is None else first_segment(texts))

    def placed() -> Iterator[tuple[float, Record, Request]]:
        for place, (time_s, record) in enumerate(rows):
            request = _request(tenant, index, time_s, describe(record))
            request.acceptance = None if accept is None else accept(place)
            if patience is not None:
                patience.limit(request, place)
            yield time_s, record, request

    return Paced(placed(), tenant.limit)


def _request(tenant: TenantSpec, index: int, arrival_s: float, described: dict[str, Any]) -> Request:
    return Request(
        request_id=-1,
        arrival_s=arrival_s,
        tenant=index,
        priority=tenant.priority,
        cache_salt=tenant.salt_of(described["session"]),
        lora=tenant.lora,
        skip_reading_prefix_cache=tenant.skip_reading_prefix_cache,
        **described,
    )


def check(tenant: TenantSpec, base_dir: Path) -> None:
    """Raise InputError for a trace that cannot be read, does not fit its description, or begins with a bad line."""
    spec = tenant.trace
    assert spec is not None  # who calls has looked
    if _is_fast(spec):
        next(mooncake.read(base_dir / spec.path))
    else:
        next(Recorded(spec, tenant.name, 0, 0, base_dir).rows())


def skipped(tenant: TenantSpec, base_dir: Path) -> str | None:
    """The lines that the replay passes over, in words; None where there are none. Raises InputError as the replay."""
    spec = tenant.trace
    return None if spec is None or spec.strict else Recorded(spec, tenant.name, 0, 0, base_dir).skipped()


def _is_fast(spec: TraceSpec) -> bool:
    """Whether the format's own reader does: it allows no bad line."""
    return spec.format == "mooncake" and spec.strict


class _Mooncake:
    """A Mooncake trace as a source of rows; see ``Recorded``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def span_s(self) -> float:
        return mooncake.span_s(self.path)

    def rows(self, from_s: float = 0.0, until_s: float | None = None) -> Iterator[tuple[float, mooncake.Record]]:  # noqa: ARG002
        return mooncake.read(self.path)


def _of_mooncake(spec: TraceSpec, base: int) -> Callable[[mooncake.Record], dict[str, Any]]:
    def describe(record: mooncake.Record) -> dict[str, Any]:
        return {
            "prompt": mooncake.prompt(record, base),
            "num_prompt_tokens": record.input_length,
            "max_tokens": record.output_length,
            "oracle_num_output_tokens": record.output_length,
            "session": mooncake.second_block(record, base) if spec.session_from else None,
        }

    return describe


def _of_record(spec: TraceSpec, base: int, texts: int) -> Callable[[Record], dict[str, Any]]:
    """Sessions are counted from ``base``, segments of texts from ``texts``."""
    numbers: dict[int | str, int] = {}  # of sessions, in order of appearance

    def session(record: Record) -> int | None:
        if spec.session_from:
            return _second_block(record, base)
        return None if record.session is None else base + numbers.setdefault(record.session, len(numbers))

    def describe(record: Record) -> dict[str, Any]:
        return {
            "prompt": _prompt(record, texts),
            "num_prompt_tokens": record.num_prompt_tokens,
            "max_tokens": record.num_output_tokens,
            "oracle_num_output_tokens": record.num_output_tokens,
            "output_segment": None if record.output_segment is None else texts + record.output_segment,
            "session": session(record),
        }

    return describe


def _prompt(record: Record, base: int) -> Prompt:
    """The runs with the tenant's own segments. Of a prompt of which nothing is known no other has a token."""
    if record.prompt is None:
        return ((None, 0, record.num_prompt_tokens),)
    return tuple(
        (None if segment is None else base + segment, start, length) for segment, start, length in record.prompt
    )


def _second_block(record: Record, base: int) -> int | None:
    """The session of a request, told by its second block; where there is only one, by that."""
    named = [segment for segment, _, _ in record.prompt or () if segment is not None]
    return base + named[min(1, len(named) - 1)] if named else None


def _arrivals(
    spec: TraceSpec, name: str, seed: int, replication: int, source: _Mooncake | Recorded
) -> Iterator[tuple[float, Any]]:
    smooth_s = spec.smooth_s or 0.0
    if spec.window is None:
        rows = _smooth(source.rows(), spec, name, seed, replication)
    else:
        span_s = source.span_s() + smooth_s
        if spec.window > span_s:
            raise InputError(f"{source.path}: a window of {spec.window:g} s is longer than the trace ({span_s:g} s)")
        # Tenants of one file have one window: its draw is named after the file.
        rng = python_stream(seed, "workload", name if spec.tenant is None else spec.path, "window")
        start_s = trace.window_start_s(span_s, spec.window, replication, rng)
        # Smoothed before it is cut, so that the window's ends are as sharp as its middle.
        rows = source.rows(max(0.0, start_s - smooth_s), start_s + spec.window)
        rows = trace.window(_smooth(rows, spec, name, seed, replication), start_s, spec.window)
        if spec.tenant is None:  # one of a file's may well send nothing for a while
            rows = _not_empty(rows, source.path, start_s)
    return islice(trace.compress(rows, spec.rate_scale), spec.limit)


def _smooth(
    rows: Iterator[tuple[float, Any]], spec: TraceSpec, name: str, seed: int, replication: int
) -> Iterator[tuple[float, Any]]:
    if spec.smooth_s is None:
        return rows
    return trace.smooth(rows, spec.smooth_s, python_stream(seed, "workload", name, "smooth", replication))


def _not_empty(rows: Iterator[Row], path: Path, start_s: float) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: the window that starts at {start_s:g} s holds no request")
    yield first
    yield from rows
