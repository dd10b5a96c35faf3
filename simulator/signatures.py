"""What a file is that is no text, told by its first bytes."""

from __future__ import annotations

NUM_BYTES = 512

# What stands at which place -> what the file is.
_SIGNATURES = {
    (0, b"PAR1"): "a Parquet file",
    (0, b"ARROW1"): "an Arrow file",
    (0, b"SQLite format 3\x00"): "an SQLite database",
    (0, b"PK\x03\x04"): "a ZIP archive",
    (257, b"ustar"): "a tar archive",
    (0, b"\x1f\x8b"): "compressed with gzip",
    (0, b"\x28\xb5\x2f\xfd"): "compressed with zstd",
    (0, b"\xfd7zXZ\x00"): "compressed with xz",
    (4, b"1AY&SY"): "compressed with bzip2",
    (0, b"\x04\x22\x4d\x18"): "compressed with lz4",
    (0, b"\xff\xfe"): "a text in UTF-16",
    (0, b"\xfe\xff"): "a text in UTF-16",
}


def kind_of(start: bytes) -> str | None:
    """What a file that begins with these bytes (512 are enough) is, where it is no text that ASCII is a part of."""
    for (place, signature), kind in _SIGNATURES.items():
        if start.startswith(signature, place):
            return kind
    return "a binary file" if b"\x00" in start else None
