"""The CRC-32 of the log's frames and of the binary log's events (the polynomial of zlib and of RFC 1952).

ISA-L computes it with the processor's carry-less multiplication: 30 GB/s, where zlib reaches 1.4 (blocks of 64 KiB),
and every byte of a log is checksummed twice. Where ISA-L has no wheel, zlib is used: the result is the same.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
