"""What vLLM decided, kept in a file, so that the comparison can be made without vLLM.

Anyone can remake a recording with the command in its header, or make one of another version::

    python -m simulator.parity.record --engine-python PYTHON -o FILE.jsonl.gz basic:0-19,23 edge-large:4

A recording is gzipped JSON lines. The first is the header: format, vllm (version), dialect, date, command. Each other
one is a case (see this package's ``__init__``) with ``digests``, one for each of vLLM's records, and vLLM's
``summary``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError, nearest
from simulator.parity.cases import FAMILIES, SIZES, Case, generate_case
from simulator.parity.engine import Engine
from simulator.parity.engine_harness import digest
from simulator.parity.replay import Record, Replay
from simulator.parity.verify import dialect_of, is_excluded

FORMAT = "kvcast-decisions-1"


@dataclass(frozen=True)
class Recorded:
    """A case with the digests of vLLM's records."""

    case: Case
    digests: list[str]
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        """As the command names it; with ``-large`` after the family for cases of that size."""
        return f"{self.case['family']}:{self.case['seed']}"

    def difference(self, *, grouping: bool = True) -> tuple[int, Record | None] | None:
        """Position of the first record in which ours differ, and ours there (None: it is missing); None if all agree.

        ``grouping``: see :class:`~simulator.scheduler.Scheduler`.
        """
        ours = Replay(self.case, grouping=grouping).run(len(self.digests) + 1)
        for position, expected in enumerate(self.digests):
            if position == len(ours):
                return position, None
            if digest(ours[position])["digest"] != expected:
                return position, ours[position]
        return (len(self.digests), ours[-1]) if len(ours) > len(self.digests) else None


def read(path: str | Path) -> tuple[dict[str, Any], list[Recorded]]:
    """Header and cases of a recording. Raises InputError for anything else."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: {error}, expected a recording of format {FORMAT!r}") from None
    header = rows[0] if rows and isinstance(rows[0], dict) else {}
    if header.get("format") != FORMAT:
        raise InputError(f"{path}: format: got {header.get('format')!r}, expected {FORMAT!r}")
    return header, [Recorded(**row) for row in rows[1:]]


def parse_names(names: list[str], dialect: str) -> Iterator[Case]:
    """The cases that ``FAMILY[-large]:SEEDS`` name, seeds like ``0-19,23``. Raises InputError for anything else."""
    for name in names:
        word, _, seeds = name.partition(":")
        family, _, size = word.partition("-")
        if family not in FAMILIES or (size or "small") not in SIZES:
            raise InputError(f"{name!r}: expected one of {', '.join(FAMILIES)}{nearest(family, FAMILIES)}")
        for part in seeds.split(","):
            first, _, last = part.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                raise InputError(f"{name!r}: expected seeds like 0-19,23 after the colon")
            for seed in range(int(first), int(last or first) + 1):
                yield generate_case(family, seed, dialect, size or "small")


def record(engine: Engine, names: list[str], command: str) -> Iterator[dict[str, Any]]:
    """The lines of a recording of the named cases, without those in which vLLM itself fails."""
    version = engine.version()
    dialect, _ = dialect_of(version)
    cases = list(parse_names(names, dialect))
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    yield {"format": FORMAT, "vllm": version, "dialect": dialect, "date": date, "command": command}
    for answer in engine.play(cases, "digest"):
        summary = answer["summary"]
        if not is_excluded(summary):
            del summary["seconds"], summary["assertion"], summary["stalled"]
            digests = [row["digest"] for row in answer["records"]]
            yield {"case": answer["case"], "digests": digests, "summary": summary}


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write a recording; equal lines give equal bytes."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def main(arguments: list[str] | None = None) -> None:
    """The command line: 0 done, 2 bad input (one line on stderr)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m simulator.parity.record", description="Record vLLM's decisions.")
    parser.add_argument("names", nargs="+", metavar="FAMILY[-large]:SEEDS", help="for example edge:0-19,23")
    parser.add_argument("--engine-python", required=True, help="a Python with vLLM")
    parser.add_argument("-o", "--output", required=True, type=Path, help="file to write (.jsonl.gz)")
    given = parser.parse_args(arguments)
    command = f"{parser.prog} --engine-python PYTHON -o {given.output.name} {' '.join(given.names)}"
    try:
        with Engine(given.engine_python) as engine:
            write(given.output, record(engine, given.names, command))
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
