"""What is kept of a run: latencies of its requests in order of arrival, and what its instances were busy with.

A request that never got so far (it was refused, or its client hung up) is later than any target: its latency is
infinite. One that has no such latency, an answer of one token without a pace, is left out (NaN).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from simulator import experiment
from simulator.result import RunResult
from simulator.scenario import Scenario
from simulator.scenario.plan_spec import LATENCIES, Target
from simulator.steady import Waits


@dataclass
class Outcome:
    """One setting in one replication, without its cool-down. ``latencies_s``: by name, a number a request in order of
    arrival; ``within``: whether it finished within its tenant's own targets; ``tenant``: who sent it, along
    ``tenants``. In ``waits`` a steady state is looked for. ``last_begun_s``: see ``RunResult``. ``facts`` are of the
    whole run.
    """

    tenants: tuple[str, ...]
    tenant: np.ndarray
    latencies_s: dict[str, np.ndarray]
    within: np.ndarray
    waits: Waits
    last_begun_s: dict[str, float]
    facts: dict[str, float]
    refusals: dict[str, int]
    versions: dict[str, str]

    def value(self, target: Target, num_skipped: int = 0) -> float:
        """What the target is about, without the first ``num_skipped`` requests; NaN if no request has such a value."""
        mine = self.tenant[num_skipped:] == self.tenants.index(target.tenant)
        if target.latency is None:
            kept = self.within[num_skipped:][mine]
            return float(kept.mean()) if len(kept) else math.nan
        values = self.latencies_s[target.latency][num_skipped:][mine]
        values = values[~np.isnan(values)]
        if not len(values):
            return math.nan
        return float(values.mean()) if target.percent is None else _percentile(values, target.percent)

    def num_requests(self, tenant: str) -> int:
        """How many the tenant sent."""
        return int((self.tenant == self.tenants.index(tenant)).sum())


class Task(NamedTuple):
    """One setting, of one policy, in one replication, with its profile as fitted or drawn within its errors."""

    scenario: Scenario
    replication: int
    draws_profile: bool = False


def simulate(task: Task) -> Outcome:
    """Run it."""
    scenario, replication, draws_profile = task
    result = experiment.run(
        scenario, router=scenario.routing[0], replication=replication, draws_profile=draws_profile
    )
    return reduced(result, scenario.engine_config.max_num_seqs, is_stationary=scenario.workload.is_stationary)


@cache
def _versions() -> dict[str, str]:
    """Those of this process, read once: they take as long as a small run."""
    return experiment.versions()


def reduced(result: RunResult, num_seats: int, *, is_stationary: bool) -> Outcome:
    """The outcome of a run whose instances have ``num_seats`` each; ``is_stationary`` is the workload's."""
    counted = result.before_cooldown() if is_stationary else result
    waits = counted.waits()
    rows = counted.requests.sort_values("arrival_s", kind="stable")
    finished = (rows["state"] == "finished").to_numpy()
    latencies_s = {}
    for name in LATENCIES:
        values = rows[f"{name}_s"].to_numpy(dtype=float, na_value=np.nan).copy()
        # Of what did not finish only the time that it took to get somewhere is known.
        late = np.isnan(values) & (~finished if name in ("tpot", "e2e") else True)
        values[late] = np.inf
        latencies_s[name] = values.astype(np.float32)
    last_begun_s = result.last_begun_s()
    return Outcome(
        tenants=result.tenants,
        tenant=rows["tenant"].cat.codes.to_numpy(),
        latencies_s=latencies_s,
        within=_within(result, rows, finished),
        waits=waits._replace(values_s=waits.values_s.astype(np.float32)),
        last_begun_s=last_begun_s,
        facts=_facts(result, num_seats, max(last_begun_s.values(), default=0.0) if is_stationary else None)
        | {"num_cooldown": float(counted.num_cooldown), "num_late": float(counted.num_late)},
        refusals=result.refusals(),
        versions=_versions(),
    )


def _within(result: RunResult, rows: pd.DataFrame, finished: np.ndarray) -> np.ndarray:
    met = finished.copy()
    for number, limits_s in enumerate(result.targets_s):
        mine = rows["tenant"].cat.codes.to_numpy() == number
        for name, limit_s in limits_s.items():
            met &= ~(mine & (rows[f"{name}_s"] > limit_s).to_numpy())
    return met


def _facts(result: RunResult, num_seats: int, begun_s: float | None) -> dict[str, float]:
    """Rates of the time in which requests arrive, and how far each resource is used; NaN without such a time.

    At one rate that time ends where the last conversation begins, at ``begun_s``: all of the conversations' tokens over
    the time in which these begin is what a long run has in a second, while turns that come later meet a load that
    falls.
    """
    rows = result.requests
    finished = rows[rows["state"] == "finished"]
    last_s, first_s = float(rows["arrival_s"].max()), float(rows["arrival_s"].min())
    last_s = last_s if begun_s is None else max(begun_s, first_s)
    time_s = last_s - first_s or math.nan
    output, prompt = float(finished["num_output_tokens"].sum()), float(finished["num_prompt_tokens"].sum())
    found = {
        "num_requests": float(len(rows)), "arriving_s": time_s, "requests_per_s": len(rows) / time_s,
        "output_tokens_per_s": output / time_s, "total_tokens_per_s": (output + prompt) / time_s,
        "hit_rate": sum(result.prefix_hits) / (sum(result.prefix_queries) or math.nan),
        "queue_mean_s": float(rows["queue_s"].mean()), "ttft_mean_s": float(rows["ttft_s"].mean()),
        "num_preemptions": float(rows["num_preemptions"].sum()),
    } | _usage(result, num_seats, (first_s + last_s) / 2, last_s)  # fmt: skip
    return found | {f"busy_{name}_s": seconds for name, seconds in result.support_s().items()}


def _usage(result: RunResult, num_seats: int, from_s: float, until_s: float) -> dict[str, float]:
    """Shares of instances' time, seats and blocks in the second half of the arrivals, which neither the empty start nor
    the drain after the last one thins; and the requests that the fullest instance holds over the mean (1 is even).
    """
    line, width_s = result.timeline, float(result.timeline["width_s"].iloc[0])
    line = line[(line["start_s"] + width_s > from_s) & (line["start_s"] <= until_s)]
    time_s = float(line["width_s"].sum()) or math.nan  # nobody was served in it
    held = ((line["mean_running"] + line["mean_waiting"]) * line["width_s"]).groupby(line["instance"]).sum()
    return {
        "busy_share": float(line["busy_s"].sum()) / time_s,
        "held_max_over_mean": float(held.max() / held.mean()) if held.sum() else math.nan,
        "seats_share": float((line["mean_running"] * line["width_s"]).sum()) / time_s / num_seats,
        "kv_usage_mean": float((line["kv_usage"] * line["width_s"]).sum()) / time_s,
    }


def _percentile(values: np.ndarray, percent: float) -> float:
    """Linear between order statistics (Hyndman & Fan's definition 7), of values that may be infinite."""
    place = (len(values) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    found = np.partition(values, (low, high))
    below, above = float(found[low]), float(found[high])
    return below if low == high or below == above else below + (above - below) * (place - low)
