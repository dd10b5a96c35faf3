"""Profiles at hand: those that ship and those in files, and what each is in a few fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibration.predictions import dialect, num_kv_tokens
from simulator.errors import InputError
from simulator.evidence import evidence_in_words, evidence_of, indicative, median_error, num_groups
from simulator.profile import Profile, load_profile, shipped_profiles


@dataclass(frozen=True)
class Entry:
    """One line of the list. Errors are shares; ``num_kv_tokens`` is what the pool of a device holds by default.

    ``dialect`` is the simulated one nearest to the engine's version, None where the engine is not vLLM;
    ``dialect_verified``: decisions were compared with that very version. ``indicative`` is the reason, or None.
    """

    name: str
    file: str | None
    device: str
    model: str
    dtype: str
    tensor_parallel_size: int
    vllm: str
    vllm_ascend: str | None
    dialect: str | None
    dialect_verified: bool
    evidence: str
    evidence_in_words: str
    held_out_median: float | None
    held_out_worst: float | None
    num_groups: int
    indicative: str | None
    num_kv_tokens: int

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON types."""
        return asdict(self)


def entry(profile: Profile, file: str | None = None) -> Entry:
    """What the list says of this profile."""
    who = profile.identity
    found = dialect(profile)
    return Entry(
        name=profile.name,
        file=file,
        device=who.device,
        model=who.model,
        dtype=who.dtype,
        tensor_parallel_size=who.tensor_parallel_size,
        vllm=who.vllm,
        vllm_ascend=who.vllm_ascend,
        dialect=found[0] if found else None,
        dialect_verified=found is not None and found[1],
        evidence=evidence_of(profile),
        evidence_in_words=evidence_in_words(profile),
        held_out_median=median_error(profile.errors.held_out),
        held_out_worst=profile.held_out_error,
        num_groups=num_groups(profile),
        indicative=indicative(profile),
        num_kv_tokens=num_kv_tokens(profile),
    )


def entries(files: Sequence[str] = ()) -> list[Entry]:
    """Every profile that ships, then those in the files. Raises InputError naming the file that is no profile."""
    shipped = shipped_profiles()
    others = [file for file in files if file not in shipped]
    return [entry(load_profile(name)) for name in shipped] + [entry(load_profile(file), file) for file in others]


def labelled(names: Sequence[str]) -> dict[str, Profile]:
    """The profiles of these names and files by what to call them: their own name, or the file where two share one.

    Raises InputError for a profile that is not there, and for one given twice.
    """
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: given twice, expected different profiles")
    loaded = [load_profile(name) for name in names]
    own = [profile.name for profile in loaded]
    return {
        profile.name if own.count(profile.name) == 1 else name: profile
        for name, profile in zip(names, loaded, strict=True)
    }


def engine_in_words(listed: Entry) -> str:
    """The engine and its version."""
    if listed.vllm == "none":
        return "no engine"
    return f"vLLM {listed.vllm}" + (f", vllm-ascend {listed.vllm_ascend}" if listed.vllm_ascend else "")


def dialect_in_words(listed: Entry) -> str:
    """Whether the simulated decisions were compared with those of the engine's very version."""
    if listed.dialect is None:
        return "of no verified release"
    if listed.dialect_verified:
        return f"{listed.dialect}, verified"
    return f"not verified, as {listed.dialect}"
