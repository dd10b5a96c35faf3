"""Each format's lines become the requests that its documentation says they are."""

from __future__ import annotations

import json

import pytest

from simulator.errors import InputError
from simulator.prefix import Prefixes, num_shareable
from simulator.workload.readers import open_trace
from tests.trace_samples import DATA, OPTIONS, SAMPLES, lines, stored


def written(tmp_path, content, name="trace"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def sample(tmp_path, name, **options):
    trace = open_trace(written(tmp_path, SAMPLES[name]), name, strict=True, **OPTIONS.get(name, {}), **options)
    return [record for _, record in trace.records()]


def read(tmp_path, format, *rows, **options):  # noqa: A002
    trace = open_trace(written(tmp_path, lines(*rows)), format, strict=True, **options)
    return [record for _, record in trace.records()]


def shared(first, second, block_size=1):
    """How many blocks two prompts have in common from the start."""
    prefixes = Prefixes(block_size)
    one, other = (prefixes.keys(record.prompt)[0] for record in (first, second))
    pairs = zip(one[: num_shareable(one)], other[: num_shareable(other)], strict=False)
    return sum(a == b for a, b in pairs)


def test_mooncake(tmp_path):
    first, second, third = sample(tmp_path, "mooncake")
    assert first.prompt == ((46, 0, 512), (47, 0, 143))
    assert (first.arrival_s, second.arrival_s, third.num_output_tokens) == (0.0, 3.053, 1)


def test_mooncake_loosely(tmp_path):
    first, second = sample(tmp_path, "mooncake_arxiv")
    assert first.prompt == ((46, 0, 512), (None, 0, 143))
    assert second.prompt == ((46, 0, 512), (47, 0, 512), (48, 0, 6))
    assert second.arrival_s == 1.0005
    row = {"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [0, 1]}
    (record,) = read(tmp_path, "mooncake_arxiv", row, block_tokens=64)
    assert record.prompt == ((0, 0, 64), (1, 0, 36))
    with pytest.raises(InputError, match=r"2 hash ids for 100 tokens, expected 1 \(or 0: whole blocks only\)"):
        read(tmp_path, "mooncake_arxiv", row)


def test_bailian_sessions_are_what_follows_one_another(tmp_path):
    root, reply, branch = sample(tmp_path, "bailian")
    assert root.prompt == ((1089, 0, 16), (1090, 0, 16), (6326, 0, 8))
    assert {record.session for record in (root, reply, branch)} == {159}
    assert (reply.arrival_s, reply.tenant, branch.tenant) == (pytest.approx(1.386), "text", "search")
    assert (root.parent, reply.parent, branch.parent) == (None, None, 0)  # the reply follows the last one
    assert shared(reply, branch, 16) == 2


def test_weka_sessions_have_ids_of_their_own(tmp_path):
    main, agent, after, other = sample(tmp_path, "weka")
    assert main.prompt == ((1, 64, 192), (None, 0, 8))
    assert agent.prompt == ((1, 64, 64), (1, 576, 64), (None, 0, 2))
    assert (shared(main, agent, 64), shared(main, after, 64), shared(main, other, 64)) == (1, 3, 0)
    assert (agent.after_s, agent.parent) == (4.0, None)  # started 4 s after the answer of 5 s
    assert (after.after_s, after.parent) == (11.0, 0)  # it follows the main line, not the agent
    assert (other.num_output_tokens, other.after_s, other.session) == (1, None, "trace_2")


def test_weka_as_published(tmp_path):
    """Sessions as documents, ids in full, sub-agents nested with times of their own."""
    session = {
        "id": "trace_7", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 3,
        "requests": [
            {"t": 0.0, "type": "s", "model": "m", "in": 200, "out": 20, "hash_ids": [1, 2, 3], "api_time": 5.0},
            {"t": 9.0, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore", "status": "completed",
             "models": ["m"],
             "requests": [{"t": 0.5, "type": "n", "model": "m", "in": 130, "out": 9, "hash_ids": [1, 9]}]},
            {"t": 16.0, "type": "n", "model": "m", "in": 300, "out": 30, "hash_ids": [1, 2, 3, 7], "think_time": 11.0},
        ],
    }  # fmt: skip
    one_line = written(tmp_path, json.dumps(session).encode() + b"\n" + json.dumps({**session, "id": "b"}).encode())
    spread = written(tmp_path, json.dumps(session, indent=2).encode(), "spread.json")
    found = [record for _, record in open_trace(one_line, strict=True).records()]
    assert found[:3] == [record for _, record in open_trace(spread, strict=True).records()]
    assert [record.arrival_s for record in found[:3]] == [0.0, 9.5, 16.0]
    assert [record.prompt for record in found[:3]] == [record.prompt for record in sample(tmp_path, "weka")[:3]]
    assert [record.session for record in found] == ["trace_7"] * 3 + ["b"] * 3
    assert shared(found[0], found[3], 64) == 0


def test_aiperf_turns_add_to_the_conversation(tmp_path):
    first, second, other = sample(tmp_path, "aiperf")
    assert second.prompt == ((0, 0, 1536), (1, 0, 320), (0, 512_000, 768))
    assert (second.num_prompt_tokens, first.output_segment, first.tenant) == (1536 + 320 + 768, 1, "4")
    assert (first.after_s, second.after_s, second.arrival_s, other.arrival_s) == (None, 2.45, 2.45, 1.0)
    assert shared(first, other, 512) == 1  # 600 tokens: the second block is not full


def test_dynamo_turns_are_whole_prompts_and_may_wait_for_others(tmp_path):
    block = {"output_length": 3, "hash_ids": [7]}
    rows = [
        {"request_id": "a", "session_id": "s", "timestamp": 5.0, "input_length": 512, **block},
        {"request_id": "b", "session_id": "t", "timestamp": 9.0, "input_tokens": 512, **block},
        {"request_id": "c", "session_id": "s", "wait_for": ["a", "b"], "delay_ms": 100, "tool_wait_ms": 400,
         "input_length": 600, "output_length": 3, "hash_ids": [7, 8]},
    ]  # fmt: skip
    first, other, last = read(tmp_path, "aiperf", *rows)
    assert last.prompt == ((0, 3584, 600),)
    assert (other.arrival_s, last.after_s, last.parent, first.output_segment) == (0.004, 0.5, 1, None)
    with pytest.raises(InputError, match=r":1: wait_for is \['a', 'b'\], expected request_id of lines before"):
        read(tmp_path, "aiperf", rows[2])


@pytest.mark.parametrize(
    ("rows", "together"),
    [
        ([("a", 0), ("a", 5), ("b", 0)], True),
        ([("a", None), ("b", None)], True),
        ([("a", 0), ("b", 5)], False),
        ([("a", 0), ("a", 5)], False),  # one session: its clock is everybody's
        ([("a", 0), (None, 0)], False),
    ],
)
def test_sessions_start_together_where_they_have_no_common_clock(tmp_path, rows, together):
    content = lines(
        *({"session_id": session, "timestamp": time, "input_length": 5, "output_length": 1} for session, time in rows)
    )
    assert open_trace(written(tmp_path, content), "aiperf").sessions_start_together is together


@pytest.mark.parametrize(
    ("first", "second", "gap_s"),
    [
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319601", 0.0520001),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", 0.99007),
        ("2024-12-31 23:59:59", "2025-01-01T00:00:00.5Z", 1.5),
        ("2024-05-10 01:00:00+01:00", "2024-05-09 23:30:01-00:30", 1.0),
    ],
)
def test_azure_times(tmp_path, first, second, gap_s):
    content = f"GeneratedTokens,TIMESTAMP,Images,ContextTokens\n3,{first},0,7\n4,{second},0,8\n".encode()
    one, other = [record for _, record in open_trace(written(tmp_path, content), strict=True).records()]
    assert (one.num_prompt_tokens, one.num_output_tokens, one.prompt) == (7, 3, None)
    assert other.arrival_s == pytest.approx(gap_s, abs=1e-9)


@pytest.mark.parametrize(
    "time", ["2023-11-16", "2023-13-16 18:17:03", "2023-11-16 25:17:03", "2023-11-16 18:17:+3", "yesterday", ""]
)
def test_azure_refuses_what_is_no_time(tmp_path, time):
    path = written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{time},1,1\n".encode())
    with pytest.raises(InputError, match=":2: TIMESTAMP is '.*', expected a time like 2023-11-16"):
        list(open_trace(path, strict=True).records())


def test_burstgpt_failures_are_unusable(tmp_path):
    first, second = sample(tmp_path, "burstgpt")
    assert (first.session, first.tenant, second.arrival_s, second.prompt) == ("1722ac82", "GPT-4", 51.5, None)
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = ["5,ChatGPT,472,18,490,Conversation log"] * 10 + ["6,GPT-4,300,0,300,API log"]
    trace = open_trace(written(tmp_path, (header + "\n".join(rows)).encode()))
    assert [record.session for _, record in trace.records()] == [None] * 10
    assert trace.skipped() == [(12, "Response tokens is 0: the request failed, expected at least one token")]


def test_vllm_bench_takes_the_served_requests_in_order_of_start(tmp_path):
    first, *rest = sample(tmp_path, "vllm_bench")
    assert (first.num_prompt_tokens, first.arrival_s, len(rest), first.session) == (132, 0.0, 11, None)
    assert [record.arrival_s for record in rest] == sorted(record.arrival_s for record in rest)
    result = {"input_lens": [5] * 20, "output_lens": [2] * 19 + [0], "start_times": [9.5, 9.0] * 10}
    trace = open_trace(written(tmp_path, json.dumps(result).encode()))
    assert [record.arrival_s for _, record in trace.records()] == [0.0] * 9 + [0.5] * 10
    assert trace.skipped()[0][1].startswith("request 19: output_lens is 0, expected")
    del result["start_times"]
    trace = open_trace(written(tmp_path, json.dumps({**result, "output_lens": [2] * 20}, indent=1).encode()))
    assert trace.sessions_start_together
    assert [record.session for _, record in trace.records()] == list(range(20))
    with pytest.raises(InputError, match="output_lens is .*, expected a list as long as input_lens"):
        open_trace(written(tmp_path, json.dumps({**result, "output_lens": [1]}).encode()))
    with pytest.raises(InputError, match="input_lens is None, expected a list: a result of --save-detailed"):
        open_trace(written(tmp_path, b'{"completed": 1, "total_input_tokens": 1, "duration": 1}'))


def test_kv_events_become_requests(tmp_path):
    first, second, third = sample(tmp_path, "kv_events")
    assert (first.prompt, first.num_output_tokens, first.output_segment) == (((0, 0, 48),), 32, 1)
    assert (second.prompt, second.arrival_s) == (((0, 0, 32), (2, 0, 32)), pytest.approx(0.9))
    assert third.prompt == ((0, 0, 48), (1, 0, 64))  # the answer, and what the next turn adds to it
    trace = open_trace(written(tmp_path, lines(stored(1.0, 77, 78), *[stored(2.0, None, 1)] * 9)))
    list(trace.records())
    assert trace.skipped() == [(1, "parent 77 is unknown, expected a recording from an empty cache")]


def test_kv_events_of_other_tiers_and_groups_are_not_requests(tmp_path):
    rows = [stored(1.0, None, 1, 2), stored(1.1, None, 5, medium="CPU"), stored(1.2, None, 6, group_idx=1)]
    (record,) = read(tmp_path, "kv_events", *rows)
    assert record.num_prompt_tokens == 32


@pytest.mark.parametrize("version", ["0.32", "0.23"])
def test_events_of_a_real_scheduler_are_the_requests_it_served(version):
    """(prompt, answer) tokens: conversations of 230 + 50 and 250 + 34, 700 + 20 in chunks, second turns of 325 + 33
    and 344 + 17, one of 9 + 40, one found whole in the cache (missing), and one of 1,200 + 18; in whole blocks of 16.
    """
    trace = open_trace(DATA / f"kv_events_{version}.jsonl.gz", strict=True)
    found = [record for _, record in trace.records()]
    assert [(record.num_prompt_tokens, record.num_output_tokens) for record in found] == [
        (224, 48), (240, 32), (688, 16), (320, 32), (336, 16), (16, 32), (1200, 16)
    ]  # fmt: skip
    assert shared(found[0], found[1], 16) == 10  # a system prompt of 160 tokens
    assert (shared(found[0], found[3], 16), shared(found[1], found[4], 16)) == (14, 15)
    assert [round(record.arrival_s / 0.05) for record in found] == [0, 2, 4, 300, 310, 327, 710]


def test_own_lines(tmp_path):
    first, second, third = sample(tmp_path, "kvcast")
    assert first.prompt == ((0, 0, 32), (None, 0, 8))
    assert (first.output_segment, second.prompt, second.tenant) == (5, None, "acme")
    assert (third.session, third.after_s, third.parent) == ("a", 2.5, 0)


def test_places_of_own_lines_close_up_where_one_is_lost(tmp_path):
    head, *rows = SAMPLES["kvcast"].decode().splitlines()
    good = json.loads(rows[1])
    rows = [good] * 12 + ["?"] + [{**good, "parent": 5}, {**good, "parent": 12}, {**good, "parent": 13}]
    trace = open_trace(written(tmp_path, lines(head, *rows)))
    assert [record.parent for _, record in trace.records()][-3:] == [5, None, 12]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": [[0, 0, 5]]}, "runs have 5 tokens, expected 7 as 'in' says"),
        ({"runs": [[0, -1, 7]]}, r"runs has \[0, -1, 7\], expected a start >= 0 and a length >= 1"),
        ({"runs": [["x", 0, 7]]}, "segment 'x', expected a whole number >= 0"),
        ({"runs": {}}, "runs is {}, expected a list"),
        ({"parent": 0}, r"parent is 0, expected the place of a request before \(this one's is 0\)"),
        ({"after": -1}, "after is -1, expected a number >= 0"),
        ({"out": 0}, "out is 0, expected a whole number of tokens >= 1"),
        ({"afer": 1}, "unknown key 'afer', expected after, in, out"),
        ({"session": [1]}, r"session is \[1\], expected a name or a whole number"),
    ],
)
def test_own_lines_are_checked(tmp_path, change, message):
    head = {"kvcast_trace": 1}
    with pytest.raises(InputError, match=f":2: {message}"):
        read(tmp_path, "kvcast", head, {"t": 0.0, "in": 7, "out": 1, **change})
