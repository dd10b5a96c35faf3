"""Whether a thread goes on: a probability for each class of prompts, class of answers and group of turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TURN_GROUPS = (1, 2, 4)
_NUM_CLASSES, _NUM_ANSWERS = 6, 6
# Precisions, of the logit: of a class around the mean for first turns (a standard deviation of 2.5, as Gelman et al.
# (2008), "A weakly informative default prior distribution for logistic and other regression models", Annals of Applied
# Statistics 2(4); a narrower one makes pools that are fitted to few turns too small) and for later ones (a thread that
# has gone on says more of itself by that than by its length), and of a group of turns around the one before.
_FREE_RIDGE, _FIRST_RIDGE, _LATER_RIDGE, _GROUP_RIDGE = 0.01, 0.16, 8.0, 4.0
_NUM_STEPS, _STILL = 25, 1e-6


@dataclass(frozen=True)
class Cells:
    """The cell of each request: the classes of its prompt and of its answer (parted at ``edges`` and ``answer_edges``
    tokens), and its group of turns.
    """

    edges: tuple[int, ...]
    answer_edges: tuple[int, ...]
    classes: np.ndarray
    answers: np.ndarray
    groups: np.ndarray

    @property
    def num_classes(self) -> int:
        """One more than there are edges."""
        return len(self.edges) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Classes of prompts, classes of answers, groups of turns."""
        return self.num_classes, len(self.answer_edges) + 1, len(TURN_GROUPS) + 1

    def of(self, chances: np.ndarray) -> np.ndarray:
        """Each request's, from one a cell."""
        found: np.ndarray = chances[self.classes, self.answers, self.groups]
        return found


def cells(num_tokens: np.ndarray, num_outputs: np.ndarray, turn: np.ndarray, first_edge: int) -> Cells:
    """Classes of prompts and of answers that each hold a like share of the sum of the prompts' sqrt(tokens), between
    the same number of requests (short ones would fill most classes) and the same number of tokens (long ones would).
    Prompts below ``first_edge`` (too short to be known again) are a class of their own.
    """
    weights = np.sqrt(num_tokens)
    edges = _inner({first_edge, *_parting(num_tokens, weights, _NUM_CLASSES)}, num_tokens)
    answer_edges = _inner(set(_parting(num_outputs, weights, _NUM_ANSWERS)), num_outputs)
    parted = ((edges, num_tokens), (answer_edges, num_outputs), (TURN_GROUPS, turn))
    return Cells(edges, answer_edges, *(np.searchsorted(at, of, side="right") for at, of in parted))


def _parting(values: np.ndarray, weights: np.ndarray, num: int) -> list[int]:
    order = np.argsort(values)
    weight = np.cumsum(weights[order])
    found: list[int] = values[order[np.searchsorted(weight, weight[-1] * np.arange(1, num) / num)]].tolist()
    return found


def _inner(edges: set[int], values: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted(edge for edge in edges if values.min() < edge <= values.max()))


def probabilities(where: Cells, goes_on: np.ndarray) -> np.ndarray:
    """P(class, answer, group) of another turn, from ``goes_on`` (a request each: 1, 0, or how likely it does).

    logit P = group + class + answer, with other classes for first turns than for later ones, by penalised maximum
    likelihood (Newton): classes are drawn to their mean, groups to the group before, so that a group which the trace
    hardly reaches is as the last one that it does.
    """
    num_classes, num_answers, num_groups = where.shape
    cell = np.ravel_multi_index((where.classes, where.answers, where.groups), where.shape)
    asked = np.bincount(cell, minlength=num_classes * num_answers * num_groups).astype(float)
    went = np.bincount(cell, weights=goes_on, minlength=asked.size)
    # Columns: the first group and the steps from each group to the next; of first turns and then of later ones, the
    # classes of prompts and those of answers.
    rows = np.zeros((asked.size, num_groups + 2 * (num_classes + num_answers)))
    for number in range(asked.size):
        place, answer, group = np.unravel_index(number, where.shape)
        own = num_groups + (num_classes + num_answers) * (group > 0)
        rows[number, [*range(group + 1), own + place, own + num_classes + answer]] = 1
    ridge = np.repeat(
        [_FREE_RIDGE, _GROUP_RIDGE, _FIRST_RIDGE, _LATER_RIDGE],
        [2, num_groups - 2, num_classes + num_answers, num_classes + num_answers],
    )
    weights = np.zeros(rows.shape[1])
    for _ in range(_NUM_STEPS):
        chance = _logistic(rows @ weights)
        slope = rows.T @ (went - asked * chance) - ridge * weights
        bend = (rows * (asked * chance * (1 - chance))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(bend, slope)
        weights += np.clip(step, -2, 2)
        if np.abs(step).max() < _STILL:
            break
    found: np.ndarray = _logistic(rows @ weights).reshape(where.shape)
    return found


def _logistic(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30, 30))))
