"""A tenant is described completely, strictly, and by keys that do something."""

import pytest
from pydantic import ValidationError

from simulator.workload.distributions import ArrivalSpec, LengthSpec
from simulator.workload.spec import SyntheticSpec, TenantSpec, TraceSpec, WorkloadSpec

POISSON = {"process": "poisson", "rate_per_s": 6}
DRAWN = {"num_requests": 10, "arrivals": POISSON, "suffix_tokens": 500, "output_tokens": 200}
TRACE = {"format": "mooncake", "path": "a.jsonl"}


def test_durations_and_counts_are_read_in_any_unit():
    spec = TraceSpec.model_validate({**TRACE, "smooth_s": "3s", "window": "20 min", "limit": "1k"})
    assert (spec.smooth_s, spec.window, spec.limit) == (3.0, 1200.0, 1000)


def test_a_plain_number_is_a_fixed_length():
    spec = SyntheticSpec.model_validate(DRAWN)
    assert spec.output_tokens == LengthSpec(distribution="fixed", mean=200)


def test_descriptions_cannot_be_written_into():
    spec = TraceSpec.model_validate(TRACE)
    with pytest.raises(ValidationError, match="frozen"):
        spec.rate_scale = 2.0


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({"distribution": "lognormal", "mean": 5}, "lognormal lengths need cv"),
        ({"distribution": "uniform", "low": 5}, "uniform lengths need high"),
        ({"distribution": "geometric", "mean": 5, "cv": 1}, "cv would change nothing for geometric lengths"),
        ({"distribution": "uniform", "low": 1, "high": 5, "mean": 3}, "mean would change nothing for uniform lengths"),
        ({"distribution": "fixed", "mean": 5, "high": 9}, "high would change nothing for fixed lengths"),
        ({"distribution": "uniform", "low": 6, "high": 5}, "low 6 is above high 5"),
        ({"distribution": "exponential", "mean": 0.5}, "mean 0.5 is below one token"),
        ({"distribution": "fixed", "mean": 2.5}, "a fixed length is a whole number of tokens, not 2.5"),
        ({"distribution": "fixed", "mean": -1}, "a fixed length is a whole number of tokens, not -1"),
        ({"distribution": "uniform", "low": 0, "high": 5}, "expected at least 1"),
        ({"distribution": "lognormal", "mean": 5, "cv": 1e200}, "less than or equal to 100"),
        ({"distribution": "normal", "mean": 5}, "'fixed', 'uniform', 'geometric', 'exponential' or 'lognormal'"),
        ({"distribution": "fixed", "mean": 5, "std": 1}, "Extra inputs are not permitted"),
        (2.5, "expected a whole number"),
        (True, "expected a whole number"),
    ],
)
def test_a_length_that_is_no_length_is_refused(length, message):
    with pytest.raises(ValidationError, match=message):
        SyntheticSpec.model_validate({**DRAWN, "suffix_tokens": length})


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ({"process": "gamma", "rate_per_s": 6}, "gamma arrivals need cv"),
        ({**POISSON, "cv": 2}, "cv would change nothing for poisson arrivals"),
        ({"process": "fixed", "rate_per_s": 6, "cv": 2}, "cv would change nothing for fixed arrivals"),
        ({"process": "poisson", "rate_per_s": 0}, "expected more than 0"),
        ({"process": "gamma", "rate_per_s": 6, "cv": -1}, "expected more than 0"),
    ],
)
def test_arrivals_that_contradict_themselves_are_refused(arrivals, message):
    with pytest.raises(ValidationError, match=message):
        ArrivalSpec.model_validate(arrivals)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration": "1 min"}, "exactly one of num_requests and duration"),
        ({"num_requests": None}, "exactly one of num_requests and duration"),
        ({"num_prefixes": 3}, "num_prefixes and prefix_tokens go together"),
        ({"prefix_tokens": 3}, "num_prefixes and prefix_tokens go together"),
        ({"prefix_zipf_exponent": 1}, "prefix_zipf_exponent would change nothing"),
        ({"suffix_tokens": 0}, "a prompt has at least one token"),
        ({"suffix_tokens": 0, "num_prefixes": 2, "prefix_tokens": 0}, "a prompt has at least one token"),
        ({"output_tokens": 0}, "generates at least one token"),
    ],
)
def test_a_stream_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        SyntheticSpec.model_validate({**DRAWN, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate_scale": 0}, "expected more than 0"),
        ({"window": "0 s"}, "expected more than 0"),
        ({"limit": 0}, "expected at least 1"),
        ({"session_from": "third_block"}, "second_block"),
        ({"format": "azurre"}, "mooncake"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        TraceSpec.model_validate({**TRACE, **changes})


def test_a_tenant_has_exactly_one_source():
    with pytest.raises(ValidationError, match="'a': give exactly one of trace, synthetic, conversations and tree"):
        TenantSpec.model_validate({"name": "a"})
    with pytest.raises(ValidationError, match="'a': give exactly one of trace, synthetic, conversations and tree"):
        TenantSpec.model_validate({"name": "a", "trace": TRACE, "synthetic": DRAWN})


def test_tenants_have_names_of_their_own():
    tenant = {"name": "a", "synthetic": DRAWN}
    with pytest.raises(ValidationError, match="two tenants are called 'a'"):
        WorkloadSpec.model_validate({"tenants": [tenant, tenant]})
    with pytest.raises(ValidationError, match="at least 1 item"):
        WorkloadSpec.model_validate({"tenants": []})
