"""Profiles for people: tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibration.catalogue import Entry, dialect_in_words, engine_in_words, entry
from calibration.points import measured_points, num_unplaced
from calibration.predictions import BATCHES, CONTEXTS, HIT_SHARE, Prediction, Predictor
from calibration.profile_comparison import Cell, Comparison, notes, sentence, shown
from calibration.profile_numbers import error_lines, named_coefficients
from simulator.counts import counted
from simulator.profile import Coefficient, Profile
from simulator.step_time import MEASURED, OUTSIDE, PRIOR
from simulator.terminal import bare_table, print_table

_GIB = 2**30
# Characters of the terminal for what was measured, at least, and for all else of the list.
_LEAST_WIDTH, _OTHERS_WIDTH = 36, 41
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MARKS = {MEASURED: "", PRIOR: " p", OUTSIDE: " o"}
_LEGEND = (
    "No mark: within what was measured; p: rests on a prior; o: outside everything measured; –: does not fit the KV "
    "pool or the engine's largest batch."
)


def print_list(entries: Sequence[Entry], console: Console) -> None:
    """One block a profile: what was measured, on what evidence, how well it predicts, and the KV pool."""
    table = _table("profile", "evidence", "held out", "KV tokens")
    longest = max(len(line) for one in entries for line in _what(one))
    width = min(longest, max(_LEAST_WIDTH, console.width - _OTHERS_WIDTH))
    table.columns[0].width = width
    table.columns[-1].justify = "right"
    for column in table.columns[2:]:
        column.no_wrap = True
    for one in entries:
        evidence = one.evidence_in_words + ("\nINDICATIVE" if one.indicative else "")
        table.add_row(*map(escape, (_block(one, width), evidence, _error_of(one), f"{one.num_kv_tokens:,}")))
    console.print(table)
    for one in entries:
        if one.indicative:
            _line(console, f"{one.name} is indicative: {one.indicative}.")


def print_profile(predictor: Predictor, console: Console) -> None:
    """Everything about one profile: identity, coefficients, ranges, errors, memory and predictions."""
    profile = predictor.profile
    for text in _identity(profile):
        _line(console, text)
    _print_coefficients(profile, console)
    for text in (*_ranges(profile), *_memory(profile, predictor.num_kv_tokens)):
        _line(console, text)
    _print_errors(profile, console)
    _line(console, f"\nTTFT of one request [ms], in {predictor.chunk_words()}:")
    print_table(_ttft_table(predictor), console)
    _line(console, "TPOT by batch (down) and context of each request (across) [ms]:")
    print_table(_tpot_table(predictor), console)
    _line(console, _LEGEND)
    for quantity, reason in predictor.unmeasured.items():
        named = "Cached cells" if quantity == "cached" else f"{quantity} cells"
        _line(console, f"{named} rest on a prior: {reason}.")
    chunk = predictor.measured_chunk()
    if chunk is not None and "TTFT" not in predictor.unmeasured:
        _line(
            console,
            f"Chunks of up to {chunk:,} tokens were measured: --max-num-batched-tokens {chunk} predicts with those.",
        )
    _print_points(profile, console)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The sentence, what must be known beside it, and the predictions side by side with ratios to the first."""
    _line(console, sentence(comparison), style="bold")
    for text in notes(comparison):
        _line(console, text)
    labels = list(comparison.predictors)
    for title, cells, with_batch in (
        ("\nTTFT of one request, cold [ms], and ratio to the first:", comparison.cold, False),
        (f"TTFT with {HIT_SHARE:.0%} of the prompt cached [ms]:", comparison.warm, False),
        ("TPOT by context and batch [ms]:", shown(comparison.decode), True),
    ):
        _line(console, title)
        print_table(_side_by_side(labels, cells, with_batch), console, num_keys=2 if with_batch else 1)
    _line(console, _LEGEND)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)


def _table(*headings: str) -> Table:
    table = bare_table()
    for heading in headings:
        table.add_column(escape(heading), overflow="fold")
    return table


def _what(one: Entry) -> tuple[str, ...]:
    """What was measured, a line each: the profile's name, the model as served, device, engine."""
    served = f"{one.model} {one.dtype}, TP{_NO_BREAK}{one.tensor_parallel_size}"
    return one.name, *(f"  {text}" for text in (served, one.device, engine_in_words(one),
                                                f"decisions: {dialect_in_words(one)}"))  # fmt: skip


def _block(one: Entry, width: int) -> str:
    """What was measured, in lines no wider than ``width``: what does not fit goes on below, set in."""
    wrapped = (wrap(line, width, subsequent_indent=4 * " ", break_on_hyphens=False) for line in _what(one))
    return "\n".join(part for parts in wrapped for part in parts).replace(_NO_BREAK, " ")


def _error_of(one: Entry) -> str:
    if one.held_out_median is None or one.held_out_worst is None:
        return "none"
    return f"median {one.held_out_median:.1%}\nworst {one.held_out_worst:.1%}"


def _identity(profile: Profile) -> Iterator[str]:
    listed, who = entry(profile), profile.identity
    yield (
        f"{profile.name}: {who.model} {who.dtype}, tensor parallel size {who.tensor_parallel_size}, on {who.device}; "
        f"{engine_in_words(listed)}, {who.graph_mode}; decisions {dialect_in_words(listed)}"
    )
    others = {
        name: value
        for name in ("driver", "cann", "cuda", "torch", "torch_npu", "async_scheduling", "block_size")
        if (value := getattr(who, name)) is not None
    }
    yield "  " + ", ".join(f"{name} {value}" for name, value in others.items())
    yield f"Evidence: {listed.evidence_in_words}; {profile.provenance.description}."
    for rows in profile.provenance.rows:
        yield f"  {rows.file}: {counted(rows.num_rows, 'row')}, measured {rows.measured}; {rows.source}"
    if listed.indicative:
        yield f"INDICATIVE: {listed.indicative}."


def _print_coefficients(profile: Profile, console: Console) -> None:
    """Each number, and below them the sources that they share."""
    named = named_coefficients(profile)
    sources = list(dict.fromkeys(one.source for one in named.values()))
    table = _table(f"formula {profile.formula}", "value", "error", "unit", "origin")
    for name, one in named.items():
        origin = f"{one.origin} [{sources.index(one.source) + 1}]"
        table.add_row(*map(escape, (name, f"{one.value:.4g}", _error(one), one.unit, origin)))
    console.print()
    print_table(table, console)
    for number, source in enumerate(sources, 1):
        _line(console, f"  [{number}] {source}")


def _error(one: Coefficient) -> str:
    if one.standard_error is not None:
        return f"± {one.standard_error:.2g}"
    return "" if one.upper is None else f"below {one.upper:.2g} (95 %)"


def _ranges(profile: Profile) -> Iterator[str]:
    measured = profile.measured
    if measured is None:
        yield "\nMeasured: nothing."
        return
    mixed = "with" if measured.mixed_steps else "no"
    chunks = "chunk" if measured.max_prefills == 1 else "chunks"
    yield (
        f"\nMeasured: contexts up to {measured.max_context:,} tokens, up to {measured.max_prefill_tokens:,} prefill "
        f"tokens and {measured.max_prefills:,} {chunks} a step, batches up to {measured.max_decodes:,}, {mixed} "
        "chunks beside decodes."
    )


def _memory(profile: Profile, num_kv_tokens: int) -> Iterator[str]:
    memory = profile.memory
    parts = [
        f"{name} {part.value / _GIB:.2f} GiB ({part.origin})"
        for name, part in (("device", memory.device), ("weights", memory.weights), ("other", memory.other))
    ]
    yield f"Memory of a device: {', '.join(parts)}."
    yield (
        f"KV: {profile.kv_bytes_per_token:,} bytes a token; {num_kv_tokens // profile.block_size:,} blocks of "
        f"{profile.block_size} tokens hold {num_kv_tokens:,} tokens at vLLM's default utilization of 0.92."
    )


def _print_errors(profile: Profile, console: Console) -> None:
    errors = profile.errors
    table = _table("errors", "of", "times", "median", "worst", "worst case")
    for side, residuals in (("in sample", errors.in_sample), ("held out", errors.held_out)):
        for line in error_lines(residuals):
            table.add_row(
                side, escape(line.quantity), str(line.num_cases), f"{line.median:.2%}",
                f"{line.worst.relative_error:+.2%}", escape(line.worst.case),
            )  # fmt: skip
    if table.row_count:
        console.print()
        print_table(table, console)
    else:
        _line(console, "Errors: none, since no measured time is in the profile.")
    if errors.num_not_held_out:
        times = counted(errors.num_not_held_out, "time")
        _line(console, f"{times} could not be held out: nothing else determines them.")


def _ttft_table(predictor: Predictor) -> Table:
    table = _numbers("context", "cold", "cached", f"{HIT_SHARE:.0%} cached")
    for context in CONTEXTS:
        hit = predictor.hit(context)
        warm = predictor.ttft(context, hit) if hit else None
        table.add_row(f"{context:,}", _ms(predictor.ttft(context)), f"{hit:,}", _ms(warm))
    return table


def _tpot_table(predictor: Predictor) -> Table:
    table = _numbers("batch", *(f"{context // 1024}K" for context in CONTEXTS))
    for batch in BATCHES:
        table.add_row(str(batch), *(_ms(predictor.tpot(batch, context)) for context in CONTEXTS))
    return table


def _print_points(profile: Profile, console: Console) -> None:
    points, unplaced = measured_points(profile), num_unplaced(profile)
    if points or unplaced:
        beside = f"; without a place on its curves: {unplaced}" if unplaced else ""
        _line(console, f"Measured times on the figure (-o FOLDER): {len(points)}{beside}.")


def _side_by_side(labels: Sequence[str], cells: Sequence[Cell], with_batch: bool) -> Table:
    ratios_to_first = [f"ratio {label}" for label in labels[1:]]
    table = _numbers("context", *(["batch"] if with_batch else []), *labels, *ratios_to_first)
    for cell in cells:
        place = [f"{cell.context:,}", *([str(cell.batch)] if with_batch else [])]
        ratios = [cell.ratios[label] for label in labels[1:]]
        table.add_row(
            *place,
            *(_ms(cell.predictions[label]) for label in labels),
            *("–" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
        )
    return table


def _numbers(*headings: str) -> Table:
    table = _table(*headings)
    for column in table.columns:
        column.justify = "right"
    return table


def _ms(one: Prediction | None) -> str:
    """Milliseconds in four significant digits, with the mark of what they rest on."""
    if one is None:
        return "–"
    value = 1000 * one.seconds
    decimals = max(0, 4 - len(str(int(value))))
    return f"{value:,.{decimals}f}{_MARKS[one.support]}"
