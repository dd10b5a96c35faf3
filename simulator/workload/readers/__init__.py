"""Traces in the formats that others publish, record and replay, and in kvcast's own.

``open_trace`` reads any of them as ``records.Record``. Reading order: ``reading`` (what all have in common),
``recognition``, ``fields`` and ``blocks`` (what they are made of), then a file a format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, nearest
from simulator.workload.readers.aiperf import Aiperf
from simulator.workload.readers.azure import Azure
from simulator.workload.readers.bailian import Bailian
from simulator.workload.readers.burstgpt import BurstGpt
from simulator.workload.readers.kv_events import KvEvents
from simulator.workload.readers.kvcast import Kvcast
from simulator.workload.readers.mooncake import Mooncake
from simulator.workload.readers.mooncake_arxiv import MooncakeArxiv
from simulator.workload.readers.openai import OpenAi
from simulator.workload.readers.reading import FileTrace
from simulator.workload.readers.recognition import read_head
from simulator.workload.readers.servegen import Servegen
from simulator.workload.readers.vllm_bench import VllmBench
from simulator.workload.readers.weka import Weka

__all__ = ["FORMATS", "READERS", "FileTrace", "open_trace", "recognise"]

# In the order in which they are tried: what fits two is of the first.
READERS: Mapping[str, type[FileTrace]] = {
    reader.format: reader
    for reader in (
        Kvcast, KvEvents, Mooncake, MooncakeArxiv, Bailian, Weka, OpenAi, Aiperf, VllmBench, Azure, BurstGpt, Servegen,
    )
}  # fmt: skip

FORMATS: Mapping[str, str] = {name: reader.description for name, reader in READERS.items()}
"""What can be read: name -> description in one line."""


def open_trace(path: Path | str, format: str | None = None, *, strict: bool = False, **options: Any) -> FileTrace:  # noqa: A002
    """The trace in a file; gzip and, where ``format`` is None, the format are recognised by the content.

    ``strict``: the first unusable line is an error; otherwise it is passed over, counted and named, and a trace of
    which more than a tenth is unusable is an error when it has been read. ``options`` are the format's own
    (``READERS[format].options``). Raises InputError for an unknown format or option and for a file that cannot be read.
    """
    path = Path(path)
    if format is not None and format not in READERS:
        raise InputError(f"format {format!r} is unknown{nearest(format, READERS)}")
    reader = READERS[format or recognise(path)]
    for option in options:
        if option not in reader.options:
            hint = nearest(option, reader.options) if reader.options else " (it takes none)"
            raise InputError(f"{path}: format {reader.format} has no option {option!r}{hint}")
    if not path.is_file():
        read_head(path)  # says why not
    return reader(path, strict=strict, **options)


def recognise(path: Path) -> str:
    """The format of a file. Raises InputError, naming the known ones, where it is of none."""
    head = read_head(path)
    for name, reader in READERS.items():
        if reader.recognises(head):
            return name
    shown = ", ".join(repr(name) for name in sorted(head.keys or head.columns)[:6])
    found = f"found {shown}" if shown else "found neither JSON nor named columns"
    raise InputError(f"{path}: a trace of no known format ({found}), expected one of {', '.join(sorted(READERS))}")
