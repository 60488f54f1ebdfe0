# The kernels of `numbers.py`: booleans, integers and floats.

_KERNELS.update({
    "text.boolean": (BOOL_TEXT, -1),
    "binary.boolean": (BOOL, -1),
    "text.number": (INT_TEXT, 0),  # FLOAT_TEXT where its Arrow type is one
    "binary.int2": (INT2, 2),
    "binary.int4": (INT4, 4),
    "binary.int8": (INT8, 8),
    "binary.oid": (OID, 8),
    "binary.float4": (FLOAT4, 4),
    "binary.float8": (FLOAT8, 8),
})


cdef inline bint _bool(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    cdef int64_t i
    cdef Cell cell
    cdef uint8_t byte
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size < 0:
            continue
        if cell.size != 1:
            return False
        byte = data[cell.start]
        if code == BOOL_TEXT:
            if byte != c't' and byte != c'f':
                return False
            byte = byte == c't'
        if byte:
            column.values[i >> 3] |= <uint8_t>(1 << (i & 7))
    return True


cdef inline bint _int_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, value
    cdef int32_t j, width = column.kind.width
    cdef uint64_t number, most
    cdef uint8_t digit
    cdef bint negative
    cdef Cell cell
    cdef const uint8_t *raw
    most = (<uint64_t>1 << (8 * width - 1)) - 1
    for i in range(a, b):
        cell = column.cells[i]
        value = 0
        if cell.size >= 0:
            raw = data + cell.start
            negative = cell.size > 0 and raw[0] == c'-'
            if negative:
                raw += 1
                cell.size -= 1
            if cell.size < 1 or cell.size > 19 or (cell.size > 1 and raw[0] == c'0'):
                return False
            number = 0
            for j in range(cell.size):
                digit = <uint8_t>(raw[j] - c'0')
                if digit > 9:
                    return False
                number = number * 10 + digit
            if number > most + negative or (negative and not number):
                return False
            value = <int64_t>(0 - number) if negative else <int64_t>number
        if width == 8:
            (<int64_t *>column.values)[i] = value
        elif width == 4:
            (<int32_t *>column.values)[i] = <int32_t>value
        else:
            (<int16_t *>column.values)[i] = <int16_t>value
    return True


cdef inline bint _int4(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i
    cdef Cell cell
    cdef int32_t *out = <int32_t *>column.values
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 4:
            out[i] = <int32_t>be32(data + cell.start)
        elif cell.size < 0:
            out[i] = 0
        else:
            return False
    return True


cdef inline bint _int8(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i
    cdef Cell cell
    cdef int64_t *out = <int64_t *>column.values
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 8:
            out[i] = <int64_t>be64(data + cell.start)
        elif cell.size < 0:
            out[i] = 0
        else:
            return False
    return True


cdef inline bint _float_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """If a number's digits and its power of ten are both exact in the type, one multiplication or division gives the
    correctly rounded result. The C library converts other numbers, and also rounds correctly."""
    cdef int64_t i
    cdef int32_t j, digits, after, power, size
    cdef uint64_t number
    cdef bint negative, single = column.kind.width == 4
    cdef uint8_t c
    cdef double value
    cdef char word[64]
    cdef char *stop
    cdef Cell cell
    cdef const uint8_t *raw
    for i in range(a, b):
        cell = column.cells[i]
        value = 0
        if cell.size >= 0:
            raw = data + cell.start
            size = cell.size
            if size == 3 and memcmp(raw, b"NaN", 3) == 0:
                value = NAN
            elif size == 8 and memcmp(raw, b"Infinity", 8) == 0:
                value = INFINITY
            elif size == 9 and memcmp(raw, b"-Infinity", 9) == 0:
                value = -INFINITY
            else:
                if size < 1 or size > 40:
                    return False
                negative = raw[0] == c'-'
                j = 1 if negative else 0
                number, digits, after, power = 0, 0, -1, 0
                if j == size or raw[j] < c'0' or raw[j] > c'9':
                    return False
                while j < size:
                    c = raw[j]
                    if c'0' <= c <= c'9':
                        if digits < 19:
                            number = number * 10 + (c - c'0')
                        digits += 1
                        if after >= 0:
                            after += 1
                    elif c == c'.' and after < 0:
                        after = 0
                    else:
                        break
                    j += 1
                if after == 0:
                    return False
                if j < size:
                    if raw[j] != c'e' or size - j < 3 or size - j > 5:
                        return False
                    c = raw[j + 1]
                    if c != c'+' and c != c'-':
                        return False
                    j += 2
                    while j < size:
                        if raw[j] < c'0' or raw[j] > c'9':
                            return False
                        power = power * 10 + (raw[j] - c'0')
                        j += 1
                    if c == c'-':
                        power = -power
                if after > 0:
                    power -= after
                if not single and digits <= 15 and -22 <= power <= 22:
                    value = <double>number * TENS[power] if power >= 0 else <double>number / TENS[-power]
                    if negative:
                        value = -value
                elif single and digits <= 7 and -10 <= power <= 10:
                    value = (
                        <double>(<float>number * <float>TENS[power])
                        if power >= 0
                        else <double>(<float>number / <float>TENS[-power])
                    )
                    if negative:
                        value = -value
                else:
                    memcpy(word, raw, size)
                    word[size] = 0
                    value = strtof(word, &stop) if single else strtod(word, &stop)
                    if stop != word + size or value - value != 0:
                        return False  # another locale's decimal point, or more than the type holds
        if single:
            (<float *>column.values)[i] = <float>value
        else:
            (<double *>column.values)[i] = value
    return True


cdef inline bint _number(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """int2, oid and floats."""
    cdef int64_t i
    cdef int size = 8
    cdef int width = column.kind.width
    cdef Cell cell
    cdef const uint8_t *raw
    cdef uint8_t *out
    cdef float single
    cdef double number
    if code == INT2:
        size = 2
    elif code == OID or code == FLOAT4:
        size = 4
    for i in range(a, b):
        cell = column.cells[i]
        out = column.values + i * width
        if cell.size != size:
            if cell.size >= 0:
                return False
            memset(out, 0, width)
            continue
        raw = data + cell.start
        if code == INT2:
            (<int16_t *>out)[0] = <int16_t>be16(raw)
        elif code == OID:
            put_int64(out, be32(raw))
        elif code == FLOAT4:
            single = float_of(be32(raw))
            put_float(out, <float>NAN if single != single else single)
        else:  # FLOAT8
            number = double_of(be64(raw))
            put_double(out, NAN if number != number else number)
    return True
