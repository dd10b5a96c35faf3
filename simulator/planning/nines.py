"""What one more nine costs: the same limits for a tenth of the requests that may be beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.planning.judging import Judgement
from simulator.planning.outcome import Outcome
from simulator.scenario.plan_spec import Target


@dataclass(frozen=True)
class Nines:
    """The stricter targets, and the cheapest setting of the answer's family that is shown to meet them; None if none
    is. ``without``: why nothing was looked at.
    """

    targets: tuple[Target, ...] = ()
    judgement: Judgement | None = None
    without: str | None = None


def one_more(targets: Sequence[Target]) -> tuple[Target, ...]:
    """The targets with another nine: a share of 99 % becomes 99.9 %, a 90th percentile the 99th. A mean stays."""
    return tuple(_stricter(one) for one in targets)


def _stricter(one: Target) -> Target:
    if one.latency is None:
        return one._replace(limit=round(1 - (1 - one.limit) / 10, 9))
    if one.percent is None:
        return one
    percent = round(100 - (100 - one.percent) / 10, 6)
    return one._replace(name=f"{one.latency}_p{percent:g}", percent=percent)


def too_few(targets: Sequence[Target], outcomes: Sequence[Outcome]) -> str | None:
    """Why runs of so many requests say nothing of these targets: less than one request of a run is beyond them."""
    for one in targets:
        number = min(outcome.num_requests(one.tenant) for outcome in outcomes)
        beyond = 1 - one.limit if one.latency is None else 1 - (one.percent or 50) / 100
        if number * beyond < 1:
            return f"{one.name} of {one.tenant} needs runs of {round(1 / beyond):,} requests of it, not of {number:,}"
    return None

