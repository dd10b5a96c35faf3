"""Where the requests come from: a trace file, or the workload of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulator.counts import counted
from simulator.errors import InputError
from simulator.hit_curve.asked import Asked, Counting, Namespaces
from simulator.request import REFUSED, TOO_LONG
from simulator.scenario import Scenario
from simulator.trace_tools.words import skipped_in_words
from simulator.workload import open_workload
from simulator.workload.at_once import answered_at_once
from simulator.workload.readers import FileTrace
from simulator.workload.records import Record

TEXT_BLOCK = 16  # vLLM's default block on GPUs, for files whose texts are known token by token


@dataclass
class Source:
    """``read`` yields the requests in order of arrival, as often as asked; ``notes`` then say what was assumed, and
    ``tenants`` are the names that a request's tenant counts.
    """

    name: str
    counting: Counting
    read: Callable[[Source], Iterator[Asked]]
    tenants: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def asked(self) -> Iterator[Asked]:
        """From the first request on. What an earlier reading said is forgotten."""
        self.notes.clear()
        self.tenants.clear()
        return self.read(self)


def counting_of(trace: FileTrace, path: Path, block_size: int | None, *, as_file: bool) -> Counting:
    """How hits of a file are counted. Raises InputError where it tells nothing of them, or not what is asked."""
    if trace.block_tokens is None:
        raise InputError(
            f"{path}: a trace of lengths only ({trace.format}), which tells nothing of what prompts share, expected "
            "block ids or texts"
        )
    if trace.sessions_start_together:
        raise InputError(
            f"{path}: times within sessions only, so the order of requests is not known; expected a scenario whose "
            "trace says session_arrivals"
        )
    own = trace.block_tokens if trace.block_tokens > 1 else None
    if as_file:
        if own is None:
            raise InputError(f"{path}: --as-file: the file has texts, not blocks, expected a file of block ids")
        if block_size not in (None, own):
            raise InputError(f"--block-size: got {block_size}, expected {own} with --as-file, the file's own")
    return Counting(own if as_file and own else block_size or own or TEXT_BLOCK, as_file)


def of_trace(trace: FileTrace, path: Path, counting: Counting) -> Source:
    """The requests of a file that ``counting_of`` has passed, in order of arrival.

    A file of another order is read whole and sorted.
    """

    def read(source: Source) -> Iterator[Asked]:
        sessions: dict[object, int] = {}
        tenants: dict[str | None, int] = {}
        for record in _in_order(trace):
            prompt = record.prompt
            if prompt is None:  # nobody else has a token of it
                prompt = ((None, 0, record.num_prompt_tokens),)
            if record.tenant not in tenants:
                tenants[record.tenant] = len(tenants)
                source.tenants.append(record.tenant or "")
            yield counting.asked(
                prompt, record.num_prompt_tokens, record.num_output_tokens, record.output_segment,
                session=None if record.session is None else sessions.setdefault(record.session, len(sessions)),
                tenant=tenants[record.tenant],
                arrival_s=record.arrival_s,
            )  # fmt: skip
        source.notes += [f"assumed: {text}" for text in trace.assumed]
        source.notes += skipped_in_words(trace.num_skipped, trace.skipped())

    return Source(path.name, counting, read)


def of_scenario(scenario: Scenario, counting: Counting) -> Source:
    """The workload's first replication. What follows an answer comes as if answers took no time; requests that the
    engine would refuse are left out, and nothing follows them that waits for an answer.

    Raises InputError for closed loops of users, where nothing but answers says who comes next, and in the reading for
    requests that would all be refused.
    """
    for index, tenant in enumerate(scenario.workload.tenants):
        if tenant.conversations is not None and tenant.conversations.users is not None:
            raise InputError(
                f"workload.tenants[{index}].conversations.users: a closed loop, in which the time of answers decides "
                "who comes next; expected arrivals"
            )

    def read(source: Source) -> Iterator[Asked]:
        source.tenants += [tenant.name for tenant in scenario.workload.tenants]
        workload = open_workload(scenario.workload, scenario.seed, 0, scenario.base_dir)
        namespaces = Namespaces()
        num_requests = num_refused = 0
        for request in answered_at_once(workload, scenario.engine_config.max_model_len):
            num_requests += 1
            if request.state == REFUSED:
                num_refused += 1
                continue
            yield counting.asked(
                request.prompt, request.num_prompt_tokens, request.oracle_num_output_tokens, request.output_segment,
                namespaces.first_segment(request.cache_salt, request.lora),
                reads=not request.skip_reading_prefix_cache, session=request.session, tenant=request.tenant,
                priority=request.priority, arrival_s=request.arrival_s,
            )  # fmt: skip
        if num_refused:
            source.notes.append(_refused_in_words(scenario, num_refused, num_requests))
        if scenario.variants:
            source.notes.append("the scenario as it is, none of its variants")
        if scenario.replications > 1:
            source.notes.append(f"the first of {scenario.replications} replications")
        if not workload.open_loop:
            source.notes.append("what follows an answer comes as if answers took no time")

    return Source(scenario.name, counting, read)


def _in_order(trace: FileTrace) -> Iterator[Record]:
    records = (record for _, record in trace.records())
    return records if trace.in_order else iter(sorted(records, key=lambda record: record.arrival_s))


def _refused_in_words(scenario: Scenario, num_refused: int, num_requests: int) -> str:
    why = f"{TOO_LONG} ({scenario.engine_config.max_model_len:,})"
    if num_refused == num_requests:
        raise InputError(f"{scenario.name}: the engine would refuse every request: {why}")
    return f"left out: {num_refused:,} of {counted(num_requests, 'request')}, which the engine would refuse: {why}"
