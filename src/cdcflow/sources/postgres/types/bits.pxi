# The kernels of `bits.py`: uuid and bit strings.

_KERNELS.update({
    "binary.uuid": (UUID, 0),
    "binary.bits": (BITS, 0),
})


cdef inline bint _digits(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """Bytes whose digits are written out: uuid in hex, bit strings in ones and zeros."""
    cdef int64_t i, j, count
    cdef uint8_t *out = column.values + column.offsets[a]
    cdef const uint8_t *raw
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        raw = data + cell.start
        if cell.size < 0:
            pass
        elif code == UUID:
            if cell.size != 16:
                return False
            for j in range(16):
                if j == 4 or j == 6 or j == 8 or j == 10:
                    out[0] = c'-'
                    out += 1
                out[0] = HEX[raw[j] >> 4]
                out[1] = HEX[raw[j] & 15]
                out += 2
        else:
            count = <int32_t>be32(raw) if cell.size >= 4 else -1
            if count < 0 or cell.size - 4 != (count + 7) // 8:
                return False
            for j in range(count):
                out[j] = c'0' + (raw[4 + (j >> 3)] >> (7 - (j & 7)) & 1)
            out += count
        column.offsets[i + 1] = <int32_t>(out - column.values)
    return True
