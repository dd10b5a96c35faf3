"""From a trace to a ``tree:`` source: every table of it, taken from the threads that the trace shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.counts import counted
from simulator.workload.records import Record
from simulator.workload.tables import table_of
from simulator.workload.tree_spec import TreeSpec
from simulator.workload_fit import another
from simulator.workload_fit.arrivals import fitted
from simulator.workload_fit.lasting import num_requests_of_pool, that_lasts
from simulator.workload_fit.observed import Observed, check_enough, observe
from simulator.workload_fit.returning import Paused, Pooled, paused, pool_is_likelier, pooled

_THREAD_POINTS, _POINTS, _SHARE_POINTS = 60, 40, 20
_FEWEST_A_TABLE = 40  # observations: a class with fewer has the table of all
_FALLEN = 0.8  # a prompt that keeps less of the one before has fallen back
_FEWEST_FALLS = 20
_PRIOR = 10.0  # requests: a class's share of falls is drawn to that of all by so many


@dataclass(frozen=True)
class Fit:
    """A ``tree:`` source as plain data and as a specification, and what was found, in words."""

    source: dict[str, Any]
    spec: TreeSpec
    words: tuple[str, ...]


def fit(
    records: Sequence[Record], block_tokens: int, path: object = "trace", num_requests: int | None = None
) -> Fit:
    """Fit to records in order of arrival, all with prompts (``observed.read`` has looked).

    The generator is to draw ``num_requests``, by default as many as there are. Raises InputError, which calls the
    records ``path``, for too few of them.
    """
    check_enough(records, path)
    seen = observe(records, block_tokens)
    first_edge = (seen.common_tokens // block_tokens + 1) * block_tokens
    where = another.cells(seen.num_tokens, seen.num_outputs, seen.turn, first_edge)
    num_requests = num_requests or len(records)
    threads = _threads(seen, where)
    if isinstance(threads, Pooled):
        threads = that_lasts(
            num_requests,
            lambda weight: pooled(seen, where, weight),
            lambda pool: TreeSpec.model_validate(_source(seen, where, pool, num_requests)),
        )
    found = _source(seen, where, threads, num_requests)
    spec = TreeSpec.model_validate(found)
    later = int(np.sum(seen.parent >= 0))
    parts = f"{counted(seen.parent.size - later, 'thread')}, {counted(later, 'later turn')}"
    return Fit(found, spec, (parts, *_how_they_go_on(spec)))


def _how_they_go_on(spec: TreeSpec) -> Iterator[str]:
    if spec.pool is not None:
        lasts_for = float(f"{num_requests_of_pool(spec):.2g}")
        how = f"that is worked off in about {counted(round(lasts_for), 'request')}"
        yield f"threads go on in random order, as of a pool of {spec.pool:,} {how}"
    elif spec.pause is not None:
        mean, median = np.mean(spec.pause), np.median(spec.pause)
        yield f"threads go on after pauses of {mean:.3g} s (mean) and {median:.3g} s (median)"


def _threads(seen: Observed, where: another.Cells) -> Pooled | Paused | None:
    """How threads go on; None where none does."""
    if not np.any(seen.parent >= 0):
        return None
    pool = pooled(seen, where)
    return pool if pool_is_likelier(seen, where, pool) else paused(seen, where, seen.times_s)


def _source(
    seen: Observed, where: another.Cells, threads: Pooled | Paused | None, num_requests: int
) -> dict[str, Any]:
    begins, later = np.flatnonzero(seen.parent < 0), np.flatnonzero(seen.parent >= 0)
    own_tokens = np.maximum(seen.num_tokens - seen.head_tokens, 0)[begins]
    turns: dict[str, Any] = {}
    if threads is not None:
        turns = {
            "answer_classes": list(where.answer_edges), "turn_groups": list(another.TURN_GROUPS),
            **_when(threads), **_kept_and_added(seen, where),
        }  # fmt: skip
    if isinstance(threads, Pooled):
        own_tokens = _in_proportion(own_tokens, seen.is_hidden[begins], threads)
        later = np.flatnonzero((seen.parent >= 0) | seen.is_hidden)
        _add_hidden_turns(turns, seen, where)
    source: dict[str, Any] = {
        "arrivals": fitted(seen.times_s), "num_requests": num_requests, "block_tokens": seen.block_tokens,
        **_heads(seen), "length_classes": list(where.edges), "thread_tokens": _tokens(own_tokens, _THREAD_POINTS),
        **turns, "new_output_tokens": _by_class(seen.num_outputs, where, begins),
    }  # fmt: skip
    if threads is not None:
        source["output_tokens"] = _by_class(seen.num_outputs, where, later)
    return source


def _heads(seen: Observed) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if seen.common_tokens:
        found["common_tokens"] = seen.common_tokens
    begun = seen.head[seen.parent < 0]
    weights = np.bincount(begun[begun >= 0], minlength=len(seen.heads)).tolist()
    heads = [
        {"tokens": tokens - seen.common_tokens, "weight": weight}
        for weight, tokens in sorted(zip(weights, seen.heads, strict=True), reverse=True)
        if weight
    ]
    if heads:
        found["heads"] = heads
        if headless := int(np.sum(begun < 0)):
            found["headless"] = headless
    return found


def _when(threads: Pooled | Paused) -> dict[str, Any]:
    if isinstance(threads, Paused):
        return {"another": _shares(threads.another), "pause": [float(f"{value:.4g}") for value in _pauses(threads)]}
    rows = threads.another.copy()
    if threads.num_hidden:
        rows[0] = threads.hidden_goes_on
    found = {"another": _shares(rows), "pool": round(threads.num_shown + threads.num_hidden)}
    return found if threads.unbegun_weight == 1 else {**found, "unbegun_weight": float(f"{threads.unbegun_weight:.3g}")}


def _in_proportion(tokens: np.ndarray, hidden: np.ndarray, pool: Pooled) -> np.ndarray:
    """The lengths with as many hidden ones among them as there are among the pool's threads."""
    if not hidden.any() or hidden.all():
        return tokens
    wanted = round(np.sum(~hidden) * pool.num_hidden / pool.num_shown)
    short = np.sort(tokens[hidden])
    return np.concatenate([tokens[~hidden], short[np.arange(wanted) * short.size // max(1, wanted)]])


def _pauses(found: Paused) -> list[float]:
    up_to = np.concatenate(([0.0], np.cumsum(found.shares)))
    chances = (np.arange(100 * _POINTS) + 0.5) / (100 * _POINTS)
    return table_of(np.interp(chances, up_to / up_to[-1], found.edges), _POINTS)


def _kept_and_added(seen: Observed, where: another.Cells) -> dict[str, Any]:
    """What the next prompt of a thread keeps of the one before, and what it adds."""
    later, size = np.flatnonzero(seen.parent >= 0), seen.block_tokens
    before = seen.parent[later]
    repeats = (seen.kept[later] == seen.num_tokens[later]) & (seen.num_tokens[later] == seen.num_tokens[before])
    later, before = later[~repeats], before[~repeats]
    found: dict[str, Any] = {"repeats": float(f"{repeats.mean():.4g}")} if repeats.any() else {}
    head = seen.head_tokens[later] // size
    share = np.minimum(1.0, (seen.kept[later] // size - head) / np.maximum(1, seen.num_tokens[before] // size - head))
    new = seen.num_tokens[later] - seen.kept[later] // size * size
    classes, falls = where.classes[before], share < _FALLEN
    if not later.size:
        return {**found, "extended": {"kept": [1.0], "new_tokens": [[0]]}}
    if falls.sum() < _FEWEST_FALLS or falls.all():  # no kind of its own, or the only kind
        falls = np.zeros_like(falls)
    if falls.any():
        asked, fell = (np.bincount(classes[which], minlength=where.num_classes) for which in (falls | True, falls))
        chances = (fell + _PRIOR * falls.mean()) / (asked + _PRIOR)
        found["falls_back"] = [float(f"{value:.3g}") for value in chances]
    for name, which in (("extended", ~falls), ("fallen", falls)):
        if which.any():
            found[name] = {
                "kept": [round(value, 4) for value in table_of(share[which], _SHARE_POINTS)],
                "new_tokens": _tables(new[which], classes[which], where.num_classes),
            }
    return found


def _add_hidden_turns(turns: dict[str, Any], seen: Observed, where: another.Cells) -> None:
    """Prompts too short to be known again: of their threads' later turns no more is known than their lengths."""
    hidden = seen.is_hidden & (where.classes == 0)
    if not hidden.any():
        return
    tables = turns["extended"]["new_tokens"]
    tables = tables if len(tables) > 1 else tables * where.num_classes
    own_tokens = np.maximum(seen.num_tokens - seen.head_tokens, 0)[hidden]
    turns["extended"]["new_tokens"] = [_tokens(own_tokens, _POINTS), *tables[1:]]
    if "falls_back" in turns:
        turns["falls_back"][0] = 0.0


def _by_class(values: np.ndarray, where: another.Cells, which: np.ndarray) -> list[list[int]]:
    return _tables(values[which], where.classes[which], where.num_classes)


def _tables(values: np.ndarray, classes: np.ndarray, num_classes: int) -> list[list[int]]:
    """A table a class, that of all where a class has few; one, where all classes have few."""
    of_all = _tokens(values, _POINTS)
    own = [values[classes == number] for number in range(num_classes)]
    if all(one.size < _FEWEST_A_TABLE for one in own):
        return [of_all]
    return [_tokens(one, _POINTS) if one.size >= _FEWEST_A_TABLE else of_all for one in own]


def _tokens(values: np.ndarray, num_points: int) -> list[int]:
    return [round(value) for value in table_of(values, num_points)]


def _shares(found: np.ndarray) -> list[list[float]]:
    rows = found.reshape(-1, found.shape[-1]).tolist()
    return [[float(f"{value:.3g}") for value in row] for row in rows]
