"""What would help where the first target breaks: more of one resource at a time, and the target looked at again.

How far a resource is used does not tell that. An engine that batches is busy all the time long before it is full, and
what keeps it computing may be prefills that more KV memory would have saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InputError
from simulator.planning.evidence import Evidence
from simulator.planning.headroom import REPLICATIONS, LoadPoint, at
from simulator.planning.judging import Rules
from simulator.planning.space import INSTANCES, Candidate
from simulator.scenario import Scenario
from simulator.scenario.changes import KeyPath


@dataclass(frozen=True)
class Relief:
    """The setting at the load that breaks a target, with more of one thing (``what``, in words)."""

    what: str
    point: LoadPoint


def relief(candidate: Candidate, broken: LoadPoint, rules: Rules, evidence: Evidence, found: list[Relief]) -> None:
    """Put into ``found`` what each resource alone would do at the load of ``broken``, in as many replications of the
    same draws. Raises OutOfBudget.
    """
    for number, (what, changes) in enumerate(_more(candidate.scenario)):
        try:
            changed = candidate.scenario.with_changes(changes)
            changed.check()
        except InputError:  # the engine cannot have more of it
            continue
        # A place of its own among the runs, which none of the settings has.
        cost = candidate.cost * changed.cluster.instances / candidate.instances
        values = {**candidate.values, "more": what}
        other = replace(candidate, scenario=changed, values=values, cost=cost, place=-1 - number)
        outcomes = evidence.need(other, min(REPLICATIONS, rules.most_replications), broken.load)
        found.append(Relief(what, at(other, rules, outcomes, broken.load)))


def _more(scenario: Scenario) -> Iterator[tuple[str, dict[KeyPath, Any]]]:
    config = scenario.engine_config
    yield "one instance more", {INSTANCES: scenario.cluster.instances + 1}
    yield "twice the KV memory", {("engine", "num_gpu_blocks_override"): 2 * config.num_gpu_blocks}
    yield "twice the seats", {("engine", "max_num_seqs"): 2 * config.max_num_seqs}
    yield "twice the tokens a step", {("engine", "max_num_batched_tokens"): 2 * config.max_num_batched_tokens}
