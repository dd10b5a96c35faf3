"""Planning: the search for the cheapest setting, and then what is asked of it, as far as runs and patience reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simulator import experiment
from simulator.errors import InputError
from simulator.executors import Executor
from simulator.planning.answer import Draws, Findings, Stopped
from simulator.planning.evidence import Evidence, OutOfBudget, Stage
from simulator.planning.headroom import Headroom, LoadPoint, headroom, why_not
from simulator.planning.judging import LEAST, Judgement, Rules, Verdict, decide, judge, meets, shared_warmup
from simulator.planning.nines import Nines, one_more, too_few
from simulator.planning.outcome import Outcome
from simulator.planning.relief import relief
from simulator.planning.search import fewest_from, search
from simulator.planning.space import Candidate, Space, read_space
from simulator.scenario import Scenario
from simulator.scenario.plan_spec import PlanSpec, check
from simulator.uncertainty import uncertainty_of

# Other families that are looked at for what else there is, and how often a setting that is not the answer is run.
_MOST_OPTIONS = 4
_QUICK = 8
# Replications that tell which of many kinds of settings to decide first.
_SHORT = 2


@dataclass
class Deciding:
    """Settings decided by these rules, each once."""

    rules: Rules
    evidence: Evidence
    found: dict[int, Judgement]

    def __call__(self, candidate: Candidate) -> Judgement:
        if candidate.place not in self.found:
            self.found[candidate.place] = decide(candidate, self.rules, self.evidence)
        return self.found[candidate.place]

    def meets(self, candidate: Candidate) -> bool:
        """Whether it is shown to meet every target."""
        return self(candidate).verdict == Verdict.MEETS

    def strain(self, candidate: Candidate) -> float:
        """How strained its targets look after a short look (see ``Judgement.strain``)."""
        return judge(candidate, self.rules, self.evidence.need(candidate, _SHORT)).strain


def plan(
    scenario: Scenario,
    executor: Executor,
    progress: Callable[[], None] | None = None,
    *,
    draws_profile: bool = True,
) -> Findings:
    """The cheapest setting of the scenario's free keys that meets its targets, and what is known around it.

    All settings of a replication are drawn from the same streams; none is run more often than the scenario's
    ``replications``. ``progress()`` is called after each run. An interrupt, or the end of the budget, ends the plan
    with what is known by then. The profile is taken as it was fitted; unless told not to, the answer is also run with
    profiles drawn within its errors. Raises InputError, before any run where that can be told.
    """
    rules = read_rules(scenario)
    space = read_space(scenario, _spec(scenario))
    evidence = Evidence(executor, _spec(scenario).budget, progress)
    findings = Findings(experiment.describe(scenario), space, rules, evidence)
    try:
        find_answer(findings)
        if findings.answer is not None:
            evidence.stage = Stage.OPTIONS
            _look_at_ties(findings, findings.answer.candidate)
            _ask_around(findings, findings.answer.candidate, draws_profile=draws_profile)
    except OutOfBudget:
        findings.stopped = Stopped.BUDGET
    except KeyboardInterrupt:
        findings.stopped = Stopped.INTERRUPTED
    if not findings.is_searched:
        _share_warmup(findings)
    for candidate in space.candidates:
        # What was under way when it ended.
        outcomes = evidence.of(candidate)
        if candidate.place not in findings.judgements and len(outcomes) > 1:
            findings.judgements[candidate.place] = judge(candidate, findings.rules, outcomes)
    return findings


def find_answer(findings: Findings) -> None:
    """Search until every setting that was looked at was decided with one warm-up: the longest of theirs. Each round has
    the runs of those before.
    """
    is_shared = False
    while not is_shared:
        deciding = Deciding(findings.rules, findings.evidence, findings.judgements)
        search(findings.space, deciding, deciding.strain)
        is_shared = _share_warmup(findings)


def _share_warmup(findings: Findings) -> bool:
    """Whether all was judged with the warm-up that all runs so far tell; where not, nothing is judged any more, and the
    next is.
    """
    candidates, rules = findings.space.candidates, findings.rules
    runs = {str(one.place): findings.evidence.of(one) for one in candidates}
    found = shared_warmup({name: of for name, of in runs.items() if len(of) >= rules.looks[0]}, rules)
    if found == rules.shared_warmup:
        return True
    findings.rules = replace(rules, shared_warmup=found)
    findings.judgements.clear()
    return False


def read_rules(scenario: Scenario) -> Rules:
    """When something counts as shown. Raises InputError for a scenario without a plan or with too few replications."""
    spec = _spec(scenario)
    if scenario.replications < LEAST:
        raise InputError(f"replications: got {scenario.replications}, expected at least {LEAST} for a plan: the most "
                         "that a setting is run")  # fmt: skip
    return Rules(
        targets=tuple(spec.promises),
        confidence=spec.confidence,
        most_replications=scenario.replications,
        warmup=scenario.warmup,
        is_stationary=scenario.workload.is_stationary,
    )


def _spec(scenario: Scenario) -> PlanSpec:
    if scenario.plan is None:
        raise InputError("plan: missing, expected a mapping with targets and free (cluster.instances: 1..16)")
    check(scenario.plan, scenario.workload.tenants)  # a variant may have other tenants
    return scenario.plan


def _ask_around(findings: Findings, answer: Candidate, *, draws_profile: bool) -> None:
    evidence, rules = findings.evidence, findings.rules
    evidence.stage = Stage.HEADROOM
    without, points = why_not(answer), dict[float, LoadPoint]()
    try:
        if without is None:
            headroom(answer, rules, evidence, points)
    finally:
        findings.headroom = Headroom(tuple(points[load] for load in sorted(points)), without)
    if findings.headroom.broken is not None:
        evidence.stage = Stage.RELIEF
        relief(answer, findings.headroom.broken, rules, evidence, findings.relief)
    evidence.stage = Stage.NINES
    findings.nines = _one_more_nine(findings, answer)
    evidence.stage = Stage.OPTIONS
    _look_at_options(findings, answer)
    evidence.stage = Stage.PROFILE
    if draws_profile:
        _draw_profiles(findings, answer)


def _one_more_nine(findings: Findings, answer: Candidate) -> Nines:
    targets = one_more(findings.rules.targets)
    if targets == findings.rules.targets:
        return Nines(without="targets on means have no nines")
    if reason := too_few(targets, findings.evidence.of(answer)):
        return Nines(targets, without=reason)
    stricter = Deciding(replace(_quick(findings.rules), targets=targets), findings.evidence, {})
    found = fewest_from(_from(findings.space, answer.family, answer.cost), stricter.meets)
    return Nines(targets, None if found is None else stricter(found))


def _look_at_options(findings: Findings, answer: Candidate) -> None:
    """The next setting of the answer's family, and the cheapest of a few others that costs at least as much."""
    deciding = Deciding(_quick(findings.rules), findings.evidence, findings.judgements)
    for candidate in _from(findings.space, answer.family, answer.cost)[1:2]:
        deciding(candidate)
    for candidates in _other_families(findings.space, answer):
        fewest_from(candidates, deciding.meets)


def _look_at_ties(findings: Findings, answer: Candidate) -> None:
    """The settings of other families that cost as much: one of them may have more margin."""
    deciding = Deciding(_quick(findings.rules), findings.evidence, findings.judgements)
    for candidates in _other_families(findings.space, answer):
        if candidates[0].cost == answer.cost:
            deciding(candidates[0])


def _other_families(space: Space, answer: Candidate) -> list[Sequence[Candidate]]:
    """Of a few other families the settings that cost at least as much as the answer, from the cheapest on."""
    others = [_from(space, number, answer.cost) for number in range(len(space.families)) if number != answer.family]
    return sorted((one for one in others if one), key=lambda one: (one[0].cost, one[0].place))[:_MOST_OPTIONS]


def _draw_profiles(findings: Findings, answer: Candidate) -> None:
    """How many runs of the answer meet if the profile errs, and where not all do the next setting of which all do."""
    if uncertainty_of(answer.scenario.device_profile) is None:
        findings.draws = Draws(0)
        return
    evidence, num_skipped = findings.evidence, findings.judgements[answer.place].num_skipped
    num_drawn = min(_QUICK, findings.rules.most_replications)

    def number_met(outcomes: Sequence[Outcome]) -> int:
        return sum(meets(findings.rules, outcome, num_skipped) for outcome in outcomes)

    def number_met_if_drawn(candidate: Candidate) -> int:
        return number_met(evidence.need(candidate, num_drawn, drawn=True))

    fitted = evidence.of(answer)
    findings.draws = Draws(num_drawn, number_met_if_drawn(answer), len(fitted), number_met(fitted))
    if findings.draws.num_met < num_drawn:
        dearer = _from(findings.space, answer.family, answer.cost)[1:]
        safe = fewest_from(dearer, lambda one: number_met_if_drawn(one) == num_drawn)
        findings.draws = findings.draws._replace(safe=safe, is_safe_sought=True)


def _from(space: Space, family: int, cost: float) -> Sequence[Candidate]:
    """The family's settings of at least this cost."""
    return [candidate for candidate in space.families[family] if candidate.cost >= cost]


def _quick(rules: Rules) -> Rules:
    return replace(rules, most_replications=min(_QUICK, rules.most_replications))
