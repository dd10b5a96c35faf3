"""The one error that bad input raises: what is wrong, where, and what was expected, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from a user. The command line prints it as one line and exits with code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the known word closest to ``name``: `` (did you mean 'x'?)``, else the whole list."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"
