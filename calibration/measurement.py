"""Measured rows: immutable, raw, self-describing JSON lines that refuse to mix identities.

The first line of a file is a header with the identity of what was measured on; every launch that appends writes its
header again. All other lines are rows, in seconds and tokens, of one of three kinds: ``step`` (one engine step),
``request`` (one request, alone) and ``summary`` (a published median of such requests). Covariates may differ from row
to row.

Nothing is ever taken out of a file. Rows that failed a check and warm-up rows stay in it, and are kept apart when it is
read (``Measurements.unused``); outliers are marked when it is read (see ``outliers``), so that the rule can change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from calibration.outliers import outlying
from simulator.errors import InputError
from simulator.profile import Count, Identity, Positive, Seconds, Strict, Text, first_problem

Regime = Literal["cold_prefill", "warm_prefill", "decode", "mixed"]


class Covariates(Strict):
    """Engine settings that may differ between rows of one file."""

    max_num_batched_tokens: Positive
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None


class Capacity(Strict):
    """KV memory as the engine allotted it: blocks with the null block included, as vLLM counts, and tokens a block."""

    num_gpu_blocks: Positive
    block_size: Positive


class Header(Strict):
    """What was measured on, when, and who says so.

    ``limits`` are those of ``probes.Limits``, from which the grid of cases was planned. ``launch`` numbers the engine's
    launches from 0 (``launch_id``: told by the engine, where it outlives a session); ``environment`` is whatever else
    was readable then (driver, clocks, temperature, host load, every version): recorded, compared with nothing.
    """

    kind: Literal["header"]
    schema_version: Literal[1]
    identity: Identity
    measured: Text
    source: Text
    license: Text
    launch: Count | None = None
    engine: Literal["vllm", "openai"] | None = None
    engine_args: dict[str, Any] = Field(default_factory=dict)
    launch_id: str | None = None
    capacity: Capacity | None = None
    limits: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)
    startup_s: Seconds | None = None


class _Taken(Strict):
    """Where a row comes from.

    ``case`` names the probe and its sizes, ``regime`` the kind of work, ``launch`` and ``repeat`` count from 0 (repeats
    within a launch). ``failed`` is the check that the take failed: such a row is never used. ``warmup`` rows were taken
    before the engine had settled. ``outlier`` is set when a file is read, not by whoever writes it. ``interface`` tells
    the in-process engine from a client's view over HTTP, in which a step is the time between two tokens.
    """

    case: Text | None = None
    regime: Regime | None = None
    launch: Count | None = None
    repeat: Count | None = None
    warmup: bool = False
    failed: Text | None = None
    outlier: bool = False
    interface: Literal["in_process", "http"] | None = None

    @property
    def usable(self) -> bool:
        """Whether the row passed its checks and was taken after warm-up."""
        return self.failed is None and not self.warmup


class StepRow(_Taken):
    """One engine step, in the words of ``simulator.plan.Plan``.

    ``duration_s`` runs from the start of ``schedule`` (where batches overlap, from the end of the step before, if that
    is later) to the end of ``update_from_output``. ``gap_s`` is the host's time between the end of the step before and
    that start; None for the first step after idleness. What a client sees between two tokens is their sum.
    ``num_padded_tokens`` is the size that a captured graph pads the step's tokens to, None where none does.
    ``prefill_pieces`` are (new, computed) tokens of every chunk. ``index`` counts the steps of a take.
    """

    kind: Literal["step"]
    covariates: Covariates
    num_decodes: Count
    decode_context: Count
    num_prefills: Count
    num_prefill_tokens: Count
    prefill_pairs: Annotated[float, Field(ge=0)]
    max_context: Positive
    duration_s: Seconds
    gap_s: Annotated[float, Field(ge=0)] | None = None
    num_padded_tokens: Positive | None = None
    prefill_pieces: tuple[tuple[Positive, Count], ...] | None = None
    index: Count | None = None

    @model_validator(mode="after")
    def _computes_something(self) -> StepRow:
        if self.num_decodes + self.num_prefill_tokens == 0:
            raise ValueError("the step computes no token")
        if (self.num_prefills == 0) != (self.num_prefill_tokens == 0):
            raise ValueError("num_prefills and num_prefill_tokens must both be zero or both be positive")
        return self


class _Request(_Taken):
    covariates: Covariates
    num_prompt_tokens: Positive
    num_cached_tokens: Count
    num_output_tokens: Positive
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    total_s: Seconds | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> _Request:
        if self.num_cached_tokens >= self.num_prompt_tokens:
            raise ValueError("num_cached_tokens: a hit is at most the prompt minus one token")
        if self.ttft_s is None and self.tpot_s is None and self.total_s is None:
            raise ValueError("ttft_s: missing, as are tpot_s and total_s: the row holds no time")
        if self.tpot_s is not None and self.num_output_tokens < 2:
            raise ValueError("tpot_s: needs at least two output tokens")
        return self


class RequestRow(_Request):
    """One request served alone. ``tpot_s`` is (last - first token) / (output tokens - 1).

    ``regime`` tells cold from warm. ``expected_cached_tokens`` is what the prompts imply; any other fails the take.
    ``num_steps`` is the number of engine steps up to the first token and ``steps_s`` their durations with the gaps
    between them; ``overhead_s`` is the rest of the time to first token, ``submit_s`` (a part of it) the call that hands
    the request over. ``token_s`` are the times of all tokens since that call began. ``http_s`` is what a client waited
    for the first token beyond what the server says of itself, ``frontend_s`` what the server waited beyond its engine.
    All None where not seen: a server shows no steps, an engine in process has no client.
    """

    kind: Literal["request"]
    expected_cached_tokens: Count | None = None
    num_steps: Positive | None = None
    steps_s: Seconds | None = None
    submit_s: Annotated[float, Field(ge=0)] | None = None
    overhead_s: float | None = None
    http_s: float | None = None
    frontend_s: float | None = None
    token_s: tuple[Seconds, ...] | None = None
    output_token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class SummaryRow(_Request):
    """A statistic over ``num_repeats`` requests served alone."""

    kind: Literal["summary"]
    statistic: Literal["median", "mean"]
    num_repeats: Positive


Row = StepRow | RequestRow | SummaryRow
_LINE: TypeAdapter[Header | Row] = TypeAdapter(
    Annotated[Header | StepRow | RequestRow | SummaryRow, Field(discriminator="kind")]
)


@dataclass(frozen=True)
class Measurements:
    """One file: its first header, its usable rows, and the digest of its bytes.

    ``file`` is the name without folders. ``headers`` are those of all launches, ``unused`` the rows that failed a check
    or belong to warm-up.
    """

    file: str
    header: Header
    rows: tuple[Row, ...]
    sha256: str
    headers: tuple[Header, ...] = ()
    unused: tuple[Row, ...] = ()


def read_measurements(path: Path) -> Measurements:
    """The rows of a JSON-lines file. Raises InputError ``file:line: key: problem`` at the first bad one."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot read the rows ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a JSON-lines text") from None
    headers: list[Header] = []
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        parsed = _parse(line, where)
        if isinstance(parsed, Header):
            refuse_mixed((headers or [parsed])[0].identity, parsed.identity, where)
            headers.append(parsed)
        elif headers:
            rows.append(parsed)
        else:
            raise InputError(f"{where}: a row before any header: the first line states the identity")
    if not rows:
        raise InputError(f"{path}: no rows")
    usable = mark_outliers([row for row in rows if row.usable])
    unused = tuple(row for row in rows if not row.usable)
    return Measurements(path.name, headers[0], usable, hashlib.sha256(content).hexdigest(), tuple(headers), unused)


def read_together(paths: Sequence[Path]) -> tuple[Measurements, ...]:
    """Several files of one identity. Raises InputError naming the first key in which two differ."""
    files = tuple(read_measurements(path) for path in paths)
    for path, other in zip(paths, files, strict=True):
        refuse_mixed(files[0].header.identity, other.header.identity, str(path))
    return files


def refuse_mixed(first: Identity, other: Identity, where: str) -> None:
    """Raise InputError at ``where`` if the two identities differ."""
    before, after = first.model_dump(), other.model_dump()
    for key, value in before.items():
        if value != after[key]:
            raise InputError(f"{where}: identity.{key} is {after[key]!r}, earlier rows have {value!r}: never mixed")


def mark_outliers(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, with ``outlier`` set on those far from their like: same kind, case, regime and launch."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(rows):
        if row.case is not None and not isinstance(row, SummaryRow):
            groups.setdefault((row.kind, row.case, row.regime, row.launch, _size(row)), []).append(number)
    marked = list(rows)
    for numbers in groups.values():
        for number in outlying([(number, time_of(rows[number])) for number in numbers]):
            marked[number] = rows[number].model_copy(update={"outlier": True})
    return tuple(marked)


def time_of(row: Row) -> float:
    """The time that a row is about, in seconds: a step's duration, else a request's first of TTFT, TPOT and total."""
    if isinstance(row, StepRow):
        return row.duration_s
    return next(time for time in (row.ttft_s, row.tpot_s, row.total_s) if time is not None)


def _size(row: Row) -> tuple[float, ...]:
    """What makes two rows of a case alike: a prompt's chunks are different work, neighbouring decode steps are not."""
    return (row.num_decodes, row.num_prefill_tokens, row.prefill_pairs) if isinstance(row, StepRow) else ()


class RowFile:
    """A JSON-lines file that only grows, a whole number of lines at a time."""

    def __init__(self, path: Path) -> None:
        """Raises InputError if the file cannot be written. A last line cut off by a crash is dropped."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                file.seek(0)
                content = file.read()
                whole = content.rfind(b"\n") + 1
                if whole != len(content):
                    file.truncate(whole)
        except OSError as error:
            raise InputError(f"{path}: cannot write the rows ({error.strerror})") from None

    def append(self, lines: Sequence[Header | Row]) -> None:
        """Add these lines in one write, so that an interruption leaves all of them or none."""
        text = "".join(line.model_dump_json(exclude_defaults=True) + "\n" for line in lines)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode())


def _parse(line: str, where: str) -> Header | Row:
    try:
        raw: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg})") from None
    if not isinstance(raw, dict):
        raise InputError(f"{where}: not a JSON object")
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        # The discriminated union puts the row's kind in front of every key.
        problem = first_problem(error)
        raise InputError(f"{where}: {problem.removeprefix(str(raw.get('kind')) + '.')}") from None
