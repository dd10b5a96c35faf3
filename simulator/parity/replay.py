"""Play a case to the simulator's own scheduler and write the records that the engine harness writes."""

from __future__ import annotations

import itertools
from collections import deque
from math import inf
from typing import Any

from simulator.block_pool import CLEARED
from simulator.engine_args.config import EngineConfig, SpeculativeConfig
from simulator.plan import Plan
from simulator.prefix import Prefixes
from simulator.request import RUNNING, WAITING, Request
from simulator.scheduler import Scheduler

Record = dict[str, Any]
_FAMILIES = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


def engine_config(case: dict[str, Any]) -> EngineConfig:
    """The case's engine as the scheduler reads it."""
    engine = dict(case["engine"])
    speculative = engine.pop("speculative")
    engine["max_num_active_seqs"] = engine["max_num_active_seqs"] or engine["max_num_seqs"]
    return EngineConfig(
        dialect=f"vllm-{case['dialect']}",
        speculative=SpeculativeConfig(**speculative) if speculative else None,
        **engine,
    )


def make_request(row: dict[str, Any]) -> Request:
    """The case's request as the scheduler reads it."""
    acceptance = row["acceptance"]
    return Request(
        request_id=row["id"],
        arrival_s=row["arrival_time"],
        prompt=tuple(tuple(run) for run in row["prompt"]),
        num_prompt_tokens=sum(length for _, _, length in row["prompt"]),
        max_tokens=row["max_tokens"],
        oracle_num_output_tokens=row["num_output_tokens"],
        output_segment=row["output_segment"],
        priority=row["priority"],
        cache_salt=row["salt"],
        lora=None if row["lora"] is None else str(row["lora"]),
        skip_reading_prefix_cache=row["skip_reading_prefix_cache"],
        acceptance=itertools.cycle(acceptance) if acceptance else itertools.repeat(0),
    )


class Replay:
    """One case, iteration by iteration, as the engine core's loop runs it (``parity`` states each rule)."""

    def __init__(self, case: dict[str, Any], *, grouping: bool = True) -> None:
        config = engine_config(case)
        self.scheduler = Scheduler(config, Prefixes(config.block_size), grouping=grouping, announce_below=inf)
        self.requests = {row["id"]: make_request(row) for row in case["requests"]}
        self.rows = deque(case["requests"])
        self.actions = deque(case["actions"])
        self.launched: deque[tuple[int, Plan]] = deque()
        self.tells_finished = False  # vLLM schedules once more to tell the workers who finished
        self.labels: dict[int, int] = {}
        self.counted = dict.fromkeys(_FAMILIES, 0)
        self.preempted_by_reset: list[int] = []

    def run(self, limit: float = inf) -> list[Record]:
        """The records of the case, ``limit`` of them at most."""
        records: list[Record] = []
        index = 0
        while True:
            record = self._iterate(index)
            if record is not None:
                records.append(record)
                if len(records) >= limit:
                    return records
            if not self._has_requests() and not self.launched:
                steps = [queue[0]["step"] for queue in (self.rows, self.actions) if queue]
                if not steps:
                    return records
                index = max(min(steps), index + 1)
            else:
                index += 1

    def _iterate(self, index: int) -> Record | None:
        record: Record = {"index": index, "aborted": [], "resets": [], "schedule": None, "update": None}
        while self.rows and self.rows[0]["step"] <= index:
            self.scheduler.add(self.requests[self.rows.popleft()["id"]])
        self._act(index, record, during=False)
        scheduled = self._has_requests()
        if scheduled:
            plan = self.scheduler.schedule()
            self.tells_finished = False
            self.launched.append((index, plan))
            record["schedule"] = self._schedule_record(plan)
        self._act(index, record, during=True)
        if self.launched and not (scheduled and self._launches_another()):
            of, plan = self.launched.popleft()
            record["update"] = self._update_record(of, plan)
        return record if scheduled or record["update"] or record["aborted"] or record["resets"] else None

    def _launches_another(self) -> bool:
        scheduler = self.scheduler
        if scheduler.depth == 1 or len(self.launched) >= scheduler.depth:
            return False
        return bool(self.launched[-1][1].num_tokens) or self._has_requests()

    def _has_requests(self) -> bool:
        return self.scheduler.has_work() or self.tells_finished

    def _act(self, index: int, record: Record, during: bool) -> None:
        """Carry out what is due before the schedule or during execution."""
        due = [a for a in self.actions if a["step"] <= index and (a.get("when") == "during") == during]
        for action in due:
            self.actions.remove(action)
            if action["action"] == "abort":
                for name in action["ids"]:
                    request = self.requests.get(name)
                    if request is None or any(row["id"] == name for row in self.rows):
                        continue  # unknown, or not there yet
                    if request.state in (WAITING, RUNNING):
                        self.scheduler.abort(request)
                        self.tells_finished = True
                        record["aborted"].append([name, request.num_output_tokens])
            else:
                if action["reset_running"]:
                    self.preempted_by_reset += [r.request_id for r in reversed(self.scheduler.running)]
                record["resets"].append(self.scheduler.reset_prefix_cache(action["reset_running"]))

    def _queues(self) -> Record:
        scheduler = self.scheduler
        return {
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "skipped": [request.request_id for request in scheduler.skipped],
            "num_free": scheduler.pool.num_free,
        }

    def _schedule_record(self, plan: Plan) -> Record:
        rows = self.scheduler.scheduled(plan)
        preempted, self.preempted_by_reset = self.preempted_by_reset, []
        return {
            "scheduled": [[request.request_id, tokens, drafts] for request, tokens, drafts in rows],
            "computed": [self.scheduler.num_computed_tokens(request) for request, _, _ in rows],
            "admitted": [[r.request_id, hit, r.num_preemptions > 0] for r, hit in plan.admitted],
            "preempted": preempted + [request.request_id for request in plan.preempted],
            **self._queues(),
        }

    def _update_record(self, of: int, plan: Plan) -> Record:
        scheduler = self.scheduler
        rows = scheduler.in_flight(plan.index)
        before = [scheduler.num_delivered(request) for request in rows]
        finished = scheduler.complete()
        self.tells_finished |= bool(finished)
        after = [scheduler.num_delivered(request) for request in rows]
        delivered = [(r, new - old, old) for r, old, new in zip(rows, before, after, strict=True) if new > old]
        statistics = scheduler.statistics
        prefix = [statistics[name] - self.counted[name] for name in _FAMILIES]
        self.counted = dict(statistics)
        return {
            "of": of,
            "delivered": [[request.request_id, num_new] for request, num_new, _ in delivered],
            "first": [[request.request_id, request.num_cached_tokens] for request, _, old in delivered if old == 0],
            "finished": [
                [
                    r.request_id,
                    r.num_output_tokens,
                    "stop" if r.num_output_tokens == r.oracle_num_output_tokens < r.max_tokens else "length",
                ]
                for r in finished
            ],
            **self._queues(),
            "prefix": prefix,
            "events": self._events(),
            "free": [[block, self._label(scheduler.pool.key[block])] for block in scheduler.pool.free],
        }

    def _events(self) -> list[list]:
        batches, self.scheduler.event_batches = self.scheduler.event_batches, []
        rows: list[list] = []
        for event in itertools.chain.from_iterable(events for _, events in batches):
            if event is CLEARED:
                rows.append(["C"])
            elif event < 0:
                rows.append(["R", self._label(~event)])
            else:
                rows.append(["S", self._label(event)])
        return rows

    def _label(self, key: int | None) -> int | None:
        return None if key is None else self.labels.setdefault(key, len(self.labels))
