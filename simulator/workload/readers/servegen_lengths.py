"""The lengths of ServeGen's clients: distributions of prompts and answers by client and window of six hours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.workload.lines import numbered_lines
from simulator.workload.readers.fields import MAX_TOKENS, Fields, json_object, number, shown, whole
from simulator.workload.readers.reading import Skips, Unusable


class Lengths(NamedTuple):
    """Numbers of tokens (>= 1), and the running sums of their probabilities, up to 1."""

    known: np.ndarray
    shares: np.ndarray

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """``size`` independent draws."""
        return self.known[np.searchsorted(self.shares[:-1], rng.random(size), side="right")]


class ClientLengths:
    """Reads the whole file at once. Raises InputError for one without a usable line; others go to ``skips``."""

    def __init__(self, path: Path, skips: Skips) -> None:
        self._by_client: dict[int, list[tuple[float, Lengths, Lengths]]] = {}
        for line, content in numbered_lines(path):
            skips.num_lines += 1
            try:
                fields = json_object(content)
                window = number(fields, "t_s", 0), _lengths(fields, "input_tokens"), _lengths(fields, "output_tokens")
                self._by_client.setdefault(whole(fields, "client"), []).append(window)
            except Unusable as error:
                skips.add(line, str(error), path)
        if not self._by_client:
            raise InputError(f"{path}: no client, expected lines with client, t_s, input_tokens and output_tokens")
        for windows in self._by_client.values():
            windows.sort(key=lambda window: window[0])
        self._pooled = lru_cache(maxsize=2)(self._pool)

    def of(self, client: int, time_s: float) -> tuple[Lengths, Lengths]:
        """A client's prompts and answers at a time; those of all clients alike where it has none."""
        if client in self._by_client:
            return _at(self._by_client[client], time_s)
        # Every client's window that holds then: the same ones for as long as none of them changes.
        return self._pooled(tuple(bisect_right(windows, time_s, key=_start) for windows in self._by_client.values()))

    def _pool(self, ends: tuple[int, ...]) -> tuple[Lengths, Lengths]:
        windows = [each[max(0, end - 1)] for each, end in zip(self._by_client.values(), ends, strict=True)]
        return _mixed(prompts for _, prompts, _ in windows), _mixed(answers for _, _, answers in windows)


def _start(window: tuple[float, Lengths, Lengths]) -> float:
    return window[0]


def _at(windows: list[tuple[float, Lengths, Lengths]], time_s: float) -> tuple[Lengths, Lengths]:
    """The window that holds the time, else the last one before it, else the first."""
    _, prompts, answers = windows[max(0, bisect_right(windows, time_s, key=_start) - 1)]
    return prompts, answers


def _mixed(lengths: Iterable[Lengths]) -> Lengths:
    parts = list(lengths)
    weights = np.concatenate([np.diff(part.shares, prepend=0.0) for part in parts])
    return Lengths(np.concatenate([part.known for part in parts]), _running(weights))


def _running(weights: np.ndarray) -> np.ndarray:
    sums = np.cumsum(weights)
    return sums / sums[-1]


def _lengths(fields: Fields, key: str) -> Lengths:
    pair = fields.get(key)
    try:
        known, weights = (np.asarray(column, dtype=float) for column in pair)  # type: ignore[union-attr]
    except (TypeError, ValueError, OverflowError):
        raise Unusable(f"{key} is {shown(pair)}, expected [values, probabilities]") from None
    if not (known.ndim == 1 and known.size and known.shape == weights.shape):
        raise Unusable(f"{key} is {shown(pair)}, expected as many probabilities as values")
    if not (np.all((known >= 0) & (known <= MAX_TOKENS)) and np.all(weights >= 0) and 0 < weights.sum() < 1e9):
        raise Unusable(f"{key} is {shown(pair)}, expected tokens and probabilities >= 0")
    return Lengths(np.maximum(known, 1).astype(np.int64), _running(weights))
