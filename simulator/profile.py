"""A fitted profile of one device, engine and model: what it is, where every number comes from, how far to trust it.

A profile is a JSON file. Every number carries its unit and its origin: ``measured`` (fitted from rows, with a standard
error), ``prior`` (derived from published figures, no error known) or ``convention`` (chosen, and said so).
"""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulator.errors import InputError, nearest
from simulator.noise import MAX_DEVIATIONS
from simulator.plan import Plan
from simulator.step_time import FORMULAS, StepTime
from simulator.uncertainty import OVERHEAD, Uncertainty

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Origin = Literal["measured", "prior", "convention"]
Evidence = Literal["rows", "benchmarks", "operators", "synthetic"]


class Strict(BaseModel):
    """Frozen and strict: no unknown key, no conversion, no NaN, no infinity."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Coefficient(Strict):
    """One number of a formula, in SI units.

    A fit that ends at a coefficient's lower end, 0, gives no standard error but ``upper``, the one-sided 95 % bound.
    """

    value: Annotated[float, Field(ge=0)]
    standard_error: Annotated[float, Field(ge=0)] | None
    unit: Text
    origin: Origin
    source: Text
    upper: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _error_belongs_to_measurement(self) -> Coefficient:
        has_error = self.standard_error is not None or self.upper is not None
        if (self.origin == "measured") != has_error:
            raise ValueError("a standard error belongs to origin 'measured', and to no other")
        return self


class Overhead(Strict):
    """Time before the engine considers a request: a constant and a part per prompt token."""

    constant_s: Coefficient
    prompt_token_s: Coefficient


class MeasuredRange(Strict):
    """The largest of everything that the fitted rows covered."""

    max_prefill_tokens: Count
    max_context: Count
    max_decodes: Count
    max_prefills: Count
    mixed_steps: bool


class Identity(Strict):
    """What was measured on. Rows that differ in any of these are never mixed. None is not recorded, or not there."""

    device: Text
    driver: str | None = None
    cann: str | None = None
    cuda: str | None = None
    torch: str | None = None
    torch_npu: str | None = None
    vllm: Text
    vllm_ascend: str | None = None
    model: Text
    model_sha256: str | None = None  # of the model's config.json
    weights: str | None = None  # a digest of the weight files, or "random"
    dtype: Text
    tensor_parallel_size: Positive
    pipeline_parallel_size: Positive
    graph_mode: Text
    async_scheduling: bool | None = None  # None: not known
    block_size: Positive


class Rows(Strict):
    """One file of measurements that a fit read."""

    file: Text
    num_rows: Positive
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    measured: Text
    source: Text


class HoldOut(Strict):
    """What a fit never saw: the rule by which it was chosen, and the cases."""

    rule: Text
    cases: tuple[Text, ...]


class Provenance(Strict):
    """Where the profile comes from. ``rows`` is empty for a synthetic one, ``num_launches`` 0 where none are known.

    ``evidence`` says of what kind the rows are: times of steps and single requests, results of load tests, or tables of
    operators; None is not stated (see ``evidence.evidence_of``).
    """

    description: Text
    rows: tuple[Rows, ...]
    hold_out: HoldOut | None = None
    num_launches: Count = 0
    evidence: Evidence | None = None


class Point(Strict):
    """Where a measured time lies on a figure's axes, where its case's name does not say so: tokens of context, of which
    found in the cache, and requests running together (a mean may be broken).
    """

    context: Positive
    cached: Count = 0
    batch: Annotated[float, Field(gt=0)] = 1.0


class Residual(Strict):
    """One measured time beside its prediction. The case's name begins with what was measured: ``TTFT: ...``.

    A case that begins with a rate (``requests/s: ...``) holds the rate's inverse, seconds a request or token.
    """

    case: Text
    measured_s: Seconds
    predicted_s: Seconds
    at: Point | None = None

    @property
    def quantity(self) -> str:
        """What was measured: the case's name up to its colon."""
        return self.case.partition(":")[0]

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured of what the case names: of rates, where those were measured."""
        ratio = self.predicted_s / self.measured_s
        return (1 / ratio if "/s" in self.quantity else ratio) - 1


class Errors(Strict):
    """How well the formula fits what it was fitted to, and what it was not.

    ``held_out`` predicts each time from a fit without anything of its prompt or batch. Times that cannot be predicted
    so, since nothing else determines one of their coefficients, are counted, never scored. ``num_groups`` is how many
    groups of times were left out in turn; None where the cases' names say it (see ``evidence.num_groups``).
    """

    in_sample: tuple[Residual, ...]
    held_out: tuple[Residual, ...]
    num_not_held_out: Count
    num_groups: Count | None = None


class Bytes(Strict):
    """An amount of memory."""

    value: Count
    origin: Origin
    source: Text


class Memory(Strict):
    """Memory of one device, in bytes. ``other`` is activations, communication buffers and everything outside torch."""

    device: Bytes
    weights: Bytes
    other: Bytes


class Profile(Strict):
    """See the module's docstring. ``kv_bytes_per_token`` and ``memory`` are those of one device (one rank).

    ``step_noise_s`` is the standard deviation of one step's time around the formula (see ``noise``); None is no noise.
    ``graph_sizes`` are the captured batch sizes that decodes are padded to, none when eager. ``uncertainty`` says how
    far the coefficients may be off together; None: as far as their standard errors say, each for itself.
    ``max_model_len`` is the length of the model's own positions, in tokens; None: not known.
    """

    schema_version: Literal[1]
    name: Text
    formula: Text
    coefficients: dict[str, Coefficient]
    overhead: Overhead
    step_noise_s: Coefficient | None = None
    graph_sizes: tuple[Positive, ...] = ()
    measured: MeasuredRange | None
    identity: Identity
    provenance: Provenance
    errors: Errors
    uncertainty: Uncertainty | None = None
    max_model_len: Positive | None = None
    kv_bytes_per_token: Positive
    memory: Memory

    @model_validator(mode="after")
    def _formula_has_its_coefficients(self) -> Profile:
        if self.formula not in FORMULAS:
            raise ValueError(f"formula: unknown {self.formula!r}{nearest(self.formula, FORMULAS)}")
        expected, optional = FORMULAS[self.formula].coefficients, FORMULAS[self.formula].optional
        for missing in (name for name in expected if name not in self.coefficients and name not in optional):
            raise ValueError(f"coefficients.{missing}: missing")
        for unknown in (name for name in self.coefficients if name not in expected):
            raise ValueError(f"coefficients.{unknown}: unknown key{nearest(unknown, expected)}")
        known = {*self.coefficients, OVERHEAD}
        for unknown in (name for name in (self.uncertainty.names if self.uncertainty else ()) if name not in known):
            raise ValueError(f"uncertainty.names: unknown {unknown!r}{nearest(unknown, known)}")
        return self

    @model_validator(mode="after")
    def _noise_leaves_half_of_any_step(self) -> Profile:
        if self.step_noise_s is not None:
            largest_s, shortest_s = MAX_DEVIATIONS * self.step_noise_s.value, self.step_time().shortest_s()
            if largest_s > shortest_s / 2:
                raise ValueError(
                    f"step_noise_s: {MAX_DEVIATIONS} standard deviations are {largest_s:g} s, expected at most half of "
                    f"the shortest step ({shortest_s / 2:g} s)"
                )
        return self

    @property
    def block_size(self) -> int:
        """Tokens per KV block of the engine that was measured."""
        return self.identity.block_size

    @property
    def held_out_error(self) -> float | None:
        """Largest absolute relative error on rows that were not fitted; None when no row could be held out."""
        return max((abs(residual.relative_error) for residual in self.errors.held_out), default=None)

    @property
    def in_sample_error(self) -> float | None:
        """Largest absolute relative error on the fitted rows; None for a synthetic profile."""
        return max((abs(residual.relative_error) for residual in self.errors.in_sample), default=None)

    def step_time(self, *, as_measured: bool = True) -> StepTime:
        """The formula with its coefficients bound; not ``as_measured``: of an engine run otherwise than the measured
        one, so that no prediction rests on measurement.
        """
        return FORMULAS[self.formula](
            {name: coefficient.value for name, coefficient in self.coefficients.items()},
            self.overhead.constant_s.value,
            self.overhead.prompt_token_s.value,
            self.measured,
            as_measured=as_measured and self._rests_on_measurement(),
            graph_sizes=self.graph_sizes,
        )

    def _rests_on_measurement(self) -> bool:
        """Whether half of a step's time at least, with a prompt and without, comes from coefficients that results
        determined. A load test covers many steps and determines few of them; other evidence determines what it covers.
        """
        if self.provenance.evidence != "benchmarks":
            return True
        formula = FORMULAS[self.formula]
        every = {name: coefficient.value for name, coefficient in self.coefficients.items()}
        fixed = {name: 0.0 for name, one in self.coefficients.items() if one.origin != "measured"}
        known = every | {name: value for name, value in fixed.items() if name not in formula.shape}
        plans = (
            Plan(num_decodes=8, decode_context=8 * 1024, max_context=1024),
            Plan(num_prefills=1, num_prefill_tokens=1024, prefill_pairs=1024 * 1025 // 2, max_context=1024),
        )
        return all(formula(known).elapsed(plan) >= formula(every).elapsed(plan) / 2 for plan in plans)

    def kv_cache_bytes(self, gpu_memory_utilization: float = 0.92) -> int:
        """Bytes of one device left for KV: device * utilization - weights - other (vLLM's rule; 0.92 is its default).

        ``memory.other`` is an assumption (origin ``prior``) unless the engine's own start-up figure was recorded.
        """
        memory = self.memory
        return int(memory.device.value * gpu_memory_utilization) - memory.weights.value - memory.other.value

    def num_gpu_blocks(
        self, block_size: int, gpu_memory_utilization: float = 0.92, kv_cache_memory_bytes: int | None = None
    ) -> int:
        """Blocks of ``block_size`` tokens that the pool holds, the null block included, as vLLM counts.

        ``kv_cache_memory_bytes``, where given, is taken verbatim in place of ``kv_cache_bytes``. Raises InputError when
        no block fits.
        """
        available = kv_cache_memory_bytes
        if available is None:
            available = self.kv_cache_bytes(gpu_memory_utilization)
        num_blocks = available // (block_size * self.kv_bytes_per_token)
        if num_blocks < 1:
            raise InputError(
                f"profile {self.name}: {available} bytes are left for KV, less than one block of {block_size} tokens "
                f"({block_size * self.kv_bytes_per_token} bytes)"
            )
        return num_blocks


def shipped_profiles() -> list[str]:
    """The names of the profiles that ship, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in _shipped().iterdir() if entry.name.endswith(".json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile that ships under this name, or the one in this JSON file.

    A string with a path separator or ending in ``.json`` is a path. Raises InputError naming file and key.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".json") or "/" in text or "\\" in text:
        return _read(text, Path(name_or_path))
    names = shipped_profiles()
    if text not in names:
        raise InputError(f"profile: no shipped profile {text!r}{nearest(text, names)}; a file is named by its path")
    return parse_profile((_shipped() / f"{text}.json").read_text(encoding="utf-8"), f"{text}.json")


def parse_profile(content: str, file: str) -> Profile:
    """The profile in this JSON text; ``file`` is the name that an InputError shows."""
    try:
        return Profile.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """A validation error's first problem in one line: ``key.path: what is wrong (got value)``."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        message = "unknown key"
    elif problem["type"] == "missing":
        message = "missing"
    elif problem["type"] in ("value_error", "json_invalid"):
        message = problem["msg"].removeprefix("Value error, ")
    else:
        message = f"{problem['msg'][0].lower()}{problem['msg'][1:]} (got {str(problem['input'])[:60]})"
    return f"{key}: {message}" if key else message


def _shipped() -> Traversable:
    # Named, not imported: the profiles are data files that lie beside the calibration code.
    return importlib.resources.files("calibration") / "profiles"


def _read(name: str, path: Path) -> Profile:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: cannot read the profile ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: not a JSON text") from None
    return parse_profile(content, name)
