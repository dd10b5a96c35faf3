"""Results of ``vllm bench serve --save-detailed`` as a trace: what its requests' lengths were, and when they started.

One JSON document with ``input_lens``, ``output_lens`` and, of later clients, ``start_times`` (seconds of an arbitrary
clock), one entry a request in order of sending. Requests with an ``errors`` text or without an answer were not served:
unusable. The document is read whole, once. Without ``start_times`` each request is a session of its own and they have
no common clock. What the prompts shared is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.errors import InputError
from simulator.workload.readers import documents
from simulator.workload.readers.fields import json_object, number, shown, tokens
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

_LISTS = ("input_lens", "output_lens")


class VllmBench(FileTrace):
    """See the module. All records stand in one line; a reason names the request by its place, from 0."""

    format = "vllm_bench"
    description = "the JSON of vllm bench serve --save-detailed: input_lens, output_lens, start_times (lengths only)"
    in_order = True
    may_start_together = True

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """The summary's keys, or the lists'."""
        return head.keys >= set(_LISTS) or head.keys >= {"completed", "total_input_tokens", "duration"}

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        super().__init__(path, strict=strict)
        self._line, self._lists = _lists(path)
        self.sessions_start_together = not self._lists["start_times"]

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        return ((self._line, record) for record in _records(self._lists, self._line, skips))


def _lists(path: Path) -> tuple[int, dict[str, list]]:
    """The line of the document, and its lists: empty where there is none."""
    line, content = next(documents.whole(path), (0, b""))
    if not line:
        raise InputError(f"{path}: the trace is empty")
    try:
        document = json_object(content)
    except Unusable as error:
        raise InputError(f"{path}:{line}: {error}, expected one result of vllm bench serve") from error
    found: dict[str, list] = {}
    for key in (*_LISTS, "errors", "start_times"):
        values = document.get(key)
        if key in _LISTS and type(values) is not list:
            raise InputError(f"{path}:{line}: {key} is {shown(values)}, expected a list: a result of --save-detailed")
        if values and (type(values) is not list or len(values) != len(document["input_lens"])):
            raise InputError(f"{path}:{line}: {key} is {shown(values)}, expected a list as long as input_lens")
        found[key] = values or []
    return line, found


def _records(lists: dict[str, list], line: int, skips: Skips) -> Iterator[Record]:
    found: list[tuple[int, Record]] = []
    for place in range(len(lists["input_lens"])):
        entry = {key: values[place] for key, values in lists.items() if values}
        skips.num_lines += 1
        try:
            found.append((place, _record(entry, place)))
        except Unusable as error:
            skips.add(line, f"request {place}: {error}")
    found.sort(key=lambda item: (item[1].arrival_s, item[0]))
    for _, record in found:
        yield record._replace(arrival_s=record.arrival_s - found[0][1].arrival_s)


def _record(entry: dict, place: int) -> Record:
    if entry.get("errors"):
        raise Unusable(f"the request failed: {shown(entry['errors'])}")
    has_start = "start_times" in entry
    return Record(
        number(entry, "start_times") if has_start else 0.0,
        tokens(entry, "input_lens"),
        tokens(entry, "output_lens"),
        session=None if has_start else place,
    )
