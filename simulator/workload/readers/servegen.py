"""ServeGen's clients of Alibaba Cloud Model Studio (Xiang et al., arXiv 2505.09999): drawn, not replayed.

Two files of the re-encoded data: rates, CSV with ``client, t_s, rate_rps, cv, pattern, param1, param2`` (windows of
600 s), and ``lengths``, JSON lines with ``client``, ``t_s`` (windows of 6 h) and ``input_tokens`` and ``output_tokens``
as [values, probabilities]. Either may be gzipped.

Requests of a client in a window: as many as its rate says (fractions are carried to its next window, so that counts
add up), their gaps drawn from the fitted Gamma or Weibull distribution (``param1`` is its shape) and stretched to fill
the window. Lengths of prompt and answer are drawn independently from the client's window, the last one before where
it has none for that time. A client without any takes those of all others together. Draws are named after client and
window: another ``start_s`` or ``duration_s`` (seconds of the data's span) changes none. The client stands as the
tenant. What prompts share is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.streams import stream
from simulator.workload.readers.columns import RowParser, column_number, parsed_rows
from simulator.workload.readers.fields import shown
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.readers.servegen_lengths import ClientLengths
from simulator.workload.records import Record

WINDOW_S = 600.0
_COLUMNS = ("client", "t_s", "rate_rps", "pattern", "param1")
_LEAST_SHAPE = 1e-3
_MOST_A_WINDOW = 10**7  # requests of one client, 16,667 a second: more is a slip of the pen


class _Rate(NamedTuple):
    """One client in one window: ``num_requests`` of it."""

    client: int
    start_s: float
    num_requests: int
    pattern: str
    shape: float


class Servegen(FileTrace):
    """See the module."""

    format = "servegen"
    description = "ServeGen's clients: rates in a CSV, lengths in JSON lines (option lengths); drawn with a seed"
    options = frozenset({"lengths", "seed", "start_s", "duration_s"})
    in_order = True

    def __init__(
        self,
        path: Path,
        *,
        strict: bool = False,
        lengths: Path | str | None = None,
        seed: int = 0,
        start_s: float = 0.0,
        duration_s: float | None = None,
    ) -> None:
        super().__init__(path, strict=strict)
        if lengths is None:
            raise InputError(f"{path}: rates of ServeGen's clients, expected their lengths too (option lengths)")
        self._lengths_path = Path(lengths)
        self._seed = seed
        self._start_s = start_s
        self._end_s = float("inf") if duration_s is None else start_s + duration_s
        self.assumed = ("lengths of prompt and answer are independent", "clients without lengths have those of all")

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """The columns of its rates."""
        return set(_COLUMNS) <= set(head.columns)

    def span_s(self) -> float:
        """Seconds that the rates cover, from 0. Raises InputError as ``records``."""
        rates = self._rates(Skips(self.path, self.strict))
        return max((rate.start_s for _, rate in rates), default=0.0) + WINDOW_S

    def _rates(self, skips: Skips) -> Iterator[tuple[int, _Rate]]:
        return parsed_rows(self.path, _COLUMNS, (), _rate_parser, skips)

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        windows: dict[float, list[tuple[int, _Rate]]] = {}
        for line, rate in self._rates(skips):
            windows.setdefault(rate.start_s, []).append((line, rate))
        if not windows:
            return
        lengths = ClientLengths(self._lengths_path, skips)
        for start_s in sorted(windows):
            # Rounding may put a window's last request at its very end.
            if start_s < self._end_s and start_s + WINDOW_S >= self._start_s:
                yield from self._window(windows[start_s], lengths)

    def _window(self, rates: list[tuple[int, _Rate]], lengths: ClientLengths) -> Iterator[tuple[int, Record]]:
        drawn = []
        for line, rate in rates:
            rng = stream(self._seed, "servegen", rate.client, rate.start_s)
            times_s = rate.start_s + _times_s(rate, rng)
            prompts, answers = (known.draw(rng, rate.num_requests) for known in lengths.of(rate.client, rate.start_s))
            named = np.full((2, rate.num_requests), [[line], [rate.client]])
            drawn.append((times_s, prompts, answers, *named))
        times_s, *columns = (np.concatenate(column) for column in zip(*drawn, strict=True))
        order = np.argsort(times_s, kind="stable")
        order = order[(times_s[order] >= self._start_s) & (times_s[order] < self._end_s)]
        rows = (column[order].tolist() for column in (times_s - self._start_s, *columns))
        for time_s, num_prompt, num_output, line, client in zip(*rows, strict=True):
            yield line, Record(time_s, num_prompt, num_output, tenant=str(client))


def _times_s(rate: _Rate, rng: np.random.Generator) -> np.ndarray:
    """When a client's requests come, in seconds from the window's start, ascending."""
    draw = rng.gamma if rate.pattern == "Gamma" else rng.weibull
    ends = np.cumsum(draw(rate.shape, size=rate.num_requests + 1))
    if not 0 < ends[-1] < float("inf"):  # a shape so small that all gaps are 0
        return np.sort(rng.random(rate.num_requests)) * WINDOW_S
    return ends[:-1] / ends[-1] * WINDOW_S


def _rate_parser(places: tuple[int, ...]) -> RowParser[_Rate]:
    client_at, time_at, rate_at, pattern_at, shape_at = places
    owed: dict[int, float] = {}  # requests of a client that its windows so far have not yet sent

    def parse(row: list[str]) -> _Rate:
        client = column_number("client", row[client_at], 0)
        if not client.is_integer():
            raise Unusable(f"client is {shown(row[client_at])}, expected a whole number")
        start_s = column_number("t_s", row[time_at], 0)
        expected = column_number("rate_rps", row[rate_at], 0) * WINDOW_S
        if expected > _MOST_A_WINDOW:
            raise Unusable(f"rate_rps is {shown(row[rate_at])}, expected <= {_MOST_A_WINDOW / WINDOW_S:g}")
        pattern = row[pattern_at].strip()
        if pattern not in ("Gamma", "Weibull"):
            raise Unusable(f"pattern is {shown(pattern)}, expected Gamma or Weibull")
        shape = column_number("param1", row[shape_at], _LEAST_SHAPE)
        total = owed.get(int(client), 0.0) + expected
        owed[int(client)] = total - int(total)
        return _Rate(int(client), start_s, int(total), pattern, shape)

    return parse
