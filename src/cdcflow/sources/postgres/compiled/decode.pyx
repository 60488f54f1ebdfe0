# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""pgoutput messages and COPY rows to Arrow: the compiled decoder of what `wire`, `tuples` and `copy` do per message.

Every function here handles the usual input. For anything else it changes nothing and returns None; the plain functions
then decode the input, or report what is wrong with it. So this module defines no errors, and a malformed message gives
the same error everywhere: that of the plain modules.

Two passes over the bytes. The first follows the lengths, checks each against the end of its message, and records the
position of each cell (8 bytes per cell). The size of every Arrow buffer is then known. The second converts cells to
values, 256 rows of all columns at a time, so that the bytes are still in the cache. A column that the second pass does
not support, or cannot convert, is decoded by its plain decoder from the same cells.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc, strtod, strtof
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import pyarrow as pa

from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.buffers import PAD, Buffer, Cells
from cdcflow.sources.postgres.types import decode as decode_plain

include "../../engine/compiled/arrow.pxi"
include "kernels.pxi"

cdef int64_t _HEADER = 25
cdef int64_t _BLOCK = 256
cdef int64_t _UNLOCKED = 256  # with at least this many rows, the GIL is released
cdef object _INT64 = np.dtype(np.int64)
cdef object _INT32 = np.dtype(np.int32)
cdef object _UINT64 = np.dtype(np.uint64)
cdef object _UINT8 = np.dtype(np.uint8)
cdef object _STRING = pa.string()
cdef object _empty = np.empty

cdef class Layout:
    """The facts about a table shape that decoding its rows needs; created once per shape.

    `kernels` names each column's kernels: for its text, for its binary format, and for a binary array's elements (""
    if it has none). `in_identity`: which columns an old key contains.
    """

    cdef readonly object described
    cdef int columns
    cdef Kind *text
    cdef Kind *binary
    cdef uint8_t *in_key
    cdef uint8_t *in_identity
    cdef bint full
    cdef bint has_key
    cdef bint key_is_sent
    cdef list before
    cdef list names
    cdef object schema
    cdef object rows_schema
    cdef object no_unchanged
    cdef object no_before

    def __cinit__(self, described, kernels, in_identity):
        table = described.table
        cdef int i, count = len(table.columns)
        self.described = described
        self.columns = count
        self.text = <Kind *>calloc(count + 1, sizeof(Kind))
        self.binary = <Kind *>calloc(count + 1, sizeof(Kind))
        self.in_key = <uint8_t *>calloc(count + 1, 1)
        self.in_identity = <uint8_t *>calloc(count + 1, 1)
        if self.text == NULL or self.binary == NULL or self.in_key == NULL or self.in_identity == NULL:
            raise MemoryError
        self.full = table.identity.value == "full"
        self.has_key = bool(table.key)
        self.key_is_sent = self.has_key and len(in_identity) == count
        self.names = [c.name.encode() for c in table.columns]
        for i, column in enumerate(table.columns):
            text, binary, element = kernels[i]
            self.text[i] = kind_of(text, column.type.arrow)
            self.binary[i] = kind_of(binary, column.type.arrow)
            if self.binary[i].code == LIST:
                self.binary[i].element = <Kind *>malloc(sizeof(Kind))
                if self.binary[i].element == NULL:
                    raise MemoryError
                self.binary[i].element[0] = kind_of(element, column.type.arrow.value_type)
            self.in_key[i] = column.name in table.key
            self.in_identity[i] = bool(in_identity[i]) if i < len(in_identity) else False
            if self.in_key[i] and not self.in_identity[i]:
                self.key_is_sent = False
        arrow = table.before_type
        self.before = [i for i, c in enumerate(table.columns) if arrow.get_field_index(c.name) >= 0]
        self.schema = table.change_schema
        self.rows_schema = table.row_schema
        self.no_unchanged = pa.nulls(64, self.schema.field("_unchanged").type)
        self.no_before = pa.nulls(64, arrow)

    def __dealloc__(self):
        cdef int i
        if self.binary != NULL:
            for i in range(self.columns):
                free(self.binary[i].element)
        free(self.text)
        free(self.binary)
        free(self.in_key)
        free(self.in_identity)

    cdef object without_unchanged(self, int64_t count):
        if len(self.no_unchanged) < count:
            self.no_unchanged = pa.nulls(2 * count, self.no_unchanged.type)
        return self.no_unchanged.slice(0, count)

    cdef object without_before(self, int64_t count):
        if len(self.no_before) < count:
            self.no_before = pa.nulls(2 * count, self.no_before.type)
        return self.no_before.slice(0, count)


def layout(described, kernels, in_identity):
    """Return the facts about a table shape that `changes` and `copied` need."""
    return Layout(described, kernels, in_identity)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────


def scan(bytes data, lengths):
    """Return where XLogData messages begin (after their header) and end, their types, and which types occur.

    A type's bit is its letter less 64; bit 63 represents everything that is not such a letter. None: some messages are
    not XLogData.
    """
    cdef const int64_t[::1] length = lengths
    cdef int64_t count = length.shape[0], size = len(data) - <int64_t>PAD, at = 0, i
    cdef const uint8_t *raw = <const uint8_t *><const char *>data
    cdef uint64_t seen = 0
    cdef uint8_t letter
    start, end, kind = _empty(count, _INT64), _empty(count, _INT64), _empty(count, _UINT8)
    cdef int64_t[::1] starts = start, ends = end
    cdef uint8_t[::1] kinds = kind
    for i in range(count):
        if length[i] <= _HEADER or length[i] > size - at or raw[at] != c'w':
            return None
        letter = raw[at + _HEADER]
        starts[i] = at + _HEADER
        at += length[i]
        ends[i] = at
        kinds[i] = letter
        seen |= <uint64_t>1 << (letter - 64 if 64 <= letter < 128 else 63)
    if at != size:
        return None
    return start, end, kind, seen


def transactions(bytes data, start, end, kind):
    """Return the Begin and Commit messages: their numbers and their content.

    Numbers of Begins and of Commits, xids, end positions, clocks (as sent), and whether all rows, truncates and
    origins are between a Begin and its Commit. None if Begins and Commits do not alternate, or a message has a wrong
    length.
    """
    cdef const int64_t[::1] starts = start, stops = end
    cdef const uint8_t[::1] kinds = kind
    cdef int64_t count = kinds.shape[0], i, found = 0, number = 0
    cdef const uint8_t *raw = <const uint8_t *><const char *>data
    cdef uint8_t letter
    cdef bint opened = False, inside = True
    for i in range(count):
        found += kinds[i] == c'C'
    begins, commits = _empty(found, _INT64), _empty(found, _INT64)
    xids, ends, clocks = _empty(found, _UINT64), _empty(found, _INT64), _empty(found, _INT64)
    cdef int64_t[::1] begin = begins, commit = commits, position = ends, clock = clocks
    cdef uint64_t[::1] xid = xids
    for i in range(count):
        letter = kinds[i]
        if letter == c'B':
            if opened or number == found or stops[i] - starts[i] != 21:
                return None
            opened = True
            begin[number] = i
            xid[number] = be32(raw + starts[i] + 17)
        elif letter == c'C':
            if not opened or stops[i] - starts[i] != 26:
                return None
            opened = False
            commit[number] = i
            position[number] = <int64_t>be64(raw + starts[i] + 10)
            clock[number] = <int64_t>be64(raw + starts[i] + 18)
            number += 1
        elif not opened and letter != c'R' and letter != c'Y' and letter != c'M':
            inside = False
    if opened:
        return None
    return begins, commits, xids, ends, clocks, inside


def with_rows(commits, rows_before, numbers):
    """Return which of the transactions that end at `commits` have rows: their numbers, their entries in each of the
    `numbers` arrays, and the index after the last row of each."""
    cdef const int64_t[::1] commit = commits, rows = rows_before
    cdef int64_t count = commit.shape[0], i, found = 0, before = 0
    full, last = _empty(count, _INT64), _empty(count, _INT64)
    cdef int64_t[::1] fulls = full, ends = last
    for i in range(count):
        if rows[commit[i]] > before:
            before = rows[commit[i]]
            fulls[found] = i
            ends[found] = before
            found += 1
    if found == count:
        return full, numbers, last
    full = full[:found]
    return full, [array[full] for array in numbers], last[:found]


def positions(lsns):
    """Log positions as text: `lsn.positions`."""
    cdef const int64_t[::1] lsn = lsns
    cdef int64_t count = lsn.shape[0], i
    cdef int j
    cdef uint64_t value
    cdef Block *arena = NULL
    cdef ArrowArray *array = node(&arena, count, 3, 0)
    cdef int32_t *offsets = <int32_t *>take(&arena, (count + 1) * 4)
    cdef char *text = <char *>take(&arena, count * 17)
    if array == NULL or offsets == NULL or text == NULL:
        give_up(arena)
        raise MemoryError
    array.buffers[1] = offsets
    array.buffers[2] = text
    offsets[0] = 0
    for i in range(count):
        value = <uint64_t>lsn[i]
        for j in range(16, -1, -1):
            if j == 8:
                text[j] = c'/'
                continue
            text[j] = <char>(HEX[value & 15])
            if text[j] >= c'a':
                text[j] -= 32
            value >>= 4
        text += 17
        offsets[i + 1] = <int32_t>(17 * (i + 1))
    own(array, arena)
    return pa.Array._import_from_c(<uintptr_t>array, _STRING)


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────


# Rows of one table shape while their cells are located; `cells` and `old` have `stride` entries per column. `old` is
# set if rows may have an old row: the cells before the change, for rows with `has_old`.
cdef struct Part:
    void *layout
    uint32_t oid
    int order
    int columns
    const uint8_t *in_key
    const uint8_t *in_identity
    int skipped
    bint whole
    bint has_key
    bint key_is_sent
    int64_t rows_max
    int64_t rows
    int64_t olds_max
    int64_t stride
    Cell *cells
    Cell *old
    uint8_t *has_old
    uint8_t *seen
    uint8_t *seen_old
    uint8_t *ops
    int64_t *index


cdef int64_t _stride(int64_t rows) noexcept nogil:
    """Entries per column: an odd number of cache lines, so that columns do not share cache sets."""
    return ((rows + 7) // 8 | 1) * 8


cdef bint _room(Part *part) noexcept nogil:
    cdef size_t cells
    part.stride = _stride(part.rows_max)
    cells = <size_t>part.stride * part.columns * sizeof(Cell)
    part.cells = <Cell *>malloc(cells + 1)
    part.seen = <uint8_t *>calloc(2 * part.columns + 1, 1)
    part.ops = <uint8_t *>malloc(part.rows_max + 1)
    if part.cells == NULL or part.seen == NULL or part.ops == NULL:
        return False
    part.seen_old = part.seen + part.columns
    if part.olds_max:
        part.old = <Cell *>malloc(cells + 1)
        part.has_old = <uint8_t *>calloc(part.rows_max + 1, 1)
        if part.old == NULL or part.has_old == NULL:
            return False
    return True


cdef void _no_room(Part *part) noexcept nogil:
    free(part.cells)
    free(part.old)
    free(part.has_old)
    free(part.seen)
    free(part.ops)


cdef int64_t _walked(
    const uint8_t *data, int64_t at, int64_t end, int columns, Cell *cells, int64_t stride, uint8_t *seen
) noexcept nogil:
    """Record the cells of the tuple at `at`; returns where it ends, or -1: not a whole tuple of `columns` columns."""
    cdef int column
    cdef int32_t size
    cdef uint8_t kind
    cdef Cell cell
    if at + 2 > end or <int16_t>be16(data + at) != columns:
        return -1
    at += 2
    for column in range(columns):
        if at >= end:
            return -1
        kind = data[at]
        if kind == c't' or kind == c'b':
            if at + 5 > end:
                return -1
            size = <int32_t>be32(data + at + 1)
            at += 5
            if size < 0 or size > end - at:
                return -1
            cell.start = <int32_t>at
            cell.size = size
            at += size
            seen[column] |= SEEN_TEXT if kind == c't' else SEEN_BINARY
        else:
            at += 1
            cell.start = <int32_t>at
            if kind == c'n':
                cell.size = NULL_CELL
                seen[column] |= SEEN_NULL
            elif kind == c'u':
                cell.size = UNCHANGED_CELL
                seen[column] |= SEEN_UNCHANGED
            else:
                return -1
        cells[column * stride] = cell
    return at


cdef bint _same_key(const uint8_t *data, Part *part, int64_t row) noexcept nogil:
    """Whether a row's key is that of its old row, byte for byte."""
    cdef int column
    cdef Cell new, old
    for column in range(part.columns):
        if part.in_key[column]:
            new, old = part.cells[column * part.stride + row], part.old[column * part.stride + row]
            if new.size != old.size or (new.size > 0 and memcmp(data + new.start, data + old.start, new.size)):
                return False
    return True


cdef bint _changed(const uint8_t *data, int64_t at, int64_t end, uint8_t letter, Part *part) noexcept nogil:
    """Turn one row message, beginning at its marker, into one or two rows. False: it is left to the plain decoder."""
    cdef int64_t row = part.rows, stride = part.stride
    cdef int column, columns = part.columns
    cdef uint8_t marker
    cdef bint keyed
    cdef Cell *new
    cdef Cell *old
    if at + 1 > end:
        return False
    marker = data[at]
    if marker == c'N':
        if letter == c'D' or _walked(data, at + 1, end, columns, part.cells + row, stride, part.seen) != end:
            return False
        part.ops[row] = c'c' if letter == c'I' else c'u'
        part.rows += 1
        return True
    keyed = marker == c'K' or not part.whole  # a partition's old rows may carry less than its table's Relation says
    if letter == c'I' or not (marker == c'K' or marker == c'O') or (keyed and not part.key_is_sent):
        return False
    if letter == c'D':
        if _walked(data, at + 1, end, columns, part.cells + row, stride, part.seen) != end:
            return False
        if keyed:
            for column in range(columns):
                if not part.in_identity[column]:
                    part.cells[column * stride + row].size = UNCHANGED_CELL
                    part.seen[column] |= SEEN_UNCHANGED
        part.ops[row] = c'd'
        part.rows += 1
        return True
    at = _walked(data, at + 1, end, columns, part.old + row, stride, part.seen_old)
    if at < 0 or at >= end or data[at] != c'N':
        return False
    if _walked(data, at + 1, end, columns, part.cells + row, stride, part.seen) != end:
        return False
    for column in range(columns):
        new, old = part.cells + column * stride + row, part.old + column * stride + row
        if keyed and not part.in_identity[column]:
            old.size = UNCHANGED_CELL
            part.seen_old[column] |= SEEN_UNCHANGED
        if new.size == UNCHANGED_CELL:
            new[0] = old[0]
    part.ops[row] = c'u'
    if part.has_key and _same_key(data, part, row):
        part.has_old[row] = part.whole and not keyed
        part.rows += 1
        return True
    for column in range(columns):
        new, old = part.cells + column * stride + row, part.old + column * stride + row
        new[1] = new[0]
        new[0] = old[1] = old[0]
    part.ops[row] = c'd'
    part.ops[row + 1] = c'c'
    part.has_old[row] = False
    part.has_old[row + 1] = True
    part.rows += 2
    return True


cdef bint _found(
    const uint8_t *data,
    const int64_t *start,
    const int64_t *end,
    const uint8_t *kind,
    int64_t a,
    int64_t b,
    Part *part,
    const int32_t *of,
    const int64_t *more,
    int64_t *rows_before,
) noexcept nogil:
    """Locate the cells of messages a to b, and continue the count of rows in `rows_before`. `of`: the part of each
    message; if it is below 0, the message has `more` rows, which are in no part. Return False if a message is left to
    the plain decoder."""
    cdef int64_t m, before, rows = rows_before[a]
    cdef Part *one
    for m in range(a, b):
        rows_before[m] = rows
        if of[m] < 0:
            if more != NULL:
                rows += more[m]
            continue
        one = part + of[m]
        before = one.rows
        # The type byte, perhaps a transaction's id (4 bytes), then the relation's id, which is already known.
        if not _changed(data, start[m] + one.skipped, end[m], kind[m], one):
            return False
        while before < one.rows:
            one.index[before] = rows
            before += 1
            rows += 1
    rows_before[b] = rows
    return True


def changes(
    bytes data,
    start,
    end,
    kind,
    int64_t first,
    int header,
    dict shapes,
    dict replaced,
    list relations,
    list truncated,
    int64_t cells_max,
):
    """Return the rows of Insert, Update and Delete messages, beginning at number `first`, in columns, a part for each
    shape.

    `shapes`: the current shape of each relation. `replaced`: the shape before these messages of each relation that they
    describe again; `relations` lists these as (number, relation, shape). `truncated`: how many rows each Truncate
    becomes, as (number, rows). At most about `cells_max` cells are processed at once; beyond that a shape has several
    parts.

    Returns a list of (relation, order of arrival, layout, indices, rows), and the number of rows before each message
    (one entry more than messages). None: left to the plain decoder.
    """
    cdef const int64_t[::1] starts = start, stops = end
    cdef const uint8_t[::1] kinds = kind
    cdef int64_t count = kinds.shape[0], a, b = 0, at, cells, next_relation = 0
    cdef const uint8_t *raw = <const uint8_t *><const char *>data
    cdef uint32_t oid
    cdef uint32_t cached_oid = 0
    cdef int cached = -1, parts = 0, parts_max = 0, n, width
    cdef Part *part = NULL
    cdef Part *one
    cdef void *grown
    cdef int32_t *of = NULL
    cdef int64_t *more = NULL
    cdef uint8_t letter
    cdef bint old, sound
    cdef dict slots, orders = {}, now = dict(replaced)
    cdef list indices, out = [], held
    cdef Layout layout
    if len(data) > 2147483647:
        return None
    rows_before = _empty(count + 1, _INT64)
    cdef int64_t[::1] row_counts = rows_before
    cdef int64_t[::1] index
    row_counts[0] = 0
    of = <int32_t *>malloc((count + 1) * sizeof(int32_t))
    if truncated:
        more = <int64_t *>calloc(count + 1, sizeof(int64_t))
    if of == NULL or (truncated and more == NULL):
        free(of)
        raise MemoryError
    for number, found in truncated:
        more[number] += found
    try:
        while b < count:
            # Determine the shape of each row message, and the room that each shape needs.
            a = b
            slots, held, cells, parts, cached = {}, [], 0, 0, -1
            while b < count:
                letter = kinds[b]
                of[b] = -1
                if letter == c'R':
                    if next_relation < len(relations) and relations[next_relation][0] == b:
                        _, number, shape = relations[next_relation]
                        now[number] = shape
                        orders[number] = orders.get(number, 0) + 1
                        slots.pop(number, None)
                        cached = -1
                        next_relation += 1
                elif b >= first and (letter == c'I' or letter == c'U' or letter == c'D'):
                    at = starts[b] + 1 + header
                    if at + 5 > stops[b]:
                        return None
                    oid = be32(raw + at)
                    if cached < 0 or oid != cached_oid:
                        slot = slots.get(oid)
                        if slot is None:
                            shape = now[oid] if oid in now else shapes.get(oid)
                            if shape is None or shape.layout is None:
                                return None
                            if parts == parts_max:
                                parts_max = 2 * parts_max + 4
                                grown = realloc(part, parts_max * sizeof(Part))
                                if grown == NULL:
                                    raise MemoryError
                                part = <Part *>grown
                            layout = shape.layout
                            held.append(layout)
                            memset(part + parts, 0, sizeof(Part))
                            part[parts].layout = <void *>layout
                            part[parts].oid = oid
                            part[parts].order = orders.get(oid, 0)
                            part[parts].columns = layout.columns
                            part[parts].in_key = layout.in_key
                            part[parts].in_identity = layout.in_identity
                            part[parts].skipped = 5 + header
                            part[parts].whole = layout.full
                            part[parts].has_key = layout.has_key
                            part[parts].key_is_sent = layout.key_is_sent
                            slots[oid] = parts
                            cached = parts
                            parts += 1
                        else:
                            cached = slot
                        cached_oid = oid
                    one = part + cached
                    old = letter == c'U' and raw[at + 4] != c'N'
                    width = one.columns * (3 if old else 1)
                    if cells and cells + width > cells_max:
                        break
                    cells += width
                    one.rows_max += 2 if old else 1
                    one.olds_max += old
                    of[b] = cached
                b += 1
            indices = []
            for n in range(parts):
                if not _room(part + n):
                    raise MemoryError
                indices.append(_empty(part[n].rows_max, _INT64))
                index = indices[n]
                part[n].index = &index[0] if part[n].rows_max else NULL
            # Locate their cells.
            if b - a >= _UNLOCKED:
                with nogil:
                    sound = _found(raw, &starts[0], &stops[0], &kinds[0], a, b, part, of, more, &row_counts[0])
            else:
                sound = _found(raw, &starts[0], &stops[0], &kinds[0], a, b, part, of, more, &row_counts[0])
            if not sound:
                return None
            for n in range(parts):
                one = part + n
                batch = _built(<Layout>one.layout, data, one)
                array = indices[n]
                out.append((
                    one.oid, one.order, <Layout>one.layout, array if one.rows == one.rows_max else array[: one.rows],
                    batch,
                ))
                _no_room(one)
                memset(one, 0, sizeof(Part))
    except CdcflowError:
        return None
    finally:
        free(of)
        free(more)
        for n in range(parts):
            _no_room(part + n)
        free(part)
    return out, rows_before


def copied(bytes data, start, end, Layout layout):
    """COPY rows that begin and end at these offsets, as `row_schema`; None: left to the plain decoder."""
    cdef const int64_t[::1] starts = start, stops = end
    cdef int64_t count = starts.shape[0], row, at, stop
    cdef const uint8_t *raw = <const uint8_t *><const char *>data
    cdef Part part
    cdef int column
    cdef int32_t size
    cdef Cell cell
    cdef bint sound = True
    if len(data) > 2147483647:
        return None
    memset(&part, 0, sizeof(Part))
    part.columns = layout.columns
    part.rows_max = part.rows = count
    try:
        if not _room(&part):
            raise MemoryError
        with nogil:
            for row in range(count):
                at, stop = starts[row], stops[row]
                if at + 2 > stop or <int16_t>be16(raw + at) != part.columns:
                    sound = False
                    break
                at += 2
                for column in range(part.columns):
                    if at + 4 > stop:
                        sound = False
                        break
                    size = <int32_t>be32(raw + at)
                    at += 4
                    cell.start = <int32_t>at
                    cell.size = size
                    if size >= 0:
                        if size > stop - at:
                            sound = False
                            break
                        at += size
                    elif size == -1:
                        part.seen[column] |= SEEN_NULL
                    else:
                        sound = False
                        break
                    part.cells[column * part.stride + row] = cell
                if not sound or at != stop:
                    sound = False
                    break
        if not sound:
            return None
        for column in range(part.columns):
            codec = layout.described.codecs[column]
            part.seen[column] |= SEEN_TEXT if codec.binary is None else SEEN_BINARY
        free(part.ops)
        part.ops = NULL
        return _built(layout, data, &part)
    except CdcflowError:
        return None
    finally:
        _no_room(&part)


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────


cdef bint _choose(Column *column, Layout layout, int number, uint8_t seen) noexcept nogil:
    """Choose the conversion; False: a column arrived in both formats."""
    if seen & SEEN_BINARY:
        if seen & SEEN_TEXT:
            return False
        column.kind = layout.binary[number]
    else:
        column.kind = layout.text[number]
    return True


cdef int _fill(
    Column *columns, int number, const uint8_t *data, int64_t count, Block **arena, uint8_t **nulls
) noexcept nogil:
    """All columns' values; -1: no memory. Columns with an unsupported value are marked `declined`. `nulls`: whether
    each column has NULL cells."""
    cdef int i
    cdef int64_t a = 0, b
    for i in range(number):
        if not prepared(columns + i, data, count, nulls[i][0] & (SEEN_NULL | SEEN_UNCHANGED), arena):
            return -1
    while a < count:
        b = a + _BLOCK if a + _BLOCK < count else count
        for i in range(number):
            if not columns[i].declined and not converted(columns + i, data, a, b):
                columns[i].declined = True
        a = b
    return 0


cdef ArrowArray *_array(Column *column, int64_t count, Block **arena) noexcept nogil:
    cdef ArrowArray *array
    cdef int64_t i
    cdef size_t at = 0
    if column.kind.code == LIST:
        array = node(arena, count, 2, 1)
        if array == NULL:
            return NULL
        array.children[0] = _array(column.elements, column.elements.count, arena)
        if array.children[0] == NULL:
            return NULL
        array.buffers[1] = column.offsets
    elif column.kind.code == INTERVAL:
        array = node(arena, count, 1, 3)
        if array == NULL:
            return NULL
        for i in range(3):
            array.children[i] = node(arena, count, 2, 0)
            if array.children[i] == NULL:
                return NULL
        array.children[0].buffers[1] = column.values + 12 * count
        array.children[1].buffers[1] = column.values + 8 * count
        array.children[2].buffers[1] = column.values
    elif column.offsets != NULL:
        array = node(arena, count, 3, 0)
        if array == NULL:
            return NULL
        array.buffers[1] = column.offsets
        array.buffers[2] = column.values
    else:
        array = node(arena, count, 2, 0)
        if array == NULL:
            return NULL
        array.buffers[1] = column.values
    array.buffers[0] = column.valid
    array.null_count = 0 if column.valid == NULL else -1
    return array


cdef ArrowArray *_given(object array, Block **arena) except NULL:
    """Export an array that was not built here."""
    cdef ArrowArray *out = node(arena, 0, 0, 0)
    if out == NULL:
        raise MemoryError
    array._export_to_c(<uintptr_t>out)
    return out


cdef object _by_plain(Layout layout, int number, object buffer, const Cell *cells, int64_t count, uint8_t seen):
    """A column that its plain decoder decodes."""
    cdef int64_t i, at = 0
    start, size, valid = _empty(count, _INT64), _empty(count, _INT64), _empty(count, _UINT8)
    cdef int64_t[::1] starts = start, sizes = size
    cdef uint8_t[::1] valids = valid
    for i in range(count):
        if cells[i].size >= 0:
            at = cells[i].start
        starts[i] = at
        sizes[i] = cells[i].size if cells[i].size > 0 else 0
        valids[i] = cells[i].size >= 0
        at += sizes[i]
    valid = valid.view(np.bool_)
    found = Cells(buffer, start, size, None if valid.all() else valid)
    return decode_plain(layout.described.codecs[number], found, as_binary=bool(seen & SEEN_BINARY))


cdef ArrowArray *_ops(const uint8_t *ops, int64_t count, Block **arena) noexcept nogil:
    cdef ArrowArray *array = node(arena, count, 3, 0)
    cdef int32_t *offsets = <int32_t *>take(arena, (count + 1) * 4)
    cdef uint8_t *letters = <uint8_t *>take(arena, count)
    cdef int64_t i
    if array == NULL or offsets == NULL or letters == NULL:
        return NULL
    for i in range(count + 1):
        offsets[i] = <int32_t>i
    memcpy(letters, ops, count)
    array.buffers[1] = offsets
    array.buffers[2] = letters
    return array


cdef ArrowArray *_unchanged(Layout layout, Part *part, Block **arena) except NULL:
    """For each row the names of the columns that were not sent; NULL if all were."""
    cdef int64_t i, count = part.rows, found = 0, size = 0
    cdef int column
    cdef const Cell *cells
    cdef bytes name
    cdef int32_t *lists = <int32_t *>take(arena, (count + 1) * 4)
    cdef uint8_t *valid = <uint8_t *>take(arena, (count + 7) // 8)
    cdef int32_t *offsets
    cdef uint8_t *text
    if lists == NULL or valid == NULL:
        raise MemoryError
    memset(lists, 0, (count + 1) * 4)
    memset(valid, 0, (count + 7) // 8)
    for column in range(part.columns):
        cells = part.cells + column * part.stride
        name = layout.names[column]
        for i in range(count):
            if cells[i].size == UNCHANGED_CELL:
                lists[i + 1] += 1
                found += 1
                size += len(name)
    if size > 2147483647:
        raise CdcflowError("the names of unchanged columns come to more than 2 GiB")  # refused: the plain decoder reports it
    for i in range(count):
        if lists[i + 1]:
            valid[i >> 3] |= <uint8_t>(1 << (i & 7))
        lists[i + 1] += lists[i]
    offsets = <int32_t *>take(arena, (found + 1) * 4)
    text = <uint8_t *>take(arena, size)
    cdef ArrowArray *array = node(arena, count, 2, 1)
    cdef ArrowArray *child = node(arena, found, 3, 0)
    if offsets == NULL or text == NULL or array == NULL or child == NULL:
        raise MemoryError
    found = size = 0
    offsets[0] = 0
    cdef list all_names = layout.names
    for i in range(count):
        if lists[i + 1] == lists[i]:
            continue
        for column in range(part.columns):
            if part.cells[column * part.stride + i].size == UNCHANGED_CELL:
                name = all_names[column]
                memcpy(text + size, <const char *>name, len(name))
                size += len(name)
                found += 1
                offsets[found] = <int32_t>size
    array.null_count = -1
    array.buffers[0] = valid
    array.buffers[1] = lists
    array.children[0] = child
    child.buffers[1] = offsets
    child.buffers[2] = text
    return array


cdef object _built(Layout layout, bytes data, Part *part):
    """The rows of a part as a record batch; None: left to the plain decoder."""
    cdef Block *arena = NULL
    cdef const uint8_t *raw = <const uint8_t *><const char *>data
    cdef int64_t count = part.rows, i
    cdef int number = part.columns, befores = 0, n, column, failed
    cdef bint changes = part.ops != NULL, has_old = False, unchanged = False
    cdef Column *columns = NULL
    cdef uint8_t **seen = NULL
    cdef ArrowArray *root
    cdef ArrowArray *old = NULL
    cdef uint8_t *old_valid = NULL
    buffer = None
    if part.old != NULL:
        for column in range(number):
            part.seen[column] |= part.seen_old[column]
        for i in range(count):
            has_old |= part.has_old[i]
    if has_old:
        befores = len(layout.before)
    root = node(&arena, count, 1, number + 3 if changes else number)
    columns = <Column *>take(&arena, (number + befores) * sizeof(Column))
    seen = <uint8_t **>take(&arena, (number + befores) * sizeof(void *))
    if root == NULL or columns == NULL or seen == NULL:
        give_up(arena)
        raise MemoryError
    own(root, arena)
    root.n_children = 0
    try:
        memset(columns, 0, (number + befores) * sizeof(Column))
        for n in range(number):
            columns[n].cells = part.cells + n * part.stride
            seen[n] = part.seen + n
            unchanged |= part.seen[n] & SEEN_UNCHANGED
            if not _choose(columns + n, layout, n, part.seen[n]):
                raise CdcflowError("two formats")  # refused: the plain decoder reports it
        for n in range(befores):
            column = layout.before[n]
            columns[number + n].cells = part.old + column * part.stride
            seen[number + n] = part.seen_old + column
            # Rows without an old row have NULL here.
            part.seen_old[column] |= SEEN_NULL
            if not _choose(columns + number + n, layout, column, part.seen_old[column]):
                raise CdcflowError("two formats")
        if has_old:
            old_valid = <uint8_t *>take(&arena, (count + 7) // 8)
            if old_valid == NULL:
                raise MemoryError
            memset(old_valid, 0, (count + 7) // 8)
            for i in range(count):
                if part.has_old[i]:
                    old_valid[i >> 3] |= <uint8_t>(1 << (i & 7))
            for n in range(befores):
                column = layout.before[n]
                for i in range(count):
                    if not part.has_old[i]:
                        part.old[column * part.stride + i].size = NULL_CELL
        if count >= _UNLOCKED:
            with nogil:
                failed = _fill(columns, number + befores, raw, count, &arena, seen)
        else:
            failed = _fill(columns, number + befores, raw, count, &arena, seen)
        if failed:
            raise MemoryError
        for n in range(number):
            if columns[n].declined:
                if buffer is None:
                    buffer = Buffer(data)
                root.children[n] = _given(
                    _by_plain(layout, n, buffer, columns[n].cells, count, part.seen[n]), &arena
                )
            else:
                root.children[n] = _array(columns + n, count, &arena)
                if root.children[n] == NULL:
                    raise MemoryError
            root.n_children = n + 1
        if not changes:
            root.private_data = arena
            return pa.RecordBatch._import_from_c(<uintptr_t>root, layout.rows_schema)
        root.children[number] = _ops(part.ops, count, &arena)
        if root.children[number] == NULL:
            raise MemoryError
        root.n_children = number + 1
        if unchanged:
            root.children[number + 1] = _unchanged(layout, part, &arena)
        else:
            root.children[number + 1] = _given(layout.without_unchanged(count), &arena)
        root.n_children = number + 2
        if has_old:
            old = node(&arena, count, 1, befores)
            if old == NULL:
                raise MemoryError
            old.null_count = -1
            old.buffers[0] = old_valid
            old.n_children = 0
            old.release = _released_with_children
            root.children[number + 2] = old
            root.n_children = number + 3
            for n in range(befores):
                if columns[number + n].declined:
                    if buffer is None:
                        buffer = Buffer(data)
                    column = layout.before[n]
                    old.children[n] = _given(
                        _by_plain(layout, column, buffer, columns[number + n].cells, count, part.seen_old[column]),
                        &arena,
                    )
                else:
                    old.children[n] = _array(columns + number + n, count, &arena)
                    if old.children[n] == NULL:
                        raise MemoryError
                old.n_children = n + 1
        else:
            root.children[number + 2] = _given(layout.without_before(count), &arena)
            root.n_children = number + 3
        root.private_data = arena
        return pa.RecordBatch._import_from_c(<uintptr_t>root, layout.schema)
    except BaseException:
        if root.release != NULL:
            root.private_data = arena
            root.release(root)
        raise
