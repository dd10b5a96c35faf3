"""Writing a file so that it appears whole or not at all, and never in place of what it is made from."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from simulator.errors import InputError


def check_apart(path: Path, inputs: Iterable[Path]) -> None:
    """Raise InputError if ``path`` is one of the ``inputs``, by whatever name."""
    for given in inputs:
        try:
            same = path.exists() and given.exists() and path.samefile(given)
        except OSError as error:
            raise InputError(f"{path}: cannot write it ({error.strerror or error})") from None
        if same:
            raise InputError(f"{path}: is the input {given}, expected another file to write")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Something to write to, which takes the place of ``path`` at the end, or is thrown away on the way there.

    Gzipped (the same bytes every time) where ``path`` ends in ``.gz``. Raises InputError where it cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a file to write")
    partial = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".kvcast-", delete=False) as raw:
            partial = Path(raw.name)
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot write it ({error.strerror or error})") from None
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
