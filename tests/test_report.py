"""The report in the terminal and on disk."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from rich.console import Console

from simulator import report, wording
from simulator.comparison import Comparison, show
from simulator.errors import InputError
from simulator.plots import figures, svg
from tests.drawn_results import NUM_INSTANCES, draw_comparison, draw_run

FILES = ["report.html", "requests.parquet", "summary.csv", "summary.json"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return draw_comparison(3, num_requests=200)


class Page(HTMLParser):
    """Cells of each table by its id, all text, and every address that the page refers to."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self.addresses: list[str] = []
        self._table: list[list[str]] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [str(named[name]) for name in ("src", "href") if name in named]
        if tag not in ("meta", "img", "link", "br"):
            self._open.append(tag)
        if tag == "table":
            self._table = self.tables[named["id"] or ""] = []
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if self._open and self._open[-1] in ("td", "th"):
            self._table[-1][-1] += data


def printed(comparison: Comparison) -> str:
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115 - closed below
    with console.file:
        report.print_table(comparison, console)
        return console.export_text()


def write(comparison: Comparison, folder: Path) -> list[str]:
    report.write(comparison, folder)
    return sorted(path.name for path in folder.iterdir())


def test_the_terminal_says_first_what_the_numbers_rest_on(comparison: Comparison) -> None:
    text = printed(comparison)
    first, second = text.splitlines()[:2]
    assert first.startswith(
        "Calibrated: 97.5% of busy time rests on measurement, 0.0% on a prior, 2.5% lies outside the measured range;"
    )
    accuracy = "profile made-up (no device, no engine), held-out error at most 4.3% where measured"
    assert accuracy in " ".join(text.split())
    assert comparison.verdict()[:40] in text
    assert second
    found = comparison.estimate("least_requests", "ttft_p90_s")
    assert found is not None
    assert show(found) in text
    assert "round_robin refused 6 of 600 requests: longer than max_model_len (6)." in text
    assert "every request drawn anew (seeded)" in text
    assert "disable_log_stats=True" in text


def test_calibrated_is_said_only_above_ninety_percent_measured(comparison: Comparison) -> None:
    runs = [draw_run("only", replication, 1.0, 50) for replication in range(2)]
    for run in runs:
        run.busy_s = [[0.9, 0.1, 0.0]] * NUM_INSTANCES
    at_the_border = Comparison(comparison.provenance, runs)
    for text in (printed(at_the_border), report.page(at_the_border)):
        assert "calibrated" not in text.lower()
        assert "90.0% of busy time rests on measurement, 10.0% on a prior" in " ".join(text.split())


def test_an_unknown_error_is_called_unknown(comparison: Comparison) -> None:
    from dataclasses import replace

    provenance = replace(comparison.provenance, profile={"name": "p", "identity": "i", "held_out_error": None})
    assert "held-out error unknown" in report.basis(Comparison(provenance, comparison.results))


def test_an_indicative_profile_is_called_so_and_never_calibrated(comparison: Comparison) -> None:
    from dataclasses import replace

    runs = [draw_run("only", replication, 1.0, 50) for replication in range(2)]
    for run in runs:
        run.busy_s = [[1.0, 0.0, 0.0]] * NUM_INSTANCES
    profile = {**comparison.provenance.profile, "indicative": "nothing was held out of its fit"}
    for provenance, word in (
        (comparison.provenance, "Calibrated: "),
        (replace(comparison.provenance, profile=profile), "Indicative: "),
    ):
        found = Comparison(provenance, runs)
        assert report.basis(found).startswith(word)
        assert ("; indicative: nothing was held out of its fit." in report.basis(found)) == (word == "Indicative: ")
        assert ('<span class="badge ok">calibrated' in report.page(found)) == (word == "Calibrated: ")


def test_short_names_stand_for_settings_that_are_said(comparison: Comparison) -> None:
    assert comparison.names["dynamo(event_delay_s=0.01)"] == "dynamo"
    assert "dynamo stands for dynamo(event_delay_s=0.01)." in report.notes(comparison)
    twice = draw_comparison(2, {"dynamo": 1.0, "dynamo(temperature=1.0)": 1.0}, 20)
    assert list(twice.names.values()) == twice.policies


def test_every_policy_refusing_alike_is_one_line() -> None:
    refusing = draw_comparison(2, {"round_robin": 1.0}, 300)
    alike = Comparison(refusing.provenance, [*refusing.results, *draw_comparison(2, {"round_robin": 1.0}, 300).results])
    for run in alike.results[2:]:
        run.policy = "twin"
    assert wording.refusal_lines(alike) == ["Every policy refused 6 of 600 requests: longer than max_model_len (6)."]


def test_a_pile_up_and_an_overload_are_pointed_out(comparison: Comparison) -> None:
    assert not [note for note in report.notes(comparison) if "Unstable" in note or "every request" in note]
    drawn = draw_comparison(2, {"piled": 1.0, "fine": 1.0}, 120)
    for run in drawn.results[:2]:
        run.requests["instance"] = 3
        run.requests["queue_s"] = run.requests["arrival_s"]
    notes = report.notes(drawn)
    assert f"piled sent every request to one of {NUM_INSTANCES} instances." in notes
    assert [note for note in notes if note.startswith("Unstable at this rate: piled.")]
    assert drawn.estimate("piled", "ttft_p90_s") is None
    assert drawn.estimate("fine", "ttft_p90_s") is not None


def test_one_replication_is_called_so() -> None:
    text = printed(draw_comparison(1, num_requests=50))
    assert "no intervals" in text
    assert "this trace only" in text
    assert " ± 0" not in text


def test_one_replay_of_a_trace_has_intervals_over_time() -> None:
    drawn = draw_comparison(1, num_requests=400)
    text = printed(replace(drawn, provenance=replace(drawn.provenance, is_stationary=False)))
    assert "block bootstrap interval over time, this trace only" in text
    assert " ± " in text


def test_the_page_answers_first_and_holds_the_numbers(comparison: Comparison) -> None:
    page = Page(report.page(comparison))
    parts = (report.basis(comparison), comparison.verdict(), "Policies compared", "Figures", "How this was")
    order = [page.text.index(words) for words in parts]
    assert order == sorted(order)
    assert page.tables["policies"][0][1:] == list(comparison.names.values())
    rows = {row[0]: row[1:] for row in page.tables["policies"]}
    for heading, metric, scale in (("TTFT p90 [s]", "ttft_p90_s", 1), ("hit rate [%]", "hit_rate", 100)):
        found = [comparison.estimate(policy, metric) for policy in comparison.policies]
        assert rows[heading] == [show(estimate, scale) for estimate in found if estimate]
    assert len(page.tables["tenants"]) == 1 + 2 * len(comparison.policies)
    assert len(page.tables["instances"]) == 1 + NUM_INSTANCES * len(comparison.policies)
    assert len(page.tables["differences"]) == 1 + len(comparison.pairs())
    for part in ("0" * 64, "seed", "kvcast 0.1.0", "disable_log_stats=True", "longer than max_model_len (6)"):
        assert part in page.text


def test_the_page_needs_nothing_else_and_its_figures_are_drawings(comparison: Comparison) -> None:
    page = Page(report.page(comparison))
    assert len(page.addresses) == 4
    for address in page.addresses:
        kind, _, data = address.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag.endswith("svg")


def test_names_cannot_break_the_page() -> None:
    drawn = draw_comparison(2, {"<b>&": 1.0, "[red]x": 1.3}, 60)
    page = Page(report.page(drawn))
    assert page.tables["policies"][0][1:] == ["<b>&", "[red]x"]
    assert "[red]x" in printed(drawn)


def test_the_same_comparison_gives_the_same_page() -> None:
    pages = [report.page(draw_comparison(2, num_requests=60)) for _ in range(2)]
    assert pages[0] == pages[1]


def test_axes_have_names_and_units(comparison: Comparison) -> None:
    labels = []
    for figure in figures(comparison).values():
        axes = figure.get_axes()
        labels += [axis.get_ylabel() for axis in axes] + [axes[-1].get_xlabel() for axis in axes[-1:]]
        assert svg(figure).startswith("<?xml")
    assert {"time to first token [s]", "end-to-end latency [s]", "time [s]", "prefix hit rate [%]"} <= set(labels)
    assert all(label for label in labels[:-1])


def test_figures_without_a_single_token_are_left_out() -> None:
    drawn = draw_comparison(2, num_requests=60)
    for run in drawn.results:
        run.requests[["ttft_s", "e2e_s"]] = float("nan")
    assert len(figures(drawn)) == 2


def test_the_folder_holds_all_rows_and_numbers(comparison: Comparison, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    assert write(comparison, folder) == FILES
    assert sorted(path.name for path in folder.parent.iterdir()) == ["out"]
    rows = pd.read_parquet(folder / "requests.parquet")
    assert len(rows) == sum(len(run.requests) for run in comparison.results)
    refused = rows[rows["policy"] == "round_robin"]["refusal"].notna().sum()
    assert refused == comparison.refusals()["round_robin"]["longer than max_model_len"]
    mine = rows[(rows["policy"] == "least_requests") & (rows["replication"] == 1) & ~rows["is_warmup"]]
    p90 = mine["ttft_s"].quantile(0.9)
    found = json.loads((folder / "summary.json").read_text())
    assert found == comparison.to_json()
    run = next(run for run in found["runs"] if (run["policy"], run["replication"]) == ("least_requests", 1))
    assert run["summary"]["ttft_p90_s"] == pytest.approx(p90)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "summary.csv"), comparison.table(), check_dtype=False)


def test_an_earlier_report_is_replaced_and_other_files_are_kept(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "summary.csv").write_text("old")
    assert write(comparison, tmp_path) == sorted([*FILES, "notes.txt"])
    assert (tmp_path / "summary.csv").read_text() != "old"


@pytest.mark.parametrize("stopped", ["_write_page", "_write_rows", "_write_json", "_write_csv", "_move_into_place"])
def test_an_interrupt_leaves_nothing_half_written(
    stopped: str, comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "summary.csv").write_text("old")
    monkeypatch.setattr(report, stopped, interrupt)
    for folder in (tmp_path / "new", earlier):
        with pytest.raises(KeyboardInterrupt):
            report.write(comparison, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["earlier"]
    assert [path.name for path in earlier.iterdir()] == ["summary.csv"]
    assert (earlier / "summary.csv").read_text() == "old"


def test_a_full_disk_is_one_line(comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "_write_rows", fail)
    with pytest.raises(InputError, match="cannot write the report \\(No space left on device\\)"):
        report.write(comparison, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_whether_a_folder_can_be_written_is_known_beforehand(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(InputError, match="is not a folder"):
            report.check_writable(folder)
    report.check_writable(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that even root cannot write to")
def test_a_folder_without_permission_is_one_line() -> None:
    with pytest.raises(InputError, match="cannot write there"):
        report.check_writable(Path("/proc/out"))


@pytest.mark.slow
def test_a_large_report_takes_less_than_five_seconds(tmp_path: Path) -> None:
    large = draw_comparison(5, num_requests=10_000)
    write(draw_comparison(2, num_requests=20), tmp_path / "warm")
    began_s = time.process_time()
    write(large, tmp_path / "out")
    assert time.process_time() - began_s < 5
