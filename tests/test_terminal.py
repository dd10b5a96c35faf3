"""Tables and sentences in narrow terminals: no word is ever broken, and nothing is lost."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from simulator import cli
from simulator.terminal import bare_table, empty_table, print_line, print_table

WORDS = st.text("abcdefgh-_/=", min_size=1, max_size=18)
TEXTS = st.lists(WORDS, min_size=1, max_size=5).map(" ".join)
NUMBERS = st.sampled_from(["1", "0.51 ± 0.20", "× 1.18 (0.645 to 2.17)", "12,345"])


def printed(table, width, num_keys=1):
    console = Console(file=io.StringIO(), width=width)
    print_table(table, console, num_keys)
    return console.file.getvalue()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), num_keys=st.integers(1, 3), num_others=st.integers(1, 6), edged=st.booleans())
def test_no_word_is_broken_and_no_number_is_wrapped(data, num_keys, num_others, edged):
    """Words of 18 letters at most and numbers of 22: 80 columns are room for three keys or more, and a number."""
    table = empty_table() if edged else bare_table()
    for _ in range(num_keys):
        table.add_column(data.draw(TEXTS))
    kinds = data.draw(st.lists(st.sampled_from(["left", "right"]), min_size=num_others, max_size=num_others))
    for justify in kinds:
        table.add_column(data.draw(TEXTS), justify=justify)
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        rows.append([*(data.draw(TEXTS) for _ in range(num_keys)),
                     *(data.draw(NUMBERS if justify == "right" else TEXTS) for justify in kinds)])  # fmt: skip
        table.add_row(*rows[-1])
    said = printed(table, 80, num_keys)
    assert max(map(len, said.splitlines())) <= 80
    words = said.split()
    for column in table.columns:
        for word in column.header.split():
            assert word in words
    for row in rows:
        for justify, cell in zip(["left"] * num_keys + kinds, row, strict=True):
            assert cell in said if justify == "right" else all(word in words for word in cell.split())


def test_columns_without_room_come_below_behind_the_keys():
    table = bare_table()
    for column in ("router", "first", "second"):
        table.add_column(column, justify="left" if column == "router" else "right")
    table.add_row("in turn", "1.00 ± 0.50", "2.00 ± 0.50")
    table.add_row("by prefix", "3.00 ± 0.50", "4.00 ± 0.50")
    assert next(line.split() for line in printed(table, 80).splitlines()) == ["router", "first", "second"]
    lines = [line.rstrip() for line in printed(table, 30).splitlines() if "─" not in line]
    assert lines == [
        "router           first", "in turn    1.00 ± 0.50", "by prefix  3.00 ± 0.50",
        "router          second", "in turn    2.00 ± 0.50", "by prefix  4.00 ± 0.50",
    ]  # fmt: skip


def test_rows_are_numbered_where_their_keys_take_more_than_half_of_the_room():
    table = bare_table()
    for column in ("routing", "largest batch"):
        table.add_column(column)
    for column in ("TTFT", "against the best"):
        table.add_column(column, justify="right")
    table.add_row("dynamo(temperature=0.1)", "32", "0.51 ± 0.20", "× 1.18 (0.645 to 2.17)")
    lines = [line.split() for line in printed(table, 60, num_keys=2).splitlines() if "─" not in line]
    assert lines == [
        ["#", "routing", "largest", "batch", "TTFT"], ["1", "dynamo(temperature=0.1)", "32", "0.51", "±", "0.20"],
        ["#", "against", "the", "best"], ["1", "×", "1.18", "(0.645", "to", "2.17)"],
    ]  # fmt: skip


def test_sentences_are_broken_between_words_in_a_terminal_and_nowhere_else():
    text = "Every request starts with the same 512 tokens: a longest-prefix router sends all of them to one instance."
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), width=30, force_terminal=is_terminal, color_system=None)
        print_line(console, text, indent="  ")
        lines = console.file.getvalue().splitlines()
        assert " ".join(map(str.strip, lines)) == text
        assert max(map(len, lines)) <= 30 if is_terminal else lines == [text]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("profiles compare qwen3-32b-h100-sxm-tp2 qwen3-32b-h200-sxm qwen3-32b-ascend-a2-tp4",
         ["qwen3-32b-h100-sxm-tp2", "qwen3-32b-h200-sxm", "qwen3-32b-ascend-a2-tp4"]),
        ("profiles show qwen3-32b-ascend-a2-tp4", ["qwen3-32b/doc-suffix-ShareGPT-c14", "overhead_prompt_token_s"]),
        ("profiles list", ["qwen3-30b-a3b-ascend-910b3-tp2", "Qwen/Qwen3-30B-A3B-Instruct-2507"]),
    ],
)  # fmt: skip
def test_commands_keep_names_whole_in_80_columns(command, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(command.split())
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert set(words) <= set(said.split())
