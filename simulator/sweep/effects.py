"""What each varied key does by itself: main effects and rank correlations, with intervals over replications.

Both are computed in every replication, over all settings, and the interval is Student's over the replications (Law,
"Simulation Modeling and Analysis", 5th edition, 12.2: factorial designs replicated with common random numbers). It
covers the workload's chance, not that of a drawn design, and not interactions, whose share is given apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simulator.statistics import Difference, Estimate, holm, paired_difference, t_interval
from simulator.sweep.axes import Axis, label, numbers

# More distinct values than this are put into so many groups of equal size.
_MOST_LEVELS, _NUM_GROUPS = 8, 3
_DIGITS = 11


@dataclass(frozen=True)
class Effect:
    """What one key does.

    ``difference`` is the worst level's mean less the best one's, other keys' own effects taken out; of logarithms where
    times are compared, so that its exponential is a ratio. Its p-value is adjusted over all pairs of levels of all
    keys, since the runs chose these two. ``rank_correlation`` (Spearman's) is None for what has no order.
    """

    name: str
    best: str
    worst: str
    difference: Difference
    rank_correlation: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        correlation = self.rank_correlation
        return {
            "name": self.name, "best": self.best, "worst": self.worst,
            "difference": asdict(self.difference) | {"significant": self.difference.significant},
            "rank_correlation": None if correlation is None else asdict(correlation),
        }  # fmt: skip


@dataclass(frozen=True)
class Effects:
    """The effects of all keys, the largest first, and the share of what varies between settings that they explain
    together by adding up; the rest are interactions.
    """

    effects: tuple[Effect, ...]
    explained: float

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {"explained_by_adding_up": self.explained, "by_key": [found.to_json() for found in self.effects]}


def find_effects(
    axes: Sequence[Axis], rows: Sequence[tuple[Any, ...]], values: np.ndarray, *, lower_is_better: bool
) -> Effects:
    """Effects of the ``axes`` on ``values`` (a row a setting, a column a replication); ``rows`` are the settings' own.

    An additive model of all keys' levels is fitted to each replication by least squares: on a full grid a level's
    effect is the mean of its row, on a drawn design what the other keys happen to do beside it is taken out.
    """
    columns = _columns(rows)
    levels, model = _model(columns)
    coefficients, *_ = np.linalg.lstsq(model, values, rcond=None)
    # What solving leaves between keys that do nothing is no effect, however regular it is.
    size = float(np.abs(values).max()) or 1.0
    coefficients = np.round(coefficients / size, _DIGITS) * size
    found, tests = [], []
    first = 1
    for axis, column, (names, _) in zip(axes, columns, levels, strict=True):
        # Against the first level, which the model's constant holds.
        own = np.vstack([np.zeros(values.shape[1]), coefficients[first : first + len(names) - 1]])
        first += len(names) - 1
        found.append(_effect(axis, names, own, column, values, lower_is_better=lower_is_better))
        pairs = itertools.combinations(range(len(names)), 2)
        tests += [paired_difference(axis.name, "", "", own[one], own[other]).p_value for one, other in pairs]
    p_values = [p for p in tests if p is not None]
    found = [_adjusted(effect, p_values) for effect in found]
    found.sort(key=lambda effect: -abs(effect.difference.estimate.mean))
    return Effects(tuple(found), _explained(model, coefficients, values))


def tells_apart(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Whether these settings tell what one key does from what the others do: each key has several levels, and there are
    more settings than an additive model of them needs. Of a few drawn ones, in which keys move together, any share of
    the difference could be any key's.
    """
    levels, model = _model(_columns(rows))
    return all(len(names) > 1 for names, _ in levels) and _is_determined(model)


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _model(columns: list[list[Any]]) -> tuple[list[tuple[list[str], np.ndarray]], np.ndarray]:
    """Levels of each key (see ``_levels``), fewer where that many are not told apart; and the model's columns: ones,
    and indicators of every level but each key's first.
    """
    for most in (_MOST_LEVELS, _NUM_GROUPS):
        levels = [_levels(column, most) for column in columns]
        ones = np.ones((len(columns[0]), 1))
        model = np.hstack([ones, *(_indicators(codes, len(names)) for names, codes in levels)])
        if _is_determined(model):
            break
    return levels, model


def _is_determined(model: np.ndarray) -> bool:
    num_rows, num_columns = model.shape
    return num_columns < num_rows and int(np.linalg.matrix_rank(model)) == num_columns


def _effect(
    axis: Axis, names: list[str], own: np.ndarray, column: list[Any], values: np.ndarray, *, lower_is_better: bool
) -> Effect:
    means = own.mean(axis=1)
    best, worst = int(means.argmin()), int(means.argmax())
    if not lower_is_better:
        best, worst = worst, best
    difference = paired_difference(axis.name, names[worst], names[best], own[worst], own[best])
    return Effect(axis.name, names[best], names[worst], difference, _rank_correlation(column, values))


def _rank_correlation(column: list[Any], values: np.ndarray) -> Estimate | None:
    from scipy import stats

    order = numbers(column)
    if order is None or any(len(set(replication)) < 2 for replication in values.T.tolist()):
        return None
    return t_interval([float(stats.spearmanr(order, replication).statistic) for replication in values.T])


def _adjusted(effect: Effect, p_values: list[float]) -> Effect:
    p = effect.difference.p_value
    if p is None:
        return effect
    adjusted = holm(p_values)[p_values.index(p)]
    return replace(effect, difference=replace(effect.difference, adjusted_p=adjusted))


def _levels(column: list[Any], most: int) -> tuple[list[str], np.ndarray]:
    """Names of the levels, and the level of each setting: distinct values or, of more numbers than ``most``, groups of
    about equal size, equal values in one.
    """
    order = numbers(column)
    distinct = list(dict.fromkeys(map(label, column)))
    if order is None or len(distinct) <= most:
        places = {name: place for place, name in enumerate(distinct)}
        return distinct, np.array([places[label(value)] for value in column])
    ranks = np.searchsorted(np.sort(order), order)
    groups, codes = np.unique(ranks * _NUM_GROUPS // len(column), return_inverse=True)
    names = []
    for group in range(len(groups)):
        inside = sorted((number, label(value)) for number, value, code in zip(order, column, codes, strict=True)
                        if code == group)  # fmt: skip
        low, high = inside[0][1], inside[-1][1]
        names.append(low if low == high else f"{low} to {high}")
    return names, codes


def _indicators(codes: np.ndarray, count: int) -> np.ndarray:
    """A column for each level but the first."""
    return (codes[:, None] == np.arange(1, count)[None, :]).astype(float)


def _explained(model: np.ndarray, coefficients: np.ndarray, values: np.ndarray) -> float:
    """Share of the variance between settings, of their means over replications."""
    means = values.mean(axis=1)
    total = float(((means - means.mean()) ** 2).sum())
    left = float(((means - (model @ coefficients).mean(axis=1)) ** 2).sum())
    return 1 - left / total if total else 1.0
