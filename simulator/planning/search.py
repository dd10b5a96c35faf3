"""Which settings are looked at: bisection over instances, from family to family only below the best price so far, and
the families that look best first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.planning.judging import Judgement, Verdict
from simulator.planning.space import Candidate, Space

Decide = Callable[[Candidate], Judgement]
Screen = Callable[[Candidate], float]

# Of as many families that begin at one price a short look at each pays.
_MANY = 3


def search(space: Space, decide: Decide, screen: Screen | None = None) -> None:
    """Have every setting decided that the answer rests on.

    Within a family more instances are taken never to be worse: the fewest that meet are found by bisection. The first
    setting that is asked for of each later family is the dearest below the best price so far: where that misses, the
    whole family is out. Families come in order of their cheapest setting; those that are alike in it in the order of
    ``screen`` (less is better) of the setting in their middle. What is dearer than the answer, or as dear, is not
    looked at here.
    """
    best: Candidate | None = None
    for family in _ordered(space, screen):
        below = [candidate for candidate in family if best is None or candidate.cost < best.cost]
        found = _fewest(below, decide, from_the_top=best is not None)
        if found is not None:
            best = found


def _ordered(space: Space, screen: Screen | None) -> list[tuple[Candidate, ...]]:
    prices = [family[0].cost for family in space.families]

    def looks(family: tuple[Candidate, ...]) -> float:
        if screen is None or prices.count(family[0].cost) < _MANY:
            return 0.0
        return screen(family[len(family) // 2])

    return sorted(space.families, key=lambda family: (family[0].cost, looks(family), family[0].family))


def _fewest(candidates: Sequence[Candidate], decide: Decide, *, from_the_top: bool) -> Candidate | None:
    """The first that is shown to meet; every one before it is then shown to miss, or has been looked at often enough.

    Of several that can't be told apart from their target, only those next to the decided ones are looked at.
    """
    low, high = -1, len(candidates)
    place = high - 1 if from_the_top else (low + high) // 2
    while high - low > 1:
        if decide(candidates[place]).verdict == Verdict.MEETS:
            high = place
        else:
            low = place
        place = (low + high) // 2
    # Below the answer: what is open, and on down to the first that is shown to miss.
    place = high - 1
    while place >= 0 and decide(candidates[place]).verdict == Verdict.OPEN:
        place -= 1
    return candidates[high] if high < len(candidates) else None


def fewest_from(candidates: Sequence[Candidate], decide: Decide) -> Candidate | None:
    """The first that is shown to meet, looked for from the front by steps that double: where it is near, few settings
    are looked at.
    """
    low, step = -1, 1
    high = len(candidates)
    while low + step < len(candidates):
        place = low + step
        if decide(candidates[place]).verdict == Verdict.MEETS:
            high = place
            break
        low, step = place, 2 * step
    while high - low > 1:
        place = (low + high) // 2
        if decide(candidates[place]).verdict == Verdict.MEETS:
            high = place
        else:
            low = place
    return candidates[high] if high < len(candidates) else None
