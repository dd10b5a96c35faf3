"""Trace and generator side by side, over a few seeds, with words where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from rich import box
from rich.table import Table

from simulator.workload import TenantSpec, WorkloadSpec, open_workload
from simulator.workload.records import Record
from simulator.workload_fit.fit import Fit
from simulator.workload_fit.likeness import drawn, measure, of_records, of_requests

SEEDS = (0, 1, 2)
_CLOSE_POINTS, _CLOSE = 3.0, 0.1  # of hit shares, and of other figures in proportion


@dataclass(frozen=True)
class Side:
    """One figure of a part of the trace, and what the generator has of it: a value a seed."""

    figure: str
    trace: float
    generator: tuple[float, ...]

    @property
    def error(self) -> float:
        """Of the generator's mean: in points for hits, else in proportion to the trace."""
        difference = fmean(self.generator) - self.trace
        return difference if self.is_hit else difference / max(abs(self.trace), 1e-12)

    @property
    def is_hit(self) -> bool:
        """Whether it is a share in percent."""
        return self.figure.endswith("hit %")

    @property
    def is_close(self) -> bool:
        """Whether the generator's mean is near enough."""
        return abs(self.error) <= (_CLOSE_POINTS if self.is_hit else _CLOSE)


def compare(
    records: Sequence[Record], found: Fit, start: int, block_tokens: int, seeds: Sequence[int] = SEEDS
) -> list[Side]:
    """The records (in order of arrival) from number ``start`` on beside the generator; caches are empty before them.

    Pauses make a stream that is the same at all times: of it, a run of as many requests is compared. A pool changes as
    it is worked off: the generator runs from its beginning, and what comes from request ``start`` on is compared. A
    cache has the same number of blocks on both sides: shares of the blocks of the trace's part.
    """
    part = measure(of_records(records[start:]), block_tokens)
    begin = start if found.spec.pool is not None else 0
    made = [
        measure(drawn(found.spec, begin + len(records) - start, seed)[begin:], block_tokens, part).figures
        for seed in seeds
    ]
    return [Side(name, value, tuple(one[name] for one in made)) for name, value in part.figures.items()]


def together(
    records: Sequence[Record], fits: Sequence[tuple[str, Fit, int]], block_tokens: int, seeds: Sequence[int] = SEEDS
) -> list[Side]:
    """The records of several tenants (in order of arrival) beside what their generators draw together in a scenario.

    ``fits``: of each tenant the name, the generator, and how many requests it is to draw.
    """
    drawn_from = [(name, found.spec.model_copy(update={"num_requests": num})) for name, found, num in fits]
    workload = WorkloadSpec(tenants=tuple(TenantSpec(name=name, tree=spec) for name, spec in drawn_from))
    part = measure(of_records(records), block_tokens)
    made = [measure(of_requests(open_workload(workload, seed, 0)), block_tokens, part).figures for seed in seeds]
    return [Side(name, value, tuple(one[name] for one in made)) for name, value in part.figures.items()]


def table(title: str, sides: Sequence[Side]) -> Table:
    """For a console."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in ("", "trace", "generator", "spread", "error"):
        shown.add_column(column, justify="left" if not column else "right")
    for side in sides:
        error = f"{side.error:+.1f} points" if side.is_hit else f"{side.error:+.0%}"
        shown.add_row(
            side.figure, _number(side.trace), _number(fmean(side.generator)), f"± {_number(pstdev(side.generator))}",
            error + ("" if side.is_close else " !"),
        )  # fmt: skip
    return shown


def words(sides: Sequence[Side]) -> Iterator[str]:
    """What a reader should know of the differences."""
    if far := [side for side in sides if not side.is_close]:
        named = ", ".join(
            f"{side.figure} ({side.error:+.1f} points)" if side.is_hit else f"{side.figure} ({side.error:+.0%})"
            for side in far
        )
        yield f"Not alike within {_CLOSE_POINTS:g} points of hits and {_CLOSE:.0%} of other figures: {named}."
    else:
        yield f"Alike within {_CLOSE_POINTS:g} points of hits and {_CLOSE:.0%} of other figures."
    restless = [side for side in sides if side.is_hit and max(side.generator) - min(side.generator) > _CLOSE_POINTS]
    if restless:
        yield f"Seeds differ by more than {_CLOSE_POINTS:g} points in {', '.join(side.figure for side in restless)}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
