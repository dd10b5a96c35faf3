"""What the runs of an experiment say together: estimates, differences that are shown, and one sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simulator.bootstrap import BlockBootstrap
from simulator.isolation import Isolation
from simulator.precision import Precision
from simulator.result import RunResult, Summary
from simulator.statistics import LEVEL, THIS_TRACE_ONLY, TOO_SHORT, Difference, Estimate, compare_all, t_interval
from simulator.steady import SteadyState, Waits, judge
from simulator.uncertainty import profile_share


class Shown(NamedTuple):
    """A headline metric: its key in ``RunResult.summary()``, and how people read it (value · scale, in unit)."""

    key: str
    label: str
    unit: str
    scale: float
    lower_is_better: bool


# The differences that are tested. Few on purpose: Holm's correction makes every further one dearer for all.
COMPARED = (
    Shown("ttft_p90_s", "p90 TTFT", "s", 1, True),
    Shown("tpot_p90_s", "p90 TPOT", "ms", 1000, True),
    Shown("e2e_p90_s", "p90 end-to-end latency", "s", 1, True),
    Shown("output_tokens_per_s", "output throughput", "tokens/s", 1, False),
    Shown("hit_rate", "hit rate", "%", 100, False),
)
RATIOS = tuple(shown.key for shown in COMPARED if shown.unit != "%")  # times and rates

GROWING = ("ttft_", "e2e_", "queue_")  # what an overload makes as long as the run


@dataclass(frozen=True)
class VariantProvenance:
    """Where the numbers of one variant come from: ``changes`` to the scenario by key path, the labels of its runs, and
    what else may differ between variants (see Provenance).
    """

    name: str
    labels: tuple[str, ...]
    changes: Mapping[str, Any]
    digest: str
    profile: Mapping[str, Any]
    workload: str
    same_requests: bool
    ignored_arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from, as plain data: enough to redo them and to judge them.

    ``profile`` holds ``name``, ``identity`` (one line: device, engine, model), ``held_out_error`` (a share, or None
    where none was measured), ``indicative`` (why it is only that, or None) and whatever else the profile says.
    ``workload`` says what replications redraw. ``ignored_arguments`` are engine arguments that were accepted since they
    change nothing here. ``variants`` has an entry for each, where the scenario compares variants; ``same_requests``
    says whether one serves what the scenario's own workload sends. ``base_dir`` is where paths in the scenario start,
    as it was named. ``is_stationary``: all tenants' requests are drawn and come at one rate, so that there is a steady
    state to estimate; ``warmup`` is the scenario's. ``draws_profile``: each replication has its own coefficients.
    ``isolation``: what the tenants' salts cost in the first replication, if they have any.
    """

    name: str
    question: str
    seed: int
    scenario: Mapping[str, Any]
    digest: str
    versions: Mapping[str, str]
    profile: Mapping[str, Any]
    workload: str
    ignored_arguments: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[VariantProvenance, ...] = ()
    base_dir: str = "."
    is_stationary: bool = False
    warmup: int | str = "auto"
    draws_profile: bool = False
    isolation: Isolation | None = None


@dataclass
class Comparison:
    """All runs of one scenario: every policy in every replication, in the scenario's order.

    What is compared is a labelled setting: a routing policy or, where the scenario has variants, one of those. Both are
    called policies here; ``noun`` is what people call them. ``as_fitted`` are the first one's runs with the profile as
    it was fitted, in the first replications, where these draw it, and ``mirrored`` those with errors to the other side.
    """

    provenance: Provenance
    results: list[RunResult]
    precision: Precision | None = None
    as_fitted: list[RunResult] = field(default_factory=list)
    mirrored: list[RunResult] = field(default_factory=list)

    @cached_property
    def policies(self) -> list[str]:
        """Policies in the scenario's order."""
        return list(dict.fromkeys(result.policy for result in self.results))

    @cached_property
    def names(self) -> dict[str, str]:
        """What people read for each policy: its name alone, or with its parameters where several share the name."""
        if self.provenance.variants:
            return {label: label for label in self.policies}
        short = [policy.partition("(")[0] for policy in self.policies]
        return {
            policy: name if name and short.count(name) == 1 else policy
            for policy, name in zip(self.policies, short, strict=True)
        }

    @property
    def noun(self) -> str:
        """What is compared, in a word."""
        return "variant" if self.provenance.variants else "policy"

    @property
    def num_replications(self) -> int:
        """Replications of each policy."""
        return len(self.results) // len(self.policies)

    @cached_property
    def steady_state(self) -> SteadyState:
        """From when on runs count, and which policies have no steady state or were not watched for long enough."""
        series: dict[str, list[Waits]] = {policy: [] for policy in self.policies}
        for result in self.at_full_load:
            series[result.policy].append(result.waits())
        return judge(series, self.provenance.warmup, is_stationary=self.provenance.is_stationary)

    @cached_property
    def at_full_load(self) -> list[RunResult]:
        """The results without their cool-down, where they are replications of a steady load."""
        return [self._at_full_load(result) for result in self.results]

    def _at_full_load(self, result: RunResult) -> RunResult:
        is_sampled = self.provenance.is_stationary and self.num_replications > 1
        return result.before_cooldown() if is_sampled else result

    @cached_property
    def counted(self) -> list[RunResult]:
        """The results without their warm-up and cool-down: what every figure is of."""
        return [result.after(self.steady_state.num_skipped) for result in self.at_full_load]

    @cached_property
    def summaries(self) -> dict[str, list[Summary]]:
        """Headline numbers by policy, one entry a replication. Waits that grow as long as requests come are None."""
        found: dict[str, list[Summary]] = {policy: [] for policy in self.policies}
        for result in self.counted:
            summary = result.summary()
            if result.policy in self.steady_state.unstable:
                summary |= {key: None for key in summary if key.startswith(GROWING)}
            found[result.policy].append(summary)
        return found

    def samples(self, policy: str, metric: str) -> list[float | None]:
        """One value of ``metric`` a replication (seconds, tokens per second, or shares)."""
        return [summary.get(metric) for summary in self.summaries[policy]]

    def estimate(self, policy: str, metric: str) -> Estimate | None:
        """Mean over replications with its interval; None if some replication has no such value.

        Of a trace that is replayed as it is the interval is a block bootstrap over time: this trace only.
        """
        values = [value for value in self.samples(policy, metric) if value is not None]
        if not values or len(values) < self.num_replications:
            return None
        estimate = t_interval(values)
        if estimate.half_width is None and not self.provenance.is_stationary:
            return self._bootstraps[policy].interval(metric, estimate.mean) or estimate
        if policy in self.steady_state.too_short:
            return replace(estimate, half_width=None, without=TOO_SHORT)
        return estimate

    @cached_property
    def _bootstraps(self) -> dict[str, BlockBootstrap]:
        """Of the first replication of each policy, where the others are the same."""
        first = {result.policy: result for result in reversed(self.counted)}
        return {policy: BlockBootstrap(first[policy].requests) for policy in self.policies}

    @cached_property
    def _probed(self) -> tuple[list[Summary], ...]:
        """Summaries of the first policy in the first replications: the profile drawn, drawn to the other side, fitted.
        """
        runs = self.mirrored, self.as_fitted
        cut = self.steady_state.num_skipped
        others = [[self._at_full_load(run).after(cut).summary() for run in found] for found in runs]
        return self.summaries[self.policies[0]][: len(self.as_fitted)], *others

    def profile_share(self, metric: str) -> float | None:
        """Which share of the variance between replications is the profile's (the rest is the workload's and chance),
        measured on the first policy (see ``uncertainty.profile_share``), of logarithms where ratios are compared. None
        where none was drawn, or none is shown.
        """
        if not self.as_fitted:
            return None
        found = [[summary.get(metric) for summary in summaries] for summaries in self._probed]
        if any(None in values for values in found):
            return None
        values = np.array(found, dtype=float)
        return profile_share(*(np.log(values) if metric in RATIOS and values.min() > 0 else values))

    def table(self) -> pd.DataFrame:
        """Long table: policy, metric, mean, half_width (null without an interval), num_replications, scope."""
        rows = []
        for policy in self.policies:
            for metric in self.summaries[policy][0]:
                found = self.estimate(policy, metric)
                if found is not None:
                    row = asdict(found)
                    del row["without"]
                    rows.append({"policy": policy, "metric": metric, **row, "scope": found.scope})
        table = pd.DataFrame(rows)
        return table.astype({"half_width": "float64"})

    @cached_property
    def _differences(self) -> list[Difference]:
        metrics = [shown.key for shown in COMPARED]
        samples = {policy: {metric: self.samples(policy, metric) for metric in metrics} for policy in self.policies}
        return compare_all(samples, metrics, RATIOS, withheld=self.steady_state.too_short)

    def pairs(self) -> list[Difference]:
        """Paired differences of all policies in the compared metrics, p-values adjusted by Holm over the whole list."""
        return self._differences

    def refusals(self) -> dict[str, dict[str, int]]:
        """Refused requests by policy and reason, over all replications; policies without refusals left out."""
        found: dict[str, dict[str, int]] = {}
        for result in self.results:
            for reason, count in result.refusals().items():
                reasons = found.setdefault(result.policy, {})
                reasons[reason] = reasons.get(reason, 0) + count
        return found

    def support_shares(self, policies: Collection[str] | None = None) -> dict[str, float]:
        """Shares of all busy time (of these policies) whose step times were ``measured``, are a ``prior``, or lie
        ``outside``.
        """
        seconds: dict[str, float] = {}
        for result in self.results:
            if policies is not None and result.policy not in policies:
                continue
            for name, busy_s in result.support_s().items():
                seconds[name] = seconds.get(name, 0.0) + busy_s
        total = sum(seconds.values()) or 1.0
        return {name: busy_s / total for name, busy_s in seconds.items()}

    def verdict(self) -> str:
        """One sentence: who wins what, from significant differences only (or what stands in the way of any)."""
        if len(self.policies) == 1:
            return f"Only {self.names[self.policies[0]]} was run: there is nothing to compare."
        if not any(pair.p_value is not None and pair.estimate.half_width for pair in self.pairs()):
            return self._verdict_on_this_trace()
        wins: dict[str, list[str]] = {}
        leads: dict[str, list[str]] = {}
        unordered = []
        undecided = []
        for shown in COMPARED:
            pairs = [pair for pair in self.pairs() if pair.metric == shown.key]
            best = self._best(shown)
            if not any(pair.significant for pair in pairs):
                undecided += [shown.label] if pairs else []
            elif best is not None and self.wins(best, shown):
                wins.setdefault(best, []).append(self._superlative(best, shown))
            elif best is not None and (beaten := _beaten_by(best, pairs)):
                against = listed([self.names[policy] for policy in self.policies if policy in beaten])
                value = self._value(best, shown)
                leads.setdefault(best, []).append(f"{shown.label} ({value}; shown against {against})")
            else:
                num_shown = sum(pair.significant for pair in pairs)
                unordered.append(
                    f"no {self.noun} is shown to be best in {shown.label}, "
                    f"though {num_shown} of {len(pairs)} pairs differ"
                )
        said = [f"{self.names[policy]} has {listed(won)}" for policy, won in wins.items()]
        said += [
            f"{self.names[policy]} leads, but is not shown to beat every other {self.noun}, in {listed(led)}"
            for policy, led in leads.items()
        ]
        said += unordered
        if undecided:
            said.append(f"no {self.noun} is shown to differ in {listed(undecided, 'or')}")
        return f"{'; '.join(said)}."

    def wins(self, policy: str, shown: Shown) -> bool:
        """Whether the policy is shown to be better than every other one; false for a metric that is not tested."""
        pairs = [pair for pair in self.pairs() if pair.metric == shown.key and policy in (pair.first, pair.second)]
        return len(pairs) == len(self.policies) - 1 > 0 and all(
            pair.significant and _better(pair, shown) == policy for pair in pairs
        )

    def to_json(self) -> dict[str, Any]:
        """Everything a machine needs, as JSON types; times in seconds, shares between 0 and 1."""
        runs = [
            {
                "policy": result.policy,
                "replication": result.replication,
                "summary": summary,
                "refusals": result.refusals(),
                "busy_s": result.support_s(),
                "tenants": result.by_tenant(),
                "evicted_blocks": result.evicted_blocks(),
                "instances": result.by_instance(),
            }
            for result, summary in zip(self.counted, self._summaries_in_order(), strict=True)
        ]
        differences = [
            asdict(pair) | {"significant": pair.significant, "width_ratio": pair.width_ratio} for pair in self.pairs()
        ]
        table = self.table()
        estimates = table.astype(object).where(table.notna(), None).to_dict("records")
        return {
            **asdict(self.provenance),
            "variants": [asdict(found) | {"labels": list(found.labels)} for found in self.provenance.variants],
            "policies": self.policies,
            "steady_state": {
                "num_skipped": self.steady_state.num_skipped,
                "num_cooldown": max(result.num_cooldown for result in self.counted),
                "method": self.steady_state.method,
                "unstable": sorted(self.steady_state.unstable),
                "too_short": sorted(self.steady_state.too_short),
            },
            "num_replications": self.num_replications,
            "confidence_level": LEVEL,
            "verdict": self.verdict(),
            "support_shares": self.support_shares(),
            "profile_shares": {shown.key: self.profile_share(shown.key) for shown in COMPARED},
            "refusals": self.refusals(),
            "estimates": estimates,
            "differences": differences,
            "runs": runs,
        }

    def _summaries_in_order(self) -> list[Summary]:
        iterators = {policy: iter(found) for policy, found in self.summaries.items()}
        return [next(iterators[result.policy]) for result in self.results]

    def _best(self, shown: Shown) -> str | None:
        means = {policy: found.mean for policy in self.policies if (found := self.estimate(policy, shown.key))}
        if not means:
            return None
        return (min if shown.lower_is_better else max)(means, key=means.__getitem__)

    def _value(self, policy: str, shown: Shown) -> str:
        found = self.estimate(policy, shown.key)
        return "" if found is None else f"{show(found, shown.scale)} {shown.unit}"

    def _superlative(self, policy: str, shown: Shown) -> str:
        return f"the {'lowest' if shown.lower_is_better else 'highest'} {shown.label} ({self._value(policy, shown)})"

    def _verdict_on_this_trace(self) -> str:
        why = "one replication" if self.num_replications == 1 else "the replications do not vary"
        leads: dict[str, list[str]] = {}
        for shown in COMPARED:
            values = {found.mean for policy in self.policies if (found := self.estimate(policy, shown.key))}
            best = self._best(shown)
            if best is not None and len(values) > 1:
                leads.setdefault(best, []).append(self._superlative(best, shown))
        if not any(self.estimate(policy, shown.key) for policy in self.policies for shown in COMPARED):
            return "No run served a request: there is nothing to compare."
        seen = "; ".join(f"{self.names[policy]} has {listed(led)}" for policy, led in leads.items())
        if self.steady_state.too_short:
            return f"Nothing is shown, since runs are too short for the load; in these: {seen or 'all is alike'}."
        return (
            f"{THIS_TRACE_ONLY} ({why}, so no difference can be shown to hold beyond it): "
            f"{seen or f'every {self.noun} is alike'}."
        )


def _better(pair: Difference, shown: Shown) -> str:
    return pair.first if (pair.estimate.mean < 0) == shown.lower_is_better else pair.second


def _beaten_by(best: str, pairs: Sequence[Difference]) -> set[str]:
    """Whom ``best``, which has the best mean, is shown to differ from."""
    return {
        pair.first if pair.second == best else pair.second
        for pair in pairs
        if pair.significant and best in (pair.first, pair.second)
    }


def show(estimate: Estimate, scale: float = 1) -> str:
    """``mean ± half width`` in the same decimals: two significant digits of the half width, else three of the mean.

    No more than five digits of the mean are shown; a half width that vanishes beside them is called so.
    """
    mean = estimate.mean * scale
    half_width = None if estimate.half_width is None else estimate.half_width * scale
    decimals = _decimals(half_width, 2) if half_width else _decimals(mean, 3)
    if mean:
        decimals = min(decimals, _decimals(mean, 5))
    shown = f"{mean:,.{decimals}f}"
    if half_width is None:
        return shown
    last_digit = 10**-decimals
    if 0 < half_width < last_digit / 2:
        return f"{shown} ± <{last_digit:.{decimals}f}"
    return f"{shown} ± {half_width:,.{decimals}f}"


def _decimals(value: float, significant: int) -> int:
    """Decimals that leave ``significant`` digits of ``value``, at most six."""
    if not value:
        return 0
    exponent = int(f"{abs(value):.{significant - 1}e}".split("e")[1])
    return max(0, min(6, significant - 1 - exponent))


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """``a, b and c``, of one word or more."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
