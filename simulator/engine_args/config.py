"""The engine as it runs: every argument resolved, with the defaults of vLLM's server on the profile's device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.counts import counted
from simulator.dialect import VLLM_0_23, find_dialect
from simulator.engine_args.arguments import EngineArgs
from simulator.errors import InputError
from simulator.profile import Profile

Platform = Literal["ascend", "cuda", "cpu"]

_GIB = 2**30
# vllm-ascend `refresh_block_size`; vLLM `CacheConfig.DEFAULT_BLOCK_SIZE`; vLLM `CpuPlatform`.
_BLOCK_SIZE: dict[Platform, int] = {"ascend": 128, "cuda": 16, "cpu": 128}
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding with ``num_speculative_tokens`` drafts a step; the methods differ in the blocks they use."""

    method: Literal["eagle", "mtp", "draft_model", "ngram"]
    num_speculative_tokens: int

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots reserved beyond a step's tokens: the drafter writes its own KV there."""
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def drops_last_hit_block(self) -> bool:
        """Drafters that need the last hidden state recompute the last block of a hit."""
        return self.method in ("eagle", "mtp")

    @property
    def num_draft_slots(self) -> int:
        """Input slots each scheduled request takes beyond its tokens (vLLM ``max_num_new_slots_for_drafting``)."""
        return 1 if self.method == "draft_model" else 0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What scheduler, cache and pool read. Names are vLLM's; lengths and budgets are tokens.

    ``num_gpu_blocks`` includes the null block, which never holds anything. ``dialect`` is one of ``DIALECTS``.
    """

    dialect: str
    block_size: int
    num_gpu_blocks: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_active_seqs: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduler_reserve_full_isl: bool
    watermark: float
    policy: str
    async_scheduling: bool
    long_prefill_token_threshold_adaptive: bool = False
    max_loras: int = 0
    speculative: SpeculativeConfig | None = None


def resolve(args: EngineArgs, profile: Profile) -> EngineConfig:
    """Every value as vLLM would start with it. Raises InputError ``key: what, expected ...`` where it would not start.

    Source of defaults and checks: vLLM ``EngineArgs.get_batch_defaults``, ``SchedulerConfig.verify_max_model_len`` and
    ``kv_cache_utils``; vllm-ascend ``refresh_block_size``; for asynchronous scheduling and drafts ``VllmConfig``.
    """
    _check_against(args, profile)
    block_size = _block_size(args, platform(profile))
    budget, num_seqs = _batch(args, profile)
    _check_batch(args, budget, num_seqs)
    speculative = _speculative(args)
    if speculative is not None:
        _check_drafts(args, speculative, budget, num_seqs)
    if args.max_loras is not None and not args.enable_lora:
        raise InputError(f"max_loras: got {args.max_loras}, which changes nothing without enable_lora")
    config = EngineConfig(
        dialect=args.dialect,
        block_size=block_size,
        num_gpu_blocks=_num_gpu_blocks(args, profile, block_size),
        max_model_len=args.max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=num_seqs,
        max_num_active_seqs=args.max_num_active_seqs or num_seqs,
        enable_prefix_caching=args.enable_prefix_caching,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=bool(args.long_prefill_token_threshold_adaptive),
        scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
        watermark=args.watermark or 0.0,
        policy=args.scheduling_policy,
        async_scheduling=_async_scheduling(args, platform(profile)),
        max_loras=(args.max_loras or 1) if args.enable_lora else 0,
        speculative=speculative,
    )
    _check_pool(config)
    return config


def platform(profile: Profile) -> Platform:
    """The vLLM platform of the device that the profile was measured on; it decides vLLM's defaults."""
    if profile.identity.vllm_ascend is not None or profile.identity.cann is not None:
        return "ascend"
    return "cpu" if "cpu" in profile.identity.device.lower().split() else "cuda"


def _check_against(args: EngineArgs, profile: Profile) -> None:
    measured = profile.identity
    for name, given in (
        ("model", args.model),
        ("dtype", None if args.dtype == "auto" else _DTYPE_ALIASES.get(args.dtype or "", args.dtype)),
        ("tensor_parallel_size", args.tensor_parallel_size),
        ("pipeline_parallel_size", args.pipeline_parallel_size),
    ):
        expected = getattr(measured, name)
        if given is not None and given != expected:
            raise InputError(f"{name}: got {given!r}, expected {expected!r} as in profile {profile.name}")


    if measured.pipeline_parallel_size > 1:
        raise InputError(
            f"pipeline_parallel_size: got {measured.pipeline_parallel_size} by profile {profile.name}, expected 1: a "
            "pipeline's steps in flight are not modelled"
        )


def _async_scheduling(args: EngineArgs, where: Platform) -> bool:
    """vLLM's default is on, except with drafts that the host makes, and on CPUs."""
    method = args.speculative_config.method if args.speculative_config is not None else None
    impossible = None
    if where == "cpu":
        impossible = "vLLM switches it off on CPUs"
    elif method == "ngram":
        impossible = "vLLM has n-gram drafts without it only"
    if args.async_scheduling is None:
        by_default = method != "draft_model" or find_dialect(args.dialect).draft_model_asynchronous
        return impossible is None and by_default
    if args.async_scheduling and impossible is not None:
        raise InputError(f"async_scheduling: got true, expected false ({impossible})")
    return args.async_scheduling


def _speculative(args: EngineArgs) -> SpeculativeConfig | None:
    given = args.speculative_config
    if given is None:
        if args.acceptance_rate is not None:
            raise InputError(
                f"acceptance_rate: got {args.acceptance_rate}, which changes nothing without speculative_config"
            )
        return None
    if args.acceptance_rate is None:
        raise InputError(
            "acceptance_rate: missing, expected the probability that a draft is accepted if those before it were, "
            "between 0 and 1 (speculative_config needs it)"
        )
    # EAGLE 3 differs in what it drafts from, not in blocks and slots.
    method = "eagle" if given.method == "eagle3" else given.method
    return SpeculativeConfig(method, given.num_speculative_tokens)


def _check_drafts(args: EngineArgs, drafts: SpeculativeConfig, budget: int, num_seqs: int) -> None:
    """Where vLLM would not start, stop with an assertion, or let a request wait forever (0.32, padded admissions)."""
    dialect, size = find_dialect(args.dialect), 1 + drafts.num_speculative_tokens
    least, why = 1, ""
    if dialect.pads_admissions:
        least, why = size + drafts.num_draft_slots, "one request with its drafts"
    if dialect.draft_slots_reserved and drafts.num_draft_slots:
        least, why = 1 + drafts.num_draft_slots * num_seqs, "a slot of the draft model for each of max_num_seqs"
    if args.enable_lora and num_seqs * size > least:
        least, why = num_seqs * size, "max_num_seqs times a token and its drafts, as vLLM demands with LoRA"
    if budget < least:
        raise InputError(f"max_num_batched_tokens: got {budget}, expected at least {least} ({why})")
    threshold = args.long_prefill_token_threshold
    if dialect.pads_admissions and 0 < threshold < size:
        raise InputError(
            f"long_prefill_token_threshold: got {threshold}, expected at least {size} with "
            f"{drafts.num_speculative_tokens} drafts (vLLM stops with an assertion)"
        )


def _block_size(args: EngineArgs, where: Platform) -> int:
    default = _BLOCK_SIZE[where]
    if args.block_size is None:
        return default
    forced = where == "ascend" and (args.enable_prefix_caching or args.enable_chunked_prefill)
    if forced and args.block_size != default:
        raise InputError(
            f"block_size: got {args.block_size}, expected {default} "
            "(vllm-ascend overwrites any other with prefix caching or chunked prefill)"
        )
    return args.block_size


def _batch(args: EngineArgs, profile: Profile) -> tuple[int, int]:
    """Token budget and sequence limit: what is given, else vLLM's server defaults, which are fitted to each other."""
    default_budget, default_seqs = _batch_defaults(args, profile)
    budget = args.max_num_batched_tokens
    num_seqs = args.max_num_seqs or default_seqs
    if budget is None:
        budget = default_budget if args.enable_chunked_prefill else max(default_budget, args.max_model_len)
        budget = min(budget, num_seqs * args.max_model_len)
    if args.max_num_seqs is None:
        num_seqs = min(num_seqs, budget)
    return budget, num_seqs


def _batch_defaults(args: EngineArgs, profile: Profile) -> tuple[int, int]:
    where = platform(profile)
    if where == "ascend":  # its total memory is deliberately not told
        return 2048, 256
    if where == "cpu":
        world = profile.identity.tensor_parallel_size * profile.identity.pipeline_parallel_size
        return 2048 * world, 128 * world
    memory_bytes = profile.memory.device.value
    if memory_bytes >= 160 * _GIB and args.dialect != VLLM_0_23.name:
        return 16384, 1024
    if memory_bytes >= 70 * _GIB and "a100" not in profile.identity.device.lower():
        return 8192, 1024
    return 2048, 256


def _check_batch(args: EngineArgs, budget: int, num_seqs: int) -> None:
    length = args.max_model_len
    if not args.enable_chunked_prefill and budget < length:
        raise InputError(
            f"max_num_batched_tokens: got {budget}, expected at least max_model_len ({length}) without chunked prefill"
        )
    if budget < num_seqs:
        raise InputError(f"max_num_batched_tokens: got {budget}, expected at least max_num_seqs ({num_seqs})")
    if args.max_num_active_seqs is not None and args.max_num_active_seqs > num_seqs:
        active = args.max_num_active_seqs
        raise InputError(f"max_num_active_seqs: got {active}, expected at most max_num_seqs ({num_seqs})")
    if args.long_prefill_token_threshold > length:
        raise InputError(
            f"long_prefill_token_threshold: got {args.long_prefill_token_threshold}, "
            f"expected at most max_model_len ({length})"
        )
    if args.long_prefill_token_threshold_adaptive and not args.long_prefill_token_threshold:
        raise InputError(
            "long_prefill_token_threshold_adaptive: got true, which changes nothing without "
            "long_prefill_token_threshold"
        )


def _num_gpu_blocks(args: EngineArgs, profile: Profile, block_size: int) -> int:
    if args.num_gpu_blocks_override is not None:
        return args.num_gpu_blocks_override
    if args.gpu_memory_utilization is None:  # the profile states vLLM's default
        return profile.num_gpu_blocks(block_size, kv_cache_memory_bytes=args.kv_cache_memory_bytes)
    return profile.num_gpu_blocks(block_size, args.gpu_memory_utilization, args.kv_cache_memory_bytes)


def _check_pool(config: EngineConfig) -> None:
    """As vLLM at start-up: the usable blocks (all but the null block) must hold one request of full length."""
    needed = -(-config.max_model_len // config.block_size)
    usable = config.num_gpu_blocks - 1
    if usable < needed:
        raise InputError(
            f"max_model_len: got {config.max_model_len}, expected at most {max(usable, 0) * config.block_size}: one "
            f"request of that length needs {counted(needed, 'block')} of {config.block_size} tokens, the pool has "
            f"{usable} (num_gpu_blocks {config.num_gpu_blocks} less the null block)"
        )
