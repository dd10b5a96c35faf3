"""Which prompts an instance computed when: what others waited for."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Chunks:
    """One row a chunk of a prompt: when, whose, and its tokens among all that the step computed."""

    def __init__(self) -> None:
        self._times = array("d")  # start, end
        self._counts = array("q")  # request, tokens, tokens of the step, decodes of the step

    def add(
        self, start_s: float, end_s: float, request_id: int, num_tokens: int, num_step_tokens: int, num_decodes: int
    ) -> None:
        """Note a chunk."""
        self._times.extend((start_s, end_s))
        self._counts.extend((request_id, num_tokens, num_step_tokens, num_decodes))

    def between(self, since_s: float, until_s: float) -> pd.DataFrame:
        """The chunks that a span of time touches: ``request_id``, ``start_s`` of the step, ``num_decodes`` in it, and
        ``its_s`` (the chunk's share, by tokens, of the step's seconds within the span).
        """
        import numpy as np
        import pandas as pd

        times = np.array(self._times).reshape(-1, 2)
        touched = _touched(times, since_s, until_s)
        counts = np.array(self._counts).reshape(-1, 4)[touched]
        inside_s = np.minimum(times[touched, 1], until_s) - np.maximum(times[touched, 0], since_s)
        return pd.DataFrame({
            "request_id": counts[:, 0], "start_s": times[touched, 0], "num_decodes": counts[:, 3],
            "its_s": inside_s * counts[:, 1] / counts[:, 2],
        })  # fmt: skip


def _touched(times: np.ndarray, since_s: float, until_s: float) -> np.ndarray:
    found: np.ndarray = (times[:, 0] < until_s) & (times[:, 1] > since_s)
    return found
