"""What a profile predicts, over the same grid for every profile: TTFT of a request served alone, TPOT of a full batch.

Times are the simulator's own formula on the plans that its scheduler makes; nothing is modelled here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from calibration.observations import chunks
from simulator.engine_args import EngineArgs, EngineConfig, platform, resolve
from simulator.errors import InputError
from simulator.evidence import unmeasured
from simulator.parity.verify import dialect_of
from simulator.plan import Plan
from simulator.profile import Profile
from simulator.step_time import MEASURED, OUTSIDE, PRIOR, StepTime

CONTEXTS = tuple(1024 * 2**power for power in range(8))  # 1K to 128K tokens
BATCHES = tuple(2**power for power in range(9))  # 1 to 256 requests
HIT_SHARE = 0.9
SUPPORT = {MEASURED: "measured", PRIOR: "prior", OUTSIDE: "outside"}
_ANY_POOL = 2**40  # blocks: defaults are asked for, whatever the pool


@dataclass(frozen=True)
class Prediction:
    """Seconds, and what they rest on: the least of what any step rests on, as ``StepTime.support`` counts, and no
    better than a prior where no benchmark told the quantity (``evidence.unmeasured``).
    """

    seconds: float
    support: int


@dataclass(frozen=True)
class Ttft:
    """Time to the first token of one request with ``cached`` of its ``context`` tokens found in the cache."""

    context: int
    cached: int
    prediction: Prediction


@dataclass(frozen=True)
class Tpot:
    """Time of a decode step of ``batch`` requests, each reading ``context`` KV entries."""

    batch: int
    context: int
    prediction: Prediction


class Predictor:
    """A profile's predictions, with vLLM's defaults on its device wherever an engine argument matters.

    ``budget`` is the most tokens in a step; None is vLLM's default (``max_num_batched_tokens``) on that platform.
    Raises InputError for a profile of an engine that the simulator does not serve with (a pipeline).
    """

    def __init__(self, profile: Profile, budget: int | None = None) -> None:
        self.profile = profile
        self.default = budget is None
        self.step_time: StepTime = profile.step_time()
        self.unmeasured = unmeasured(profile)
        engine = _engine(profile)
        self.budget = budget or engine.max_num_batched_tokens
        self.max_batch = engine.max_num_seqs

    @cached_property
    def num_kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return num_kv_tokens(self.profile)

    def hit(self, context: int) -> int:
        """Tokens of a hit of 90 %, in full blocks; a request's last token is computed in any case."""
        size = self.profile.block_size
        return int(HIT_SHARE * context) // size * size

    def ttft(self, context: int, cached: int = 0) -> Prediction | None:
        """Time to the first token of a prompt of ``context`` tokens; None where the pool cannot hold it."""
        if not self._fits(1, context):
            return None
        seconds = self.step_time.overhead_s(context)
        support = self._best("TTFT", *(["cached"] if cached else []))
        for plan, num_steps in chunks(context, cached, self.budget):
            seconds += self.step_time.elapsed(plan, num_steps)
            support = max(support, self.step_time.support(plan))
        return Prediction(seconds, support)

    def tpot(self, batch: int, context: int) -> Prediction | None:
        """Time of a decode step; None where the pool or, by default, the engine cannot hold the batch."""
        if batch > self.max_batch or not self._fits(batch, context):
            return None
        plan = Plan(num_decodes=batch, decode_context=batch * context, max_context=context)
        return Prediction(self.step_time.elapsed(plan), max(self._best("TPOT"), self.step_time.support(plan)))

    def ttfts(self, contexts: Sequence[int] = CONTEXTS) -> Iterator[Ttft]:
        """Of each prompt that fits: cold, and with a hit where that is a block or more."""
        for context in contexts:
            for cached in dict.fromkeys((0, self.hit(context))):
                prediction = self.ttft(context, cached)
                if prediction is not None:
                    yield Ttft(context, cached, prediction)

    def tpots(self, batches: Sequence[int] = BATCHES, contexts: Sequence[int] = CONTEXTS) -> Iterator[Tpot]:
        """Of each batch that fits."""
        for batch in batches:
            for context in contexts:
                prediction = self.tpot(batch, context)
                if prediction is not None:
                    yield Tpot(batch, context, prediction)

    def chunk_words(self) -> str:
        """Into what prompts are cut, in words."""
        names = {"ascend": "Ascend", "cuda": "this GPU", "cpu": "CPUs"}
        by_default = f" (vLLM's default on {names[platform(self.profile)]})" if self.default else ""
        return f"chunks of at most {self.budget:,} tokens{by_default}"

    def measured_chunk(self) -> int | None:
        """The longest chunk that was measured, where it is longer than those predicted with."""
        measured = self.profile.measured
        return measured.max_prefill_tokens if measured and measured.max_prefill_tokens > self.budget else None

    def _best(self, *needed: str) -> int:
        """What a prediction that needs these to have been measured rests on at best."""
        return PRIOR if self.unmeasured.keys() & set(needed) else MEASURED

    def _fits(self, batch: int, context: int) -> bool:
        size = self.profile.block_size
        return batch * -(-context // size) * size <= self.num_kv_tokens


def num_kv_tokens(profile: Profile) -> int:
    """Tokens that the pool of the profile's device holds by default (the null block holds none); 0 where none fits."""
    try:
        return (profile.num_gpu_blocks(profile.block_size) - 1) * profile.block_size
    except InputError:
        return 0


def dialect(profile: Profile) -> tuple[str, bool] | None:
    """The dialect nearest to the profile's engine, and whether that very version was verified; None: it is not vLLM."""
    try:
        name, verified = dialect_of(profile.identity.vllm.removeprefix("v"))
    except InputError:
        return None
    return f"vllm-{name}", verified


def _engine(profile: Profile) -> EngineConfig:
    """vLLM's defaults on the profile's device, in the dialect nearest to the measured version."""
    name, _ = dialect(profile) or ("vllm-0.32", False)
    arguments = EngineArgs(dialect=name, max_model_len=CONTEXTS[-1], num_gpu_blocks_override=_ANY_POOL)
    return resolve(arguments, profile)
