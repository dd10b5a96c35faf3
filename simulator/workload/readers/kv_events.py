"""vLLM's KV events recorded from its publisher, as requests: what was computed, not what was asked.

One batch a line, as msgpack's own arrays ``[ts, [["BlockStored", hashes, parent hash, token ids, block size, ...],
...], rank]`` or as objects (``{"ts": ..., "events": [{"type": "BlockStored", "block_hashes": ..., "parent_block_hash":
..., "block_size": ..., "medium": ..., "lora_name": ..., "group_idx": ...}]}``); an event with its ``ts`` may stand
alone. Hashes are numbers or texts. Read are blocks stored on the device, of the first KV-cache group.

A stored run of blocks follows its parent, which gives the whole prompt. Blocks that follow the newest one of a request
within ``gap_s`` continue it: more of the prompt (chunked prefill) as long as they come several at a time; the first
that comes alone begins the answer, and several at a time after that are another request (the next turn).

Traps. A prompt found whole in the cache stores nothing, so such requests are missing; so are those shorter than a
block. Prompts and answers are known in whole blocks. A prompt that ends in a chunk of one block counts it as the
answer's, and a request that goes on where another's prompt ended, before that one's first answer block, is taken for
it. Where the recording began with a warm cache, blocks with an unknown parent are unusable. Evictions change nothing
here: a text stored again is the same text, so every hash is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workload.lines import numbered_lines
from simulator.workload.readers.fields import Fields, json_value, number, shown, tokens, whole
from simulator.workload.readers.kv_requests import Requests, Stored
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head, read_head
from simulator.workload.records import Record

DEFAULT_GAP_S = 5.0

_TYPES = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_TYPE_KEYS = ("type", "event_type", "_tag")
_POSITIONS = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx",
)  # fmt: skip
_DEVICE = (None, "GPU", "gpu", "NPU", "npu")

class KvEvents(FileTrace):
    """See the module."""

    format = "kv_events"
    description = "vLLM's KV events (BlockStored, BlockRemoved) as JSON lines, one batch a line"
    options = frozenset({"gap_s"})
    in_order = True

    def __init__(self, path: Path, *, strict: bool = False, gap_s: float = DEFAULT_GAP_S) -> None:
        super().__init__(path, strict=strict)
        self._gap_s = gap_s
        self.block_tokens = _block_tokens(read_head(path))
        self.assumed = (
            "requests are told apart by what they stored: those found whole in the cache are missing",
            f"a request goes on while its blocks follow within {gap_s:g} s",
        )

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """A batch or an event."""
        try:
            _, events = _batch(head.first)
        except Unusable:
            return False
        return all(event.get("type") in _TYPES for event in events)

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        requests = Requests(self._gap_s)
        for line, content in numbered_lines(self.path):
            skips.num_lines += 1
            try:
                time_s, events = _batch(json_value(content))
                stored = [_stored(event) for event in events]
                for event, blocks in zip(events, stored, strict=True):
                    if event["type"] == "AllBlocksCleared":
                        requests.end_all()
                    elif blocks is not None:
                        requests.add(line, time_s, blocks)
            except Unusable as error:
                skips.add(line, str(error))
                continue
            yield from requests.ended(time_s)
        requests.end_all()
        yield from requests.ended(float("inf"))


def _batch(value: object) -> tuple[float, list[Fields]]:
    """Time and events of a line, in any of its forms. Raises Unusable."""
    if type(value) is list and len(value) >= 2:
        fields: Fields = {"ts": value[0], "events": value[1]}
    elif type(value) is dict:
        fields = value
    else:
        raise Unusable(f"{shown(value)}, expected a batch of events: [ts, events] or an object with ts and events")
    time_key = next((key for key in ("ts", "timestamp", "recv_ts", "_recv_ts") if key in fields), "ts")
    time_s = number(fields, time_key)
    events = fields.get("events", [fields])
    if type(events) is not list:
        raise Unusable(f"events is {shown(events)}, expected a list")
    return time_s, [_event(event) for event in events]


def _event(event: object) -> Fields:
    """An event with its fields by name. Raises Unusable."""
    if type(event) is list:
        event = dict(zip(_POSITIONS, event, strict=False))
        if event.get("type") == "BlockRemoved":  # has its medium where others have the parent
            event = {"type": "BlockRemoved", "block_hashes": event.get("block_hashes")}
    if type(event) is not dict:
        raise Unusable(f"an event is {shown(event)}, expected an array or an object")
    kind = next((event[key] for key in _TYPE_KEYS if key in event), None)
    if type(kind) is not str or kind not in _TYPES:
        raise Unusable(f"event type {shown(kind)}, expected {', '.join(sorted(_TYPES))}")
    return {**event, "type": kind}


def _stored(event: Fields) -> Stored | None:
    """A BlockStored of the device's first group; None for what stores nothing there. Raises Unusable."""
    if event["type"] != "BlockStored":
        return None
    medium = event.get("medium")
    if (type(medium) is str and medium not in _DEVICE) or event.get("group_idx") not in (None, 0):
        return None
    hashes, parent = event.get("block_hashes"), event.get("parent_block_hash")
    if type(hashes) is not list or not hashes or not all(type(one) is int or type(one) is str for one in hashes):
        raise Unusable(f"block_hashes is {shown(hashes)}, expected a list of hashes")
    if parent is not None and type(parent) is not int and type(parent) is not str:
        raise Unusable(f"parent_block_hash is {shown(parent)}, expected a hash or null")
    lora = event.get("lora_name")
    if lora is None and event.get("lora_id") is not None:
        lora = whole(event, "lora_id")
    return Stored(hashes, parent, tokens(event, "block_size"), None if lora is None else str(lora))


def _block_tokens(head: Head) -> int | None:
    """The block size of the first event that has one."""
    try:
        sizes = [event.get("block_size") for event in _batch(head.first)[1]]
    except Unusable:
        return None
    return next((size for size in sizes if type(size) is int and size > 0), None)
