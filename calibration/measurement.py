"""Measured rows: immutable, raw, self-describing JSON lines that refuse to mix identities.

The first line of a file is a header with the identity of what was measured on; every launch that appends writes its
header again. All other lines are rows, in seconds and tokens, of one of three kinds: ``step`` (one engine step),
``request`` (one request, alone) and ``summary`` (a published median of such requests). Covariates may differ from row
to row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from simulator.errors import InputError
from simulator.profile import Count, Identity, Positive, Seconds, Strict, Text, first_problem


class Covariates(Strict):
    """Engine settings that may differ between rows of one file."""

    max_num_batched_tokens: Positive
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None


class Header(Strict):
    """What was measured on, when, and who says so."""

    kind: Literal["header"]
    schema_version: Literal[1]
    identity: Identity
    measured: Text
    source: Text
    license: Text


class StepRow(Strict):
    """One engine step, in the words of ``simulator.plan.Plan``."""

    kind: Literal["step"]
    covariates: Covariates
    num_decodes: Count
    decode_context: Count
    num_prefills: Count
    num_prefill_tokens: Count
    prefill_pairs: Annotated[float, Field(ge=0)]
    max_context: Positive
    duration_s: Seconds
    launch: Count | None = None

    @model_validator(mode="after")
    def _computes_something(self) -> StepRow:
        if self.num_decodes + self.num_prefill_tokens == 0:
            raise ValueError("the step computes no token")
        if (self.num_prefills == 0) != (self.num_prefill_tokens == 0):
            raise ValueError("num_prefills and num_prefill_tokens must both be zero or both be positive")
        return self


class _Request(Strict):
    covariates: Covariates
    num_prompt_tokens: Positive
    num_cached_tokens: Count
    num_output_tokens: Positive
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    total_s: Seconds | None = None
    launch: Count | None = None

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
    """One request served alone. ``tpot_s`` is (last - first token) / (output tokens - 1)."""

    kind: Literal["request"]


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
    """One file: its header, its rows, and the digest of its bytes. ``file`` is the name without folders."""

    file: str
    header: Header
    rows: tuple[Row, ...]
    sha256: str


def read_measurements(path: Path) -> Measurements:
    """The rows of a JSON-lines file. Raises InputError ``file:line: key: problem`` at the first bad one."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot read the rows ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a JSON-lines text") from None
    header: Header | None = None
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        parsed = _parse(line, where)
        if not isinstance(parsed, Header):
            if header is None:
                raise InputError(f"{where}: a row before any header: the first line states the identity")
            rows.append(parsed)
        elif header is None:
            header = parsed
        else:
            refuse_mixed(header.identity, parsed.identity, where)
    if header is None or not rows:
        raise InputError(f"{path}: no rows")
    return Measurements(path.name, header, tuple(rows), hashlib.sha256(content).hexdigest())


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
