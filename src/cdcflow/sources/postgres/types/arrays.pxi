# The kernel of `arrays.py`: its elements are a column with their own kernel.

_KERNELS.update({
    "binary.array": (LIST, 0),
})


cdef inline bint _listed(Column *column, const uint8_t *data, Block **arena) noexcept nogil:
    """Arrays of one dimension that begin at 1: their elements are a separate column, which is filled immediately.

    False: no memory. A column with other arrays is marked `declined`.
    """
    cdef int64_t i, j, a, total = 0, found = 0
    cdef int32_t size, length
    cdef bint nulls = False
    cdef Cell cell
    cdef Cell *cells
    cdef const uint8_t *raw
    cdef const uint8_t *end
    column.offsets = <int32_t *>take(arena, (column.count + 1) * 4)
    column.elements = <Column *>take(arena, sizeof(Column))
    if column.offsets == NULL or column.elements == NULL:
        return False
    column.offsets[0] = 0
    column.declined = True
    for i in range(column.count):
        cell = column.cells[i]
        if cell.size >= 0:
            if cell.size < 12:
                return True
            raw = data + cell.start
            size = <int32_t>be32(raw)
            if size != 0 or cell.size != 12:
                if size != 1 or cell.size < 20 or be32(raw + 16) != 1:
                    return True
                length = <int32_t>be32(raw + 12)
                if length < 0 or <int64_t>length * 4 > cell.size - 20:
                    return True
                total += length
        if total > 2147483647:
            return True
        column.offsets[i + 1] = <int32_t>total
    cells = <Cell *>take(arena, total * sizeof(Cell))
    if cells == NULL:
        return False
    for i in range(column.count):
        cell = column.cells[i]
        if cell.size <= 12:
            continue
        raw, end = data + cell.start + 20, data + cell.start + cell.size
        for j in range(column.offsets[i + 1] - column.offsets[i]):
            if end - raw < 4:
                return True
            size = <int32_t>be32(raw)
            raw += 4
            if size < -1 or size > end - raw:
                return True
            cells[found].start = <int32_t>(raw - data)
            cells[found].size = size
            found += 1
            if size < 0:
                nulls = True
            else:
                raw += size
        if raw != end:
            return True
    memset(column.elements, 0, sizeof(Column))
    column.elements.kind = column.kind.element[0]
    column.elements.cells = cells
    if not prepared(column.elements, data, total, nulls, arena):
        return False
    if column.elements.declined:
        return True
    for a in range(0, total, 256):
        if not converted(column.elements, data, a, a + 256 if a + 256 < total else total):
            return True
    column.declined = False
    return True
