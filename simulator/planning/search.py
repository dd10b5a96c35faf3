"""Which settings are looked at: bisection over instances while runs bear it out, and the families that look best first.

Within a family the strain on the targets (see ``Judgement.strain``) is taken to have one valley over the number of
instances: it falls as instances are added, and may rise again where a router then scatters what caches hold. So all
that lies beyond a setting that is clearly more strained than another is ruled out, if either misses its targets. Where
strain only falls that is bisection; where it rises with more instances, or stays as it is, the search turns to fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from simulator.planning.judging import Judgement, Verdict
from simulator.planning.space import Candidate, Space

Decide = Callable[[Candidate], Judgement]
Screen = Callable[[Candidate], float]

# Of as many families that begin at one price a short look at each pays.
_MANY = 3
# As many settings that are strained alike are a plateau.
_FLAT = 3


def search(space: Space, decide: Decide, screen: Screen | None = None) -> None:
    """Have every setting decided that the answer rests on: afterwards each that is cheaper is shown to miss, ruled out
    (see `within`), or was looked at often enough without being told from its target.

    The first setting that is asked for of each later family is the dearest below the best price so far: where that
    misses, and one fewer is clearly more strained, the whole family is out. Families come in order of their
    cheapest setting; those that are alike in it in the order of ``screen`` (less is better) of the setting in their
    middle. What is dearer than the answer, or as dear, is not looked at here.
    """
    price = inf
    for family in _ordered(space, screen):
        judged: dict[int, Judgement] = {}
        while left := [one for one in within(family, judged) if one.cost < price and one.instances not in judged]:
            one = _next(left, judged, from_the_top=price < inf)
            judged[one.instances] = decide(one)
            if judged[one.instances].verdict == Verdict.MEETS:
                price = one.cost


def _ordered(space: Space, screen: Screen | None) -> list[tuple[Candidate, ...]]:
    prices = [family[0].cost for family in space.families]

    def looks(family: tuple[Candidate, ...]) -> float:
        if screen is None or prices.count(family[0].cost) < _MANY:
            return 0.0
        return screen(family[len(family) // 2])

    return sorted(space.families, key=lambda family: (family[0].cost, looks(family), family[0].family))


def within(family: Sequence[Candidate], judged: Mapping[int, Judgement]) -> list[Candidate]:
    """The settings of a family that those judged (by their number of instances) do not rule out, in order of instances.

    Where all are overloaded, out is all below them. Else the valley is looked for at the least strained of them and at
    those that are not clearly more strained than it, the ones at the bottom: out is all beyond one that clearly is,
    if either misses. Of three or more at the bottom that all miss, what lies beyond the second is flat; before it there
    may be the valley, if the first is on its other side.
    """
    if not judged:
        return list(family)
    least = min(judged.values(), key=lambda one: (one.unstable, one.strain))
    if least.unstable:
        return [one for one in family if one.instances > max(judged)]
    bottom = [number for number, one in judged.items() if not one.is_clearly_more_strained(least)]
    misses = [number for number, one in judged.items() if Verdict.MISSES in (one.verdict, least.verdict)]
    low = max((number for number in misses if number < min(bottom)), default=0)
    high = min((number for number in misses if number > max(bottom)), default=inf)
    left = [one for one in family if low <= one.instances <= high]
    if len(bottom) < _FLAT or any(judged[number].verdict != Verdict.MISSES for number in bottom):
        return left
    second = sorted(bottom)[1]
    return [one for one in left if one.instances in judged or not second < one.instances < max(bottom)]


def _next(left: Sequence[Candidate], judged: Mapping[int, Judgement], *, from_the_top: bool) -> Candidate:
    """Which of the settings that are ``left`` to look at next: the middle one of those with more instances than any
    that was judged, else of the longest gap between two that were; with fewer than any, see `_is_next_below`.
    """
    if not judged:
        return left[-1] if from_the_top else _middle(left)
    gaps: dict[int, list[Candidate]] = {}
    for one in left:
        gaps.setdefault(sum(number < one.instances for number in judged), []).append(one)
    gap = gaps.get(len(judged)) or max(reversed(gaps.values()), key=len)
    return gap[-1] if gap is gaps.get(0) and _is_next_below(judged) else _middle(gap)


def _is_next_below(judged: Mapping[int, Judgement]) -> bool:
    """Whether the one next to the fewest instances that were judged comes before others with fewer: where those are
    open, or miss and nothing tells yet whether fewer are better.
    """
    verdict = judged[min(judged)].verdict
    return verdict == Verdict.OPEN or (verdict == Verdict.MISSES and len(judged) == 1)


def _middle(candidates: Sequence[Candidate]) -> Candidate:
    return candidates[(len(candidates) - 1) // 2]


def fewest_from(candidates: Sequence[Candidate], holds: Callable[[Candidate], bool]) -> Candidate | None:
    """The first for which it holds, looked for from the front by steps that double: where it is near, few settings are
    looked at.
    """
    low, step = -1, 1
    high = len(candidates)
    while low + step < len(candidates):
        place = low + step
        if holds(candidates[place]):
            high = place
            break
        low, step = place, 2 * step
    while high - low > 1:
        place = (low + high) // 2
        if holds(candidates[place]):
            high = place
        else:
            low = place
    return candidates[high] if high < len(candidates) else None
