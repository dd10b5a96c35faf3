"""Times in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``0 s``, ``35 ms``, ``1.24 s``, ``312 s``."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"
