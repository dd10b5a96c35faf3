"""What all step-time formulas share: their interface, overhead, and what a prediction rests on.

Time has two places. *Overhead* (hashing, inter-process transport) comes before the engine considers a request: it
delays and does not occupy the device. *Step time* is what a step occupies the engine for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from simulator.plan import Plan
from simulator.step_time.padding import Padding

MEASURED, PRIOR, OUTSIDE = 0, 1, 2  # what StepTime.support answers


class Work(Protocol):
    """What a formula reads of a plan. Numbers, or numpy arrays of one shape."""

    num_decodes: Any
    decode_context: Any
    num_prefills: Any
    num_prefill_tokens: Any
    prefill_pairs: Any
    max_context: Any


class Measured(Protocol):
    """The largest of everything that the fitted rows covered (see ``profile.MeasuredRange``)."""

    @property
    def max_prefill_tokens(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def max_decodes(self) -> int: ...
    @property
    def max_prefills(self) -> int: ...
    @property
    def mixed_steps(self) -> bool: ...


class StepTime:
    """How long an engine takes, with its coefficients bound. Subclasses are the formulas."""

    __slots__ = ("_constant_s", "_measured", "_padding", "_prompt_token_s", "_within")

    name: ClassVar[str]
    coefficients: ClassVar[Mapping[str, str]]
    """Name -> unit of each coefficient, in the order in which fitting considers them."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Coefficients that are 0 where they are not given."""
    shape: ClassVar[frozenset[str]] = frozenset()
    """Those of the optional ones that the model's shape states: pure numbers, never fitted."""

    def __init__(
        self,
        values: Mapping[str, float],
        overhead_constant_s: float = 0.0,
        overhead_prompt_token_s: float = 0.0,
        measured: Measured | None = None,
        *,
        as_measured: bool = True,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        """``values`` maps the formula's coefficient names to SI values; a missing name is a KeyError.

        ``graph_sizes``: batch sizes that decodes are padded to (ascending), in formulas that count padded decodes.

        Without ``as_measured`` the engine runs otherwise than the measured one, and what lies within the measured range
        is a prior.
        """
        self._constant_s = overhead_constant_s
        self._prompt_token_s = overhead_prompt_token_s
        self._measured = measured
        self._within = MEASURED if as_measured else PRIOR
        self._padding = Padding(graph_sizes) if graph_sizes else None
        self._bind(values)

    def _bind(self, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """Seconds from the start of a stretch to the end of its ``num_steps``-th step.

        In a stretch every decode's context grows by one a step. It is counted as ``num_steps`` steps at the mean
        context, ``decode_context + num_decodes * (num_steps - 1) / 2``. That is exact for a formula linear in context.
        For ``HostDevice`` it is below the step-by-step sum, by a share of at most 0.044 * (a / host)^2, where host is
        the decode host time and a = num_steps * the device time that one step's growth adds: the curvature of
        (h^4 + d^4)^(1/4) in d never exceeds 1.054 / h, and the variance of the n evenly spaced device times is below
        a^2 / 12.
        """
        raise NotImplementedError

    def shortest_s(self) -> float:
        """Seconds of the shortest possible step: one token without context. No coefficient is negative."""
        return min(
            self.elapsed(Plan(num_decodes=1, decode_context=1)),
            self.elapsed(Plan(num_prefills=1, num_prefill_tokens=1, prefill_pairs=1)),
        )

    def overhead_s(self, num_prompt_tokens: int) -> float:
        """Seconds between a request's submission and the engine's first look at it. Occupies no device."""
        return self._constant_s + self._prompt_token_s * num_prompt_tokens

    def support(self, plan: Work) -> int:
        """What the prediction for ``plan`` rests on: 0 measurement, 1 a prior, 2 neither (outside the measured range).

        Only upper ends are judged: below them a step tends to the host time, which was measured. A profile of which
        nothing was measured answers 1 for every plan.
        """
        measured = self._measured
        if measured is None:
            return PRIOR
        if plan.max_context > measured.max_context or plan.num_prefill_tokens > measured.max_prefill_tokens:
            return OUTSIDE
        if plan.num_decodes > measured.max_decodes or plan.num_prefills > measured.max_prefills:
            return PRIOR
        if plan.num_prefills and plan.num_decodes and not measured.mixed_steps:
            return PRIOR
        return self._within


def context_read(plan: Work, num_steps: int) -> Any:
    """KV entries that a step reads, in the mean over ``num_steps``: each decode its context, each chunk that of its
    middle token (its pairs over its tokens).
    """
    tokens = plan.num_prefill_tokens
    return (
        plan.decode_context
        + plan.num_decodes * (num_steps - 1) * 0.5
        + plan.num_prefills * plan.prefill_pairs / (tokens + (tokens == 0))
    )
