"""One row a replication, in a Parquet file that is whole at every moment and outlives whoever writes it.

The file is written anew beside itself and takes its own place, so that a reader finds all rows of some moment, and a
kill loses no more than the last seconds. It names the scenario, the versions and the varied keys that it is of.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.errors import InputError

Key = tuple[str, int]

_META = b"kvcast_sweep"
_FLUSH_S = 2.0
# Writing takes at most this share of the time, however long the file has become.
_MOST_WRITING = 0.05


class ResultsFile:
    """The rows of a sweep: those that the file had, and those added. Use it as a context; leaving it writes the rest.

    ``identity`` says of what the rows are, as plain data; a file of anything else is refused with what differs.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity = identity
        self.rows: dict[Key, dict[str, Any]] = {}
        self._order: dict[Key, int] = {}
        self._num_unwritten = 0
        self._last_s = time.monotonic()
        self._cost_s = 0.0

    def __enter__(self) -> Self:
        _remove_partials(self.path)
        if self.path.exists():
            found, table = _read(self.path)
            _check_same(self.path, found, self.identity)
            for row in table.to_dict("records"):
                self.rows[row["setting"], row["replication"]] = {str(name): value for name, value in row.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A file that could not be written a moment ago is not tried again: the first error says what was wrong.
        if self._num_unwritten and not isinstance(error, InputError):
            self.write()

    def expect(self, keys: Sequence[Key]) -> list[Key]:
        """Which of these are missing. They come first in the file, in this order, whatever the order of adding."""
        self._order = {key: place for place, key in enumerate(keys)}
        return [key for key in keys if key not in self.rows]

    def add(self, key: Key, row: dict[str, Any]) -> None:
        """Take a row, and write the file if the last time is some seconds ago. Raises InputError as ``write``."""
        self.rows[key] = row
        self._num_unwritten += 1
        if time.monotonic() - self._last_s > max(_FLUSH_S, self._cost_s / _MOST_WRITING):
            self.write()

    def write(self) -> None:
        """Write all rows. Raises InputError where that fails, which leaves the file as it was."""
        began_s = time.monotonic()
        partial = self.path.with_name(f".{self.path.name}-{os.getpid()}.partial")
        try:
            with partial.open("wb") as target:
                pq.write_table(self._table(), target, compression="zstd")
                target.flush()
                os.fsync(target.fileno())
            partial.replace(self.path)
        except OSError as error:
            num_kept = len(self.rows) - self._num_unwritten
            raise InputError(
                f"{self.path}: cannot write it ({error.strerror or error}); its {num_kept} rows are kept, and the same "
                "command goes on from there"
            ) from None
        finally:
            partial.unlink(missing_ok=True)
        self._num_unwritten = 0
        self._last_s = time.monotonic()
        self._cost_s = self._last_s - began_s

    def _table(self) -> pa.Table:
        last = len(self._order)
        keys = sorted(self.rows, key=lambda key: (self._order.get(key, last), key))
        table = pd.DataFrame([self.rows[key] for key in keys])
        for name in table.columns:
            if not pd.api.types.is_numeric_dtype(table[name]):
                table[name] = table[name].astype(str)  # some values may be numbers beside text
        found = pa.Table.from_pandas(table, preserve_index=False)
        return found.replace_schema_metadata({**(found.schema.metadata or {}), _META: _canonical(self.identity)})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other sweeps from writing into the folder. Raises InputError where one does; a killed one does not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".kvcast-lock").open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror or error})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another sweep is writing there, expected another folder (-o)") from None
        yield


def _canonical(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(identity, sort_keys=True).encode()


def _read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: not a Parquet file that can be read ({str(error).splitlines()[0]})") from None
    meta = (table.schema.metadata or {}).get(_META)
    if meta is None:
        raise InputError(f"{path}: not the results of a sweep, expected another folder (-o)")
    return json.loads(meta), table.to_pandas()


def _check_same(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise InputError with the first thing in which the two differ."""
    for name, value in expected.items():
        if found.get(name) == value:
            continue
        theirs, ours = _differing(found.get(name), value)
        raise InputError(
            f"{path}: holds results of another {name}: {theirs}, not {ours}; expected another folder (-o), since the "
            "two are never mixed"
        )


def _differing(theirs: Any, ours: Any) -> tuple[str, str]:
    """What differs, in a few characters."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        name = next(name for name in (*ours, *theirs) if theirs.get(name) != ours.get(name))
        return f"{name} {_short(theirs.get(name))}", _short(ours.get(name))
    return _short(theirs), _short(ours)


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:12] if len(text) == 64 else text


def _remove_partials(path: Path) -> None:
    """What a killed run left half-written."""
    for partial in path.parent.glob(f".{path.name}-*.partial"):
        partial.unlink(missing_ok=True)
