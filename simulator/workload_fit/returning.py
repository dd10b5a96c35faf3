"""When a thread goes on: after a pause of its own, or when its turn comes in a pool that is worked off.

A trace ends before all its threads do. Whether a thread that was not seen again had ended is not known: both models
weigh the two cases by what they make of the pauses that were seen (expectation and maximisation in turn; Dempster,
Laird, Rubin (1977), "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39(1)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from simulator.workload_fit.another import Cells, probabilities
from simulator.workload_fit.observed import Observed

_NUM_ROUNDS = 200
_STILL = 1e-4  # a round that changes less is the last
_PRIOR = 1e-3  # keeps numbers that the trace says nothing about from running away
_NUM_BINS = 24
_MOST_COMPARED = 5000  # requests: the comparison takes their square
_FEWEST_RETURNS = 20
_LEAST = 1e-9  # of a chance: one impossible step does not decide


@dataclass(frozen=True)
class Paused:
    """Threads go on with the probabilities ``another``, after pauses whose share between two ``edges`` is ``shares``
    (spread evenly there). ``goes_on`` is how likely each request is followed by another turn.
    """

    another: np.ndarray
    edges: np.ndarray
    shares: np.ndarray

    def survival(self, pause: np.ndarray) -> np.ndarray:
        """The share of pauses above."""
        return np.asarray(1 - np.interp(pause, self.edges, np.concatenate(([0.0], np.cumsum(self.shares)))))


@dataclass(frozen=True)
class Pooled:
    """Any thread that has not ended is next, with a weight of 1 if it has begun, else of ``unbegun_weight``:
    ``num_left`` is the sum of these weights before each request.

    ``num_shown`` threads begin with a whole block of their own; ``num_hidden`` others are seen in no two requests, and
    go on with probability ``hidden_goes_on``.
    """

    another: np.ndarray
    num_shown: float
    num_hidden: float
    hidden_goes_on: float
    num_left: np.ndarray
    unbegun_weight: float = 1.0


def paused(seen: Observed, where: Cells, clock: np.ndarray) -> Paused:
    """Fit pauses, on any clock (seconds, or requests) that gives a number for each request."""
    child = seen.goes_on
    returned = child >= 0
    pauses = clock[child[returned]] - clock[returned]
    edges = np.unique(np.quantile(pauses, np.linspace(0, 1, _NUM_BINS + 1))) if pauses.size else np.array([0.0])
    if edges.size == 1:
        edges = np.array([edges[0], edges[0] + 1e-3])
    counts = np.histogram(pauses, edges)[0].astype(float)
    since = clock[-1] - clock[~returned]
    fit = Paused(np.full(where.shape, 0.5), edges, counts / max(1.0, counts.sum()))
    goes_on = returned.astype(float)
    goes_on[~returned] = 0.25
    for _ in range(_NUM_ROUNDS):
        another = probabilities(where, goes_on)
        chance = where.of(another)[~returned]
        left = fit.survival(since)
        goes_on[~returned] = chance * left / (1 - chance + chance * left)
        # Those under way fall into the bins above the time that they have been away, as the shares say.
        fit = Paused(another, edges, _shares(fit, counts, since, goes_on[~returned], left))
    return fit


def _shares(fit: Paused, counts: np.ndarray, since: np.ndarray, under_way: np.ndarray, left: np.ndarray) -> np.ndarray:
    order = np.argsort(since)
    since, weight = since[order], (under_way / np.maximum(left, 1e-12))[order]
    low, high = fit.edges[:-1], fit.edges[1:]
    total = np.concatenate(([0.0], np.cumsum(weight)))
    moment = np.concatenate(([0.0], np.cumsum(weight * since)))
    below, within = np.searchsorted(since, low), np.searchsorted(since, high)
    # Away for less than the bin's beginning: all of its share is still to come; within it: a part.
    whole = total[below]
    part = (high * (total[within] - whole) - (moment[within] - moment[below])) / (high - low)
    expected = counts + fit.shares * (whole + part)
    return np.asarray(expected / max(expected.sum(), 1e-12))


def pooled(seen: Observed, where: Cells, unbegun_weight: float = 1.0) -> Pooled:
    """Fit the number of threads that begin, and whether they go on, with a given weight of those that have not begun.

    Of prompts without a whole block of their own nothing can be known again, so that each seems to begin a thread; how
    their number falls behind that of the others tells how many are later turns.
    """
    returned, hidden = seen.goes_on >= 0, seen.is_hidden
    begins = (seen.parent < 0) & ~hidden
    num_hidden, num_begun = _before(hidden), _before(begins)
    revived = (seen.parent >= 0) & ~_first_to_go_on(seen)  # a second one to go on: one ending less
    goes_on = np.where(returned, 1.0, 0.5)
    draw = np.array([np.log(max(1.0, begins.sum())), np.log(max(1.0, hidden.sum())), 0.0])
    fit = Pooled(np.zeros(where.shape), 1.0, 0.0, 0.0, np.zeros(1))
    for _ in range(_NUM_ROUNDS):
        another = probabilities(where, np.where(hidden, 0.0, goes_on))
        begun_left = num_begun - _before(np.where(hidden, 0.0, 1 - goes_on) - revived)

        def sizes(draw: np.ndarray) -> tuple[float, float, float]:
            """Threads that show themselves, hidden ones, and the share of hidden turns that are their thread's last."""
            last = float(1 / (1 + np.exp(-draw[2])))
            more_shown, more_hidden = np.exp(draw[:2]).tolist()
            return num_begun[-1] + 1 + more_shown, last * (num_hidden[-1] + 1) + more_hidden, last

        def weight_left(shown: float, concealed: float, last: float, begun: np.ndarray = begun_left) -> np.ndarray:
            """Hidden ones, few of which go on, weigh as if none had begun."""
            return np.asarray(unbegun_weight * (shown - num_begun + concealed - last * num_hidden) + begun)

        def loss(draw: np.ndarray, weight_left: Callable[..., np.ndarray] = weight_left) -> float:
            shown, concealed, last = sizes(draw)
            likelihood = np.sum(np.log(shown - num_begun[begins]))
            if hidden.any():
                likelihood += np.sum(np.log(concealed - last * num_hidden[hidden]))
            else:
                concealed = 0.0
            likelihood -= np.sum(np.log(weight_left(shown, concealed, last)))
            return float(-likelihood + np.sum(_PRIOR * draw**2))

        draw = minimize(loss, draw, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3, "maxiter": 300}).x
        before = fit
        shown, concealed, last = sizes(draw)
        concealed *= bool(hidden.any())
        num_left = weight_left(shown, concealed, last)
        fit = Pooled(another, shown, concealed, 1 - last, num_left, unbegun_weight)
        if np.abs(another - before.another).max() < _STILL and abs(shown / before.num_shown - 1) < _STILL:
            break
        passed = np.cumsum(1 / fit.num_left)
        left = np.exp(passed - passed[-1])  # nobody took the thread up until the end
        chance = where.of(another)
        goes_on = np.where(returned, 1.0, chance * left / (1 - chance + chance * left))
    return fit


def _before(numbers: np.ndarray) -> np.ndarray:
    """The sum of all before each."""
    return np.asarray(np.cumsum(numbers, dtype=float) - numbers)


def pool_is_likelier(seen: Observed, where: Cells, pool: Pooled) -> bool:
    """Whether the pool tells better which thread each request belongs to than pauses do, for all their freedom.

    Log likelihoods of the thread (or a new one) of each of the first requests, given those before; a pause costs half
    the logarithm of their number for each of its shares (Schwarz (1978), "Estimating the dimension of a model", Annals
    of Statistics 6(2)).
    """
    size = min(seen.parent.size, _MOST_COMPARED)
    if np.sum(seen.parent[:size] >= 0) < _FEWEST_RETURNS or pool.num_shown + pool.num_hidden > 5 * seen.parent.size:
        return False
    pauses = paused(seen, where, np.arange(seen.parent.size, dtype=float))
    by_pause = _log_likelihood(seen, where, pauses, size) - 0.5 * np.log(size) * pauses.shares.size
    return bool(_log_likelihood_of_pool(seen, where, pool, size) > by_pause)


def _log_likelihood_of_pool(seen: Observed, where: Cells, pool: Pooled, size: int) -> float:
    """As `_log_likelihood`."""
    hidden = seen.is_hidden
    begins = (seen.parent < 0) & ~hidden
    unbegun = pool.num_shown - _before(begins) + pool.num_hidden - (1 - pool.hidden_goes_on) * _before(hidden)
    new = np.flatnonzero(seen.parent[:size] < 0)
    later = np.flatnonzero(_first_to_go_on(seen)[:size])
    before = seen.parent[later]
    # A thread that goes on had not ended: how likely that was, when it had been away so long.
    passed = np.cumsum(1 / pool.num_left)
    chance = where.of(pool.another)[before]
    left = np.exp(passed[before] - passed[later - 1])
    known = np.sum(np.log(chance * left / (1 - chance + chance * left) / pool.num_left[later]))
    return float(known + np.sum(np.log(unbegun[new] / pool.num_left[new])))


def _first_to_go_on(seen: Observed) -> np.ndarray:
    """Whether each request is the first to go on where its earlier one was: the models know no second one."""
    return np.asarray((seen.parent >= 0) & (seen.goes_on[seen.parent] == np.arange(seen.parent.size)))


def _log_likelihood(seen: Observed, where: Cells, fit: Paused, size: int) -> float:
    """Of the threads of the first ``size`` requests, where each earlier one may go on with its own hazard."""
    left = fit.survival(np.arange(size + 1) - 0.5)
    share = where.of(fit.another)[:size]
    first = _first_to_go_on(seen)
    waits = np.ones(size, dtype=bool)
    total = 0.0
    for number in range(1, size):
        earlier = np.flatnonzero(waits[:number])
        away, chance = number - earlier, share[earlier]
        before, after = left[away], left[away + 1]
        hazard = chance * (before - after) / (1 - chance + chance * before)
        if seen.parent[number] < 0:
            total += np.log(max(1 - hazard.sum(), _LEAST))
        elif first[number]:
            place = np.searchsorted(earlier, seen.parent[number])
            total += np.log(max(hazard[place], _LEAST))
            waits[seen.parent[number]] = False
    return float(total)
