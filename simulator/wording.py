"""What a comparison says in sentences: what its times rest on, how it was sampled, what to know before trusting it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.comparison import COMPARED, Comparison, VariantProvenance, listed
from simulator.counts import counted
from simulator.eviction import VLLM
from simulator.scenario.changes import write_value
from simulator.statistics import LEVEL, THIS_TRACE_ONLY
from simulator.steady import LEAST_REQUESTS

if TYPE_CHECKING:
    from simulator.result import RunResult

# "Calibrated" is said only where at least this share of busy time lies in the measured range.
CALIBRATED_SHARE = 0.9

# Characters of a changed value.
_LONGEST_VALUE = 120

# As many times is called narrower: below it the ratio is shown as 1.0.
_NARROWER = 1.05

# A tenant that has sent its last by this share of the time in which requests begin is done early.
_ENDS_EARLY = 0.7

# The share of a run's requests that come after the last conversation has begun is how far the load before that falls
# short of the full one on average: what conversations send late at the end they lack at the beginning.
_FADING = 0.1


def basis(comparison: Comparison) -> str:
    """What the step times rest on, and how well: shares of busy time, the profile's identity, its held-out error.

    Where variants have different profiles, or run an engine otherwise than measured, one sentence for each of these.
    """
    if len(groups := _by_profile(comparison)) == 1:
        return _basis(comparison, None, groups[0][1])
    return " ".join(f"{', '.join(labels)}: {_basis(comparison, labels, profile)}" for labels, profile in groups)


def _by_profile(comparison: Comparison) -> list[tuple[list[str], Mapping[str, Any]]]:
    """The profiles of all variants, each with the labels of the runs that rest on it; no labels without variants."""
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    for variant in comparison.provenance.variants:
        for labels, profile in groups:
            if profile == variant.profile:
                labels.extend(variant.labels)
                break
        else:
            groups.append((list(variant.labels), variant.profile))
    return groups or [([], comparison.provenance.profile)]


def _basis(comparison: Comparison, labels: Collection[str] | None, profile: Mapping[str, Any]) -> str:
    return basis_of(comparison.support_shares(labels), profile)


def basis_of(shares: Mapping[str, float], profile: Mapping[str, Any]) -> str:
    """The sentence for shares of busy time (see ``Comparison.support_shares``) that rest on one profile."""
    error = profile.get("held_out_error")
    accuracy = "held-out error unknown" if error is None else f"held-out error at most {error:.1%} where measured"
    unmeasured = "".join(f" {sentence}" for sentence in profile.get("unmeasured", ()))
    reason = profile.get("indicative")
    word = "Indicative: " if reason else "Calibrated: " if _is_calibrated(shares, profile) else ""
    mark = f"; indicative: {reason}" if reason else ""
    return (
        f"{word}{shares['measured']:.1%} of busy time rests on measurement, {shares['prior']:.1%} on a prior, "
        f"{shares['outside']:.1%} lies outside the measured range; profile {profile['name']} "
        f"({profile['identity']}), {accuracy}{mark}.{unmeasured}"
    )


def is_calibrated(comparison: Comparison) -> bool:
    """Whether the step times are said to be calibrated: nearly all measured, by a profile that is not indicative."""
    return all(
        _is_calibrated(comparison.support_shares(labels or None), profile)
        for labels, profile in _by_profile(comparison)
    )


def _is_calibrated(shares: Mapping[str, float], profile: Mapping[str, Any]) -> bool:
    return shares["measured"] > CALIBRATED_SHARE and not profile.get("indicative")


def sampling(comparison: Comparison) -> str:
    """What the replications redraw, and what the intervals mean."""
    count = comparison.num_replications
    in_time = f"± is half the width of a {LEVEL:.0%} block bootstrap interval over time, {THIS_TRACE_ONLY}"
    if count == 1:
        drawn = comparison.provenance.is_stationary
        return f"One replication ({_workload(comparison)}): {'no intervals' if drawn else in_time}."
    return (
        f"{count} replications with common random numbers ({_workload(comparison)}); "
        f"± is the half width of the {LEVEL:.0%} Student-t interval over replications, none where nothing varies"
        + ("." if comparison.provenance.is_stationary else f"; where a trace is always the same, {in_time}.")
    )


def _workload(comparison: Comparison) -> str:
    """What replications redraw; by variant where that differs."""
    variants = comparison.provenance.variants
    if len({variant.workload for variant in variants}) > 1:
        return "; ".join(f"{variant.name}: {variant.workload}" for variant in variants)
    return variants[0].workload if variants else comparison.provenance.workload


def variant_lines(comparison: Comparison) -> list[str]:
    """What each variant changes, and which of them serve other requests than the scenario's own."""
    variants = comparison.provenance.variants
    lines = [f"{variant.name}: {_changes(variant)}." for variant in variants]
    others = [variant.name for variant in variants if not variant.same_requests]
    if others:
        lines.append(
            f"Other requests than the scenario's are sent in {', '.join(others)}: differences are not of the cluster "
            "alone."
        )
    return lines


def _changes(variant: VariantProvenance) -> str:
    changed = ", ".join(f"{key}={_short(write_value(value))}" for key, value in variant.changes.items())
    return changed or "the scenario as it is"


def _short(value: str) -> str:
    """Not more than a sentence bears, as of a list of tenants; the scenario below has all of it."""
    return value if len(value) <= _LONGEST_VALUE else f"{value[: _LONGEST_VALUE - 3]}..."


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know before trusting the table: settings behind short names, overload, pile-ups, refusals."""
    found = [f"{name} stands for {policy}." for policy, name in comparison.names.items() if name != policy]
    found += variant_lines(comparison)
    found += _eviction_lines(comparison)
    if comparison.provenance.is_stationary:
        found += early_end_lines(comparison.results[0].last_begun_s())
        parts = zip(comparison.at_full_load, comparison.results, strict=True)
        found += cooldown_lines([Ending(run.num_cooldown, run.num_late, len(one.requests)) for run, one in parts])
        if comparison.num_replications > 1:
            found += few_lines(min(len(run.requests) for run in comparison.at_full_load))
    found += steady_state_lines(comparison)
    found += _pairing_lines(comparison)
    found += _profile_lines(comparison)
    if comparison.precision is not None:
        found.append(comparison.precision.line(comparison))
    for policy, name in comparison.names.items():
        runs = [run for run in comparison.results if run.policy == policy]
        shares = [_share_of_the_busiest(run) for run in runs]
        if runs[0].num_instances > 1 and shares and min(shares) == 1:
            found.append(f"{name} sent every request to one of {runs[0].num_instances} instances.")
    return [*found, *isolation_lines(comparison), *_hang_up_lines(comparison), *refusal_lines(comparison)]


def _eviction_lines(comparison: Comparison) -> list[str]:
    """That the engine's own order of eviction was not used; variants say so themselves."""
    chosen = comparison.provenance.scenario.get("eviction", {"policy": VLLM})
    if comparison.provenance.variants or chosen["policy"] == VLLM:
        return []
    settings = ", ".join(f"{key}={write_value(value)}" for key, value in chosen.items() if key != "policy")
    named = f"{chosen['policy']} ({settings})" if settings else chosen["policy"]
    return [f"Blocks lose their content in the order of {named}, which vLLM does not offer."]


def isolation_lines(comparison: Comparison) -> list[str]:
    """What the salts cost at least, whatever the cluster."""
    found = comparison.provenance.isolation
    if found is None:
        return []
    with_warmup = "those of the warm-up too, " if comparison.steady_state.num_skipped else ""
    said = (
        f"In one cache that never evicts, {found.salted:.1%} of prompt tokens would be found with the tenants' salts "
        f"and {found.shared:.1%} without: {100 * found.price:.1f} points are what the salts cost (first "
        f"{counted(found.num_requests, 'request')}, {with_warmup}answered at once)."
    )
    return [said]


def early_end_lines(last_begun_s: Mapping[str, float]) -> list[str]:
    """That a tenant is done long before another one (see ``RunResult.last_begun_s``), so that later requests meet less
    than the whole load.
    """
    longest_s = max(last_begun_s.values(), default=0.0)
    early = {tenant: end_s for tenant, end_s in last_begun_s.items() if end_s < _ENDS_EARLY * longest_s}
    if not early:
        return []
    when = listed([f"{tenant} has sent its last after {end_s:.3g} s" for tenant, end_s in early.items()])
    said = (
        f"Tenants do not send for equally long: {when} of {longest_s:.3g} s. From then on the load is lower, and what "
        "is estimated is no one load's; numbers of requests in proportion to the rates end together."
    )
    return [said]


class Ending(NamedTuple):
    """Of one run: the requests of its cool-down, those that come after the last conversation has begun (of which no
    more than half of a run is a cool-down), and all.
    """

    num_cooldown: int
    num_late: int
    num_requests: int


def cooldown_lines(runs: Sequence[Ending]) -> list[str]:
    """That what follows the last conversation's begin does not count, and whether the load was ever the full one."""
    if not any(run.num_cooldown for run in runs):
        return []
    ordered = sorted(runs, key=lambda run: run.num_cooldown)
    numbers = list(dict.fromkeys(f"{run.num_cooldown:,}" for run in (ordered[0], ordered[-1])))
    shares = [run.num_cooldown / (run.num_requests or 1) for run in runs]
    percent = list(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))
    said = (
        f"A cool-down ends every run, {' to '.join(numbers)} requests of it ({' to '.join(percent)}), and counts "
        "nowhere: no conversation begins any more, and the load falls."
    )
    if missing := missing_load(runs):
        said += (
            " Conversations are long beside the time in which they begin: until the last one does the load is on "
            f"average up to {missing:.0%} lower than in the long run, and latencies are better. A longer workload "
            "builds up to it."
        )
    return [said]


def few_lines(num_requests: int) -> list[str]:
    """That runs of so few requests tell nothing of a steady state."""
    if num_requests >= LEAST_REQUESTS:
        return []
    said = (
        f"A run has {counted(num_requests, 'request')}, of {LEAST_REQUESTS} at least an overload could be told from a "
        "steady load: what is said holds for runs as short as these."
    )
    return [said]


def missing_load(runs: Sequence[Ending]) -> float | None:
    """The share of the full load that was missing on average in one of these runs until the last conversation began, if
    it is too much to speak of the long run.
    """
    share = max(run.num_late / (run.num_requests or 1) for run in runs)
    return share if share > _FADING else None


def steady_state_lines(comparison: Comparison) -> list[str]:
    """The warm-up that no figure counts, and of which policies the long run is not known."""
    steady, lines = comparison.steady_state, []
    if steady.num_skipped:
        how = "found by MSER-5 over the replications" if steady.method == "MSER-5" else "as the scenario says"
        lines.append(warmup_line(steady.num_skipped, how))
        if lost := _tenants_of_the_warmup(comparison):
            lines.append(
                f"The warm-up is all that {listed(lost)} sent in at least one run, of which nothing counts there: more "
                "requests of that tenant, or a shorter warmup, would tell of it."
            )
    if steady.unstable:
        who = ", ".join(comparison.names[policy] for policy in comparison.policies if policy in steady.unstable)
        lines.append(
            f"Unstable at this rate: {who}. Waits grow as long as requests come, so that latencies would only say how "
            "long the run was; they are left out."
        )
    if steady.too_short:
        who = ", ".join(comparison.names[policy] for policy in comparison.policies if policy in steady.too_short)
        lines.append(
            f"Runs are too short for the load: {who}. Waits move more slowly than a twentieth of a run, so that an "
            f"interval would promise too much: means stand without one. {send_more(steady.lengthen)}"
        )
    return lines


def send_more(times: int) -> str:
    """What to do about runs that are too short (see ``steady.lengthen``)."""
    return f"Send more requests, about {times} times as many."


def warmup_line(num_skipped: int, how: str) -> str:
    """How many of a run's first requests are left out, and how that is known."""
    return f"A warm-up of {counted(num_skipped, 'request')}, {how}, begins every run and counts nowhere."


def _tenants_of_the_warmup(comparison: Comparison) -> list[str]:
    """Tenants of whose requests in some run none is left."""
    lost: dict[str, None] = {}
    for whole, left in zip(comparison.results, comparison.counted, strict=True):
        kept = set(left.requests["tenant"])
        lost |= dict.fromkeys(name for name in map(str, whole.requests["tenant"].unique()) if name not in kept)
    return list(lost)


def _profile_lines(comparison: Comparison) -> list[str]:
    """What of the intervals' width is the profile's."""
    if not comparison.provenance.draws_profile:
        return []
    shares = {shown.label: comparison.profile_share(shown.key) for shown in COMPARED}
    said = [f"{share:.0%} ({label})" for label, share in shares.items() if share is not None]
    kept = comparison.provenance.profile.get("not_drawn", ())
    left = f" Without a stated error, hence the same in all: {', '.join(kept)}." if kept else ""
    how = "Each replication draws the profile's coefficients within their errors, the same for all that is compared"
    hidden = [label for label, share in shares.items() if share is None]
    where = f"(measured on {comparison.names[comparison.policies[0]]})"
    if not said:
        return [f"{how}. That moves none of the headline figures more than chance does {where}.{left}"]
    parts = f"of the variance between replications {', '.join(said)} is the profile's {where}"
    rest = f", none shown of that of {listed(hidden)}" if hidden else ""
    return [f"{how}: {parts}{rest}; the rest is the workload's and chance.{left}"]


def _pairing_lines(comparison: Comparison) -> list[str]:
    """What serving the same requests bought, where there are intervals at all."""
    without = comparison.steady_state.too_short
    pairs = [pair for pair in comparison.pairs() if not without & {pair.first, pair.second}]
    ratios = {
        shown.label: [pair.width_ratio for pair in pairs if pair.metric == shown.key and pair.width_ratio]
        for shown in COMPARED
    }
    middle = {label: median(found) for label, found in ratios.items() if found}
    said = [
        f"{ratio:,.{0 if ratio >= 10 else 1}f} times ({label})"
        for label, ratio in middle.items() if ratio >= _NARROWER
    ]  # fmt: skip
    left = [label for label, ratio in middle.items() if ratio < _NARROWER]
    if not middle:
        return []
    if not said:
        not_in = listed(left, "or")
        return [f"Serving the same requests does not make the intervals of differences narrower in {not_in}."]
    rest = f"; not in {listed(left, 'or')}" if left else ""
    return [
        f"Serving the same requests makes the intervals of differences narrower, by the median {', '.join(said)}{rest}."
    ]


def _hang_up_lines(comparison: Comparison) -> list[str]:
    """How many requests their clients gave up, by policy: latencies are those of the others."""
    lines = []
    for policy, name in comparison.names.items():
        rows = [run.requests for run in comparison.results if run.policy == policy]
        num_gone = sum(int((table["state"] == "aborted").sum()) for table in rows)
        num_sent = sum(map(len, rows))
        if num_gone:
            share = num_gone / num_sent
            lines.append(
                f"Under {name} clients gave up {num_gone:,} of {counted(num_sent, 'request')} ({share:.0%}): "
                "end-to-end latencies and TPOT are of the others, TTFT of those that got a token."
            )
    return lines


def _share_of_the_busiest(run: RunResult) -> float:
    """The largest share of the routed requests that one instance got; 0 without any."""
    shares = run.requests["instance"].dropna().value_counts(normalize=True)
    return float(shares.max()) if len(shares) else 0.0


def refusal_lines(comparison: Comparison) -> list[str]:
    """Refused requests by reason, over all replications: one line where all policies agree, else one a policy."""
    found = comparison.refusals()
    num_sent = dict.fromkeys(comparison.policies, 0)
    for run in comparison.results:
        num_sent[run.policy] += len(run.requests)
    who = {comparison.names[policy]: (reasons, num_sent[policy]) for policy, reasons in found.items()}
    distinct = {(num_sent[policy], *sorted(reasons.items())) for policy, reasons in found.items()}
    if len(found) == len(comparison.policies) > 1 == len(distinct):
        who = {f"Every {comparison.noun}": next(iter(who.values()))}
    return [
        f"{name} refused {sum(reasons.values()):,} of {counted(count, 'request')}: "
        + ", ".join(f"{reason} ({number:,})" for reason, number in reasons.items())
        + "."
        for name, (reasons, count) in who.items()
    ]


def ignored_lines(comparison: Comparison) -> list[str]:
    """The engine arguments that were accepted although they change nothing here, if any."""
    ignored = dict(comparison.provenance.ignored_arguments)
    for variant in comparison.provenance.variants:
        ignored |= variant.ignored_arguments
    if not ignored:
        return []
    listed = ", ".join(f"{name}={value}" for name, value in ignored.items())
    return [f"Engine arguments without effect here: {listed}."]
