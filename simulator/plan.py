"""What the scheduler decided for the next advance: an aggregate, with the few pieces that are not the group's
decodes.
"""

from __future__ import annotations

from simulator.request import Request


class Piece:
    """One request's share of a step that is not a plain decode of the group: a prefill chunk, a padded or speculative
    decode.

    ``samples``: the piece reaches the end of the known tokens, so the step yields output for the request: one token,
    and
    ``num_accepted`` of its drafts. ``padded`` drafts are dummies, none of which is accepted.
    """

    __slots__ = ("num_accepted", "num_drafts", "num_tokens", "padded", "request", "samples", "seq")

    def __init__(self, request: Request, num_tokens: int, num_drafts: int = 0, samples: bool = False) -> None:
        self.request = request
        self.seq = request.seq
        self.num_tokens = num_tokens
        self.num_drafts = num_drafts
        self.samples = samples
        self.padded = False
        self.num_accepted = 0


class Plan:
    """One engine step, or a stretch of equal decode steps.

    ``num_decodes`` tokens are decoded in every step and attend ``decode_context`` KV entries together in the first step
    (one more each in every later one). ``num_prefills`` chunks compute ``num_prefill_tokens`` tokens over
    ``prefill_pairs`` query-key pairs. ``max_context`` is the longest context in the first step. ``continues``: the plan
    decodes exactly what the one before decoded, so both belong to one stretch.
    """

    __slots__ = (
        "admitted",
        "continues",
        "decode_context",
        "has_prefill_chunk",
        "index",
        "max_context",
        "num_decodes",
        "num_grouped",
        "num_prefill_tokens",
        "num_prefills",
        "pieces",
        "preempted",
        "prefill_pairs",
    )

    def __init__(
        self,
        num_decodes: int = 0,
        decode_context: int = 0,
        num_prefills: int = 0,
        num_prefill_tokens: int = 0,
        prefill_pairs: float = 0,
        max_context: int = 0,
    ) -> None:
        self.index = 0
        self.num_decodes = num_decodes
        self.num_grouped = 0  # of these, decodes of the group, which are no pieces
        self.decode_context = decode_context
        self.num_prefills = num_prefills
        self.num_prefill_tokens = num_prefill_tokens
        self.prefill_pairs = prefill_pairs
        self.max_context = max_context
        self.pieces: list[Piece] = []
        self.admitted: list[tuple[Request, int]] = []  # with the tokens each was found to have cached
        self.preempted: list[Request] = []
        self.has_prefill_chunk = False
        self.continues = False

    @property
    def num_tokens(self) -> int:
        """Tokens computed in each step."""
        return self.num_decodes + self.num_prefill_tokens

    def piece_of(self, request: Request) -> Piece | None:
        """The request's piece, if it has one."""
        return next((piece for piece in self.pieces if piece.request is request), None)

    def count(self, piece: Piece) -> None:
        """Add a piece, whose tokens are not yet computed, to the sums. Known answer tokens and drafts count as
        decodes.
        """
        request, num_new = piece.request, piece.num_tokens
        computed = request.num_computed_tokens
        end = computed + num_new
        if end > self.max_context:
            self.max_context = end
        pairs = num_new * computed + num_new * (num_new + 1) // 2
        if num_new == 1 or piece.num_drafts:
            self.num_decodes += num_new
            self.decode_context += pairs
        else:
            self.num_prefills += 1
            self.num_prefill_tokens += num_new
            self.prefill_pairs += pairs
