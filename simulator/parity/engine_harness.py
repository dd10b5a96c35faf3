"""Play cases to the real vLLM scheduler and print what it decided. Formats: see this package's ``__init__``.

Run by an interpreter that has vLLM (0.32 or 0.23); of this repository it needs this package alone, and no dependency::

    PYTHONPATH=REPOSITORY python -m simulator.parity.engine_harness --describe
    PYTHONPATH=REPOSITORY python -m simulator.parity.engine_harness [--digest | --time-only] [CASES.jsonl] > RECORDS

Nothing of vLLM is replaced but its model: the scheduler, the KV cache manager, the block hashes and the request objects
are vLLM's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from simulator.parity.vllm_engine import SEGMENT_BITS, Labels, Texts, Vllm, version

STALL = 1000  # schedules in a row that schedule nothing
COUNTERS = (
    "seconds", "num_records", "num_steps", "num_request_steps", "num_preemptions", "num_evictions", "num_resumed_hits",
    "num_scheduled_victims", "num_hit_tokens",
)  # fmt: skip
PREFIX_FIELDS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


class Case:
    """One case being played."""

    def __init__(self, vllm: Vllm, case: dict[str, Any], detailed: bool) -> None:
        self.vllm = vllm
        self.detailed = detailed
        self.engine = case["engine"]
        self.requests: deque[dict[str, Any]] = deque(sorted(case["requests"], key=lambda request: request["step"]))
        self.actions: list[dict[str, Any]] = list(case["actions"])
        self.scheduler = vllm.make_scheduler(self.engine, events=detailed)
        self.hasher = vllm.block_hasher(self.engine)
        self.texts = Texts()
        self.labels = Labels(vllm.cache_utils.get_block_hash)
        self.launched: deque[tuple[int, Any, dict[str, int]]] = deque()
        self.answers: dict[str, int] = {}
        self.acceptance: dict[str, Iterator[int]] = {}
        self.preempted: list[str] = []
        self.allocated: set[str] = set()
        self.events: list[list[Any]] = []
        self.summary: dict[str, Any] = dict.fromkeys(COUNTERS, 0) | {"assertion": False, "stalled": False}
        self._watch()

    def _watch(self) -> None:
        """Listen in on preemptions, successful allocations and published events, without changing any of them."""
        preempt, allocate = self.scheduler._preempt_request, self.scheduler.kv_cache_manager.allocate_slots

        def watched_preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(request.request_id)
            self.summary["num_preemptions"] += 1
            self.summary["num_scheduled_victims"] += request.request_id in self.allocated
            preempt(request, *args, **kwargs)

        def watched_allocate(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is not None:
                self.allocated.add(request.request_id)
            return blocks

        self.scheduler._preempt_request = watched_preempt
        if self.detailed:
            self.scheduler.kv_cache_manager.allocate_slots = watched_allocate
        self.scheduler.kv_event_publisher = SimpleNamespace(publish=self._publish, shutdown=lambda: None)

    def _publish(self, batch: Any) -> None:
        events = self.vllm.events
        for event in batch.events:
            if isinstance(event, events.BlockStored):
                self.events += [["S", self.labels.of_event(block_hash)] for block_hash in event.block_hashes]
            elif isinstance(event, events.BlockRemoved):
                self.events += [["R", self.labels.of_event(block_hash)] for block_hash in event.block_hashes]
                self.summary["num_evictions"] += len(event.block_hashes)
            else:
                self.events.append(["C"])

    def play(self) -> Iterator[dict[str, Any]]:
        """The records of the case, in order."""
        index: int | None = 0
        num_idle = 0
        while index is not None:
            record: dict[str, Any] = {"index": index, "aborted": [], "resets": [], "schedule": None, "update": None}
            place = "reset"
            try:
                self._before(index, record)
                place = "schedule"
                batch = self._schedule(index, record)
                self._during(index, record)
                place = "update"
                if self.launched and not self._fills_queue(batch):
                    self._update(record)
            except AssertionError as error:
                self.summary["assertion"] = True
                yield {"index": index, "assertion": place, "message": str(error)}
                return
            num_idle = num_idle + 1 if batch is not None and not batch.num_scheduled_tokens else 0
            if num_idle > STALL:
                self.summary["stalled"] = True
                yield {"index": index, "stalled": True}
                return
            if any(record[key] not in (None, []) for key in ("aborted", "resets", "schedule", "update")):
                yield record
            index = self._next_index(index)

    def _next_index(self, index: int) -> int | None:
        if self.launched or self.scheduler.has_requests():
            return index + 1
        steps = [action["step"] for action in self.actions]
        if self.requests:
            steps.append(self.requests[0]["step"])
        return max(index + 1, min(steps)) if steps else None

    def _before(self, index: int, record: dict[str, Any]) -> None:
        while self.requests and self.requests[0]["step"] <= index:
            self._add(self.requests.popleft())
        for action in [a for a in self.actions if a["step"] <= index and a.get("when") != "during"]:
            self.actions.remove(action)
            if action["action"] == "reset":
                record["resets"].append(bool(self.scheduler.reset_prefix_cache(action["reset_running"])))
            else:
                self._abort(action, record)

    def _during(self, index: int, record: dict[str, Any]) -> None:
        for action in [a for a in self.actions if a["step"] <= index and a.get("when") == "during"]:
            self.actions.remove(action)
            self._abort(action, record)

    def _add(self, request: dict[str, Any]) -> None:
        name = f"{request['id']:09d}"
        self.answers[name] = self.texts.segment(request["output_segment"])
        self.acceptance[name] = cycled(request["acceptance"])
        stop = []
        if request["num_output_tokens"] < request["max_tokens"]:
            stop = self.texts.tokens(self.answers[name], request["num_output_tokens"] - 1, 1)
        lora = request["lora"]
        self.scheduler.add_request(
            self.vllm.request.Request(
                request_id=name,
                prompt_token_ids=self.texts.prompt(request["prompt"]),
                sampling_params=self.vllm.sampling_params(
                    max_tokens=request["max_tokens"],
                    stop_token_ids=stop,
                    skip_reading_prefix_cache=request["skip_reading_prefix_cache"],
                ),
                pooling_params=None,
                arrival_time=request["arrival_time"],
                priority=request["priority"],
                cache_salt=request["salt"],
                lora_request=self.vllm.lora_request(f"lora{lora}", lora, f"/lora{lora}") if lora else None,
                block_hasher=self.hasher,
            )
        )

    def _abort(self, action: dict[str, Any], record: dict[str, Any]) -> None:
        for request_id in action["ids"]:
            request = self.scheduler.requests.get(f"{request_id:09d}")
            if request is not None:
                record["aborted"].append([request_id, request.num_output_tokens])
                self.scheduler.finish_requests(request.request_id, self.vllm.request.RequestStatus.FINISHED_ABORTED)

    def _schedule(self, index: int, record: dict[str, Any]) -> Any:
        scheduler = self.scheduler
        if not scheduler.has_requests():
            return None
        before = {request.request_id for request in scheduler.running}
        start = time.process_time()
        batch = scheduler.schedule()
        self.summary["seconds"] += time.process_time() - start
        self.summary["num_steps"] += 1
        self.summary["num_request_steps"] += len(batch.num_scheduled_tokens)
        admitted = [name for name in batch.num_scheduled_tokens if name not in before]
        self.launched.append((index, batch, self._launch(batch, admitted)))
        record["schedule"] = self._schedule_record(batch, admitted) if self.detailed else {}
        self.preempted = []
        self.allocated.clear()
        return batch

    def _launch(self, batch: Any, admitted: list[str]) -> dict[str, int]:
        """How many tokens each request of the batch will deliver."""
        numbers = {}
        for name in batch.num_scheduled_tokens:
            if self.scheduler.requests[name].is_prefill_chunk:
                numbers[name] = 0
                continue
            num_drafts = len(batch.scheduled_spec_decode_tokens.get(name, ()))
            real = num_drafts and name not in admitted
            numbers[name] = 1 + (min(next(self.acceptance[name]), num_drafts) if real else 0)
        return numbers

    def _schedule_record(self, batch: Any, admitted: list[str]) -> dict[str, Any]:
        requests = [self.scheduler.requests[name] for name in batch.num_scheduled_tokens]
        numbers, drafts = batch.num_scheduled_tokens, batch.scheduled_spec_decode_tokens
        admissions: list[list[Any]] = []
        for name in admitted:
            request = self.scheduler.requests[name]
            hit, resumed = request.num_computed_tokens - numbers[name], request.num_preemptions > 0
            admissions.append([int(name), hit, resumed])
            self.summary["num_hit_tokens"] += hit
            self.summary["num_resumed_hits"] += bool(resumed and hit)
        return {
            "scheduled": [[int(name), number, len(drafts.get(name, ()))] for name, number in numbers.items()],
            "computed": [request.num_computed_tokens for request in requests],
            "admitted": admissions,
            "preempted": [int(name) for name in self.preempted],
            **self._queues(),
        }

    def _queues(self) -> dict[str, Any]:
        scheduler = self.scheduler
        skipped = scheduler.skipped_waiting if hasattr(scheduler, "skipped_waiting") else scheduler.kv_holding_waiting
        return {
            "running": [int(request.request_id) for request in scheduler.running],
            "waiting": [int(request.request_id) for request in scheduler.waiting],
            "skipped": [int(request.request_id) for request in skipped],
            "num_free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }

    def _fills_queue(self, batch: Any) -> bool:
        if not self.engine["async_scheduling"] or batch is None or len(self.launched) >= 2:
            return False
        return batch.total_num_scheduled_tokens > 0 or bool(self.scheduler.has_requests())

    def _update(self, record: dict[str, Any]) -> None:
        index, batch, numbers = self.launched.popleft()
        names = list(batch.num_scheduled_tokens)
        output = self.vllm.outputs.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: position for position, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name, numbers[name]) for name in names],
        )
        self.events = []
        start = time.process_time()
        outputs = self.scheduler.update_from_output(batch, output)
        self.summary["seconds"] += time.process_time() - start
        record["update"] = self._update_record(index, outputs) if self.detailed else {}
        speculative = self.engine["speculative"]
        if speculative and names and not self.engine["async_scheduling"]:
            drafts = [[0] * speculative["num_speculative_tokens"] for _ in names]
            self.scheduler.update_draft_token_ids(self.vllm.outputs.DraftTokenIds(names, drafts))

    def _sampled(self, name: str, number: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        start = request.num_output_tokens if request is not None else 0
        return self.texts.tokens(self.answers[name], start, number)

    def _update_record(self, index: int, outputs: dict[int, Any]) -> dict[str, Any]:
        delivered, first, finished = [], [], []
        prefix = [0] * len(PREFIX_FIELDS)
        for part in outputs.values():
            for output in part.outputs:
                number = int(output.request_id)
                delivered.append([number, len(output.new_token_ids)])
                if output.prefill_stats is not None:
                    first.append([number, output.prefill_stats.num_cached_tokens])
                if output.finish_reason is not None:
                    finished.append([number, self._num_outputs(output), str(output.finish_reason)])
            if part.scheduler_stats is not None:
                stats = part.scheduler_stats.prefix_cache_stats
                prefix = [getattr(stats, field) for field in PREFIX_FIELDS]
        blocks = self.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        return {
            "of": index, "delivered": delivered, "first": first, "finished": finished, **self._queues(),
            "prefix": prefix, "events": self.events,
            "free": [[block.block_id, self.labels.of_block(block.block_hash)] for block in blocks],
        }

    @staticmethod
    def _num_outputs(output: Any) -> int:
        """The request is gone from the scheduler, but its last token tells its position."""
        position = output.new_token_ids[-1] & ((1 << SEGMENT_BITS) - 1)
        return int(position) + 1


def cycled(numbers: list[int] | None) -> Iterator[int]:
    """The numbers again and again; zeros if there are none."""
    while True:
        yield from numbers or [0]


def digest(record: dict[str, Any]) -> dict[str, Any]:
    """A record's index and the hash of its content."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return {"index": record["index"], "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}


def play(vllm: Vllm, case: dict[str, Any], mode: str) -> dict[str, Any]:
    """One output line: the case, its records and the summary."""
    if case["format"] != "kvcast-case-1":
        raise ValueError(f"unknown case format {case['format']!r}")
    playing = Case(vllm, case, detailed=mode != "time-only")
    records = []
    for record in playing.play():
        playing.summary["num_records"] += 1
        if mode == "digest":
            record = digest(record)
        if mode != "time-only":
            records.append(record)
    return {"case": case, "records": records, "summary": playing.summary}


def run(source: TextIO, sink: TextIO, mode: str) -> None:
    """Play every case of a JSON-lines file."""
    vllm = Vllm()
    for line in source:
        if line.strip():
            json.dump(play(vllm, json.loads(line), mode), sink, separators=(",", ":"))
            sink.write("\n")
            sink.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Play kvcast cases to the real vLLM scheduler.")
    parser.add_argument("cases", nargs="?", help="JSON-lines file of cases (default: standard input)")
    parser.add_argument("--describe", action="store_true", help="print the vLLM version and exit")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--digest", action="store_const", dest="mode", const="digest", help="hash each record")
    modes.add_argument("--time-only", action="store_const", dest="mode", const="time-only", help="summaries only")
    arguments = parser.parse_args()
    if arguments.describe:
        sys.stdout.write(json.dumps({"vllm": version()}) + "\n")
    elif arguments.cases:
        with Path(arguments.cases).open(encoding="utf-8") as source:
            run(source, sys.stdout, arguments.mode or "full")
    else:
        run(sys.stdin, sys.stdout, arguments.mode or "full")


if __name__ == "__main__":
    main()
