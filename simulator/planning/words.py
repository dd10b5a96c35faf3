"""A plan in sentences: the answer, its margins, what breaks first, what else there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.comparison import listed
from simulator.counts import counted
from simulator.planning.answer import Findings
from simulator.planning.evidence import Stage
from simulator.planning.headroom import LoadPoint, binding
from simulator.planning.judging import LEAST, Judgement, Value, Verdict
from simulator.planning.relief import Relief
from simulator.planning.space import Candidate
from simulator.scenario.plan_spec import Target
from simulator.steady import LEAST_REQUESTS
from simulator.wording import (
    Ending,
    basis_of,
    cooldown_lines,
    early_end_lines,
    few_lines,
    missing_load,
    send_more,
    warmup_line,
)

_NAMES = {"queue": "queue time", "ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}
_MOST_LISTED = 4
_SHORTER = 0.8


def verdict(findings: Findings) -> str:
    """The answer in a line: ``8 instances, 12 % margin, TTFT p90 of chat breaks first at 1.3 times the load``."""
    answer, margin = findings.answer, findings.margin
    if answer is None or margin is None:
        return _no_answer(findings)
    said = f"{answer.candidate.label}: {margin.margin:.0%} margin, costs {answer.candidate.cost:,.4g} an hour"
    if missing := missing_load(_cooldowns(findings, answer)):
        said += f", at a load up to {missing:.0%} below that of the long run"
    room = findings.headroom
    if room is not None and room.broken is not None and room.first_to_break is not None:
        said += f"; {name_of(room.first_to_break.target)} breaks first, at {room.broken.load:.3g} times the load"
    elif room is not None and room.met_at is not None and room.points[-1].load > 1:
        said += f"; no target breaks up to {room.points[-1].load:.3g} times the load"
    return f"{said}."


def certainty(findings: Findings) -> str:
    """How sure the answer is: what is shown, and what cheaper settings may do."""
    percent = f"{100 * findings.rules.confidence:.4g} %"
    answer = findings.answer
    if answer is None:
        return ""
    meet = "meets" if answer.candidate.instances == 1 else "meet"
    said = f"{answer.candidate.label} {meet} every target, shown with {percent} confidence"
    said += f" by {answer.num_replications} replications"
    if (fewest := _fewest_requests(findings, answer)) < LEAST_REQUESTS and findings.rules.is_stationary:
        said += f" of {counted(fewest, 'request')}"
    left = findings.undecided
    if left and not findings.is_searched:
        return f"{said}; the search is not over: {_listed(left)} may do so for less."
    if left:
        most = findings.rules.most_replications
        return f"{said}; {_listed(left)} may do so for less, which {most} replications do not tell."
    if any(one.cost < answer.candidate.cost for one in findings.space.candidates):
        return f"{said}; every cheaper setting is shown to miss one, or lies beyond one that does."
    return f"{said}; none is cheaper."


def _no_answer(findings: Findings) -> str:
    left = findings.undecided
    if findings.judgements and left and findings.is_searched:
        return f"No setting is shown to meet every target; {_listed(left)} may. {_closest(findings)}"
    if not findings.is_searched:
        return f"No setting is shown to meet every target so far. {_closest(findings)}".strip()
    return f"No setting meets every target. {_closest(findings)}"


def _closest(findings: Findings) -> str:
    found = findings.closest
    if found is None:
        return ""
    if found.unstable:
        return f"The closest is {found.candidate.label}, whose queues grow as long as requests come."
    worst = found.worst
    if found.verdict != Verdict.MISSES:
        return f"The closest is {found.candidate.label}, which may: {found.num_replications} replications do not tell."
    return f"The closest is {found.candidate.label}, with {name_of(worst.target)} at {measured(worst)}."


def notes(findings: Findings) -> Iterator[str]:
    """What to know beside the answer, a sentence each."""
    if findings.stopped is not None:
        yield f"Ended early ({findings.stopped}) during {findings.stage}: what follows is what is known by then."
    if findings.answer is not None:
        yield certainty(findings)
    yield from _counted(findings)
    yield from _draws(findings)
    yield from _headroom(findings)
    yield from _nines(findings)
    yield from _tokens(findings)
    yield from _cautions(findings)
    yield _effort(findings)


def _headroom(findings: Findings) -> Iterator[str]:
    room = findings.headroom
    if room is None:
        return
    if room.without is not None:
        yield f"Headroom: not looked for, since {room.without}."
        return
    broken = room.broken
    if broken is None or room.met_at is None:
        return
    word = "waits then grow as long as requests come" if broken.judgement.unstable else "the means of few replications"
    yield (f"Headroom: every target is met at {room.met_at:.3g} times the load and not at {broken.load:.3g} times "
           f"({word}); what is used up there: {binding(broken.facts)}.")  # fmt: skip
    ends = [point.judgement for point in room.points if point.load in (room.met_at, broken.load)]
    if any(one.too_short for one in ends):
        yield ("Runs at these loads are too short for an interval, and the headroom may be another. "
               f"{send_more(max(one.lengthen for one in ends if one.too_short))}")  # fmt: skip
    own_s = next(point.facts["arriving_s"] for point in room.points if point.load == 1)
    if broken.facts["arriving_s"] < _SHORTER * own_s:
        yield (f"At that load a run has {broken.facts['arriving_s']:,.3g} s of arrivals, not {own_s:,.3g} s: an "
               "overload has less time to show, and the headroom may be smaller.")  # fmt: skip
    yield from _relief(findings.relief, broken)


def _relief(reliefs: Sequence[Relief], broken: LoadPoint) -> Iterator[str]:
    """What would have every target met at the load at which the first one breaks, and what would not."""
    helping = [one for one in reliefs if not one.point.breaks]
    idle = [one for one in reliefs if one.point.breaks]
    said = []
    if helping:
        said.append(f"every target is met with {listed([_with(one) for one in helping], 'or')}")
    if idle:
        said.append(f"{'but not' if helping else 'no target is met'} with {listed([_with(one) for one in idle], 'or')}")
    if said:
        yield f"What would help at {broken.load:.3g} times the load: {', '.join(said)}."


def _with(one: Relief) -> str:
    """``twice the KV memory (256 ms)``."""
    judgement = one.point.judgement
    value = "unstable" if judgement.unstable else quantity(judgement.worst.target, judgement.worst.mean)
    return f"{one.what} ({value})"


def _nines(findings: Findings) -> Iterator[str]:
    nines, answer = findings.nines, findings.answer
    if nines is None or answer is None:
        return
    if nines.without is not None:
        yield f"One more nine: not looked for, since {nines.without}."
        return
    stricter = " and ".join(in_words(one) for one in nines.targets)
    if nines.judgement is None:
        yield f"One more nine ({stricter}): no setting of this kind is shown to have it."
        return
    found = nines.judgement.candidate
    more = found.cost - answer.candidate.cost
    price = f"{more:,.4g} an hour more ({more / answer.candidate.cost:.0%})" if more else "nothing"
    yield f"One more nine ({stricter}) costs {price}: {found.label}."


def _tokens(findings: Findings) -> Iterator[str]:
    output, total = findings.cost_of_tokens(), findings.cost_of_tokens("total")
    if output is not None and total is not None and output == output:
        yield (f"At this load a million output tokens cost {output:,.3g}, a million tokens with those of prompts "
               f"{total:,.3g}.")  # fmt: skip


def _draws(findings: Findings) -> Iterator[str]:
    draws = findings.draws
    if draws is None:
        return
    if not draws.num:
        yield "All this is for the profile as it is: it states no errors within which it could be drawn."
        return
    said = (
        f"With the profile drawn within its errors {draws.num_met} of {draws.num} runs of the answer meet every "
        f"target; as fitted, {draws.num_fitted_met} of {draws.num_fitted}."
    )
    if draws.safe is not None:
        said += f" Drawn, all {draws.num} do with {draws.safe.label}, for {draws.safe.cost:,.4g} an hour."
    elif draws.is_safe_sought:
        said += f" Drawn, all {draws.num} do with no dearer setting of this kind."
    yield said


def _cautions(findings: Findings) -> Iterator[str]:
    error, margin = findings.profile.get("held_out_error"), findings.margin
    if margin is not None and error is not None and margin.margin < error:
        yield (f"The margin of {margin.margin:.0%} is less than what the profile is known to err (up to {error:.0%} on "
               "what it was not fitted to): measure before you buy.")  # fmt: skip
    short = [one for one in findings.judgements.values() if one.too_short]
    if short:
        yield (f"Runs are too short for the load of {_listed([one.candidate for one in short])}: more replications do "
               f"not tell. {send_more(max(one.lengthen for one in short))}")  # fmt: skip
    for few, many in findings.surprises[:1]:
        yield (f"The targets are met by {few.candidate.label} and not by {many.candidate.label}: more instances are "
               "not always better here.")  # fmt: skip
    for reason, count in findings.refusals().items():
        yield f"Requests refused ({reason}): {count:,} over all runs; each counts as later than any target."
    workload = findings.provenance.workload
    if "this trace only" in workload:
        yield f"What is shown is shown for this trace only ({workload})."


def _counted(findings: Findings) -> Iterator[str]:
    """What of the runs of the answer, or of the closest, does not count or is not under the full load."""
    shown, rules = findings.answer or findings.closest, findings.rules
    if shown is None:
        return
    if shown.num_skipped:
        how = "found by MSER-5 over all settings" if rules.warmup == "auto" else "as the scenario says"
        yield warmup_line(shown.num_skipped, how)
    if rules.is_stationary:
        yield from early_end_lines(findings.evidence.of(shown.candidate)[0].last_begun_s)
        yield from cooldown_lines(_cooldowns(findings, shown))
        yield from few_lines(_fewest_requests(findings, shown))


def _fewest_requests(findings: Findings, shown: Judgement) -> int:
    return min(len(outcome.within) for outcome in findings.evidence.of(shown.candidate))


def _cooldowns(findings: Findings, shown: Judgement) -> list[Ending]:
    facts = [outcome.facts for outcome in findings.evidence.of(shown.candidate)]
    return [Ending(*(int(one[name]) for name in Ending._fields)) for one in facts]


def _effort(findings: Findings) -> str:
    runs = findings.evidence.num_runs
    others = ", ".join(f"{runs[stage]} for {stage}" for stage in Stage if stage != Stage.SEARCH and runs[stage])
    return (
        f"{runs[Stage.SEARCH]:,} runs for the search among {len(findings.space.candidates):,} settings (all of them in "
        f"{findings.rules.most_replications} replications: {findings.num_of_brute_force:,} runs)"
        + (f", {others}" if others else "")
        + ". With more or fewer instances than the least strained setting has, targets are taken to be strained more."
    )  # fmt: skip


def basis(findings: Findings) -> str:
    """What the step times rest on (see ``wording.basis_of``), of the answer's runs or of all."""
    return basis_of(findings.support_shares(), findings.profile)


def name_of(target: Target) -> str:
    """``TTFT p90 of chat``."""
    if target.latency is None:
        return f"goodput share of {target.tenant}"
    which = "mean" if target.percent is None else f"p{target.percent:g}"
    return f"{_NAMES[target.latency]} {which} of {target.tenant}"


def in_words(target: Target) -> str:
    """``TTFT p90 of chat ≤ 500 ms``."""
    return f"{name_of(target)} {'≥' if target.latency is None else '≤'} {quantity(target, target.limit)}"


def measured(value: Value) -> str:
    """``620 ms, 500 ms allowed``."""
    word = "wanted" if value.wants_more else "allowed"
    return f"{quantity(value.target, value.mean)}, {quantity(value.target, value.target.limit)} {word}"


def quantity(target: Target, value: float) -> str:
    """A value of the target as people read it."""
    if value in (float("inf"), float("-inf")):
        return "never"
    if target.latency is None:
        return f"{100 * value:.4g} %"
    return f"{value:,.3g} s" if value >= 1 else f"{1000 * value:,.3g} ms"


def status(one: Judgement) -> str:
    """The verdict on a setting in a few words."""
    if one.num_replications < LEAST and one.verdict == Verdict.OPEN:
        return "not decided"
    if one.unstable:
        return "unstable"
    if one.too_short and one.verdict == Verdict.OPEN:
        return f"{one.verdict} (runs too short)"
    return str(one.verdict)


def _listed(candidates: Sequence[Candidate]) -> str:
    names = [one.label for one in candidates[:_MOST_LISTED]]
    more = len(candidates) - len(names)
    if more:
        return f"{'; '.join(names)} and {more} more"
    return names[0] if len(names) == 1 else f"{'; '.join(names[:-1])} or {names[-1]}"
