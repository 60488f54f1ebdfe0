# The kernels of `texts.py`: text, json and bytea.

_KERNELS.update({
    "text.text": (STRING, 0),
    "binary.jsonb": (JSONB, 0),
    "text.bytea": (BYTES_TEXT, 0),
    "binary.bytea": (BYTES, 0),
})


cdef inline bint _strings(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    cdef int64_t i
    cdef int32_t filled = column.offsets[a], began = column.offsets[a], skipped = 1 if code == JSONB else 0
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            if skipped:
                if not cell.size or data[cell.start] != 1:
                    return False
                cell.start += 1
                cell.size -= 1
            _put(data + cell.start, column.values + filled, cell.size)
            filled += cell.size
        column.offsets[i + 1] = filled
    if code == BYTES or is_ascii(column.values + began, filled - began):
        return True
    for i in range(a, b):
        if not is_utf8(column.values + column.offsets[i], column.offsets[i + 1] - column.offsets[i]):
            return False
    return True


cdef inline void _put(const uint8_t *source, uint8_t *out, int32_t size) noexcept nogil:
    if size <= 16:
        memcpy(out, source, 16)
    else:
        memcpy(out, source, size)


cdef inline bint _bytes_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i
    cdef int32_t j, filled = column.offsets[a]
    cdef int high, low
    cdef Cell cell
    cdef const uint8_t *raw
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            raw = data + cell.start
            if cell.size < 2 or cell.size & 1 or raw[0] != c'\\' or raw[1] != c'x':
                return False
            for j in range(2, cell.size, 2):
                high, low = _nibble(raw[j]), _nibble(raw[j + 1])
                if high < 0 or low < 0:
                    return False
                column.values[filled] = <uint8_t>(high << 4 | low)
                filled += 1
        column.offsets[i + 1] = filled
    return True


cdef inline int _nibble(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1
