"""What a scenario says about its tenants: frozen, strict, and without a key that changes nothing.

Durations are read in any unit and kept in seconds, lengths are tokens, rates are requests per second.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from simulator.units import Number, PositiveCount, PositiveNumber, PositiveSeconds, Rate, count

# The keys of each length distribution: those it must have, those it may have.
_LENGTH_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "fixed": ({"mean"}, set()),
    "uniform": ({"low", "high"}, set()),
    "geometric": ({"mean"}, {"low", "high"}),
    "exponential": ({"mean"}, {"low", "high"}),
    "lognormal": ({"mean", "cv"}, {"low", "high"}),
}


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LengthSpec(_Spec):
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


class ArrivalSpec(_Spec):
    """When requests arrive: independent gaps with a mean of ``1 / rate_per_s`` seconds, the first one before the first.

    ``poisson`` draws exponential gaps, ``gamma`` gaps with the coefficient of variation ``cv`` (above 1: bursts), and
    ``fixed`` makes all gaps equal.
    """

    process: Literal["poisson", "gamma", "fixed"]
    rate_per_s: Rate
    cv: PositiveNumber | None = Field(default=None, ge=1e-3, le=100)

    @model_validator(mode="after")
    def _cv_goes_with_gamma(self) -> Self:
        if self.process == "gamma" and self.cv is None:
            raise ValueError("gamma arrivals need cv")
        if self.process != "gamma" and self.cv is not None:
            raise ValueError(f"cv would change nothing for {self.process} arrivals (gamma takes it)")
        return self


class SyntheticSpec(_Spec):
    """Drawn requests: one of ``num_prefixes`` shared texts, then a text of the request's own, then an answer.

    Exactly one of ``num_requests`` and ``duration`` (seconds; arrivals strictly before it) ends the stream. A prefix
    has one length for as long as the replication lasts. Prefixes are equally popular, or the k-th has weight
    ``k ** -prefix_zipf_exponent``.
    """

    arrivals: ArrivalSpec
    num_requests: PositiveCount | None = None
    duration: PositiveSeconds | None = None
    num_prefixes: PositiveCount | None = Field(default=None, le=10**6)
    prefix_tokens: Length | None = None
    prefix_zipf_exponent: PositiveNumber | None = None
    suffix_tokens: Length | None = None
    output_tokens: Length

    @model_validator(mode="after")
    def _describes_one_stream(self) -> Self:
        if (self.num_requests is None) == (self.duration is None):
            raise ValueError("give exactly one of num_requests and duration")
        if (self.num_prefixes is None) != (self.prefix_tokens is None):
            raise ValueError("num_prefixes and prefix_tokens go together")
        if self.prefix_zipf_exponent is not None and (self.num_prefixes or 1) < 2:
            raise ValueError("prefix_zipf_exponent would change nothing without two prefixes or more")
        if all(length is None or length.is_zero for length in (self.prefix_tokens, self.suffix_tokens)):
            raise ValueError("a prompt has at least one token: give prefix_tokens or suffix_tokens")
        if self.output_tokens.is_zero:
            raise ValueError("output_tokens: a request generates at least one token")
        return self


class TraceSpec(_Spec):
    """A recorded trace, replayed in this order: spread lumps, cut a window, compress time, stop at ``limit`` requests.

    ``path`` is relative to the scenario file. ``smooth_s`` spreads each arrival evenly over that many seconds after its
    timestamp, for traces whose clock ticks coarsely. ``window`` (seconds of trace time) takes a random contiguous piece
    of that length, another one in each replication; without it every replication replays the whole trace. A window
    starts with cold caches: what the trace sent before it is not replayed. ``rate_scale`` divides every gap between
    arrivals, so that a 20 min window lasts 5 min at scale 4. ``session_from: second_block`` makes requests that agree
    in their first two blocks one session (the Mooncake conversation trace starts every request with the same block).
    """

    format: Literal["mooncake"]
    path: str = Field(min_length=1)
    smooth_s: PositiveSeconds | None = None
    window: PositiveSeconds | None = None
    rate_scale: PositiveNumber = 1.0
    session_from: Literal["second_block"] | None = None
    limit: PositiveCount | None = None


class TenantSpec(_Spec):
    """Who sends requests: a ``trace`` or a ``synthetic`` stream, and how the engine is to treat them.

    ``priority`` is vLLM's (lower runs first); ``cache_salt`` keeps cached blocks apart from those of other salts;
    ``lora`` names the adapter that its requests are for. With ``skip_reading_prefix_cache``, as vLLM has it for prompt
    log-probabilities, they compute their whole prompts, which others may find.
    """

    name: str = Field(min_length=1)
    trace: TraceSpec | None = None
    synthetic: SyntheticSpec | None = None
    priority: int = Field(default=0, strict=True)
    cache_salt: str | None = Field(default=None, min_length=1)
    lora: str | None = Field(default=None, min_length=1)
    skip_reading_prefix_cache: StrictBool = False

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.trace is None) == (self.synthetic is None):
            raise ValueError(f"tenant {self.name!r}: give exactly one of trace and synthetic")
        return self


class WorkloadSpec(_Spec):
    """The tenants of a cluster. Names are unique, since a tenant's random streams are named after it."""

    tenants: tuple[TenantSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two tenants are called {repeated[0]!r}")
        return self
