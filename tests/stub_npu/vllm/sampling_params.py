"""What a request asks for."""

from dataclasses import dataclass
from enum import Enum


class RequestOutputKind(Enum):
    DELTA = 1


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float
    ignore_eos: bool
    detokenize: bool
    output_kind: RequestOutputKind
