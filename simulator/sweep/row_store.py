"""One row a replication, in a folder of Parquet files that are never changed: ``pandas.read_parquet`` reads it at every
moment, and a kill loses no more than the last seconds.

(A single file that is replaced as a whole is not enough: readers open it more than once, and would mix two of them.)
Each file names the scenario, the versions and the varied keys that its rows are of.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.counts import counted
from simulator.errors import InputError

Key = tuple[str, int]

_META = b"kvcast_sweep"
# What a kill may lose: so many seconds, or this share of a long run, which keeps files few.
_MOST_LOST_S, _MOST_LOST_SHARE = 2.0, 0.02


class RowStore:
    """The rows of a sweep: those that the folder had, and those added. Use it as a context; leaving it writes the rest.

    ``identity`` says of what the rows are, as plain data; a folder with anything else is refused with what differs.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = identity
        self.rows: dict[Key, dict[str, Any]] = {}
        self._waiting: list[dict[str, Any]] = []
        self._began_s = self._last_s = time.monotonic()
        self._next_part = 0
        self._said: dict[Path, Mapping[str, Any]] = {}  # of what the files that are there say they are

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            for partial in self.folder.glob(".*.partial"):  # of a killed run
                partial.unlink()
        except OSError as error:
            raise InputError(f"{self.folder}: cannot write there ({error.strerror or error})") from None
        for path in sorted(self.folder.glob("*.parquet")):
            found, table = _read(path)
            _check_same(path, found, self.identity)
            self._said[path] = found
            self._next_part = max(self._next_part, 1 + int(path.stem.rpartition("-")[2]))
            for row in table.to_dict("records"):
                self.rows[row["setting"], row["replication"]] = {str(name): value for name, value in row.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What could not be written a moment ago is not tried again: the first error says what was wrong.
        if self._waiting and not isinstance(error, InputError):
            self.write()

    def agreed(self, name: str, find: Callable[[], Any]) -> Any:
        """What the files say under this name or, of a new folder, what ``find`` answers, which they say from then on.
        Raises InputError where they disagree.
        """
        known = next((said[name] for said in self._said.values() if name in said), None)
        self.identity = {**self.identity, name: find() if known is None else known}
        for path, said in self._said.items():
            _check_same(path, said, self.identity)
        return self.identity[name]

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        """Which of these have no row yet."""
        return [key for key in keys if key not in self.rows]

    def add(self, key: Key, row: dict[str, Any]) -> None:
        """Take a row, and write those that wait if the last time was long ago. Raises InputError as ``write``."""
        self.rows[key] = row
        self._waiting.append(row)
        now_s = time.monotonic()
        if now_s - self._last_s > max(_MOST_LOST_S, _MOST_LOST_SHARE * (now_s - self._began_s)):
            self.write()

    def write(self) -> None:
        """Write the rows that wait as one more file. Raises InputError where that fails, which leaves no trace."""
        path = self.folder / f"rows-{self._next_part:06}.parquet"
        partial = self.folder / f".{path.name}.partial"
        try:
            with partial.open("wb") as target:
                pq.write_table(self._table(), target, compression="zstd")
                target.flush()
                os.fsync(target.fileno())
            partial.rename(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            num_kept = len(self.rows) - len(self._waiting)
            raise InputError(
                f"{path}: cannot write it ({error.strerror or error}); kept so far: {counted(num_kept, 'row')}, from "
                "which the same command goes on"
            ) from None
        self._next_part += 1
        self._waiting = []
        self._last_s = time.monotonic()

    def _table(self) -> pa.Table:
        table = pa.Table.from_pandas(pd.DataFrame(self._waiting), preserve_index=False)
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _META: _canonical(self.identity)})


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
    if meta is None or not path.stem.rpartition("-")[2].isdigit():
        raise InputError(f"{path}: not the rows of a sweep, expected another folder (-o)")
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
