"""What a device's data sheet predicts before anything is measured: priors, with no error known."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.devices import Device, load_device
from calibration.geometry import Geometry, Rank
from simulator.errors import InputError

__all__ = ["Device", "Prior", "load_device", "rank_roofline", "roofline"]


@dataclass(frozen=True)
class Prior:
    """A coefficient before measurement: its value (SI) and where that comes from."""

    value: float
    source: str


def roofline(geometry: Geometry, device: Device, tensor_parallel_size: int = 1) -> dict[str, Prior]:
    """Priors of the formulas' device-side coefficients, for one rank. Raises InputError where heads cannot be split so.

    See ``rank_roofline``.
    """
    return rank_roofline(geometry.rank(tensor_parallel_size), device)


def rank_roofline(rank: Rank, device: Device) -> dict[str, Prior]:
    """Priors of the formulas' device-side coefficients, for this rank.

    Each is bytes or operations over the reachable rate; a token's time includes its share of the bytes that ranks send
    each other. Host times have none: they must be measured, and the latency of the collectives (``num_collectives`` a
    step, whatever it holds) is one of them. A ``step_s`` is host and device together, so it has no prior either.

    ``experts_s`` and ``expert_share`` are there for a mixture of experts only. ``device_step_s`` belongs to a formula
    that knows no experts: it then reads all of them, as a step of many tokens does. A context is read or, with latent
    attention on few ranks, computed with, whichever takes longer.
    """
    of_rank = _Sheet(rank, device)
    priors = {
        "device_step_s": of_rank.reads(rank.step_read_bytes + rank.expert_bytes, "weights read once a step"),
        "weights_s": of_rank.reads(rank.step_read_bytes, "weights read once a step"),
        "prefill_token_s": of_rank.token("a prefill token (layers)", head=False),
        "token_s": of_rank.token("a token (layers)", head=False),
        "prefill_pair_s": of_rank.computes(rank.pair_flops, "a query-key pair"),
        "decode_token_s": of_rank.token("a decode (layers and output head)", head=True),
        "context_s": of_rank.context(),
        "decode_context_s": of_rank.context(),
    }
    experts = rank.geometry.experts
    if experts is not None:
        share = f"{experts.num_active} of {experts.num_experts} experts a token; {rank.geometry.source}"
        priors["experts_s"] = of_rank.reads(rank.expert_bytes, "routed experts of all layers")
        priors["expert_share"] = Prior(experts.share, share)
    return priors


class _Sheet:
    """Bytes and operations of a rank -> priors by its device's data sheet."""

    def __init__(self, rank: Rank, device: Device) -> None:
        self._rank = rank
        self._device = device
        num_ranks = rank.tensor_parallel_size * rank.data_parallel_size
        self._whose = f" on one of {num_ranks} ranks" if num_ranks > 1 else ""

    def reads(self, num_bytes: int, what: str) -> Prior:
        device = self._device
        return Prior(num_bytes / device.bytes_per_s, f"{num_bytes} bytes of {what}{self._whose}; {device.source}")

    def computes(self, flops: int, what: str) -> Prior:
        device = self._device
        return Prior(flops / device.flops_per_s, f"{flops} operations {what}{self._whose}; {device.source}")

    def token(self, what: str, *, head: bool) -> Prior:
        """Arithmetic of a token in the layers' format, of its logits in 16 bits, and what it has ranks send."""
        rank, device = self._rank, self._device
        arithmetic = rank.geometry.arithmetic
        head_flops = rank.head_token_flops if head else 0
        rate = device.rate(arithmetic)
        value = rank.layer_token_flops / rate + head_flops / device.flops_per_s
        source = f"{rank.layer_token_flops + head_flops} operations {what}{self._whose}"
        if rate != device.flops_per_s:
            source += f", those of the layers in {arithmetic} at {rate / device.flops_per_s:.4g} times the rate"
        source += f"; {device.source}"
        sent = rank.all_reduce_bytes_per_token + rank.dispatch_bytes_per_token
        if sent and device.link_bytes_per_s is None:
            raise InputError(f"--device: {device.name} has no link_bandwidth, which ranks need that send to each other")
        if sent and device.link_bytes_per_s is not None:
            value += sent / device.link_bytes_per_s
            source += f"; {sent} bytes sent to other ranks; {device.link_source}"
        return Prior(value, source)

    def context(self) -> Prior:
        """Reading a token of context, or computing with it."""
        rank = self._rank
        read = self.reads(rank.kv_bytes_per_token, "keys and values a token of context")
        computed = self.computes(rank.context_flops, "a token of context")
        return max(read, computed, key=lambda prior: prior.value)
