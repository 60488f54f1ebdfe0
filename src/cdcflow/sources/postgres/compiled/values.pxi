# One column's cells to the values of an Arrow array, a stretch of rows at a time.
#
# Each conversion takes only what is usual, exactly as the plain decoders (`values_binary`, `values_text`) read it.
# Anything else, be it rare (an infinite date), wrong (a length that cannot be) or hostile, makes it answer False, and
# the plain decoder is asked for the whole column. So what an odd value means is written in one place only.
#
# A read may go up to 16 bytes beyond a cell: the buffer is padded (`wire.PAD`). A write may go up to 64 bytes beyond
# what is written so far: `arrow.take` leaves room.

cdef extern from * nogil:
    """
    #include <string.h>
    typedef unsigned __int128 uint128_t;
    #define DAY_US 86400000000LL
    #define EPOCH_US 946684800000000LL
    #define EPOCH_DAYS 10957
    static inline uint16_t be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void put_int32(uint8_t *p, int32_t v) { memcpy(p, &v, 4); }
    static inline void put_int64(uint8_t *p, int64_t v) { memcpy(p, &v, 8); }
    static inline void put_float(uint8_t *p, float v) { memcpy(p, &v, 4); }
    static inline void put_double(uint8_t *p, double v) { memcpy(p, &v, 8); }
    static inline float float_of(uint32_t v) { float f; memcpy(&f, &v, 4); return f; }
    static inline double double_of(uint64_t v) { double f; memcpy(&f, &v, 8); return f; }
    /* Four limbs of 64 bits, the lowest first: limbs = limbs * factor + more. Not 0: it ran over. */
    static inline uint64_t grow(uint64_t *limbs, uint64_t factor, uint64_t more) {
        uint128_t carry = more;
        for (int i = 0; i < 4; i++) {
            carry += (uint128_t)limbs[i] * factor;
            limbs[i] = (uint64_t)carry;
            carry >>= 64;
        }
        return (uint64_t)carry;
    }
    static inline void negate(uint64_t *limbs) {
        uint64_t carry = 1;
        for (int i = 0; i < 4; i++) {
            limbs[i] = ~limbs[i] + carry;
            carry = carry && !limbs[i];
        }
    }
    /* Whether the bytes are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
    static inline int is_utf8(const uint8_t *p, int64_t size) {
        const uint8_t *end = p + size;
        while (p < end) {
            uint8_t c = *p++;
            int more;
            uint8_t least = 0x80, most = 0xBF;
            if (c < 0x80) continue;
            if (c >= 0xC2 && c <= 0xDF) more = 1;
            else if (c >= 0xE0 && c <= 0xEF) {
                more = 2;
                if (c == 0xE0) least = 0xA0;
                if (c == 0xED) most = 0x9F;
            } else if (c >= 0xF0 && c <= 0xF4) {
                more = 3;
                if (c == 0xF0) least = 0x90;
                if (c == 0xF4) most = 0x8F;
            } else return 0;
            if (end - p < more) return 0;
            if (*p < least || *p > most) return 0;
            for (int i = 1; i < more; i++) if (p[i] < 0x80 || p[i] > 0xBF) return 0;
            p += more;
        }
        return 1;
    }
    static inline int is_ascii(const uint8_t *p, int64_t size) {
        uint64_t seen = 0, word;
        int64_t i = 0;
        for (; i + 8 <= size; i += 8) { memcpy(&word, p + i, 8); seen |= word; }
        for (; i < size; i++) seen |= (uint64_t)p[i] << 56 | p[i];
        return !(seen & 0x8080808080808080ULL);
    }
    static const double TENS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
        1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    static const char HEX[] = "0123456789abcdef";
    """
    const int64_t DAY_US
    const int64_t EPOCH_US
    const int EPOCH_DAYS
    uint16_t be16(const uint8_t *p)
    uint32_t be32(const uint8_t *p)
    uint64_t be64(const uint8_t *p)
    void put_int32(uint8_t *p, int32_t v)
    void put_int64(uint8_t *p, int64_t v)
    void put_float(uint8_t *p, float v)
    void put_double(uint8_t *p, double v)
    float float_of(uint32_t v)
    double double_of(uint64_t v)
    uint64_t grow(uint64_t *limbs, uint64_t factor, uint64_t more)
    void negate(uint64_t *limbs)
    int is_utf8(const uint8_t *p, int64_t size)
    int is_ascii(const uint8_t *p, int64_t size)
    const double TENS[23]
    const char HEX[17]


cdef enum:
    NULL_CELL = -1
    UNCHANGED_CELL = -2

# What a column's cells were seen to be.
cdef enum:
    SEEN_TEXT = 1
    SEEN_BINARY = 2
    SEEN_NULL = 4
    SEEN_UNCHANGED = 8

cdef enum Code:
    NONE = 0  # the plain decoder's
    BOOL, INT2, INT4, INT8, OID, FLOAT4, FLOAT8, MONEY, DATE, TIMESTAMP, INTERVAL, DECIMAL, UUID, TIME, TIMETZ, BITS, NUMERIC
    STRING, BYTES, JSONB, LIST
    BOOL_TEXT, INT_TEXT, FLOAT_TEXT, DECIMAL_TEXT, DATE_TEXT, TIMESTAMP_TEXT, BYTES_TEXT


cdef struct Cell:
    int32_t start
    int32_t size  # or NULL_CELL, UNCHANGED_CELL


# A conversion: `width` is that of a value in bytes, 0 for text and bytes, -1 for bits.
cdef struct Kind:
    int code
    int width
    int precision
    int scale
    bint zoned
    Kind *element  # of a LIST


cdef struct Column:
    Kind kind
    const Cell *cells
    int64_t count
    uint8_t *valid
    uint8_t *values
    int32_t *offsets
    Column *elements  # of a LIST
    bint declined


cdef inline bint prepared(
    Column *column, const uint8_t *data, int64_t count, bint nulls, Block **arena
) noexcept nogil:
    """Room for `count` values; False: no memory. Bytes of more than 2 GiB are declined."""
    cdef int64_t i, total = 0
    cdef int code = column.kind.code
    column.count = count
    column.valid = NULL
    column.offsets = NULL
    column.values = NULL
    column.elements = NULL
    if code == NONE:
        column.declined = True
        return True
    if nulls:
        column.valid = <uint8_t *>take(arena, (count + 7) // 8)
        if column.valid == NULL:
            return False
    if code == LIST:
        return _listed(column, data, arena)
    if column.kind.width < 0:
        column.values = <uint8_t *>take(arena, (count + 7) // 8)
        if column.values == NULL:
            return False
        memset(column.values, 0, (count + 7) // 8)
        return True
    if column.kind.width > 0:
        column.values = <uint8_t *>take(arena, count * column.kind.width)
        return column.values != NULL
    if code == UUID:
        total = count * 36
    elif code == TIME:
        total = count * 15
    elif code == TIMETZ:
        total = count * 24
    elif code == NUMERIC:
        for i in range(count):
            total += _numeric_size(data, column.cells[i])
    else:
        for i in range(count):
            if column.cells[i].size > 0:
                total += column.cells[i].size
        if code == BITS:
            total *= 8
    if total > 2147483647:
        column.declined = True
        return True
    column.offsets = <int32_t *>take(arena, (count + 1) * 4)
    column.values = <uint8_t *>take(arena, total)
    if column.offsets == NULL or column.values == NULL:
        return False
    column.offsets[0] = 0
    return True


cdef inline bint _listed(Column *column, const uint8_t *data, Block **arena) noexcept nogil:
    """Arrays of one dimension that begin at 1: their elements are a column of its own, which is filled at once.

    False: no memory. Others are declined.
    """
    cdef int64_t i, j, a, total = 0, found = 0
    cdef int32_t size, length
    cdef bint nulls = False
    cdef Cell cell
    cdef Cell *cells
    cdef const uint8_t *place
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
            place = data + cell.start
            size = <int32_t>be32(place)
            if size != 0 or cell.size != 12:
                if size != 1 or cell.size < 20 or be32(place + 16) != 1:
                    return True
                length = <int32_t>be32(place + 12)
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
        place, end = data + cell.start + 20, data + cell.start + cell.size
        for j in range(column.offsets[i + 1] - column.offsets[i]):
            if end - place < 4:
                return True
            size = <int32_t>be32(place)
            place += 4
            if size < -1 or size > end - place:
                return True
            cells[found].start = <int32_t>(place - data)
            cells[found].size = size
            found += 1
            if size < 0:
                nulls = True
            else:
                place += size
        if place != end:
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


cdef inline void mark_valid(Column *column, int64_t a, int64_t b) noexcept nogil:
    """The validity of rows a to b; `a` is a multiple of 8."""
    cdef int64_t i
    cdef uint8_t bits = 0
    for i in range(a, b):
        if column.cells[i].size >= 0:
            bits |= <uint8_t>(1 << (i & 7))
        if i & 7 == 7:
            column.valid[i >> 3] = bits
            bits = 0
    if b & 7:
        column.valid[b >> 3] = bits


cdef inline bint converted(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """Values of rows a to b; False: there is one that is for the plain decoder. `a` is a multiple of 8."""
    cdef int code = column.kind.code
    if column.valid != NULL:
        mark_valid(column, a, b)
    if code == LIST:
        return True
    if code == STRING or code == BYTES or code == JSONB:
        return _strings(column, data, a, b, code)
    if code == INT4:
        return _int4(column, data, a, b)
    if code == INT8:
        return _int8(column, data, a, b)
    if code == TIMESTAMP:
        return _timestamp(column, data, a, b)
    if code == DECIMAL:
        return _decimal(column, data, a, b)
    if code == BOOL or code == BOOL_TEXT:
        return _bool(column, data, a, b, code)
    if code == INT_TEXT:
        return _int_text(column, data, a, b)
    if code == DECIMAL_TEXT:
        return _decimal_text(column, data, a, b)
    if code == TIMESTAMP_TEXT or code == DATE_TEXT:
        return _moment_text(column, data, a, b, code)
    if code == FLOAT_TEXT:
        return _float_text(column, data, a, b)
    if code == BYTES_TEXT:
        return _bytes_text(column, data, a, b)
    if code == UUID or code == BITS:
        return _digits(column, data, a, b, code)
    if code == NUMERIC:
        return _numeric(column, data, a, b)
    if code == TIME or code == TIMETZ:
        return _time(column, data, a, b)
    if code == INTERVAL:
        return _interval(column, data, a, b)
    return _fixed(column, data, a, b, code)


# ── binary ──────────────────────────────────────────────────────────────────────────────────────────────────


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


cdef inline bint _timestamp(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, micros
    cdef Cell cell
    cdef int64_t *out = <int64_t *>column.values
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 8:
            micros = <int64_t>be64(data + cell.start)
            if micros > <int64_t>9223372036854775807 - EPOCH_US or micros < -<int64_t>9223372036854775807:
                return False
            out[i] = micros + EPOCH_US
        elif cell.size < 0:
            out[i] = 0
        else:
            return False
    return True


cdef inline bint _fixed(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """The other types of a fixed width."""
    cdef int64_t i, days
    cdef int size = 8
    cdef int width = column.kind.width
    cdef Cell cell
    cdef const uint8_t *place
    cdef uint8_t *out
    cdef float single
    cdef double number
    if code == INT2:
        size = 2
    elif code == OID or code == FLOAT4 or code == DATE:
        size = 4
    for i in range(a, b):
        cell = column.cells[i]
        out = column.values + i * width
        if cell.size != size:
            if cell.size >= 0:
                return False
            memset(out, 0, width)
            continue
        place = data + cell.start
        if code == INT2:
            (<int16_t *>out)[0] = <int16_t>be16(place)
        elif code == OID:
            put_int64(out, be32(place))
        elif code == FLOAT4:
            single = float_of(be32(place))
            put_float(out, <float>NAN if single != single else single)
        elif code == FLOAT8:
            number = double_of(be64(place))
            put_double(out, NAN if number != number else number)
        elif code == DATE:
            days = <int32_t>be32(place)
            if days > 2147483646 - EPOCH_DAYS or days < -2147483647:
                return False
            put_int32(out, <int32_t>(days + EPOCH_DAYS))
        else:  # MONEY
            put_int64(out, <int64_t>be64(place))
            put_int64(out + 8, <int64_t>be64(place) >> 63)
    return True


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


cdef inline bint _interval(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """`values` holds all microseconds, then all days, then all months."""
    cdef int64_t i
    cdef int64_t *micros = <int64_t *>column.values
    cdef int32_t *days = <int32_t *>(micros + column.count)
    cdef int32_t *months = days + column.count
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 16:
            micros[i] = <int64_t>be64(data + cell.start)
            days[i], months[i] = <int32_t>be32(data + cell.start + 8), <int32_t>be32(data + cell.start + 12)
            if days[i] == months[i] and (days[i] == 2147483647 or days[i] == -2147483647 - 1):
                return False  # perhaps infinite
        elif cell.size < 0:
            micros[i] = days[i] = months[i] = 0
        else:
            return False
    return True


cdef inline void _put(const uint8_t *source, uint8_t *out, int32_t size) noexcept nogil:
    if size <= 16:
        memcpy(out, source, 16)
    else:
        memcpy(out, source, size)


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


cdef inline bint _digits(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """Bytes whose digits are written out: uuid in hex, bit strings in ones and zeros."""
    cdef int64_t i, j, count
    cdef uint8_t *out = column.values + column.offsets[a]
    cdef const uint8_t *place
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        place = data + cell.start
        if cell.size < 0:
            pass
        elif code == UUID:
            if cell.size != 16:
                return False
            for j in range(16):
                if j == 4 or j == 6 or j == 8 or j == 10:
                    out[0] = c'-'
                    out += 1
                out[0] = HEX[place[j] >> 4]
                out[1] = HEX[place[j] & 15]
                out += 2
        else:
            count = <int32_t>be32(place) if cell.size >= 4 else -1
            if count < 0 or cell.size - 4 != (count + 7) // 8:
                return False
            for j in range(count):
                out[j] = c'0' + (place[4 + (j >> 3)] >> (7 - (j & 7)) & 1)
            out += count
        column.offsets[i + 1] = <int32_t>(out - column.values)
    return True


cdef inline uint8_t *_two(uint8_t *out, int64_t value) noexcept nogil:
    out[0] = <uint8_t>(c'0' + value // 10)
    out[1] = <uint8_t>(c'0' + value % 10)
    return out + 2


cdef inline uint8_t *_clock(uint8_t *out, int64_t hours, int64_t minutes, int64_t seconds, int parts) noexcept nogil:
    out = _two(out, hours)
    if parts > 1:
        out[0] = c':'
        out = _two(out + 1, minutes)
    if parts > 2:
        out[0] = c':'
        out = _two(out + 1, seconds)
    return out


cdef inline bint _time(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, j, micros, seconds, west
    cdef bint zoned = column.kind.code == TIMETZ
    cdef uint8_t *out = column.values + column.offsets[a]
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            if cell.size != (12 if zoned else 8):
                return False
            micros = <int64_t>be64(data + cell.start)
            if micros < 0 or micros > DAY_US:
                return False
            seconds = micros // 1000000
            micros %= 1000000
            out = _clock(out, seconds // 3600, seconds // 60 % 60, seconds % 60, 3)
            if micros:
                out[0] = c'.'
                for j in range(6, 0, -1):
                    out[j] = <uint8_t>(c'0' + micros % 10)
                    micros //= 10
                out += 7
                while (out - 1)[0] == c'0':
                    out -= 1
            if zoned:
                west = <int32_t>be32(data + cell.start + 8)
                if west <= -360000 or west >= 360000:
                    return False
                out[0] = c'-' if west > 0 else c'+'
                if west < 0:
                    west = -west
                j = 3 if west % 60 else (2 if west % 3600 else 1)
                out = _clock(out + 1, west // 3600, west // 60 % 60, west % 60, <int>j)
        column.offsets[i + 1] = <int32_t>(out - column.values)
    return True


cdef inline bint _decimal(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """A numeric of a fixed scale: groups of four digits, of which the last is cut where the scale ends."""
    cdef int64_t i
    cdef int width = column.kind.width, scale = column.kind.scale
    cdef int high = (column.kind.precision - scale + 3) // 4, low = (scale + 3) // 4
    cdef int cut = 1, power, at, groups, weight, sign, digits, factor
    cdef bint narrow = column.kind.precision <= 18
    cdef uint64_t limbs[4]
    cdef uint64_t number, most = 1, room
    cdef Cell cell
    cdef const uint8_t *place
    for power in range((4 - scale % 4) % 4):
        cut *= 10
    for power in range(column.kind.precision if narrow else 0):
        most *= 10
    room = most // (10000 // cut)
    for i in range(a, b):
        cell = column.cells[i]
        limbs[0] = limbs[1] = limbs[2] = limbs[3] = 0
        sign = 0
        if cell.size >= 0:
            if cell.size < 8:
                return False
            place = data + cell.start
            groups, weight, sign = be16(place), <int16_t>be16(place + 2), be16(place + 4)
            if cell.size != 8 + 2 * groups or (sign != 0 and sign != 0x4000):
                return False
            if groups and (weight >= high or groups - 1 - weight > low):
                return False
            place += 8
            if narrow:
                number = 0
                for power in range(high - 1, -low - 1, -1):
                    at, digits, factor = weight - power, 0, 10000
                    if 0 <= at < groups:
                        digits = be16(place + 2 * at)
                        if digits > 9999:
                            return False
                    if power == -low and cut > 1:
                        if digits % cut:
                            return False
                        digits, factor = digits // cut, 10000 // cut
                        if number > room:
                            return False
                    elif number > 100000000000000ULL:
                        return False
                    number = number * factor + digits
                if number >= most:
                    return False
                limbs[0] = number
            else:
                for power in range(high - 1, -low - 1, -1):
                    at, digits, factor = weight - power, 0, 10000
                    if 0 <= at < groups:
                        digits = be16(place + 2 * at)
                        if digits > 9999:
                            return False
                    if power == -low and cut > 1:
                        if digits % cut:
                            return False
                        digits, factor = digits // cut, 10000 // cut
                    if grow(limbs, factor, digits):
                        return False
                if limbs[3] >> 63 or (width == 16 and (limbs[2] or limbs[3] or limbs[1] >> 63)):
                    return False
        if sign:
            negate(limbs)
        memcpy(column.values + i * width, limbs, width)
    return True


cdef inline int64_t _numeric_size(const uint8_t *data, Cell cell) noexcept nogil:
    """At least as many bytes as the text of a numeric has."""
    cdef int weight
    if cell.size < 8:
        return 0
    weight = <int16_t>be16(data + cell.start + 2)
    return 4 * (weight + 1 if weight >= 0 else 1) + (be16(data + cell.start + 6) & 0x3FFF) + 2


cdef inline bint _numeric(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """A numeric as the server prints it: groups of four digits, and as many digits after the point as it says."""
    cdef int64_t i
    cdef int groups, weight, sign, scale, at, digits, left
    cdef uint8_t *out = column.values + column.offsets[a]
    cdef const uint8_t *place
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            if cell.size < 8:
                return False
            place = data + cell.start
            groups, weight, sign = be16(place), <int16_t>be16(place + 2), be16(place + 4)
            scale = <int16_t>be16(place + 6)
            if cell.size != 8 + 2 * groups or scale < 0 or scale > 0x3FFF:
                return False
            if (sign != 0 and sign != 0x4000) or (groups == 0 and (sign or weight)):
                return False
            place += 8
            for at in range(groups):
                if be16(place + 2 * at) > 9999:
                    return False
            if sign:
                out[0] = c'-'
                out += 1
            if weight < 0 or groups == 0:
                out[0] = c'0'
                out += 1
            else:
                digits = be16(place)
                if not digits:
                    return False
                if digits >= 1000:
                    out = _two(_two(out, digits // 100), digits % 100)
                elif digits >= 100:
                    out[0] = <uint8_t>(c'0' + digits // 100)
                    out = _two(out + 1, digits % 100)
                elif digits >= 10:
                    out = _two(out, digits)
                else:
                    out[0] = <uint8_t>(c'0' + digits)
                    out += 1
                for at in range(1, weight + 1):
                    digits = be16(place + 2 * at) if at < groups else 0
                    out = _two(_two(out, digits // 100), digits % 100)
            if scale:
                if groups and weight < 0 and not be16(place):
                    return False
                out[0] = c'.'
                out += 1
                at = weight + 1
                left = scale
                while left > 0:
                    digits = be16(place + 2 * at) if 0 <= at < groups else 0
                    if left >= 4:
                        out = _two(_two(out, digits // 100), digits % 100)
                    else:
                        out[0] = <uint8_t>(c'0' + digits // 1000)
                        if left > 1:
                            out[1] = <uint8_t>(c'0' + digits // 100 % 10)
                        if left > 2:
                            out[2] = <uint8_t>(c'0' + digits // 10 % 10)
                        out += left
                    at += 1
                    left -= 4
            elif groups and not be16(place):
                return False
        column.offsets[i + 1] = <int32_t>(out - column.values)
    return True


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────


cdef inline bint _int_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, value
    cdef int32_t j, width = column.kind.width
    cdef uint64_t number, most
    cdef uint8_t digit
    cdef bint negative
    cdef Cell cell
    cdef const uint8_t *place
    most = (<uint64_t>1 << (8 * width - 1)) - 1
    for i in range(a, b):
        cell = column.cells[i]
        value = 0
        if cell.size >= 0:
            place = data + cell.start
            negative = cell.size > 0 and place[0] == c'-'
            if negative:
                place += 1
                cell.size -= 1
            if cell.size < 1 or cell.size > 19 or (cell.size > 1 and place[0] == c'0'):
                return False
            number = 0
            for j in range(cell.size):
                digit = <uint8_t>(place[j] - c'0')
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


cdef inline bint _float_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """Numbers whose digits and power of ten are both exact in the type are one multiplication away, correctly
    rounded; others are for the C library, which rounds correctly as well."""
    cdef int64_t i
    cdef int32_t j, digits, after, power, size
    cdef uint64_t number
    cdef bint negative, single = column.kind.width == 4
    cdef uint8_t c
    cdef double value
    cdef char word[64]
    cdef char *stop
    cdef Cell cell
    cdef const uint8_t *place
    for i in range(a, b):
        cell = column.cells[i]
        value = 0
        if cell.size >= 0:
            place = data + cell.start
            size = cell.size
            if size == 3 and memcmp(place, b"NaN", 3) == 0:
                value = NAN
            elif size == 8 and memcmp(place, b"Infinity", 8) == 0:
                value = INFINITY
            elif size == 9 and memcmp(place, b"-Infinity", 9) == 0:
                value = -INFINITY
            else:
                if size < 1 or size > 40:
                    return False
                negative = place[0] == c'-'
                j = 1 if negative else 0
                number, digits, after, power = 0, 0, -1, 0
                if j == size or place[j] < c'0' or place[j] > c'9':
                    return False
                while j < size:
                    c = place[j]
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
                    if place[j] != c'e' or size - j < 3 or size - j > 5:
                        return False
                    c = place[j + 1]
                    if c != c'+' and c != c'-':
                        return False
                    j += 2
                    while j < size:
                        if place[j] < c'0' or place[j] > c'9':
                            return False
                        power = power * 10 + (place[j] - c'0')
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
                    memcpy(word, place, size)
                    word[size] = 0
                    value = strtof(word, &stop) if single else strtod(word, &stop)
                    if stop != word + size or value - value != 0:
                        return False  # another locale's decimal point, or more than the type holds
        if single:
            (<float *>column.values)[i] = <float>value
        else:
            (<double *>column.values)[i] = value
    return True


cdef inline bint _decimal_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """Digits, a point, and exactly `scale` digits, as the server prints a numeric(p,s)."""
    cdef int64_t i
    cdef int width = column.kind.width, scale = column.kind.scale
    cdef int32_t j, point, size
    cdef uint64_t limbs[4]
    cdef uint64_t number, factor
    cdef uint8_t digit
    cdef bint negative
    cdef Cell cell
    cdef const uint8_t *place
    for i in range(a, b):
        cell = column.cells[i]
        limbs[0] = limbs[1] = limbs[2] = limbs[3] = 0
        negative = False
        if cell.size >= 0:
            place = data + cell.start
            size = cell.size
            negative = size > 0 and place[0] == c'-'
            if negative:
                place += 1
                size -= 1
            point = size - scale - 1 if scale else size
            if point < 1 or (scale and place[point] != c'.'):
                return False
            if point > column.kind.precision - scale and not (point == 1 and place[0] == c'0'):
                return False
            number, factor = 0, 1
            for j in range(size):
                if j == point:
                    continue
                digit = <uint8_t>(place[j] - c'0')
                if digit > 9:
                    return False
                number = number * 10 + digit
                factor *= 10
                if factor == 1000000000000000000ULL:
                    grow(limbs, factor, number)
                    number, factor = 0, 1
            grow(limbs, factor, number)
        if negative:
            negate(limbs)
        memcpy(column.values + i * width, limbs, width)
    return True


cdef inline int _number_at(const uint8_t *place, int digits) noexcept nogil:
    """So many digits as a number; negative where one of them is no digit."""
    cdef int value = 0, j
    cdef uint8_t digit
    for j in range(digits):
        digit = <uint8_t>(place[j] - c'0')
        if digit > 9:
            return -1
        value = value * 10 + digit
    return value


cdef inline int64_t _days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days since 1970 of a day in the years 1 to 9999; before -10**9 where there is no such day."""
    cdef int64_t era, of_era, of_year
    cdef int last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if year < 1 or month < 1 or month > 12 or day < 1 or day > last:
        return -1000000001
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline bint _moment_text(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """2026-11-21, or 2026-11-21 18:30:00.25 with +00 behind it in a zoned column."""
    cdef int64_t i, days, micros
    cdef int32_t size
    cdef int hour, minute, second, fraction, j
    cdef Cell cell
    cdef const uint8_t *place
    for i in range(a, b):
        cell = column.cells[i]
        days = micros = 0
        if cell.size >= 0:
            place = data + cell.start
            size = cell.size
            if size < 10 or place[4] != c'-' or place[7] != c'-':
                return False
            days = _days_of(_number_at(place, 4), _number_at(place + 5, 2), _number_at(place + 8, 2))
            if days < -1000000000:
                return False
            if code == DATE_TEXT:
                if size != 10:
                    return False
            else:
                if column.kind.zoned:
                    size -= 3
                    if size < 19 or memcmp(place + size, b"+00", 3) != 0:
                        return False
                if size < 19 or size > 26 or size == 20:
                    return False
                if place[10] != c' ' or place[13] != c':' or place[16] != c':':
                    return False
                hour, minute = _number_at(place + 11, 2), _number_at(place + 14, 2)
                second = _number_at(place + 17, 2)
                if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
                    return False
                fraction = 0
                if size > 19:
                    if place[19] != c'.':
                        return False
                    fraction = _number_at(place + 20, size - 20)
                    if fraction < 0:
                        return False
                    for j in range(26 - size):
                        fraction *= 10
                micros = ((<int64_t>hour * 60 + minute) * 60 + second) * 1000000 + fraction
        if code == DATE_TEXT:
            (<int32_t *>column.values)[i] = <int32_t>days
        else:
            (<int64_t *>column.values)[i] = days * DAY_US + micros
    return True


cdef inline int _nibble(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1


cdef inline bint _bytes_text(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i
    cdef int32_t j, filled = column.offsets[a]
    cdef int high, low
    cdef Cell cell
    cdef const uint8_t *place
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            place = data + cell.start
            if cell.size < 2 or cell.size & 1 or place[0] != c'\\' or place[1] != c'x':
                return False
            for j in range(2, cell.size, 2):
                high, low = _nibble(place[j]), _nibble(place[j + 1])
                if high < 0 or low < 0:
                    return False
                column.values[filled] = <uint8_t>(high << 4 | low)
                filled += 1
        column.offsets[i + 1] = filled
    return True
