# Convert one column's cells to the values of an Arrow array, a batch of rows at a time: what the kernels of all types
# share.
#
# A kernel is in its family's file, `../types/*.pxi`, which registers it in _KERNELS. It supports only the usual values,
# and decodes them exactly as the plain decoder next to it. For anything else, be it rare (an infinite date), wrong (an
# impossible length) or hostile, it returns False, and the plain decoder decodes the whole column. So the meaning of
# unusual values is defined only once.
#
# A read may extend up to 16 bytes beyond a cell: the buffer is padded (`buffers.PAD`). A write may extend up to 64
# bytes beyond what is written so far: `arrow.take` leaves room.

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

# Which kinds of cells a column has.
cdef enum:
    SEEN_TEXT = 1
    SEEN_BINARY = 2
    SEEN_NULL = 4
    SEEN_UNCHANGED = 8

cdef enum Code:
    NONE = 0  # left to the plain decoder
    BOOL, INT2, INT4, INT8, OID, FLOAT4, FLOAT8, MONEY, DATE, TIMESTAMP, INTERVAL, DECIMAL, UUID, TIME, TIMETZ, BITS,
    NUMERIC, STRING, BYTES, JSONB, LIST
    BOOL_TEXT, INT_TEXT, FLOAT_TEXT, DECIMAL_TEXT, DATE_TEXT, TIMESTAMP_TEXT, BYTES_TEXT


cdef struct Cell:
    int32_t start
    int32_t size  # or NULL_CELL, UNCHANGED_CELL


# A conversion. `width`: of a value in bytes; 0 for text and bytes, -1 for bits.
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
    """Room for `count` values; False: no memory. A column of more than 2 GiB is marked `declined`."""
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
    """Values of rows a to b; False: one is left to the plain decoder. `a` is a multiple of 8."""
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
    if code == DATE:
        return _date(column, data, a, b)
    if code == MONEY:
        return _money(column, data, a, b)
    return _number(column, data, a, b, code)


cdef inline uint8_t *_two(uint8_t *out, int64_t value) noexcept nogil:
    out[0] = <uint8_t>(c'0' + value // 10)
    out[1] = <uint8_t>(c'0' + value % 10)
    return out + 2


cdef dict _KERNELS = {}  # by the name in a decoder: code, width of a value


cdef Kind kind_of(object name, object arrow):
    """Return the conversion with this name, to this Arrow type; its code is NONE if it does not exist."""
    cdef Kind kind
    kind.code, kind.width = _KERNELS.get(name, (NONE, 0))
    kind.precision = kind.scale = 0
    kind.element = NULL
    kind.zoned = kind.code == TIMESTAMP_TEXT and arrow.tz is not None
    if kind.code == DECIMAL or kind.code == DECIMAL_TEXT:
        kind.width, kind.precision, kind.scale = arrow.bit_width // 8, arrow.precision, arrow.scale
    elif kind.code == INT_TEXT:
        kind.width = arrow.bit_width // 8
        if pa.types.is_floating(arrow):
            kind.code = FLOAT_TEXT
    return kind


include "../types/numbers.pxi"
include "../types/decimals.pxi"
include "../types/temporal.pxi"
include "../types/texts.pxi"
include "../types/bits.pxi"
include "../types/arrays.pxi"
