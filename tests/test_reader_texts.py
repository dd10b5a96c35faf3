"""Traces with texts, and clients that are drawn: what prompts share and what is sent, to the token and the request."""

from __future__ import annotations

import gzip
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.prefix import Prefixes
from simulator.workload.readers import open_trace
from simulator.workload.readers.texts import Texts
from tests.test_reader_formats import read, sample, shared, written
from tests.trace_samples import OPTIONS, SAMPLES, lines


def test_texts_share_what_they_begin_with(tmp_path):
    first, second, third = sample(tmp_path, "openai")
    assert first.num_prompt_tokens == len("user\nWhy is the sky blue?\n") // 4 + 1
    assert shared(first, second) == len("user\nWhy is the sky ") // 4
    assert shared(first, third) == 2
    assert [record.arrival_s for record in (first, second, third)] == [0.0, 3.5, 4.0]
    assert (second.num_output_tokens, second.tenant, first.session) == (7, "acme", None)
    answered = {"prompt": "x", "usage": {"completion_tokens": 9}, "max_tokens": 50, "session_id": 1}
    one, other = read(tmp_path, "openai", answered, {**answered, "delay": 250})
    assert (one.num_output_tokens, other.after_s, other.arrival_s) == (9, 0.25, 0.25)
    with pytest.raises(InputError, match="nothing says how long the answer is"):
        read(tmp_path, "openai", {"prompt": "x"})
    with pytest.raises(InputError, match="prompt has 2 prompts, expected one"):
        read(tmp_path, "openai", {"prompt": ["x", "y"], "max_tokens": 1})


def test_texts_without_times_are_sessions_of_their_own(tmp_path):
    trace = open_trace(written(tmp_path, lines({"prompt": "x", "max_tokens": 1}, {"prompt": "y", "max_tokens": 1})))
    assert trace.sessions_start_together
    assert len({record.session for _, record in trace.records()}) == 2
    assert trace.assumed[0] == "four characters are a token"


def test_a_tokenizer_counts_tokens(tmp_path, monkeypatch):
    """A stand-in for the library: words are tokens."""
    words = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[sum(word.encode()) for word in text.split()]))
    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_file=lambda path: words))
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    tokenizer = written(tmp_path, b"{}", "tokenizer.json")
    first, second, third = sample(tmp_path, "openai", tokenizer=tokenizer)
    assert (first.num_prompt_tokens, shared(first, second), shared(first, third)) == (6, 5, 2)

    def refuse(text):  # what the library says to half a character
        raise TypeError("TextInputSequence must be str")

    words.encode = refuse
    with pytest.raises(InputError, match=":1: a text that the tokenizer does not take: TextInputSequence must be str"):
        sample(tmp_path, "openai", tokenizer=tokenizer)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="the library 'tokenizers' is not installed"):
        sample(tmp_path, "openai", tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"nowhere: no such file, expected a tokenizer\.json"):
        sample(tmp_path, "openai", tokenizer=tmp_path / "nowhere")


@given(st.lists(st.text("ab", max_size=12), max_size=12))
def test_the_tree_of_texts_tells_exactly_what_two_texts_share(words):
    texts = Texts()
    contents = ["".join(f"{letter:4}" for letter in word) for word in words]
    runs = [texts.runs(content) for content in contents]
    prefixes = Prefixes(1)
    keys = [prefixes.keys(prompt)[0] for prompt in runs]
    for word, prompt, own in zip(words, runs, keys, strict=True):
        assert sum(length for _, _, length in prompt) == len(word)
        for other_word, other in zip(words, keys, strict=True):
            common = next((n for n, (a, b) in enumerate(zip(word, other_word, strict=False)) if a != b), None)
            common = min(len(word), len(other_word)) if common is None else common
            assert [a == b for a, b in zip(own, other, strict=False)].count(True) == common


def test_servegen_sends_what_its_rates_say(tmp_path):
    """Of each client as many as rates times 600 s add up to, times ascending, lengths of those in the file."""
    records = sample(tmp_path, "servegen")
    rows = [row.split(",") for row in SAMPLES["servegen"].decode().splitlines()[1:]]
    for client in "0125":
        expected = sum(float(rate) * 600 for name, _, rate, *_ in rows if name == client)
        number = sum(record.tenant == client for record in records)
        assert expected - 1 <= number <= expected
    times_s = [record.arrival_s for record in records]
    assert times_s == sorted(times_s)
    part = open_trace(tmp_path / "trace", "servegen", **OPTIONS["servegen"], start_s=3000.0, duration_s=1000.0)
    assert [record.arrival_s + 3000 for _, record in part.records()] == pytest.approx(
        [time_s for time_s in times_s if 3000 <= time_s < 4000]
    )


def test_servegen_draws_the_lengths_of_its_clients(tmp_path):
    """The mean of client 5's prompts is that of its distribution, within four standard errors."""
    path, lengths = written(tmp_path, SAMPLES["servegen"]), OPTIONS["servegen"]["lengths"]
    rows = [json.loads(line) for line in gzip.decompress(lengths.read_bytes()).splitlines()]
    values, shares = next(np.array(row["input_tokens"]) for row in rows if row["client"] == 5)
    mean = np.average(values, weights=shares)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=shares))
    drawn = [r.num_prompt_tokens for _, r in open_trace(path, lengths=lengths).records() if r.tenant == "5"]
    assert abs(np.mean(drawn) - mean) < 4 * deviation / len(drawn) ** 0.5
    # Client 2 has none, and takes what the three others have.
    pooled = {value for row in rows for value in row["input_tokens"][0]}
    assert {r.num_prompt_tokens for _, r in open_trace(path, lengths=lengths).records() if r.tenant == "2"} <= pooled
    with pytest.raises(InputError, match="rates of ServeGen's clients, expected their lengths too"):
        open_trace(path)
    with pytest.raises(InputError, match="no client, expected lines with client, t_s"):
        list(open_trace(path, lengths=written(tmp_path, b"\n", "empty")).records())
