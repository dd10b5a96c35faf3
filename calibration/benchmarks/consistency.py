"""Do the figures of a load test fit each other? Contradictions are refused, doubts are put into words.

Where figures are means of the same requests, they are tied together: tokens a second = tokens a request times requests
a second; requests = rate times duration; and by Little's law (J. D. C. Little, Operations Research 9, 1961) the mean
number of requests under way = requests a second times mean time of one, which no limit on concurrency lets exceed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from calibration.benchmarks.benchmark import Benchmark
from calibration.benchmarks.one_engine import one_engine
from simulator.counts import counted
from simulator.errors import InputError

__all__ = ["doubts", "one_engine"]

_CONTRADICTS, _DOUBTFUL = 0.10, 0.03  # relative, beyond what rounding explains
_BUSY = 0.7  # of a limit that requests queue for: less under way is odd
_IDLE = 0.1  # and this little is impossible
_IDLE_AT_ONCE = 0.05  # or this little where the start and the end of a test weigh too much to tell more
_FULL_WAVES = 2  # rounds of requests, below which they do
# What engines of any kind do: a token takes at least a millisecond in the mean, although some come together, and an
# answer within a millisecond of the request never crossed a network and a model.
_STEP_S = (1e-4, 10.0)
_LEAST_TPOT_S = 1e-3
_LEAST_TTFT_S = 1e-3
_TTFT_OF_TPOT = (0.01, 0.2)  # a first token takes a step, too: far less contradicts, less is odd
_FASTEST_PREFILL = 1e6  # tokens a second


@dataclass(frozen=True)
class _Figure:
    """One figure and by how much rounding may have moved it."""

    value: float
    rounding: float


def doubts(benchmark: Benchmark) -> list[str]:
    """What looks odd, in words, each with the file and line.

    Raises InputError for figures that cannot all be right, for failed requests whose fellows' lengths are not known,
    and for several engines behind one address.
    """
    _refuse_what_is_not_one_engine(benchmark)
    checks: tuple[Callable[[Benchmark], Iterator[str]], ...] = (
        _failed, _units, _order, _tokens_a_second, _total_tokens_a_second, _duration, _total_time, _arrivals,
        _littles_law,
    )  # fmt: skip
    return [f"{benchmark.file}: {words}" for check in checks for words in check(benchmark)]


def _refuse(benchmark: Benchmark, words: str) -> InputError:
    return InputError(f"{benchmark.file}: {words}")


def _refuse_what_is_not_one_engine(benchmark: Benchmark) -> None:
    if benchmark.num_engines > 1:
        raise _refuse(
            benchmark, f"{benchmark.num_engines} engines answered, expected 1: a profile is that of one engine"
        )


def _failed(benchmark: Benchmark) -> Iterator[str]:
    failed, answered = benchmark.num_failed, benchmark.num_prompts
    if answered < 1:
        raise _refuse(benchmark, f"no request was answered ({failed} failed), expected figures of answered ones")
    if not failed:
        return
    words = f"{failed} of {answered + failed} requests failed"
    if not (benchmark.inputs.each and benchmark.outputs.each):
        raise _refuse(
            benchmark, f"{words}, expected none: without the lengths of the others one by one, the load is not known"
        )
    yield f"{words}; the {answered} others are taken as the whole load"


# --- units and order ------------------------------------------------------------------------------------------------


def _units(benchmark: Benchmark) -> Iterator[str]:
    measured = benchmark.measured
    for name, value in measured.stated.items():
        # Where the mean is known it tells the unit: few tokens may come faster.
        is_mean = name == "tpot_mean_s" or (name.startswith("tpot") and measured.tpot_mean_s is None)
        least = _LEAST_TPOT_S if is_mean else _STEP_S[0]
        if name.startswith(("tpot", "itl")) and not least <= value <= _STEP_S[1]:
            expected = f"{_time(least)} to 10 s between tokens"
            raise _refuse(benchmark, _odd_unit(name, value, expected, too_small=value < least))
        if name.startswith(("ttft", "e2e")) and value < _LEAST_TTFT_S:
            raise _refuse(benchmark, _odd_unit(name, value, "at least 1 ms", too_small=True))
    ttft_s = measured.ttft_mean_s or measured.ttft_p50_s
    tpot_s = measured.tpot_mean_s or measured.tpot_p50_s
    if ttft_s and tpot_s:
        ratio = ttft_s / tpot_s
        words = f"a first token takes {_time(ttft_s)} and each further one {_time(tpot_s)}"
        if ratio < _TTFT_OF_TPOT[0]:
            raise _refuse(benchmark, f"{words}, expected at least about one step before the first: seconds for "
                          f"milliseconds, or the reverse?")  # fmt: skip
        if ratio < _TTFT_OF_TPOT[1]:
            yield f"{words}: is one of them in another unit?"
    own_tokens = benchmark.inputs.mean * (1 - benchmark.prefix_share)
    if ttft_s and own_tokens / ttft_s > _FASTEST_PREFILL:
        yield (
            f"{own_tokens:.0f} prompt tokens in {_time(ttft_s)} are more than {_FASTEST_PREFILL:g} a second: is TTFT "
            f"in another unit, or did the cache hold the prompts?"
        )


def _odd_unit(name: str, value: float, expected: str, too_small: bool) -> str:
    slip = "seconds for milliseconds" if too_small else "milliseconds for seconds"
    return f"{name.removesuffix('_s')} is {_time(value)}, expected {expected}: {slip}?"


def _time(value_s: float) -> str:
    return f"{value_s:.4g} s" if value_s >= 1 else f"{value_s * 1e3:.4g} ms"


def _order(benchmark: Benchmark) -> Iterator[str]:
    measured = benchmark.measured
    for metric in ("ttft", "tpot"):
        points = [(point, getattr(measured, f"{metric}_{point}_s")) for point in ("p50", "p90", "p99")]
        known = [(point, value) for point, value in points if value is not None]
        for (low, less), (high, more) in pairwise(known):
            if less > more:
                raise _refuse(
                    benchmark, f"{metric} {low} ({_time(less)}) is above {high} ({_time(more)}), expected the reverse"
                )
    if measured.ttft_mean_s and measured.e2e_mean_s and measured.ttft_mean_s > measured.e2e_mean_s:
        raise _refuse(benchmark, f"mean TTFT ({_time(measured.ttft_mean_s)}) is above the mean total time "
                      f"({_time(measured.e2e_mean_s)}), expected less")  # fmt: skip
    yield from ()


# --- sums and products ----------------------------------------------------------------------------------------------


def _tokens_a_second(benchmark: Benchmark) -> Iterator[str]:
    requests, tokens = _figure(benchmark, "requests_per_s"), _figure(benchmark, "output_tokens_per_s")
    if requests and tokens:
        mean = benchmark.outputs.mean
        yield from _compare(
            benchmark,
            tokens,
            _times(requests, mean),
            f"{tokens.value:.6g} output tokens/s",
            f"{mean:.6g} tokens an answer x {requests.value:.4g} requests/s",
        )


def _total_tokens_a_second(benchmark: Benchmark) -> Iterator[str]:
    total = _figure(benchmark, "total_tokens_per_s")
    requests, tokens = _figure(benchmark, "requests_per_s"), _figure(benchmark, "output_tokens_per_s")
    inputs, outputs = benchmark.inputs.mean, benchmark.outputs.mean
    if total is None:
        return
    if tokens:
        other, words = _times(tokens, (inputs + outputs) / outputs), f"{tokens.value:.6g} output tokens/s"
    elif requests:
        other, words = _times(requests, inputs + outputs), f"{requests.value:.4g} requests/s"
    else:
        return
    lengths = f"{inputs:.6g} prompt and {outputs:.6g} answer tokens"
    yield from _compare(benchmark, total, other, f"{total.value:.6g} tokens/s in all", f"{words} of {lengths}")


def _duration(benchmark: Benchmark) -> Iterator[str]:
    requests, seconds = _figure(benchmark, "requests_per_s"), benchmark.duration_s
    if requests and seconds and _states_number(benchmark):
        yield from _compare(
            benchmark,
            _times(requests, seconds),
            _Figure(benchmark.num_prompts, 0.0),
            f"{requests.value:.4g} requests/s in {seconds:.5g} s",
            f"{counted(benchmark.num_prompts, 'request')} answered",
        )


def _total_time(benchmark: Benchmark) -> Iterator[str]:
    measured = benchmark.measured
    total_s, ttft_s, tpot_s = measured.e2e_mean_s, measured.ttft_mean_s, measured.tpot_mean_s
    if not (total_s and ttft_s and tpot_s):
        return
    yield from _compare(
        benchmark,
        _Figure(total_s, 0.0),
        _Figure(ttft_s + (benchmark.outputs.mean - 1) * tpot_s, 0.0),
        f"a mean total time of {_time(total_s)}",
        f"TTFT {_time(ttft_s)} + {benchmark.outputs.mean - 1:.6g} x TPOT {_time(tpot_s)}",
        # Where answers differ in length, the mean of their TPOTs is not that of their tokens.
        refuse=_are_fixed(benchmark),
    )


def _arrivals(benchmark: Benchmark) -> Iterator[str]:
    """More than arrive cannot be answered; the arrivals of a test of n requests scatter by 1/sqrt(n)."""
    asked, requests = benchmark.requests_per_s, _figure(benchmark, "requests_per_s")
    if asked and requests:
        most = asked * (1 + 4 / benchmark.num_prompts**0.5) + requests.rounding
        if requests.value > most * (1 + _CONTRADICTS):
            found = f"{requests.value:.4g} requests/s were answered"
            raise _refuse(benchmark, f"{found}, expected at most the {asked:.4g}/s that arrive")
    yield from ()


def _littles_law(benchmark: Benchmark) -> Iterator[str]:
    total_s, words, is_certain = _time_of_one(benchmark)
    requests = _answered(benchmark)
    limit = min(benchmark.max_concurrency or benchmark.num_prompts, benchmark.num_prompts)
    if total_s is None or requests is None:
        return
    under_way = requests.value * total_s
    least = (requests.value - requests.rounding) * total_s
    found = f"{requests.value:.4g} requests/s x {words} = {under_way:.4g} requests under way"
    if least > limit * (1 + _CONTRADICTS):
        expected = f"at most {limit}, the limit (Little's law)"
        if is_certain:
            raise _refuse(benchmark, f"{found}, expected {expected}")
        yield f"{found}, expected {expected}; but answers differ in length, and the mean of their TPOTs misleads"
    # All at once, or one for each that ends; and the wait for a place must be known.
    if benchmark.requests_per_s is None and (benchmark.measured.ttft_mean_s or benchmark.measured.e2e_mean_s):
        most = (requests.value + requests.rounding) * total_s
        full = benchmark.num_prompts >= _FULL_WAVES * limit
        if most < limit * (_IDLE if full else _IDLE_AT_ONCE):
            expected = f"about {limit}, as many as were sent at once (Little's law)"
            raise _refuse(benchmark, f"{found}, expected {expected}: seconds for milliseconds?")
        if full and benchmark.measured.ttft_mean_s and most < limit * _BUSY:
            yield f"{found}, where {limit} were allowed: the client kept fewer going"


def _time_of_one(benchmark: Benchmark) -> tuple[float | None, str, bool]:
    """Mean seconds of a request, how they are known, and whether they are certain (or too low) rather than a guess."""
    measured = benchmark.measured
    if measured.e2e_mean_s:
        return measured.e2e_mean_s, f"{_time(measured.e2e_mean_s)} each", True
    known = [value for value in (measured.tpot_mean_s, measured.itl_mean_s) if value]
    tpot_s = min(known, default=measured.tpot_p50_s)
    ttft_s = measured.ttft_mean_s or 0.0
    steps = benchmark.outputs.mean - 1
    if tpot_s is None and steps:
        return None, "", False
    total_s = ttft_s + steps * (tpot_s or 0.0)
    words = f"(TTFT {_time(ttft_s)} + {steps:.6g} x {_time(tpot_s or 0.0)})"
    return (total_s or None), words, _are_fixed(benchmark) or measured.itl_mean_s is not None


def _answered(benchmark: Benchmark) -> _Figure | None:
    """Requests a second, from tokens a second or the duration where they are not stated."""
    requests, tokens = _figure(benchmark, "requests_per_s"), _figure(benchmark, "output_tokens_per_s")
    if tokens and (requests is None or tokens.rounding / tokens.value < requests.rounding / requests.value):
        return _times(tokens, 1 / benchmark.outputs.mean)
    if requests is None and (total := _figure(benchmark, "total_tokens_per_s")):
        return _times(total, 1 / (benchmark.inputs.mean + benchmark.outputs.mean))
    if requests is None and benchmark.duration_s and _states_number(benchmark):
        return _Figure(benchmark.num_prompts / benchmark.duration_s, 0.0)
    return requests


def _states_number(benchmark: Benchmark) -> bool:
    """Whether the number of requests is the result's own, not the reader's assumption."""
    return not benchmark.columns or bool(benchmark.columns.get("num_prompts"))


def _are_fixed(benchmark: Benchmark) -> bool:
    """Whether all answers are of one length, for all that is known: a broken mean cannot be."""
    return benchmark.outputs.are_equal and benchmark.outputs.mean == int(benchmark.outputs.mean)


def _figure(benchmark: Benchmark, name: str) -> _Figure | None:
    value = getattr(benchmark.measured, name)
    return None if value is None else _Figure(value, benchmark.rounding.get(name, 0.0))


def _times(figure: _Figure, factor: float) -> _Figure:
    return _Figure(figure.value * factor, figure.rounding * factor)


def _compare(
    benchmark: Benchmark, one: _Figure, other: _Figure, found: str, expected: str, refuse: bool = True
) -> Iterator[str]:
    """Two figures that should be equal."""
    off = abs(one.value - other.value)
    beyond = max(0.0, off - one.rounding - other.rounding) / other.value
    words = f"{found}, expected {other.value:.6g} ({expected})"
    if beyond > _CONTRADICTS and refuse:
        raise _refuse(benchmark, f"{words}: {off / other.value:.0%} off")
    if beyond > _DOUBTFUL:
        yield f"{words}: {off / other.value:.0%} off"
