"""What the prompts of a conversation begin with: one text of each layer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from simulator.request import Run
from simulator.workload.conversation_spec import LayerSpec
from simulator.workload.draws import choices, lengths
from simulator.workload.lengths import draw_lengths

Named = Callable[[str], np.random.Generator]

_TEXTS_PER_LAYER = 2**32  # texts and their renewals; segments of a layer are numbered within
_MAX_LAYERS = 64  # so that a conversation's own texts come after all of them
OWN_TEXTS = _MAX_LAYERS * _TEXTS_PER_LAYER


def first_text(spec: LayerSpec, number: int, base: int) -> int:
    """The segment from which a tenant's layer ``number`` counts its texts; below 0 where tenants share them."""
    if spec.shared_as is None:
        return base + number * _TEXTS_PER_LAYER
    name = int.from_bytes(hashlib.sha256(spec.shared_as.encode()).digest()[:8], "big")
    return -(name + 1) * _TEXTS_PER_LAYER


class Layer:
    """Gives runs: which text a conversation has of this layer, and how long it is.

    ``first`` is the segment from which it counts. Draws come from streams of the layer's own name (``named``), one for
    each conversation, or for each turn where the layer is renewed; lengths from those of ``shared``, which are the same
    for all tenants that share it.
    """

    def __init__(self, spec: LayerSpec, first: int, named: Named, shared: Named) -> None:
        self._spec = spec
        self.is_renewed = spec.renewed is not None
        self._texts = spec.texts or 1
        self._first = first
        rng = shared("tokens")
        if spec.unique:
            self._own_lengths = lengths(spec.tokens, rng)
        else:
            self._lengths: list[int] = draw_lengths(spec.tokens, rng, self._texts).tolist()
            self._chosen = choices(self._texts, spec.zipf_exponent or 0.0, named(f"layer {spec.name}"))

    def run(self, time_s: float, new_text: Callable[[], int] | None) -> Run:
        """The text of a conversation (or turn) that begins at ``time_s``; ``new_text`` names one of its own, None: it
        needs no name.
        """
        if self._spec.unique:
            return (None if new_text is None else new_text()), 0, next(self._own_lengths)
        text = next(self._chosen)
        segment = self._first + text
        if self._spec.churn is not None:  # texts are replaced one after another, all within one period
            segment += self._texts * int(time_s / self._spec.churn + text / self._texts)
        return segment, 0, self._lengths[text]
