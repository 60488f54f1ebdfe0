# Decode row images and result rows to Arrow columns: one walk over the rows records the position of each value, then
# one tight loop per column decodes the values. No row or value becomes a Python object, and the GIL is released.
#
#     walk     for each row and column: the value's position (-1: NULL), and its size if the column has no fixed one
#     column   positions -> the Arrow buffers of one column
#
# The walk checks every step against the end of the event, so all positions are inside the buffer. If a column has no
# loop here, or its loop does not accept a value, the column's plain decoder decodes the column: it supports all values
# and reports what is wrong.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc, strtod
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import pyarrow as pa

from cdcflow.model.table import BEFORE, UNCHANGED, Identity
from cdcflow.sources.engine.buffers import PAD, Buffer, Cells, protocol_error
from cdcflow.sources.mysql.images import present

cdef extern from *:
    """
    typedef __int128 int128;
    """
    ctypedef long long int128 "__int128"

include "values.pxi"
include "json.pxi"

cdef object _EMPTY = np.empty
cdef object _FROM_BUFFERS = pa.Array.from_buffers
cdef object _STRING = pa.string()
cdef int64_t _OFFSETS_MAX = 2**31 - 1

cdef dict _IMAGE_CODES = {
    "signed": COPY, "unsigned": COPY, "float": COPY, "medium": MEDIUM, "year": YEAR, "bits": BITS, "date": DATE,
    "datetime": DATETIME, "timestamp": TIMESTAMP, "time": TIME, "decimal": DECIMAL, "bytes": BYTES, "fixed": FIXED,
    "json": JSON,
}
cdef dict _RESULT_CODES = {
    "signed": SIGNED_TEXT, "unsigned": UNSIGNED_TEXT, "medium": MEDIUM_TEXT, "year": YEAR_TEXT, "float": FLOAT_TEXT,
    "bits": BITS, "date": DATE_TEXT, "datetime": MOMENT_TEXT, "timestamp": MOMENT_TEXT, "time": TIME_TEXT,
    "decimal": DECIMAL_TEXT, "bytes": BYTES, "fixed": FIXED, "json": UTF8, "enum": UTF8, "set": UTF8,
}


cdef struct Places:
    int64_t *start
    int64_t *size


cdef struct Image:
    int sent          # number of columns in the image
    int nulls         # bytes of its NULL bits
    int *column       # the table's column of each column in the image
    Places *places    # by column of the table; without a start for a column that is not sent


cdef class Layout:
    """A table shape as the walk needs it."""

    cdef Column *columns
    cdef readonly int count
    cdef readonly object described
    cdef tuple codecs
    cdef bint keyed
    cdef bint whole

    def __cinit__(self, described):
        self.described = described
        self.codecs = described.codecs
        self.count = len(self.codecs)
        self.keyed = bool(described.table.key)
        self.whole = described.table.identity is Identity.FULL
        self.columns = <Column *>calloc(max(self.count, 1), sizeof(Column))
        if self.columns == NULL:
            raise MemoryError
        for number, codec in enumerate(self.codecs):
            self._set(&self.columns[number], codec, described.table.columns[number].name in described.table.key)

    def __dealloc__(self):
        free(self.columns)

    cdef _set(self, Column *column, codec, bint in_key):
        form, _, charset = codec.form.partition(" ")
        column.width, column.prefix, column.number = codec.width, codec.prefix, codec.number
        column.in_key = in_key
        column.null_dates = codec.where.zero_dates == "null"
        if form == "text":
            column.image = column.result = UTF8 if charset in ("utf8mb4", "utf8mb3") else ASCII
            # In these character sets, characters outside ASCII also use bytes below 128, or replace ASCII letters.
            if charset in ("ucs2", "utf16", "utf16le", "utf32", "swe7"):
                column.image = column.result = PLAIN
        else:
            column.image = _IMAGE_CODES.get(form, PLAIN)
            column.result = _RESULT_CODES.get(form, PLAIN)
        if form == "decimal" and codec.number >> 8 > 38:
            column.image = column.result = PLAIN
        if column.image == UTF8 and codec.width:
            column.image = PLAIN
        if form == "fixed":
            column.width = 0


def layout(described):
    return Layout(described)


cdef class Walked:
    """Positions of the values of some rows; frees its memory."""

    cdef Image images[2]
    cdef int used
    cdef int64_t capacity
    cdef int64_t rows

    def __cinit__(self):
        memset(self.images, 0, sizeof(self.images))
        self.used = 0
        self.capacity = self.rows = 0

    def __dealloc__(self):
        cdef int i, c
        for i in range(self.used):
            if self.images[i].places != NULL:
                for c in range(self.images[i].sent):
                    free(self.images[i].places[self.images[i].column[c]].start)
                    free(self.images[i].places[self.images[i].column[c]].size)
            free(self.images[i].places)
            free(self.images[i].column)

    cdef add(self, Layout shape, sent):
        """An image with these columns."""
        cdef Image *image = &self.images[self.used]
        image.column = <int *>calloc(shape.count + 1, sizeof(int))
        image.places = <Places *>calloc(shape.count + 1, sizeof(Places))
        self.used += 1
        if image.column == NULL or image.places == NULL:
            raise MemoryError
        for number in range(shape.count):
            if sent[number]:
                image.column[image.sent] = number
                image.sent += 1
        image.nulls = (image.sent + 7) // 8

    cdef int grow(self, Column *columns, int64_t wanted) noexcept nogil:
        cdef int i, j, c
        cdef int64_t *larger
        cdef Places *places
        for i in range(self.used):
            for j in range(self.images[i].sent):
                c = self.images[i].column[j]
                places = &self.images[i].places[c]
                larger = <int64_t *>realloc(places.start, wanted * sizeof(int64_t))
                if larger == NULL:
                    return -1
                places.start = larger
                if columns[c].width == 0:
                    larger = <int64_t *>realloc(places.size, wanted * sizeof(int64_t))
                    if larger == NULL:
                        return -1
                    places.size = larger
        self.capacity = wanted
        return 0


cdef int walk_images(
    Walked found, Column *columns, const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t events,
    int64_t *counts
) noexcept nogil:
    """0; -1: the bytes are not such rows; -2: no memory."""
    cdef int64_t event, at, end, first, size, rows = 0
    cdef int i, j, c
    cdef Image *image
    cdef Column *column
    cdef Places *places
    cdef const uint8_t *nulls
    for event in range(events):
        at, end, first = starts[event], ends[event], rows
        while at < end:
            if rows == found.capacity and found.grow(columns, rows * 2 if rows else 1024) < 0:
                return -2
            for i in range(found.used):
                image = &found.images[i]
                nulls = data + at
                at += image.nulls
                if at > end:
                    return -1
                for j in range(image.sent):
                    c = image.column[j]
                    column = &columns[c]
                    places = &image.places[c]
                    if nulls[j >> 3] >> (j & 7) & 1:
                        places.start[rows] = -1
                        if column.width == 0:
                            places.size[rows] = 0
                        continue
                    if column.width:
                        places.start[rows] = at
                        at += column.width
                    else:
                        size = length_at(data + at, column.prefix)
                        at += column.prefix
                        places.start[rows] = at
                        places.size[rows] = size
                        at += size
                    if at > end:
                        return -1
            rows += 1
        counts[event] = rows - first
    found.rows = rows
    return 0


cdef int walk_results(
    Places *places, int columns, const uint8_t *data, const int64_t *starts, const int64_t *ends, int64_t rows
) noexcept nogil:
    cdef int64_t row, at, end
    cdef uint64_t size
    cdef int c
    cdef uint8_t first
    for row in range(rows):
        at, end = starts[row], ends[row]
        for c in range(columns):
            if at >= end:
                return -1
            first = data[at]
            if first == 0xFB:
                places[c].start[row] = -1
                places[c].size[row] = 0
                at += 1
                continue
            if first < 0xFB:
                size = first
                at += 1
            elif first == 0xFC:
                size = data[at + 1] | <uint64_t>data[at + 2] << 8
                at += 3
            elif first == 0xFD:
                size = data[at + 1] | <uint64_t>data[at + 2] << 8 | <uint64_t>data[at + 3] << 16
                at += 4
            elif first == 0xFE:
                memcpy(&size, data + at + 1, 8)
                at += 9
            else:
                return -1
            if at > end or size > <uint64_t>(end - at):
                return -1
            places[c].start[row] = at
            places[c].size[row] = <int64_t>size
            at += <int64_t>size
        if at != end:
            return -1
    return 0


cdef object column_of(
    Column *column, int code, codec, bytes data, const int64_t *start, const int64_t *size, int64_t rows, bint result
):
    """One column as an Arrow array. `size` NULL: every value takes `column.width` bytes."""
    cdef const uint8_t *raw = <const uint8_t *>data
    cdef int64_t row, none = 0, total = 0
    cdef int state = 0
    cdef uint8_t[::1] bits
    cdef uint8_t[::1] out
    cdef int32_t[::1] offsets
    if code == PLAIN:
        return plain(column, codec, data, start, size, rows, result)
    with nogil:
        for row in range(rows):
            none += start[row] < 0
    validity = None
    bits_of = None
    cdef uint8_t *valid = NULL
    if none or (column.null_dates and code in (DATE, DATETIME, TIMESTAMP, DATE_TEXT, MOMENT_TEXT)):
        bits_of = np.zeros((rows + 7) // 8 + 1, np.uint8)
        bits = bits_of
        valid = &bits[0]
        with nogil:
            for row in range(rows):
                valid[row >> 3] |= (start[row] >= 0) << (row & 7)
        validity = pa.py_buffer(bits_of)
    if code == JSON:
        array = printed_of(codec, raw, start, size, rows, validity)
        return plain(column, codec, data, start, size, rows, result) if array is None else array
    if code in (UTF8, ASCII, BYTES, FIXED):
        with nogil:
            if code == FIXED:
                total = (rows - none) * column.number
            else:
                for row in range(rows):
                    total += size[row]
        if total > _OFFSETS_MAX:
            return plain(column, codec, data, start, size, rows, result)
        values = _EMPTY(total + 8, np.uint8)
        ends = _EMPTY(rows + 1, np.int32)
        out, offsets = values, ends
        with nogil:
            state = texts(code, column.number, raw, start, size, rows, &out[0], &offsets[0])
        if state < 0:
            return plain(column, codec, data, start, size, rows, result)
        # The buffer ends after the last value. Arrow would also write up to 63 bytes of the spare room, which may hold
        # values of other columns.
        values = values[: offsets[rows]]
        array = _FROM_BUFFERS(codec.arrow, rows, [validity, pa.py_buffer(ends), pa.py_buffer(values)])
        if state and code == UTF8:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                return plain(column, codec, data, start, size, rows, result)
        return array
    values = _EMPTY(rows * width_of(column, code) + 8, np.uint8)
    out = values
    with nogil:
        state = numbers(column, code, raw, start, size, rows, &out[0], valid)
    if state < 0:
        return plain(column, codec, data, start, size, rows, result)
    return _FROM_BUFFERS(codec.arrow, rows, [validity, pa.py_buffer(values[:-8])])  # see above


cdef object printed_of(codec, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, validity):
    """Documents as text; None for rare or wrong ones, which are left to the plain decoder."""
    cdef Out out
    cdef int state
    ends = _EMPTY(rows + 1, np.int32)
    cdef int32_t[::1] offsets = ends
    out.data, out.size, out.room = NULL, 0, 0
    try:
        with nogil:
            state = documents(raw, start, size, rows, &out, &offsets[0])
        if state < 0:
            return None
        values = pa.py_buffer(PyBytes_FromStringAndSize(<char *>out.data, out.size) if out.size else b"")
    finally:
        free(out.data)
    array = _FROM_BUFFERS(codec.arrow, rows, [validity, pa.py_buffer(ends), values])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return array


cdef object plain(
    Column *column, codec, bytes data, const int64_t *start, const int64_t *size, int64_t rows, bint result
):
    """One column as an Arrow array, decoded by the column's plain decoder."""
    cdef int64_t row
    starts, sizes, valid = _EMPTY(rows, np.int64), _EMPTY(rows, np.int64), _EMPTY(rows, np.bool_)
    cdef int64_t[::1] s = starts
    cdef int64_t[::1] z = sizes
    cdef uint8_t[::1] v = valid.view(np.uint8)
    for row in range(rows):
        v[row] = start[row] >= 0
        s[row] = start[row] if start[row] >= 0 else 0
        z[row] = 0 if start[row] < 0 else (column.width if size == NULL else size[row])
    cells = Cells(Buffer(data), starts, sizes, None if valid.all() else valid)
    return (codec.result if result else codec.image)(cells, codec.where)


cdef bytes padded_to(bytes data, int64_t reached):
    return data if reached + PAD <= len(data) else data + bytes(PAD)


cdef int64_t reach(const int64_t[::1] start, const int64_t[::1] end, int64_t size) except -1:
    """The greatest end of these ranges, which all must be inside the buffer of `size` bytes."""
    cdef int64_t i, reached = 0
    for i in range(start.shape[0]):
        if not 0 <= start[i] <= end[i] <= size:
            raise IndexError("bytes outside of the buffer")
        if end[i] > reached:
            reached = end[i]
    return reached


def changes(
    Layout shape, bytes data, const int64_t[::1] start, const int64_t[::1] end, int kind, bytes before, bytes after
):
    """Return the rows of ROWS events, and the number of rows of each event; None if the reference decoder must decode
    them.

    `kind` 0: inserts, 1: updates, 2: deletes. The caller must have called `rows.check` before.
    """
    cdef Walked found = Walked()
    cdef int64_t rows, events = start.shape[0]
    cdef int state, c
    if shape.count == 0 or shape.whole:
        return None
    data = padded_to(data, reach(start, end, len(data)))
    sent = [present(bitmap, shape.count) for bitmap in ((after,), (before, after), (before,))[kind]]
    for bits in sent:
        if not any(bits):
            return None
        found.add(shape, bits)
    if not all(map(any, zip(*sent))) or (kind == 1 and not all(sent[0])):
        return None  # the log lacks some columns: the reference decoder lists them as unchanged
    counts = _EMPTY(events, np.int64)
    cdef int64_t[::1] counted = counts
    cdef const uint8_t *raw = <const uint8_t *>data
    if events:
        with nogil:
            state = walk_images(found, shape.columns, raw, &start[0], &end[0], events, &counted[0])
        if state == -2:
            raise MemoryError
        if state < 0:
            raise protocol_error("a row event does not end where its last row does")
    rows = found.rows
    if kind == 1:
        return updates(shape, data, found, counts)
    arrays = [
        column_of(
            &shape.columns[c], shape.columns[c].image, shape.codecs[c], data, found.images[0].places[c].start,
            found.images[0].places[c].size, rows, False,
        )
        for c in range(shape.count)
    ]
    return batch(shape, arrays, letters(rows, b"c" if kind == 0 else b"d"), None), counts


cdef object letters(int64_t rows, bytes letter):
    return np.full(rows, letter[0], np.uint8)


cdef object batch(Layout shape, list arrays, ops, before):
    schema = shape.described.table.change_schema
    rows = len(ops)
    offsets = np.arange(rows + 1, dtype=np.int32)
    op = _FROM_BUFFERS(_STRING, rows, [None, pa.py_buffer(offsets), pa.py_buffer(ops)])
    if before is None:
        before = pa.nulls(rows, schema.field(BEFORE).type)
    arrays = [*arrays, op, pa.nulls(rows, schema.field(UNCHANGED).type), before]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


cdef object updates(Layout shape, bytes data, Walked found, counts):
    cdef int64_t row, out, event, left, rows = found.rows, total = rows, changed = 0
    cdef int c
    cdef Image *old = &found.images[0]
    cdef Image *new = &found.images[1]
    cdef const uint8_t *raw = <const uint8_t *>data
    moved = np.zeros(rows + 1, np.uint8)
    cdef uint8_t[::1] move = moved
    cdef Places *after
    with nogil:
        for c in range(shape.count):
            # A column that is not in the after image was not changed.
            if shape.columns[c].in_key and new.places[c].start != NULL:
                compare(&shape.columns[c], raw, &old.places[c], &new.places[c], rows, &move[0])
        for row in range(rows):
            if not shape.keyed:
                move[row] = 1
            changed += move[row]
    if not changed:
        arrays = []
        for c in range(shape.count):
            after = &new.places[c] if new.places[c].start != NULL else &old.places[c]
            arrays.append(
                column_of(
                    &shape.columns[c], shape.columns[c].image, shape.codecs[c], data, after.start, after.size, rows,
                    False,
                )
            )
        return batch(shape, arrays, letters(rows, b"u"), None), counts
    total += changed
    ops, starts, sizes = _EMPTY(total, np.uint8), _EMPTY(total, np.int64), _EMPTY(total, np.int64)
    cdef uint8_t[::1] op = ops
    cdef int64_t[::1] s = starts
    cdef int64_t[::1] z = sizes
    with nogil:
        out = 0
        for row in range(rows):
            if move[row]:
                op[out], op[out + 1] = c'd', c'c'
                out += 2
            else:
                op[out] = c'u'
                out += 1
    arrays, befores = [], []
    struct = shape.described.table.before_type
    for c in range(shape.count):
        after = &new.places[c] if new.places[c].start != NULL else &old.places[c]
        codec = shape.codecs[c]
        with nogil:
            both(&old.places[c], after, rows, &move[0], &s[0], &z[0])
        arrays.append(
            column_of(
                &shape.columns[c], shape.columns[c].image, codec, data, &s[0],
                NULL if shape.columns[c].width else &z[0], total, False,
            )
        )
        if struct.get_field_index(shape.described.table.columns[c].name) < 0:
            continue
        with nogil:
            olds(&old.places[c], rows, &move[0], &s[0], &z[0])
        befores.append(
            column_of(
                &shape.columns[c], shape.columns[c].image, codec, data, &s[0],
                NULL if shape.columns[c].width else &z[0], total, False,
            )
        )
    there = ops == ord("c")
    before = pa.StructArray.from_arrays(befores, fields=list(struct), mask=pa.array(~there))
    grown = counts.copy()
    cdef int64_t[::1] of = counts
    cdef int64_t[::1] into = grown
    row = 0
    for event in range(of.shape[0]):
        for left in range(of[event]):
            into[event] += move[row]
            row += 1
    return batch(shape, arrays, ops, before), grown


cdef void compare(
    Column *column, const uint8_t *raw, Places *old, Places *new, int64_t rows, uint8_t *move
) noexcept nogil:
    """Set `move` for the rows in which this key column's bytes differ between the old and the new row."""
    cdef int64_t row, a, b, size
    for row in range(rows):
        a, b = old.start[row], new.start[row]
        if a < 0 or b < 0:
            move[row] |= (a < 0) != (b < 0)
            continue
        size = column.width
        if size == 0:
            size = old.size[row]
            if size != new.size[row]:
                move[row] = 1
                continue
        move[row] |= memcmp(raw + a, raw + b, size) != 0


cdef void both(
    Places *old, Places *new, int64_t rows, const uint8_t *move, int64_t *starts, int64_t *sizes
) noexcept nogil:
    """Write the position of this column's value for each change: the new row's, and before it the old row's if the key
    changed."""
    cdef int64_t row, out = 0
    for row in range(rows):
        if move[row]:
            starts[out] = old.start[row]
            sizes[out] = old.size[row] if old.size != NULL else 0
            out += 1
        starts[out] = new.start[row]
        sizes[out] = new.size[row] if new.size != NULL else 0
        out += 1


cdef void olds(Places *old, int64_t rows, const uint8_t *move, int64_t *starts, int64_t *sizes) noexcept nogil:
    """Write the position of this column's old value for each change: present for the insert of a changed key, NULL for
    every other change."""
    cdef int64_t row, out = 0
    for row in range(rows):
        if move[row]:
            starts[out] = -1
            sizes[out] = 0
            out += 1
        starts[out] = old.start[row] if move[row] else -1
        sizes[out] = old.size[row] if move[row] and old.size != NULL else 0
        out += 1


def results(Layout shape, bytes data, const int64_t[::1] start, const int64_t[::1] end):
    """Rows of a result set as a record batch."""
    cdef int64_t rows = start.shape[0]
    cdef int c, state = 0
    if shape.count == 0:
        return None
    data = padded_to(data, reach(start, end, len(data)))
    cdef const uint8_t *raw = <const uint8_t *>data
    cdef Places *places = <Places *>calloc(shape.count, sizeof(Places))
    if places == NULL:
        raise MemoryError
    room = _EMPTY((2 * shape.count, rows + 1), np.int64)
    cdef int64_t[:, ::1] of = room
    try:
        for c in range(shape.count):
            places[c].start, places[c].size = &of[2 * c, 0], &of[2 * c + 1, 0]
        if rows:
            with nogil:
                state = walk_results(places, shape.count, raw, &start[0], &end[0], rows)
        if state < 0:
            return None
        arrays = [
            column_of(
                &shape.columns[c], shape.columns[c].result, shape.codecs[c], data, places[c].start, places[c].size,
                rows, True,
            )
            for c in range(shape.count)
        ]
    finally:
        free(places)
    return pa.RecordBatch.from_arrays(arrays, schema=shape.described.table.row_schema)
