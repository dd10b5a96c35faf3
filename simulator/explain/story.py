"""What one request waited for, in a paragraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from simulator.comparison import listed
from simulator.counts import counted
from simulator.explain.parts import NAMES, OWN, PARTS, PREEMPTED, REASONS, SHARED, STEP
from simulator.explain.words import duration

if TYPE_CHECKING:
    from simulator.explain.explanation import Explanation

_WORTH_SAYING = 0.02  # of the time to first token
_MAX_NAMED = 2  # requests in front that are named
_WHY = {
    "queue_step_s": "until a step in progress had ended",
    "queue_seats_s": "for one of the {seats} places (max_num_seqs)",
    "queue_blocks_s": "for free blocks",
    "queue_budget_s": "because steps had their {budget} tokens without it",
    "queue_adapter_s": "for a place for its adapter",
}


class Story:
    """Tells of requests of one explained run."""

    def __init__(self, explained: Explanation) -> None:
        self._explained = explained
        self._rows = explained.requests.set_index("request_id")
        config = explained.scenario.engine_config
        self._limits = {"seats": f"{config.max_num_active_seqs:,}", "budget": f"{config.max_num_batched_tokens:,}"}

    def of(self, row: Any) -> str:
        """The story of a row of ``Explanation.requests`` that got a first token."""
        return " ".join([self._beginning(row), *self._on_the_way(row), *self._in_the_queue(row), *self._computed(row)])

    def in_front(self, row: Any) -> list[dict[str, Any]]:
        """Whose prompts its instance computed while it queued or ran without a first token, the longest first:
        ``request_id``, ``tenant``, ``num_prompt_tokens``, and ``seconds`` of those steps, shared out by tokens.
        """
        return self._others(row, self._chunks(row, row.queued_s, row.first_token_s))

    def _beginning(self, row: Any) -> str:
        num_cached = int(row.num_cached_tokens)
        whose = f" of {row.tenant}" if len(self._explained.tenants) > 1 else ""
        return (
            f"Request {row.request_id}{whose} ({counted(int(row.num_prompt_tokens), 'prompt token')}, {num_cached:,} "
            f"cached) came at {row.arrival_s:,.2f} s and had its first token {duration(row.ttft_s)} later, from "
            f"instance {row.instance}."
        )

    def _on_the_way(self, row: Any) -> Iterator[str]:
        router, overhead, copy = (getattr(row, name) for name in NAMES[:3])
        if self._matters(row, router):
            yield f"The router held it for {duration(router)}."
        if self._matters(row, overhead):
            yield f"Hashing and transport took {duration(overhead)}."
        if self._matters(row, copy):
            yield f"It waited {duration(copy)} for blocks from another instance."

    def _in_the_queue(self, row: Any) -> Iterator[str]:
        total_s = row.first_scheduled_s - row.queued_s
        if not self._matters(row, total_s):
            return
        waits = {PARTS[part].name: getattr(row, PARTS[part].name) for part in (STEP, *REASONS)}
        longest = sorted((name for name in waits if self._matters(row, waits[name])), key=lambda name: -waits[name])
        reasons = [_WHY[name].format(**self._limits) for name in longest]
        num_ahead = self._num_ahead(row)
        behind = f", with {counted(num_ahead, 'request')} ahead of it" if num_ahead else ""
        if len(reasons) == 1:
            yield f"It queued {duration(total_s)} {reasons[0]}{behind}."
        else:
            each = [f"{duration(waits[name])} {why}" for name, why in zip(longest, reasons, strict=True)]
            yield f"It queued {duration(total_s)}{behind}: {listed(each)}."
        prompts = self._prompts(row, self._others(row, self._chunks(row, row.queued_s, row.first_scheduled_s)))
        if prompts:
            yield f"Meanwhile the engine computed {prompts}."

    def _computed(self, row: Any) -> Iterator[str]:
        own_s, shared_s = getattr(row, PARTS[OWN].name), getattr(row, PARTS[SHARED].name)
        chunks = self._chunks(row, row.first_scheduled_s, row.first_token_s)
        mine = chunks[chunks["request_id"] == row.request_id]
        together = chunks["start_s"].isin(mine["start_s"])
        beside = ""
        if self._matters(row, shared_s):
            prompts = self._prompts(row, self._others(row, chunks[together]))
            num_decodes = int(mine["num_decodes"].max())
            found = [f"up to {counted(num_decodes, 'decode')}"] if num_decodes else []
            beside = f"; {listed([*found, *([prompts] if prompts else [])])} beside it add {duration(shared_s)}"
        yield f"Its own prefill, in {counted(len(mine), 'step')}, takes {duration(own_s)} alone{beside}."
        if self._matters(row, row.others_s):
            prompts = self._prompts(row, self._others(row, chunks[~together]))
            instead = f", but {prompts}" if prompts else ""
            yield f"For {duration(row.others_s)} the step in progress computed no token of it{instead}."
        if row.num_preemptions_before:
            number, lost_s = int(row.num_preemptions_before), getattr(row, PARTS[PREEMPTED].name)
            often = {1: "once", 2: "twice"}.get(number, f"{number} times")
            yield f"It was preempted {often} for lack of blocks, which cost {duration(lost_s)}."
        if self._matters(row, row.saved_s):
            yield f"What it found cached saved {duration(row.saved_s)} of its prefill."

    def _matters(self, row: Any, seconds: float) -> bool:
        return bool(seconds > _WORTH_SAYING * row.ttft_s)

    def _num_ahead(self, row: Any) -> int:
        """Requests that its instance had received before and not yet scheduled for the first time."""
        rows = self._rows
        there = (rows["instance"] == row.instance) & (rows["queued_s"] <= row.queued_s)
        there &= ~(rows["first_scheduled_s"].fillna(rows["finish_s"]) <= row.queued_s)
        there &= (rows["queued_s"] < row.queued_s) | (rows.index < row.request_id)
        return int(there.sum())

    def _chunks(self, row: Any, since_s: float, until_s: float) -> pd.DataFrame:
        return self._explained.chunks[int(row.instance)].between(since_s, until_s)

    def _others(self, row: Any, chunks: pd.DataFrame) -> list[dict[str, Any]]:
        """Whose chunks these are, but for its own."""
        seconds = chunks[chunks["request_id"] != row.request_id].groupby("request_id")["its_s"].sum()
        found = seconds.sort_values(ascending=False, kind="stable")
        return [
            {
                "request_id": int(number),
                "tenant": str(self._rows["tenant"][number]),
                "num_prompt_tokens": int(self._rows["num_prompt_tokens"][number]),
                "seconds": float(its_s),
            }
            for number, its_s in found.items()
        ]

    def _prompts(self, row: Any, others: list[dict[str, Any]]) -> str:
        """The prompts worth saying, or nothing."""
        others = [other for other in others if self._matters(row, other["seconds"])]
        if not others:
            return ""
        named = [
            f"request {other['request_id']}{self._whose(other)} ({counted(other['num_prompt_tokens'], 'token')}, "
            f"{duration(other['seconds'])})"
            for other in others[:_MAX_NAMED]
        ]
        rest = others[_MAX_NAMED:]
        if rest:
            named.append(f"{len(rest):,} more ({duration(sum(other['seconds'] for other in rest))})")
        return f"the prompt{'' if len(others) == 1 else 's'} of {listed(named)}"

    def _whose(self, other: dict[str, Any]) -> str:
        return f" of {other['tenant']}" if len(self._explained.tenants) > 1 else ""
