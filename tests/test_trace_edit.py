"""Traces made of traces: what a change keeps, what it changes, and what it says was lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_trace_info import HERE, PROMPT_LISTS, TRACES, Recorded, length_of, prompt_of

from simulator.errors import InputError
from simulator.trace_tools.edit import anonymised, cut, scaled
from simulator.trace_tools.info import summarise
from simulator.trace_tools.merge import merged, tenants_of
from simulator.trace_tools.mooncake_format import mooncake_lines
from simulator.trace_tools.own_format import own_lines
from simulator.trace_tools.stream import Stream, opened
from simulator.trace_tools.words import counted
from simulator.workload import mooncake
from simulator.workload.records import Record

BLOCK = 512
NAMES = st.none() | st.integers(0, 3)


@st.composite
def record_lists(draw) -> list[Record]:
    """Requests in order of time, of a few sessions and tenants, some of which wait for an earlier one."""
    rows: list[Record] = []
    at = 0.0
    for prompt in draw(PROMPT_LISTS):
        at += draw(st.sampled_from([0.0, 0.5, 2.0]))
        rows.append(
            Record(
                at, length_of(prompt), draw(st.integers(1, 9)), prompt,
                session=draw(NAMES), tenant=draw(st.none() | st.sampled_from("xy")),
                after_s=draw(st.none() | st.just(1.5)), output_segment=draw(NAMES),
                parent=draw(st.none() | st.integers(0, len(rows) - 1)) if rows else None,
            )
        )  # fmt: skip
    return rows


def stream_of(rows: list[Record], block_tokens: int | None = 1, **kind) -> Stream:
    return opened(Recorded(rows, block_tokens, **kind), HERE)


def ideal_of(rows: list[Record], *block_sizes: int) -> object:
    return summarise(Recorded(rows), HERE, block_sizes or (3,))[0].prompts


@given(record_lists(), st.floats(0, 10))
def test_the_halves_put_together_are_the_whole(rows, border_s):
    """All but the requests whose parent is in the other half: those go by their time, and are counted."""
    halves = [cut(stream_of(rows), end_s=border_s), cut(stream_of(rows), start_s=border_s)]
    num_before = sum(record.arrival_s < border_s for record in rows)
    whole = merged(halves, tenants=None)
    crossing = [
        number for number, record in enumerate(rows)
        if record.parent is not None and record.parent < num_before <= number
    ]  # fmt: skip
    expected = [
        record._replace(parent=None, after_s=None) if number in crossing else record
        for number, record in enumerate(rows)
    ]
    assert list(whole.records()) == expected
    said = f"cut away: {counted(len(crossing), 'request')}"
    assert any(note.endswith(said) for note in whole.notes) == bool(crossing)


@given(record_lists(), st.integers(1, 12))
def test_the_first_requests(rows, first):
    assert [record.arrival_s for record in cut(stream_of(rows), first=first).records()] == [
        record.arrival_s for record in rows[:first]
    ]


def test_sessions_are_drawn_whole_and_the_same_for_a_seed():
    rows = [Record(float(number), 5, 1, session=number % 7) for number in range(70)]
    drawn = [list(cut(stream_of(rows), num_sessions=3, seed=seed).records()) for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len({tuple(part) for part in drawn}) > 1
    for part in drawn:
        chosen = {record.session for record in part}
        assert len(chosen) == 3
        assert part == [record for record in rows if record.session in chosen]


def test_more_sessions_than_there_are():
    stream = cut(stream_of([Record(0.0, 5, 1, session="a")]), num_sessions=2)
    with pytest.raises(InputError, match=r"^--sessions: the trace has 1 session, expected at least 2$"):
        list(stream.records())


def test_twice_the_rate_is_half_the_span():
    rows = [Record(0.0, 5, 1), Record(3.0, 5, 1, after_s=1.0), Record(10.0, 5, 1)]
    assert list(scaled(stream_of(rows), rate=2).records()) == [
        Record(0.0, 5, 1), Record(1.5, 5, 1, after_s=0.5), Record(5.0, 5, 1)
    ]  # fmt: skip


@given(record_lists(), st.integers(2, 5))
def test_texts_times_a_whole_number_share_as_much(rows, factor):
    """In blocks that are longer by the same factor, nothing changes at all."""
    stream = scaled(stream_of(rows, 3), lengths=factor)
    longer = list(stream.records())
    assert stream.block_tokens == 3 * factor
    assert [record.num_prompt_tokens for record in longer] == [factor * record.num_prompt_tokens for record in rows]
    # Without the answers' texts, of which vLLM lacks one token whatever their length.
    before, after = ([row._replace(output_segment=None) for row in records] for records in (rows, longer))
    before, after = ideal_of(before, 3).ideal[0], ideal_of(after, 3 * factor).ideal[0]
    assert (after.num_blocks, after.num_distinct) == (before.num_blocks, before.num_distinct)
    assert after.one_off_share == before.one_off_share


@given(record_lists(), st.sampled_from([0.1, 0.5, 1.3]))
def test_texts_of_any_length_stay_within_a_token_a_run(rows, factor):
    for before, after in zip(rows, scaled(stream_of(rows), lengths=factor).records(), strict=True):
        assert after.num_prompt_tokens == length_of(after.prompt) >= 1
        assert abs(after.num_prompt_tokens - factor * before.num_prompt_tokens) <= len(before.prompt) + 1
        assert after.num_output_tokens >= 1


def test_how_a_text_is_cut_does_not_matter_to_its_length():
    rows = [prompt_of((0, 0, 3)), prompt_of((0, 0, 1), (0, 1, 1), (0, 2, 1))]
    whole, cut_up = scaled(stream_of(rows), lengths=1.5).records()
    assert whole.prompt == ((0, 0, 5),)
    assert cut_up.prompt == ((0, 0, 2), (0, 2, 1), (0, 3, 2))


@given(record_lists())
def test_without_names_nothing_else_changes(rows):
    rows = [record._replace(arrival_s=record.arrival_s + 100) for record in rows]
    bare = list(anonymised(stream_of(rows)).records())
    assert ideal_of(bare) == ideal_of(rows)
    assert [record.arrival_s + rows[0].arrival_s for record in bare] == [record.arrival_s for record in rows]
    assert bare[0].arrival_s == 0
    names = [name for record in bare for name, _, _ in record.prompt if name is not None]
    assert set(names) | {record.output_segment for record in bare} - {None} == set(
        range(len({name for record in rows for name in (*(run[0] for run in record.prompt), record.output_segment)}
                  - {None}))
    )  # fmt: skip
    for key in ("session", "tenant"):
        old, new = ([getattr(record, key) for record in rows] for rows in (rows, bare))
        assert len(set(zip(old, new, strict=True))) == len(set(old)) == len(set(new))
        assert [name is None for name in old] == [name is None for name in new]
    # In order of appearance, and the same again when there is nothing left to take away.
    assert list(anonymised(stream_of(bare)).records()) == bare


@given(st.lists(record_lists(), min_size=2, max_size=3))
def test_merged_traces_share_nothing(traces):
    tenants = [f"trace {number}" for number in range(len(traces))]
    whole = list(merged([stream_of(rows) for rows in traces], tenants).records())
    assert [record.arrival_s for record in whole] == sorted(record.arrival_s for rows in traces for record in rows)
    together = ideal_of(whole).ideal[0]
    alone = [ideal_of(rows).ideal[0] for rows in traces]
    assert together.num_hits == sum(one.num_hits for one in alone)
    assert together.num_distinct == sum(one.num_distinct for one in alone)
    for rows, tenant in zip(traces, tenants, strict=True):
        mine = [record for record in whole if record.tenant.split("/")[0] == tenant]
        for before, after in zip(rows, mine, strict=True):
            assert after[:3] == before[:3]
            assert after.session == (None if before.session is None else f"{tenant}/{before.session}")
            if before.parent is not None:
                assert whole[after.parent] is mine[before.parent]


def test_sessions_without_a_common_clock_follow_one_another():
    first = [Record(0.0, 5, 1, session="a"), Record(9.0, 5, 1, session="a")]
    second = [Record(0.0, 6, 1, session="a")]
    streams = [stream_of(rows, sessions_start_together=True) for rows in (first, second)]
    assert [record.num_prompt_tokens for record in merged(streams, ["x", "y"]).records()] == [5, 5, 6]
    assert merged(streams, ["x", "y"]).sessions_start_together
    with pytest.raises(InputError, match="^merge: times are per session in here.jsonl, but on one clock in"):
        merged([streams[0], stream_of(second)], ["x", "y"])


def test_merged_blocks_are_as_fine_as_the_finest():
    def granularity(*block_tokens: int | None) -> int | None:
        return merged([stream_of([], one) for one in block_tokens], None).block_tokens

    assert granularity(512, 64) == 64
    assert granularity(512, None) == 512
    assert granularity(None, None) is None


def test_tenants_are_named_after_files():
    paths = [Path("a/chat.jsonl.gz"), Path("b/chat.jsonl"), Path("2023.code.csv"), Path(".gz")]
    assert tenants_of(paths) == ["chat-1", "chat-2", "2023.code", ".gz"]


def mooncake_of(rows: list[Record], block_tokens: int | None = 1, **kind) -> tuple[list[dict], list[str]]:
    stream = stream_of(rows, block_tokens, **kind)
    return [json.loads(line) for line in mooncake_lines(stream)], stream.notes


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_mooncakes_files_come_out_as_they_went_in(trace):
    rows = [
        Record(at, row.input_length, row.output_length, mooncake.prompt(row, 0))
        for at, row in mooncake.read(TRACES / f"mooncake_{trace}.jsonl.gz")
    ]
    written, notes = mooncake_of(rows, BLOCK)
    assert not notes
    for row, record in zip(written, rows, strict=True):
        assert row["timestamp"] == round(1000 * record.arrival_s)
        assert row["hash_ids"] == [segment for segment, _, _ in record.prompt]
        assert (row["input_length"], row["output_length"]) == record[1:3]


@given(PROMPT_LISTS)
def test_ids_tell_exactly_the_same_blocks_apart(prompts):
    """Whatever the texts are made of: equal ids are equal tokens from the start of the prompt, and the other way."""
    prompts = [tuple((segment, 200 * start, 200 * length) for segment, start, length in prompt) for prompt in prompts]
    written, _ = mooncake_of([prompt_of(*prompt) for prompt in prompts])
    meanings: dict[int, tuple] = {}
    for prompt, row in zip(prompts, written, strict=True):
        text = [
            (segment, start + place) if segment is not None else object()
            for segment, start, length in prompt for place in range(0, length, 8)
        ]  # fmt: skip
        ids = row["hash_ids"]
        assert len(ids) == -(-length_of(prompt) // BLOCK)
        for place, name in enumerate(ids, start=1):
            meaning = tuple(text[: place * BLOCK // 8])
            assert meanings.setdefault(name, meaning) == meaning
    assert len(set(meanings.values())) == len(meanings)


def test_ids_of_blocks_are_kept_only_where_they_mean_one_thing():
    """Block 7 follows block 3 in one prompt and block 4 in the other: in Mooncake's file those are two blocks."""
    kept, _ = mooncake_of([prompt_of((3, 0, 512), (7, 0, 100)), prompt_of((3, 0, 512), (9, 0, 512))], BLOCK)
    assert [row["hash_ids"] for row in kept] == [[3, 7], [3, 9]]
    new, _ = mooncake_of([prompt_of((3, 0, 512), (7, 0, 100)), prompt_of((4, 0, 512), (7, 0, 100))], BLOCK)
    assert [row["hash_ids"] for row in new] == [[0, 1], [2, 3]]


def test_nothing_is_invented_for_tokens_of_no_name():
    written, notes = mooncake_of([Record(0.0, 600, 1), Record(0.0, 600, 1)], None)
    assert [row["hash_ids"] for row in written] == [[0, 1], [2, 3]]
    assert notes == ["written as sharing nothing: 2 prompts of unknown text"]


def test_what_mooncakes_format_cannot_say_is_said():
    rows = [
        prompt_of((0, 0, 700), at=5.0, session="a", after_s=1.0, tenant="x"),
        prompt_of((0, 0, 700), (1, 0, 4), at=1.2345678, out=0),
    ]
    written, notes = mooncake_of(rows, 16)
    assert [(row["timestamp"], row["input_length"], row["output_length"]) for row in written] == [
        (1235, 704, 1), (5000, 700, 1)
    ]  # fmt: skip
    assert notes == [
        "lost, since Mooncake's format has no place for it: sessions, delays after the turn before, tenants",
        "requests are sorted by time",
        "rounded to milliseconds: 1 time",
        "written with one token, the least there: 1 empty prompt or answer",
        "what prompts share is kept in whole blocks of 512 tokens",
    ]
    assert "all sessions start at 0 s" in " ".join(mooncake_of(rows, 512, sessions_start_together=True)[1])


def test_the_own_format_leaves_out_what_is_not_there():
    rows = [
        Record(0.5, 7, 2),
        prompt_of((0, 0, 4), (None, 0, 2), at=1.0, session="s", after_s=0.0, tenant="t", output_segment=0, parent=0),
    ]
    assert [json.loads(line) for line in own_lines(stream_of(rows, 4))] == [
        {"kvcast_trace": 1, "block_tokens": 4, "source": "memory: here.jsonl", "sessions_start_together": False},
        {"t": 0.5, "in": 7, "out": 2},
        {
            "t": 1.0, "in": 6, "out": 1, "runs": [[0, 0, 4], [None, 0, 2]], "session": "s", "after": 0.0, "tenant": "t",
            "out_segment": 0, "parent": 0,
        },
    ]  # fmt: skip
