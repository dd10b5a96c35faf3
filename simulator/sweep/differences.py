"""How far each setting is from one of them, replication by replication (see ``statistics``).

A best setting is chosen from the same runs in which it is compared: to allow for that, p-values against it are adjusted
over all pairs of settings, as if every pair had been asked for. Against a setting named beforehand only its own count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from simulator.statistics import TOO_SHORT, Difference, holm, paired_difference


def against(
    values: np.ndarray, reference: int, labels: Sequence[str], metric: str, withheld: Collection[int] = (),
    *, chosen_from_these: bool,
) -> dict[int, Difference]:  # fmt: skip
    """The difference of each setting from the reference, by its place, with Holm's correction.

    ``values`` have a row a setting and a column a replication; settings that lack one are left out. Those ``withheld``,
    since their runs are too short, get no interval and are not tested, nor is anything against them.
    """
    usable = [place for place in range(len(values)) if not np.isnan(values[place]).any()]
    if reference not in usable:
        return {}
    found = {
        place: paired_difference(metric, labels[place], labels[reference], values[place], values[reference])
        for place in usable
        if place != reference
    }  # fmt: skip
    for place in found.keys() if reference in withheld else found.keys() & set(withheld):
        estimate = replace(found[place].estimate, half_width=None, without=TOO_SHORT)
        found[place] = Difference(metric, labels[place], labels[reference], estimate, None)
    own = {place: one.p_value for place, one in found.items() if one.p_value is not None}
    tested = [place for place in usable if place not in withheld]
    family = all_pairs(values[tested]) if chosen_from_these else np.array(list(own.values()))
    for (place, one), p in zip(list(own.items()), adjusted(list(own.values()), family), strict=True):
        found[place] = replace(found[place], p_value=one, adjusted_p=p)
    return found


def adjusted(own: Sequence[float], family: np.ndarray) -> list[float]:
    """Holm's adjusted p-value of each of ``own``, which are all in the ``family``."""
    if not own:
        return []
    ordered = np.sort(family)
    steps = np.array(holm(ordered.tolist()))
    # Rounding may have moved a value below itself.
    places = np.searchsorted(ordered, np.array(own) * (1 + 1e-9), side="right") - 1
    return [float(p) for p in steps[np.maximum(places, 0)]]


def all_pairs(values: np.ndarray) -> np.ndarray:
    """Two-sided p-values of the paired t tests between all rows: those that ``paired_difference`` gives, if any."""
    from scipy import stats

    num_rows, count = values.shape
    if count < 2:
        return np.array([])
    first, second = np.triu_indices(num_rows, 1)
    differences = values[first] - values[second]
    rounding = 8 * np.finfo(float).eps
    differences[np.abs(differences) <= rounding * np.maximum(np.abs(values[first]), np.abs(values[second]))] = 0.0
    errors = differences.std(axis=1, ddof=1) / np.sqrt(count)
    alike = ~differences.any(axis=1)
    judged = errors > rounding * np.abs(differences).max(axis=1)
    p_values = 2 * stats.t.sf(np.abs(differences.mean(axis=1)[judged] / errors[judged]), count - 1)
    return np.concatenate([p_values, np.ones(int(alike.sum()))])
