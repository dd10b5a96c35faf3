"""Whether a thread goes on: a probability for each class of the prompt's length and each group of turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TURN_GROUPS = (1, 2, 4)
_NUM_CLASSES = 6
# Precisions, of the logit: of a class around the mean for first turns and for later ones (a thread that has gone on
# says more of itself by that than by its length), and of a group of turns around the one before.
_FREE_RIDGE, _FIRST_RIDGE, _LATER_RIDGE, _GROUP_RIDGE = 0.01, 0.5, 8.0, 4.0
_NUM_STEPS = 25


@dataclass(frozen=True)
class Cells:
    """The cell of each request: its class (parted at ``edges`` tokens) and its group of turns."""

    edges: tuple[int, ...]
    classes: np.ndarray
    groups: np.ndarray

    @property
    def num_classes(self) -> int:
        """One more than there are edges."""
        return len(self.edges) + 1


def cells(num_tokens: np.ndarray, turn: np.ndarray, first_edge: int) -> Cells:
    """Classes that each hold a like share of the sum of sqrt(tokens), between the same number of requests (short ones
    would fill most classes) and the same number of tokens (long ones would). Prompts below ``first_edge`` (too short to
    be known again) are a class of their own.
    """
    ordered = np.sort(num_tokens)
    weight = np.cumsum(np.sqrt(ordered))
    places = np.searchsorted(weight, weight[-1] * np.arange(1, _NUM_CLASSES) / _NUM_CLASSES)
    edges = {first_edge, *ordered[places].tolist()}
    inner = tuple(sorted(edge for edge in edges if ordered[0] < edge <= ordered[-1]))
    classes, groups = (np.searchsorted(at, of, side="right") for at, of in ((inner, num_tokens), (TURN_GROUPS, turn)))
    return Cells(inner, classes, groups)


def probabilities(where: Cells, goes_on: np.ndarray) -> np.ndarray:
    """P(class, group) of another turn, from ``goes_on`` (a request each: 1, 0, or how likely it does).

    logit P = group + class, with other classes for first turns than for later ones, by penalised maximum likelihood
    (Newton): classes are drawn to their mean, groups to the group before, so that a group which the trace hardly
    reaches is as the last one that it does.
    """
    num_classes, num_groups = where.num_classes, len(TURN_GROUPS) + 1
    cell = where.classes * num_groups + where.groups
    asked = np.bincount(cell, minlength=num_classes * num_groups).astype(float)
    went = np.bincount(cell, weights=goes_on, minlength=num_classes * num_groups)
    # Columns: the first group, the steps from each group to the next, the classes of first turns and of later ones.
    rows = np.zeros((num_classes * num_groups, num_groups + 2 * num_classes))
    for number in range(num_classes * num_groups):
        place, group = divmod(number, num_groups)
        rows[number, [*range(group + 1), num_groups + place + num_classes * (group > 0)]] = 1
    precisions = [_FREE_RIDGE, _GROUP_RIDGE, _FIRST_RIDGE, _LATER_RIDGE]
    ridge = np.repeat(precisions, [2, num_groups - 2, num_classes, num_classes])
    weights = np.zeros(rows.shape[1])
    for _ in range(_NUM_STEPS):
        chance = _logistic(rows @ weights)
        slope = rows.T @ (went - asked * chance) - ridge * weights
        bend = (rows * (asked * chance * (1 - chance))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(bend, slope)
        weights += np.clip(step, -2, 2)
    found: np.ndarray = _logistic(rows @ weights).reshape(num_classes, num_groups)
    return found


def _logistic(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30, 30))))
