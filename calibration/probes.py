"""The questions put to a device: a planned grid of cases within what the engine allows.

A case is one line of that grid and has a name that stays the same from launch to launch, so that what is on file is not
measured again. Only the standard library is imported here: an engine's own interpreter reads this file too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Tokens after a shared prefix, as in the article's prompts.
NUM_SUFFIX_TOKENS = 14
# Times per output token come from this many steps beside the first; decode steps of a batch are watched as long.
NUM_DECODE_STEPS = 16
_LARGEST_BATCH = 64
_CORNER, _EDGE, _INNER, _EXTRA = range(4)


@dataclass(frozen=True)
class Limits:
    """What an engine allows. ``graph_sizes`` are the batch sizes of captured graphs, none when eager."""

    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    num_gpu_blocks: int
    graph_sizes: tuple[int, ...] = ()

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the pool holds; one block is vLLM's null block, one is left free."""
        return (self.num_gpu_blocks - 2) * self.block_size


@dataclass(frozen=True)
class Case:
    """One question. ``probe`` says what is done:

    - ``ttft``: a prompt of ``num_prompt_tokens``, cold, and warm after one that shares its first ``num_shared_tokens``;
    - ``chunk``: ``num_requests`` fresh prompts of ``num_prompt_tokens`` each, at once, cold, one output token;
    - ``decode``: ``num_requests`` decode together, each behind ``num_prompt_tokens`` of context;
    - ``mixed``: the same, while a fresh prompt of ``num_new_tokens`` is computed beside them.

    ``rank`` is how much can be done without it: 0 are the corners, which no budget drops; higher goes first.
    """

    probe: str
    num_prompt_tokens: int
    num_shared_tokens: int = 0
    num_requests: int = 1
    num_new_tokens: int = 0
    rank: int = 0

    @property
    def key(self) -> str:
        """The name of the case, as rows carry it."""
        if self.probe == "ttft":
            return f"ttft p{self.num_prompt_tokens} shared{self.num_shared_tokens}"
        if self.probe == "mixed":
            return f"mixed b{self.num_requests} c{self.num_prompt_tokens} n{self.num_new_tokens}"
        return f"{self.probe} b{self.num_requests} c{self.num_prompt_tokens}"

    @property
    def resets(self) -> bool:
        """Whether it clears the prefix cache, on which decode cases rest between takes."""
        return self.probe == "ttft"

    def expected_hit(self, block_size: int) -> int:
        """Tokens that the warm prompt finds: full blocks of what is shared, the last token always computed."""
        return min(self.num_shared_tokens, self.num_prompt_tokens - 1) // block_size * block_size

    @property
    def num_steps(self) -> int:
        """Engine steps of a take, roughly."""
        if self.probe == "ttft":
            return 2 * (NUM_DECODE_STEPS + 4)
        return 2 if self.probe == "chunk" else NUM_DECODE_STEPS + 4

    def prefills(self, block_size: int) -> Iterator[tuple[int, int]]:
        """(new, computed) of the prompts that a take computes, for estimating its time."""
        if self.probe == "ttft":
            hit = self.expected_hit(block_size)
            yield self.num_prompt_tokens, 0
            yield self.num_prompt_tokens - hit, hit
            if self.num_shared_tokens:
                yield from ((self.num_shared_tokens + NUM_SUFFIX_TOKENS, 0),) * 2
        elif self.probe == "chunk":
            yield from ((self.num_prompt_tokens, 0),) * self.num_requests
        else:
            yield from ((block_size, self.num_prompt_tokens),) * self.num_requests
            if self.probe == "mixed":
                yield from ((self.num_new_tokens, 0),) * NUM_MIXED


NUM_MIXED = 2  # fresh prompts one after the other in a take of ``mixed``


def plan(limits: Limits) -> list[Case]:
    """Every case worth asking on this engine, each key once, the most informative first."""
    lengths = _lengths(limits)
    batches = _batches(limits)
    cases = [
        *(case for case in _ttft(limits, lengths) if case.expected_hit(limits.block_size)),
        *_chunks(limits),
        *_decodes(limits, lengths, batches),
        *_mixed(limits, lengths, batches),
        *_padding(limits, lengths),
    ]
    unique: dict[str, Case] = {}
    for case in cases:
        unique.setdefault(case.key, case)
    return sorted(unique.values(), key=lambda case: case.rank)


def _lengths(limits: Limits) -> list[int]:
    """Prefix lengths in tokens, ascending: multiples of the block size, each about half the next."""
    room = min(limits.max_model_len - NUM_SUFFIX_TOKENS - NUM_DECODE_STEPS - 2, limits.num_kv_tokens // 3)
    largest = 1 << max(room.bit_length() - 1, 0)
    lengths = []
    while largest >= limits.block_size:
        lengths.append(largest // limits.block_size * limits.block_size)
        largest //= 2
    return lengths[::-1] or [limits.block_size]


def _batches(limits: Limits) -> list[int]:
    """Batch sizes, ascending: powers of two up to what the engine runs at once."""
    largest = min(limits.max_num_seqs, _LARGEST_BATCH, limits.max_num_batched_tokens // limits.block_size or 1)
    return [1 << power for power in range(largest.bit_length())]


def _ttft(limits: Limits, lengths: Sequence[int]) -> Iterator[Case]:
    """Whole prefixes, halves, prefixes that end within a block, and prompts known to the last token, where they hit."""
    for number, length in enumerate(lengths):
        at_edge = number in (0, len(lengths) - 1)
        prompt = length + NUM_SUFFIX_TOKENS
        yield Case("ttft", prompt, length, rank=_CORNER if at_edge else _EDGE)
        yield Case("ttft", prompt, length // 2 // limits.block_size * limits.block_size, rank=_INNER)
        yield Case("ttft", prompt, length - limits.block_size // 2, rank=_EXTRA)
        yield Case("ttft", length, length, rank=_INNER if at_edge else _EXTRA)


def _chunks(limits: Limits) -> Iterator[Case]:
    size = min(limits.max_num_batched_tokens, limits.max_model_len - 2, limits.num_kv_tokens // 2)
    sizes = {size}
    while size > 16:
        size //= 2
        sizes.add(size)
    for number, size in enumerate(sorted(sizes)):
        yield Case("chunk", size, rank=_CORNER if number in (0, len(sizes) - 1) else _EDGE)
        room = limits.num_kv_tokens // (size + limits.block_size)
        together = min(8, limits.max_num_seqs, limits.max_num_batched_tokens // size, room)
        if together > 1:
            yield Case("chunk", size, num_requests=together, rank=_INNER if number % 2 else _EXTRA)


def _decodes(limits: Limits, lengths: Sequence[int], batches: Sequence[int]) -> Iterator[Case]:
    for row, batch in enumerate(batches):
        fitting = [length for length in lengths if _fits(limits, batch, length)]
        for column, length in enumerate(fitting):
            corners = (row in (0, len(batches) - 1)) + (column in (0, len(fitting) - 1))
            yield Case("decode", length, num_requests=batch, rank=(_INNER, _EDGE, _CORNER)[corners])


def _mixed(limits: Limits, lengths: Sequence[int], batches: Sequence[int]) -> Iterator[Case]:
    middle = batches[len(batches) // 2]
    for batch in sorted({batches[0], middle, batches[-1]}):
        fitting = [length for length in lengths if _fits(limits, batch, length)]
        largest = min(limits.max_num_batched_tokens - batch, limits.max_model_len - 2)
        for length in sorted({*fitting[:1], *fitting[-1:]}):
            for new in (largest, largest // 4, largest // 16):
                at_corner = batch != middle and new != largest // 4
                if new > 1 and batch < limits.max_num_seqs:
                    yield Case(
                        "mixed",
                        length,
                        num_requests=batch,
                        num_new_tokens=new,
                        rank=_CORNER if at_corner else _INNER,
                    )


def _padding(limits: Limits, lengths: Sequence[int]) -> Iterator[Case]:
    """Batches just at and just above a few captured sizes: a step must cost what the next size costs."""
    sizes = [size for size in limits.graph_sizes if 4 <= size < min(_LARGEST_BATCH, limits.max_num_seqs)]
    for size in {*sizes[:1], *sizes[len(sizes) // 2 :][:1], *sizes[-1:]}:
        for batch in (size, size + 1):
            if _fits(limits, batch, lengths[0]):
                yield Case("decode", lengths[0], num_requests=batch, rank=_EDGE)


def _fits(limits: Limits, num_requests: int, length: int) -> bool:
    """Whether so many requests behind that context fit beside one more prompt of a whole step."""
    each = length + NUM_DECODE_STEPS * 4 + limits.block_size
    return num_requests * each + limits.max_num_batched_tokens <= limits.num_kv_tokens
