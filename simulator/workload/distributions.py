"""Distributions as a scenario writes them: token counts, arrivals and pauses. Frozen and strict.

Durations are read in any unit and kept in seconds, lengths are tokens, rates are requests per second.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simulator.units import Number, PositiveCount, PositiveNumber, PositiveSeconds, Rate, Seconds, count, duration_s

# The keys of each length distribution: those it must have, those it may have.
_LENGTH_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "fixed": ({"mean"}, set()),
    "uniform": ({"low", "high"}, set()),
    "geometric": ({"mean"}, {"low", "high"}),
    "exponential": ({"mean"}, {"low", "high"}),
    "lognormal": ({"mean", "cv"}, {"low", "high"}),
}


class Spec(BaseModel):
    """Frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LengthSpec(Spec):
    """How many tokens: a distribution over whole numbers (``lengths`` has the definitions), >= 1 unless fixed at 0.

    ``mean`` is in tokens, ``cv`` is standard deviation over mean. ``low`` and ``high`` are the ends of ``uniform``
    (both included); the other distributions are clipped to them after drawing, and clipping moves their mean.
    """

    distribution: Literal["fixed", "uniform", "geometric", "exponential", "lognormal"]
    mean: Number | None = None
    cv: PositiveNumber | None = Field(default=None, ge=1e-3, le=100)
    low: PositiveCount | None = None
    high: PositiveCount | None = None

    @model_validator(mode="after")
    def _keys_fit_the_distribution(self) -> Self:
        required, optional = _LENGTH_KEYS[self.distribution]
        given = {key for key in ("mean", "cv", "low", "high") if getattr(self, key) is not None}
        if missing := required - given:
            raise ValueError(f"{self.distribution} lengths need {' and '.join(sorted(missing))}")
        if idle := given - required - optional:
            raise ValueError(f"{' and '.join(sorted(idle))} would change nothing for {self.distribution} lengths")
        if max(self.mean or 0, self.low or 0, self.high or 0) > _MOST_TOKENS:
            raise ValueError(f"a length is at most {_MOST_TOKENS:,} tokens")
        if self.mean is not None:
            self._check_mean(self.mean)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def _check_mean(self, mean: float) -> None:
        if self.distribution == "fixed":
            if mean < 0 or mean != int(mean):
                raise ValueError(f"a fixed length is a whole number of tokens, not {mean:g}")
        elif mean < 1:
            raise ValueError(f"mean {mean:g} is below one token")

    @property
    def is_zero(self) -> bool:
        """Whether every length is 0 tokens."""
        return self.distribution == "fixed" and self.mean == 0


def _plain_length(value: Any) -> Any:
    """``200`` is short for ``{distribution: fixed, mean: 200}``."""
    if isinstance(value, dict | LengthSpec):
        return value
    return {"distribution": "fixed", "mean": count(value)}


Length = Annotated[LengthSpec, BeforeValidator(_plain_length, json_schema_input_type=int | str | LengthSpec)]


_MOST_TOKENS = 2**28  # of one text, as block keys count

# What each process of arrivals needs, beside its name.
_ARRIVAL_KEYS: dict[str, set[str]] = {
    "poisson": {"rate_per_s"},
    "gamma": {"rate_per_s", "cv"},
    "fixed": {"rate_per_s"},
    "on_off": {"rate_per_s", "on_for", "off_for"},
    "profile": {"rates_per_s", "period"},
    "batch": {"size", "every"},
}


class ArrivalSpec(Spec):
    """When requests arrive.

    Independent gaps with a mean of ``1 / rate_per_s`` seconds, the first one before the first request: ``poisson``
    draws exponential gaps, ``gamma`` gaps with the coefficient of variation ``cv`` (above 1: bursts), and ``fixed``
    makes all gaps equal. ``on_off``: Poisson while on, nothing while off, for exponential times with means ``on`` and
    ``off``; ``rate_per_s`` is the mean over both. ``profile``: Poisson at ``rates_per_s``, which share ``period`` in
    equal parts and repeat (24 numbers and a day: a rate for each hour). ``batch``: ``size`` requests at once, at 0
    and ``every`` so often again.
    """

    process: Literal["poisson", "gamma", "fixed", "on_off", "profile", "batch"]
    rate_per_s: Rate | None = None
    cv: PositiveNumber | None = Field(default=None, ge=1e-3, le=100)
    on_for: PositiveSeconds | None = None
    off_for: PositiveSeconds | None = None
    rates_per_s: tuple[Annotated[Number, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    period: PositiveSeconds | None = None
    size: PositiveCount | None = None
    every: PositiveSeconds | None = None

    @property
    def is_stationary(self) -> bool:
        """Whether the rate is the same at all times, so that a long run has a steady state."""
        return self.process not in ("profile", "batch")

    @model_validator(mode="after")
    def _keys_fit_the_process(self) -> Self:
        needed = _ARRIVAL_KEYS[self.process]
        given = {key for key in type(self).model_fields if key != "process" and getattr(self, key) is not None}
        if missing := needed - given:
            raise ValueError(f"{self.process} arrivals need {' and '.join(sorted(missing))}")
        if idle := given - needed:
            takers = sorted(process for process, keys in _ARRIVAL_KEYS.items() if idle <= keys)
            hint = f" ({' and '.join(takers)} {'takes' if len(takers) == 1 else 'take'} it)" if takers else ""
            raise ValueError(f"{' and '.join(sorted(idle))} would change nothing for {self.process} arrivals{hint}")
        if self.rates_per_s is not None and not any(self.rates_per_s):
            raise ValueError("rates_per_s: at least one rate is above 0")
        return self


class PauseSpec(Spec):
    """How long a client waits, in seconds: always ``mean``, or exponential or lognormal (``cv``) around it."""

    distribution: Literal["fixed", "exponential", "lognormal"]
    mean: Seconds
    cv: PositiveNumber | None = Field(default=None, ge=1e-3, le=100)

    @model_validator(mode="after")
    def _cv_goes_with_lognormal(self) -> Self:
        if self.distribution == "lognormal" and self.cv is None:
            raise ValueError("lognormal pauses need cv")
        if self.distribution != "lognormal" and self.cv is not None:
            raise ValueError(f"cv would change nothing for {self.distribution} pauses (lognormal takes it)")
        if self.distribution != "fixed" and not self.mean:
            raise ValueError(f"{self.distribution} pauses need a mean above 0")
        return self


def _plain_pause(value: Any) -> Any:
    """``20 s`` is short for ``{distribution: fixed, mean: 20 s}``."""
    if isinstance(value, dict | PauseSpec):
        return value
    return {"distribution": "fixed", "mean": duration_s(value)}


Pause = Annotated[PauseSpec, BeforeValidator(_plain_pause, json_schema_input_type=float | str | PauseSpec)]
