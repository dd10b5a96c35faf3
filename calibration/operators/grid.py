"""Which steps a profile is fitted to: as wide as the tables, with most of them where engines mostly are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from calibration.operators.origin import StepTables
from calibration.operators.step import Step

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BEFORE = (0, 512, 2048, 8192)
_MIXED_BATCHES = (4, 16, 64, 128)
_MIXED_CONTEXTS = (512, 2048)
_MIXED_CHUNKS = (64, 256, 1024)
_MIXED_BEFORE = (0, 512, 2048)
_MOST_ENTRIES = 600_000  # KV entries of one rank's decodes: more than a device of 141 GB keeps beside a model


def steps(tables: StepTables) -> list[Step]:
    """Decodes from one request to many, chunks with and without a prefix, and both together; of these, what ``tables``
    reach.
    """
    num_replicas = tables.rank.data_parallel_size
    return [
        step
        for step in _all(num_replicas)
        if step.num_decodes * step.decode_context <= _MOST_ENTRIES
        and tables.covers(step)
    ]


def _all(num_replicas: int) -> Iterator[Step]:
    for batch, context in product(_BATCHES, _CONTEXTS):
        yield Step(num_decodes=batch, decode_context=context, num_replicas=num_replicas)
    for chunk, before in product(_CHUNKS, _BEFORE):
        yield Step(chunk, before, num_replicas=num_replicas)
    sizes = product(_MIXED_CHUNKS, _MIXED_BEFORE, _MIXED_BATCHES, _MIXED_CONTEXTS)
    for chunk, before, batch, context in sizes:
        yield Step(chunk, before, batch, context, num_replicas=num_replicas)
