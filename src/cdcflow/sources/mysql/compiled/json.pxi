# MySQL's binary JSON as text: the compiled form of `types.json.document_text`, which describes the format. For anything
# unusual (dates and decimals inside, invalid JSON) the result is -1, and the plain decoder decodes the column.

from libc.stdio cimport snprintf
from libc.string cimport memmove

cdef struct Out:
    uint8_t *data
    int64_t size
    int64_t room


cdef struct Document:
    const uint8_t *data
    int64_t size
    int64_t budget


cdef inline int need(Out *out, int64_t more) noexcept nogil:
    cdef uint8_t *larger
    cdef int64_t room
    if out.size + more <= out.room:
        return 0
    room = 2 * (out.size + more) + 1024
    larger = <uint8_t *>realloc(out.data, room)
    if larger == NULL:
        return -1
    out.data, out.room = larger, room
    return 0


cdef inline int put(Out *out, const void *text, int64_t size) noexcept nogil:
    if need(out, size) < 0:
        return -1
    memcpy(out.data + out.size, text, size)
    out.size += size
    return 0


cdef int put_text(Out *out, const uint8_t *text, int64_t size) noexcept nogil:
    """Text in quotes, with the server's escapes."""
    cdef int64_t i
    cdef uint8_t letter, short
    cdef uint8_t *at
    if need(out, 6 * size + 2) < 0:
        return -1
    at = out.data + out.size
    at[0] = 34
    at += 1
    for i in range(size):
        letter = text[i]
        if letter >= 32 and letter != 34 and letter != 92:
            at[0] = letter
            at += 1
            continue
        short = 0
        if letter == 34 or letter == 92:
            short = letter
        elif letter == 8:
            short = c'b'
        elif letter == 9:
            short = c't'
        elif letter == 10:
            short = c'n'
        elif letter == 12:
            short = c'f'
        elif letter == 13:
            short = c'r'
        at[0] = 92
        if short:
            at[1] = short
            at += 2
            continue
        at[1], at[2], at[3] = c'u', c'0', c'0'
        at[4] = 48 + (letter >> 4)
        at[5] = (letter & 15) + (48 if (letter & 15) < 10 else 87)
        at += 6
    at[0] = 34
    out.size = at + 1 - out.data
    return 0


cdef int put_integer(Out *out, uint64_t value, bint negative) noexcept nogil:
    cdef uint8_t[24] digits
    cdef int at = 24
    if negative:
        value = 0 - value
    while True:
        at -= 1
        digits[at] = <uint8_t>(48 + value % 10)
        value = value // 10
        if value == 0:
            break
    if negative:
        at -= 1
        digits[at] = 45
    return put(out, &digits[at], 24 - at)


cdef int put_double(Out *out, double value) noexcept nogil:
    """Append a double with the fewest digits that identify its bits. 17 digits are always enough, and 15 for a number
    that was written with at most 15. The smallest numbers have fewer bits, so one digit may be enough for them."""
    cdef char[40] text
    cdef int digits, size, point, i
    cdef char *stop
    if value != value or value - value != 0:
        return -1
    digits = 15
    if value < 2.2250738585072014e-308 and value > -2.2250738585072014e-308:
        digits = 1
    while True:
        snprintf(text, 40, "%.*e", digits - 1, value)
        if digits == 17 or strtod(text, &stop) == value:
            break
        digits += 1
    if need(out, 64) < 0:
        return -1
    if text[0] == 45:
        put(out, "-", 1)
        memmove(text, &text[1], 39)
    if digits == 1:
        memmove(&text[2], &text[1], 38)  # without a decimal point
    # d.ddd…e±xx: join the digits, and compute the position of the point after them.
    size = digits
    point = 0
    for i in range(digits + 3, 40):
        if text[i] == 0:
            break
        point = point * 10 + (text[i] - 48)
    if text[digits + 2] == 45:
        point = -point
    point += 1
    for i in range(1, digits):
        text[i] = text[i + 1]
    while size > 0 and text[size - 1] == 48:
        size -= 1
    if size == 0:
        return put(out, "0.0", 3)
    if not (-14 <= point <= 15 or 0 < point < size):
        put(out, text, 1)
        if size > 1:
            put(out, ".", 1)
            put(out, &text[1], size - 1)
        put(out, "e", 1)
        return put_integer(out, <uint64_t><int64_t>(point - 1), point - 1 < 0)
    if point <= 0:
        put(out, "0.", 2)
        for i in range(-point):
            put(out, "0", 1)
        return put(out, text, size)
    put(out, text, point if point < size else size)
    for i in range(size, point):
        put(out, "0", 1)
    put(out, ".", 1)
    return put(out, &text[point], size - point) if size > point else put(out, "0", 1)


cdef inline int64_t sized(Document *document, int64_t at, int64_t *length) noexcept nogil:
    """A length, seven bits per byte; returns where it ends, or -1."""
    cdef int shift = 0
    length[0] = 0
    while shift < 35:
        if at >= document.size:
            return -1
        length[0] |= <int64_t>(document.data[at] & 0x7F) << shift
        at += 1
        if document.data[at - 1] < 0x80:
            return at
        shift += 7
    return -1


cdef int put_value(Document *document, uint8_t kind, int64_t at, Out *out, int depth) noexcept nogil:
    cdef int64_t length, signed
    document.budget -= 1
    if document.budget < 0 or depth > 100:
        return -1
    if kind <= 3:
        return put_container(document, kind, at, out, depth)
    if kind == 12:
        at = sized(document, at, &length)
        if at < 0 or at + length > document.size:
            return -1
        return put_text(out, document.data + at, length)
    length = 1 if kind == 4 else 2 if kind <= 6 else 4 if kind <= 8 else 8
    if kind > 11 or at + length > document.size:
        return -1
    if kind == 4:
        if document.data[at] > 2:
            return -1
        if document.data[at] == 0:
            return put(out, "null", 4)
        return put(out, "true", 4) if document.data[at] == 1 else put(out, "false", 5)
    return put_number(out, kind, document.data + at)


cdef int put_number(Out *out, uint8_t kind, const uint8_t *at) noexcept nogil:
    cdef int16_t short
    cdef int32_t middle
    cdef int64_t number
    cdef double real
    if kind == 11:
        memcpy(&real, at, 8)
        return put_double(out, real)
    if kind <= 6:
        memcpy(&short, at, 2)
        number = short
        if kind == 6:
            number &= (<int64_t>1 << 16) - 1
    elif kind <= 8:
        memcpy(&middle, at, 4)
        number = middle
        if kind == 8:
            number &= (<int64_t>1 << 32) - 1
    else:
        memcpy(&number, at, 8)
    return put_integer(out, <uint64_t>number, kind != 10 and number < 0)


cdef int put_container(Document *document, uint8_t kind, int64_t at, Out *out, int depth) noexcept nogil:
    cdef bint large = kind == 1 or kind == 3, keyed = kind <= 1
    cdef int width = 4 if large else 2
    cdef int64_t count, size, keys, entries, number, place, length
    cdef uint8_t child
    if at + 2 * width > document.size:
        return -1
    count, size = length_at(document.data + at, width), length_at(document.data + at + width, width)
    if at + size > document.size or count > document.budget:
        return -1
    keys = at + 2 * width
    entries = keys + count * (width + 2) * keyed
    if put(out, "{" if keyed else "[", 1) < 0:
        return -1
    for number in range(count):
        if number and put(out, ", ", 2) < 0:
            return -1
        if keyed:
            place = keys + number * (width + 2)
            if place + width + 2 > document.size:
                return -1
            length = length_at(document.data + place + width, 2)
            place = at + length_at(document.data + place, width)
            if place + length > document.size or put_text(out, document.data + place, length) < 0:
                return -1
            if put(out, ": ", 2) < 0:
                return -1
        place = entries + number * (1 + width)
        if place >= document.size:
            return -1
        child = document.data[place]
        place += 1
        if not (4 <= child <= 6 or (large and 7 <= child <= 8)):
            if place + width > document.size:
                return -1
            place = at + length_at(document.data + place, width)
        if put_value(document, child, place, out, depth + 1) < 0:
            return -1
    return put(out, "}" if keyed else "]", 1)


cdef int documents(
    const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, Out *out, int32_t *offsets
) noexcept nogil:
    """Print all documents of a column, one after another."""
    cdef int64_t row
    cdef Document document
    cdef int state
    for row in range(rows):
        offsets[row] = <int32_t>out.size
        if start[row] < 0:
            continue
        document.data, document.size, document.budget = raw + start[row], size[row], size[row]
        if document.size == 0:
            state = put(out, "null", 4)
        else:
            state = put_value(&document, document.data[0], 1, out, 0)
        if state < 0 or out.size > 2147483647:
            return -1
    offsets[rows] = <int32_t>out.size
    return 0
