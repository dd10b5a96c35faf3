"""What a step takes beyond its operators. No table holds it, and no figure of it is published.

It comes from two recorded runs of vLLM 0.19 on RTX PRO 6000 GPUs (casys-kaist/LLMServingSim), compiled, with CUDA
graphs and asynchronous scheduling: the median, over the seconds in which only decodes ran, of a step's time less its
operators' time. Both numbers are then taken for every model and GPU,
as a convention: they stand beside the fit of the operators, not in it.
"""

from __future__ import annotations

from calibration.roofline import Prior
from simulator.errors import InputError
from simulator.units import duration_s

MOST_S = 0.1

_SOURCE = (
    "no table has it: the median of what a step took beyond its operators in the {seconds} seconds without a prefill "
    "of a recorded run of {run} on {gpus} (vLLM 0.19, CUDA graphs, asynchronous scheduling){more}"
)
ALONE = Prior(
    0.001,
    _SOURCE.format(seconds=19, run="Llama-3.1-8B", gpus="an RTX PRO 6000", more="; 0.0 to 3.1 ms, by batch"),
)
IN_LOCKSTEP = Prior(
    0.0034,
    _SOURCE.format(
        seconds=26, run="Qwen3-30B-A3B", gpus="two RTX PRO 6000",
        more="; the ranks agree on a batch size before each step",
    ),
)  # fmt: skip


def host_prior(num_replicas: int) -> Prior:
    """Seconds of a step beyond its operators, with one engine or with replicas in lockstep."""
    return ALONE if num_replicas == 1 else IN_LOCKSTEP


def given_host(text: str) -> Prior:
    """A duration in words, as ``1 ms``. Raises InputError where it is none, or longer than any host takes."""
    try:
        value = duration_s(text)
    except InputError as error:
        raise InputError(f"--host-step: {error}") from None
    if value >= MOST_S:
        raise InputError(f"--host-step: got {value:g} s, expected below {MOST_S * 1e3:g} ms, for example '1 ms'")
    return Prior(value, f"as given: {text}")
