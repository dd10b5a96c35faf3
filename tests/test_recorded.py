"""Every format is replayed: in order of arrival, on one clock, with texts and sessions of the tenant's own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import simulator
from simulator.errors import InputError
from simulator.workload import TraceSpec, WorkloadSpec, open_workload
from simulator.workload.readers import READERS, open_trace
from tests.test_scenario import TEXT
from tests.trace_samples import OPTIONS, SAMPLES, SHIPPED, lines

POISSON = {"process": "poisson", "rate_per_s": 0.5}
STARTS = {"weka": {"session_arrivals": POISSON}, "servegen": {"lengths": str(OPTIONS["servegen"]["lengths"])}}


def workload(tmp_path, name, seed=0, replication=0, number=1, content=None, **trace):
    (tmp_path / "trace").write_bytes(SAMPLES[name] if content is None else content)
    tenants = [
        {"name": f"t{place}", "trace": {"format": name, "path": "trace", **STARTS.get(name, {}), **trace}}
        for place in range(number)
    ]
    return open_workload(WorkloadSpec.model_validate({"tenants": tenants}), seed, replication, tmp_path)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_scenario_replays_every_format(tmp_path, name):
    loaded = workload(tmp_path, name)
    requests, again = list(loaded), list(loaded)
    options = {"lengths": STARTS[name]["lengths"]} if name == "servegen" else {}
    recorded = [record for _, record in open_trace(tmp_path / "trace", name, **options).records()]
    assert len(requests) == len(recorded)
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in again)
    assert requests[0].arrival_s >= 0
    for request in requests:
        assert sum(length for _, _, length in request.prompt) == request.num_prompt_tokens
        assert request.max_tokens == request.oracle_num_output_tokens >= 1
    if all(record.prompt is None for record in recorded):  # lengths only: nobody shares a token
        assert all(request.prompt == ((None, 0, request.num_prompt_tokens),) for request in requests)
    assert len({request.session for request in requests}) == len({record.session for record in recorded})


@pytest.mark.parametrize("name", ["weka", "aiperf", "kvcast"])
def test_tenants_share_neither_texts_nor_sessions(tmp_path, name):
    requests = list(workload(tmp_path, name, number=2))
    for what in (
        lambda request: {segment for segment, _, _ in request.prompt} - {None},
        lambda request: {request.session} - {None},
        lambda request: {request.output_segment} - {None},
    ):
        first, second = (set().union(*(what(one) for one in requests if one.tenant == place)) for place in (0, 1))
        assert len(first) == len(second)
        assert not first & second


def test_sessions_begin_when_drawn_and_then_go_by_their_clock(tmp_path):
    requests = list(workload(tmp_path, "weka"))
    sessions = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(request.arrival_s)
    (times_s,) = (times_s for times_s in sessions.values() if len(times_s) > 1)
    assert [time_s - times_s[0] for time_s in times_s] == pytest.approx([0.0, 9.0, 16.0])
    assert [request.arrival_s for request in workload(tmp_path, "weka", replication=1)] != [
        request.arrival_s for request in requests
    ]
    assert "sessions begin when drawn (seeded)" in workload(tmp_path, "weka").resampling


def test_sessions_of_the_whole_sample_start_as_often_as_asked():
    """73 starts at 0.1 a second: their mean gap within four standard errors of 10 s."""
    trace = {"format": "weka", "path": "weka_sample.jsonl.gz", "session_arrivals": {**POISSON, "rate_per_s": 0.1}}
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", "trace": trace}]})
    starts_s = {}
    for request in open_workload(spec, 1, 0, SHIPPED):
        starts_s.setdefault(request.session, request.arrival_s)
    assert len(starts_s) == 73
    assert abs(max(starts_s.values()) / 73 - 10) < 4 * 10 / 73**0.5


def test_what_stands_out_of_order_is_sorted_where_the_format_allows_it(tmp_path):
    head, first, second, _ = SAMPLES["azure"].split(b"\r\n")
    content = b"\r\n".join([head, second, first, second])
    requests = list(workload(tmp_path, "azure", content=content))
    assert [request.num_prompt_tokens for request in requests] == [4808, 3180, 3180]
    assert [request.arrival_s for request in requests] == pytest.approx([0.0, 0.052, 0.052])
    with pytest.raises(InputError, match=r"trace:3: arrives at 0 s, expected no earlier than line 2 \(1\.0005 s\)"):
        list(workload(tmp_path, "mooncake_arxiv", content=SAMPLES["mooncake_arxiv"] * 2))


def test_the_general_reader_and_the_fast_one_agree(tmp_path):
    def replayed(**trace):
        trace = {"path": str(SHIPPED / "mooncake_synthetic.jsonl.gz"), "window": "5 min", "smooth_s": 3, **trace}
        spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", "trace": trace}]})
        return [(one.arrival_s, one.prompt, one.max_tokens, one.session) for one in open_workload(spec, 3, 1)]

    fast = replayed(format="mooncake", session_from="second_block")
    assert fast == replayed(format="mooncake", session_from="second_block", strict=False)
    assert fast == replayed(format="mooncake_arxiv", session_from="second_block")


def test_a_window_of_drawn_clients_is_drawn_where_it_lies(tmp_path):
    whole = [request.arrival_s for request in workload(tmp_path, "servegen")]
    part = list(workload(tmp_path, "servegen", window="10 min", smooth_s=1))
    assert 0 < len(part) < len(whole)
    assert all(0 <= request.arrival_s < 600 for request in part)


def test_skipped_lines_are_refused_unless_allowed_and_then_told(tmp_path):
    content = SAMPLES["burstgpt"] + SAMPLES["burstgpt"].split(b"\n", 1)[1] * 9 + b"19440200,x,1,GPT-4,5,0,5,API log\n"
    with pytest.raises(InputError, match=r"trace:22: Response tokens is 0: the request failed"):
        list(workload(tmp_path, "burstgpt", content=content))
    loaded = workload(tmp_path, "burstgpt", content=content, strict=False)
    assert len(list(loaded)) == 20
    assert "without 1 unusable line (the first: 22, Response tokens is 0" in loaded.resampling
    content = SAMPLES["mooncake"] * 10 + b"?\n"
    content = b"".join(sorted(content.splitlines(keepends=True)))
    with pytest.raises(InputError, match=r"trace:31: not JSON|trace:1: not JSON"):
        list(workload(tmp_path, "mooncake", content=content))
    assert len(list(workload(tmp_path, "mooncake", content=content, strict=False))) == 30


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ({"format": "weka"}, "format weka has times within sessions only: give session_arrivals"),
        ({"format": "azure", "session_arrivals": POISSON}, "session_arrivals would change nothing for format azure"),
        ({"format": "azure", "session_from": "second_block"}, "session_from would change nothing for format azure"),
        ({"format": "azure", "tokenizer": "x"}, r"tokenizer would change nothing .* azure \(it is for openai\)"),
        ({"format": "mooncake", "block_tokens": 16}, "block_tokens would change nothing for format mooncake"),
        ({"format": "mooncake", "gap_s": 1}, r"gap_s would change nothing for format mooncake \(it is for kv_events\)"),
        ({"format": "servegen"}, "format servegen needs lengths"),
        ({"format": "azure", "strict": "no"}, "valid boolean"),
    ],
)
def test_keys_that_change_nothing_are_refused(trace, message):
    with pytest.raises(ValidationError, match=message):
        TraceSpec.model_validate({"path": "x", **trace})


def test_what_only_the_file_tells_is_refused_when_it_is_opened(tmp_path):
    with pytest.raises(InputError, match="trace: the requests have times, expected no session_arrivals"):
        workload(tmp_path, "aiperf", session_arrivals=POISSON)
    content = lines({"prompt": "x", "max_tokens": 1}, {"prompt": "y", "max_tokens": 1})
    with pytest.raises(InputError, match="trace: times within sessions only, expected session_arrivals"):
        workload(tmp_path, "openai", content=content)
    assert len(list(workload(tmp_path, "openai", content=content, session_arrivals=POISSON))) == 2


def test_the_first_line_is_looked_at_when_a_workload_is_opened(tmp_path):
    for name in sorted(set(READERS) - {"kv_events"}):  # whose first request may end much later
        with pytest.raises(InputError, match="trace"):
            workload(tmp_path, name, content=b"?\n")


def test_routing_by_session_takes_the_sessions_of_a_trace(tmp_path):
    (tmp_path / "trace").write_bytes(SAMPLES["weka"])
    head, _, _ = TEXT.partition("workload:")
    assert head
    text = head + (
        "workload:\n  tenants:\n    - name: a\n      trace: {format: FORMAT, path: trace OPTIONS}\n"
        "routing:\n  - session_hash\n"
    )
    weka = text.replace("FORMAT", "weka").replace("OPTIONS", ", session_arrivals: {process: poisson, rate_per_s: 1}")
    simulator.scenario.parse(weka, base_dir=tmp_path).check()
    azure = text.replace("FORMAT", "azure").replace("OPTIONS", "")
    with pytest.raises(InputError, match="session_hash needs sessions"):
        simulator.scenario.parse(azure, base_dir=tmp_path).check()
