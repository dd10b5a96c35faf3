"""What the runs of a plan say together: the cheapest setting, what may be cheaper, what else there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simulator.comparison import Provenance
from simulator.experiment import describe
from simulator.planning.evidence import Evidence, Stage
from simulator.planning.headroom import Headroom, LoadPoint, at, binding
from simulator.planning.judging import Judgement, Rules, Value, Verdict
from simulator.planning.nines import Nines
from simulator.planning.relief import Relief
from simulator.planning.search import within
from simulator.planning.space import Candidate, Space


class Stopped(StrEnum):
    """Why a plan ended before it was done."""

    INTERRUPTED = "interrupted"
    BUDGET = "the budget is used up"


class Draws(NamedTuple):
    """How many of so many runs meet every target: with the profile drawn within its errors, and as fitted. ``num`` is
    0 for a profile whose errors nobody stated. ``safe``: the next setting of the answer's family of which all runs do
    with the profile drawn, where it was sought and there is one.
    """

    num: int
    num_met: int = 0
    num_fitted: int = 0
    num_fitted_met: int = 0
    safe: Candidate | None = None
    is_safe_sought: bool = False


@dataclass
class Findings:
    """``judgements`` by the candidate's place, of all that was looked at. ``stopped``: what ended it early, in
    ``stage``.
    """

    provenance: Provenance
    space: Space
    rules: Rules
    evidence: Evidence
    judgements: dict[int, Judgement] = field(default_factory=dict)
    headroom: Headroom | None = None
    relief: list[Relief] = field(default_factory=list)
    nines: Nines | None = None
    draws: Draws | None = None
    stopped: Stopped | None = None

    @property
    def stage(self) -> Stage:
        """What was done last."""
        return self.evidence.stage

    @property
    def is_searched(self) -> bool:
        """Whether the search came to its end."""
        return self.stopped is None or self.stage != Stage.SEARCH

    @property
    def meeting(self) -> list[Judgement]:
        """The settings that are shown to meet all targets, from the cheapest on; of those, the least strained first."""
        met = [found for found in self.judgements.values() if found.verdict == Verdict.MEETS]
        return sorted(met, key=lambda found: (found.candidate.cost, found.strain, found.candidate.place))

    @property
    def answer(self) -> Judgement | None:
        """The cheapest setting that is shown to meet all targets; of several, the one with most margin."""
        return self.meeting[0] if self.meeting else None

    @property
    def options(self) -> list[Judgement]:
        """What else is shown to meet all targets: of each family the cheapest, and of the answer's the next."""
        found, seen = [], set()
        for one in self.meeting[1:]:
            if one.candidate.family not in seen:
                seen.add(one.candidate.family)
                found.append(one)
        return found

    @property
    def undecided(self) -> list[Candidate]:
        """Settings, cheaper than the answer or any where there is none, that are neither shown to miss a target nor
        ruled out by others of their family (see ``search.within``), from the cheapest on.
        """
        judged: dict[int, dict[int, Judgement]] = {}
        for found in self.judgements.values():
            judged.setdefault(found.candidate.family, {})[found.candidate.instances] = found
        price = math.inf if self.answer is None else self.answer.candidate.cost
        left = [
            one for number, family in enumerate(self.space.families) for one in within(family, judged.get(number, {}))
            if one.cost < price and not self._misses(one)
        ]  # fmt: skip
        return sorted(left, key=lambda one: (one.cost, one.place))

    def _misses(self, candidate: Candidate) -> bool:
        found = self.judgements.get(candidate.place)
        return found is not None and found.verdict == Verdict.MISSES

    @property
    def closest(self) -> Judgement | None:
        """Of all that was looked at, the one whose most strained target is strained least; stable ones first."""
        looked_at = self.judgements.values()
        return min(looked_at, key=lambda one: (one.unstable, one.strain, one.candidate.cost), default=None)

    @property
    def margin(self) -> Value | None:
        """The target of the answer with the least margin."""
        return self.answer.worst if self.answer else None

    @property
    def surprises(self) -> list[tuple[Judgement, Judgement]]:
        """Pairs of one family in which fewer instances meet the targets and more of them miss one."""
        return [
            (few, many)
            for few in self.meeting for many in self.judgements.values()
            if many.verdict == Verdict.MISSES and many.candidate.family == few.candidate.family
            and many.candidate.instances > few.candidate.instances
        ]  # fmt: skip

    @property
    def num_of_brute_force(self) -> int:
        """Runs that every setting in every replication would take."""
        return len(self.space.candidates) * self.rules.most_replications

    @cached_property
    def at_its_load(self) -> LoadPoint | None:
        """The answer at the load of the scenario, all its replications."""
        if self.answer is None:
            return None
        candidate = self.answer.candidate
        return at(candidate, self.rules, self.evidence.of(candidate), 1.0)

    def cost_of_tokens(self, kind: str = "output") -> float | None:
        """What a million tokens (``output``, or ``total`` with those of prompts) cost at the load of the scenario."""
        if self.answer is None or self.at_its_load is None:
            return None
        return self.answer.candidate.cost / self.at_its_load.facts[f"{kind}_tokens_per_s"] / 3600 * 1e6

    @cached_property
    def profile(self) -> Mapping[str, Any]:
        """That of the answer or, where there is none, of the scenario (see ``comparison.Provenance``); ask when it is
        found.
        """
        return self.provenance.profile if self.answer is None else describe(self.answer.candidate.scenario).profile

    def support_shares(self) -> dict[str, float]:
        """Shares of the busy time, of the answer's runs or of all, by what its step times rest on."""
        runs = self.evidence.runs()
        if self.answer is not None:
            runs = [run for run in runs if run.candidate is self.answer.candidate]
        seconds = {
            name: sum(run.outcome.facts[f"busy_{name}_s"] for run in runs) for name in ("measured", "prior", "outside")
        }
        total = sum(seconds.values()) or 1.0
        return {name: busy_s / total for name, busy_s in seconds.items()}

    def refusals(self) -> dict[str, int]:
        """Refused requests by reason, over the runs at the scenario's load."""
        found: dict[str, int] = {}
        for run in self.evidence.runs():
            for reason, count in run.outcome.refusals.items() if run.load == 1 else ():
                found[reason] = found.get(reason, 0) + count
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything a machine needs, as JSON types; times in seconds, shares between 0 and 1, None for none."""
        judged = sorted(self.judgements.values(), key=lambda one: one.candidate.place)
        nines = self.nines
        return _plain({
            **asdict(self.provenance),
            "confidence": self.rules.confidence,
            "most_replications": self.rules.most_replications,
            "answer": self.answer and _setting(self.answer.candidate),
            "undecided": [_setting(one) for one in self.undecided],
            "closest": self.closest and _setting(self.closest.candidate),
            "options": [_setting(one.candidate) for one in self.options],
            "settings": [_judgement(one) for one in judged],
            "num_settings": len(self.space.candidates),
            "loads": [_point(one) for one in self.headroom.points] if self.headroom else [],
            "headroom": self.headroom and self.headroom.met_at,
            "breaks_at": self.headroom and self.headroom.broken and self.headroom.broken.load,
            "first_to_break": self.headroom and self.headroom.first_to_break and _value(self.headroom.first_to_break),
            "relief": [{"what": one.what, **_point(one.point)} for one in self.relief],
            "one_more_nine": nines and {
                "targets": [one._asdict() for one in nines.targets],
                "setting": nines.judgement and _judgement(nines.judgement),
                "without": nines.without,
            },
            "drawn_profiles": self.draws and {
                **self.draws._asdict(), "safe": self.draws.safe and _setting(self.draws.safe),
            },
            "cost_per_million_output_tokens": self.cost_of_tokens(),
            "cost_per_million_tokens": self.cost_of_tokens("total"),
            "num_runs": {str(stage): number for stage, number in self.evidence.num_runs.items()},
            "num_runs_of_brute_force": self.num_of_brute_force,
            "stopped": self.stopped and str(self.stopped),
        })  # fmt: skip


def _setting(one: Candidate) -> dict[str, Any]:
    return {
        "label": one.label, "instances": one.instances, "values": dict(one.values), "cost_per_hour": one.cost,
        "digest": one.scenario.digest,
    }  # fmt: skip


def _judgement(one: Judgement) -> dict[str, Any]:
    return {
        **_setting(one.candidate), "verdict": str(one.verdict), "num_replications": one.num_replications,
        "unstable": one.unstable, "too_short": one.too_short, "num_skipped": one.num_skipped,
        "targets": [_value(value) for value in one.values],
    }  # fmt: skip


def _value(one: Value) -> dict[str, Any]:
    return {
        **one.target._asdict(), "mean": one.mean, "low": one.low, "high": one.high, "margin": one.margin,
        "verdict": str(one.verdict),
    }  # fmt: skip


def _point(one: LoadPoint) -> dict[str, Any]:
    return {
        "load": one.load, "breaks": one.breaks, "unstable": one.judgement.unstable, "goodput_per_s": one.goodput_per_s,
        "binding": binding(one.facts), "targets": [_value(value) for value in one.judgement.values], "facts": one.facts,
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Numbers that JSON does not have are None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
