# Packets of a binary log dump, cut into events: the compiled form of `wire.split`. The checksums are most of the work;
# eight bytes go through eight tables at a time. And packets of a result set: the compiled form of
# `results.row_packets`.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cdef enum:
    NEEDS_MORE, FILE_EVENT, ENDED, REFUSED, LONG_EVENT, DAMAGED, MALFORMED
    HEADER = 19
    ROTATE = 4
    FORMAT = 15
    LONG = 0xFFFFFF

cdef object _EMPTY = np.empty
cdef uint32_t _TABLES[8][256]


cdef void _fill() noexcept:
    cdef uint32_t value
    cdef int byte, bit, table
    for byte in range(256):
        value = byte
        for bit in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        _TABLES[0][byte] = value
    for table in range(1, 8):
        for byte in range(256):
            value = _TABLES[table - 1][byte]
            _TABLES[table][byte] = value >> 8 ^ _TABLES[0][value & 0xFF]


_fill()


cdef uint32_t crc32(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint32_t crc = ~<uint32_t>0
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, at, 8)
        word ^= crc
        crc = (
            _TABLES[7][word & 0xFF] ^ _TABLES[6][word >> 8 & 0xFF] ^ _TABLES[5][word >> 16 & 0xFF]
            ^ _TABLES[4][word >> 24 & 0xFF] ^ _TABLES[3][word >> 32 & 0xFF] ^ _TABLES[2][word >> 40 & 0xFF]
            ^ _TABLES[1][word >> 48 & 0xFF] ^ _TABLES[0][word >> 56]
        )
        at += 8
        size -= 8
    while size > 0:
        crc = crc >> 8 ^ _TABLES[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~crc


cdef inline uint32_t uint32_at(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef int64_t cut(
    const uint8_t *data, int64_t begin, int64_t size, bint checksum, int64_t most, int64_t *start, int64_t *end,
    uint8_t *kind, int64_t *reached, int *state
) noexcept nogil:
    """The number of events found, at most `most`; if there are more, `state` is -1 and `reached` is the next one."""
    cdef int64_t at = begin, length, first, stop, last, found = 0
    cdef uint8_t mark
    state[0] = NEEDS_MORE
    while at + 5 <= size:
        if found == most:
            state[0] = -1
            break
        length = uint32_at(data + at) & 0xFFFFFF
        if length == LONG:
            state[0] = LONG_EVENT
            break
        first, stop = at + 5, at + 4 + length
        if stop > size:
            break
        mark = data[at + 4]
        if mark:
            state[0] = ENDED if mark == 0xFE else REFUSED if mark == 0xFF else MALFORMED
            break
        if length < 1 + HEADER or uint32_at(data + first + 9) != length - 1:
            state[0] = MALFORMED
            break
        kind[found] = data[first + 4]
        start[found] = first
        if kind[found] == ROTATE or kind[found] == FORMAT:
            end[found] = stop
            found += 1
            at = stop
            state[0] = FILE_EVENT
            break
        last = stop - 4 * checksum
        if checksum and (last < first + HEADER or crc32(data + first, last - first) != uint32_at(data + last)):
            state[0] = DAMAGED
            break
        end[found] = last
        found += 1
        at = stop
    reached[0] = at
    return found


def split(const uint8_t[::1] data not None, int64_t begin, int64_t size, bint checksum):
    """Starts, ends and types of the events in `data[begin:size]`, where the next packet begins, and why it ended."""
    if not 0 <= begin <= size <= data.shape[0]:
        raise IndexError("bytes outside of the buffer")
    cdef int64_t most = min((size - begin) // (HEADER + 5) + 1, 1 << 14), found, at = begin
    cdef int state = -1
    cdef int64_t[::1] start
    cdef int64_t[::1] end
    cdef uint8_t[::1] kind
    parts = []
    while state == -1:
        room = _EMPTY((2, most), np.int64)
        types = _EMPTY(most, np.uint8)
        start, end, kind = room[0], room[1], types
        if size - at < 5:
            found, state = 0, NEEDS_MORE
        else:
            with nogil:
                found = cut(&data[0], at, size, checksum, most, &start[0], &end[0], &kind[0], &at, &state)
        parts.append((room[0, :found], room[1, :found], types[:found]))
    if len(parts) == 1:
        return *parts[0], at, state
    return *(np.concatenate(part) for part in zip(*parts)), at, state


cdef int64_t rows(
    const uint8_t *data, int64_t begin, int64_t size, int64_t most, int64_t *start, int64_t *end, int64_t *reached,
    int *state
) noexcept nogil:
    """The number of row packets found, at most `most`; if there are more, `state` is -1 and `reached` is the next."""
    cdef int64_t at = begin, length, stop, found = 0
    cdef uint8_t first
    state[0] = 0
    while at + 4 <= size:
        if found == most:
            state[0] = -1
            break
        length = uint32_at(data + at) & 0xFFFFFF
        stop = at + 4 + length
        if stop > size:
            break
        first = data[at + 4] if length else 0
        if first >= 0xFE or length == LONG:
            if first == 0xFE and length < 9:
                state[0] = 1
                break
            state[0] = 2
            if first == 0xFF or length == LONG:
                break
        start[found], end[found] = at + 4, stop
        found += 1
        at = stop
    reached[0] = at
    return found


def row_packets(const uint8_t[::1] data not None):
    """Starts and ends of the rows at the beginning of `data`, where the next packet begins, and why it ended."""
    cdef int64_t size = data.shape[0], most = min(size // 5 + 1, 1 << 15), found, at = 0
    cdef int state = -1
    cdef int64_t[::1] start
    cdef int64_t[::1] end
    parts = []
    while state == -1:
        room = _EMPTY((2, most), np.int64)
        start, end = room[0], room[1]
        if size - at < 4:
            found, state = 0, 0
        else:
            with nogil:
                found = rows(&data[0], at, size, most, &start[0], &end[0], &at, &state)
        parts.append((room[0, :found], room[1, :found]))
    if len(parts) == 1:
        return *parts[0], at, state
    return *(np.concatenate(part) for part in zip(*parts)), at, state
