# The loops over one column's values. Each writes all values of the column, or returns -1 if it does not support a
# value; then the plain decoder decodes the column.

cdef enum:
    PLAIN, COPY, MEDIUM, YEAR, BITS, DATE, DATETIME, TIMESTAMP, TIME, DECIMAL, BYTES, FIXED, UTF8, ASCII, JSON
    SIGNED_TEXT, UNSIGNED_TEXT, MEDIUM_TEXT, YEAR_TEXT, FLOAT_TEXT, DATE_TEXT, MOMENT_TEXT, TIME_TEXT, DECIMAL_TEXT


cdef struct Column:
    int image           # code of the loop for row images
    int result          # and for result rows
    int width           # bytes of a value in a row image; 0: a length precedes the value
    int prefix          # bytes of that length
    int64_t number      # a parameter of the codec
    bint in_key
    bint null_dates     # invalid dates become NULL


cdef int64_t[10] POWERS
POWERS[:] = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef int[10] BYTES_OF
BYTES_OF[:] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef int[16] MONTH_DAYS
MONTH_DAYS[:] = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0]


cdef inline int64_t length_at(const uint8_t *at, int prefix) noexcept nogil:
    cdef int64_t size = at[0]
    if prefix > 1:
        size |= <int64_t>at[1] << 8
    if prefix > 2:
        size |= <int64_t>at[2] << 16
    if prefix > 3:
        size |= <int64_t>at[3] << 24
    return size


cdef int width_of(Column *column, int code) noexcept:
    """Bytes of a value in Arrow."""
    if code == COPY or code == SIGNED_TEXT or code == UNSIGNED_TEXT or code == FLOAT_TEXT:
        return <int>column.number
    if code == YEAR or code == YEAR_TEXT:
        return 2
    if code == MEDIUM or code == MEDIUM_TEXT or code == DATE or code == DATE_TEXT:
        return 4
    return 16 if code == DECIMAL or code == DECIMAL_TEXT else 8


cdef int texts(
    int code, int64_t width, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, uint8_t *out,
    int32_t *offsets
) noexcept nogil:
    """Bytes and text, copied unchanged. 1: some byte is above 127."""
    cdef int64_t row, length, at = 0
    cdef uint64_t high = 0, word
    for row in range(rows):
        offsets[row] = <int32_t>at
        if start[row] < 0:
            continue
        length = size[row]
        if code == FIXED:
            if length > width:
                return -1
            memcpy(out + at, raw + start[row], length)
            memset(out + at + length, 0, width - length)
            at += width
            continue
        memcpy(out + at, raw + start[row], length)
        at += length
    offsets[rows] = <int32_t>at
    if code == BYTES or code == FIXED:
        return 0
    memset(out + at, 0, 8)
    for row in range(0, at, 8):
        memcpy(&word, out + row, 8)
        high |= word
    if high & <uint64_t>0x8080808080808080:
        return -1 if code == ASCII else 1
    return 0


cdef int numbers(
    Column *column, int code, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, uint8_t *out,
    uint8_t *valid
) noexcept nogil:
    if code == COPY:
        return copied(<int>column.number, raw, start, rows, out)
    if code == DECIMAL:
        return decimals(column, raw, start, rows, <int128 *>out)
    if code == BITS:
        return bits_of(column, raw, start, size, rows, <uint64_t *>out)
    if code == DATE or code == DATE_TEXT:
        return dates(column, code, raw, start, size, rows, <int32_t *>out, valid)
    if code == DATETIME or code == TIMESTAMP or code == MOMENT_TEXT:
        return moments(column, code, raw, start, size, rows, <int64_t *>out, valid)
    if code == TIME or code == TIME_TEXT:
        return times(column, code, raw, start, size, rows, <int64_t *>out)
    if code == MEDIUM or code == YEAR:
        return odd_integers(column, code, raw, start, rows, out)
    if code == FLOAT_TEXT:
        return floats(<int>column.number, raw, start, size, rows, out)
    if code == DECIMAL_TEXT:
        return decimal_texts(column, raw, start, size, rows, <int128 *>out)
    return integer_texts(column, code, raw, start, size, rows, out)


cdef int copied(int width, const uint8_t *raw, const int64_t *start, int64_t rows, uint8_t *out) noexcept nogil:
    cdef int64_t row
    if width == 8:
        for row in range(rows):
            if start[row] < 0:
                memset(out + 8 * row, 0, 8)
            else:
                memcpy(out + 8 * row, raw + start[row], 8)
    elif width == 4:
        for row in range(rows):
            if start[row] < 0:
                memset(out + 4 * row, 0, 4)
            else:
                memcpy(out + 4 * row, raw + start[row], 4)
    elif width == 2:
        for row in range(rows):
            if start[row] < 0:
                memset(out + 2 * row, 0, 2)
            else:
                memcpy(out + 2 * row, raw + start[row], 2)
    else:
        for row in range(rows):
            out[row] = 0 if start[row] < 0 else raw[start[row]]
    return 0


cdef int odd_integers(
    Column *column, int code, const uint8_t *raw, const int64_t *start, int64_t rows, uint8_t *out
) noexcept nogil:
    cdef int64_t row
    cdef int32_t value
    for row in range(rows):
        if code == YEAR:
            value = 0 if start[row] < 0 else raw[start[row]]
            (<int16_t *>out)[row] = <int16_t>(value + 1900 if value else 0)
            continue
        value = 0 if start[row] < 0 else <int32_t>length_at(raw + start[row], 3)
        (<int32_t *>out)[row] = (value ^ 0x800000) - 0x800000 if column.number else value
    return 0


cdef inline uint64_t big_endian(const uint8_t *at, int width) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(width):
        value = value << 8 | at[i]
    return value


cdef int bits_of(
    Column *column, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, uint64_t *out
) noexcept nogil:
    cdef int64_t row
    cdef int width = <int>column.number
    for row in range(rows):
        if start[row] < 0:
            out[row] = 0
            continue
        if size != NULL and size[row] != width:
            return -1
        out[row] = big_endian(raw + start[row], width)
    return 0


cdef inline int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days since 1970; -2^40 for an invalid date."""
    cdef int64_t era, of_era, of_year
    if year <= 0 or month <= 0 or day <= 0 or month > 12:
        return -(<int64_t>1 << 40)
    if day > MONTH_DAYS[month]:
        if month != 2 or day > 29 or year % 4 or (year % 100 == 0 and year % 400):
            return -(<int64_t>1 << 40)
    year -= month <= 2
    era = year // 400 if year >= 0 else -1
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int number_at(const uint8_t *at, int digits) noexcept nogil:
    """A number with this many digits; -1 if a character is not a digit."""
    cdef int value = 0, i, digit
    for i in range(digits):
        digit = at[i] - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


cdef inline int64_t day_text(const uint8_t *at) noexcept nogil:
    """Days of yyyy-mm-dd; -2^40 for an invalid date, -2^41 for text that is not a date."""
    cdef int year = number_at(at, 4), month = number_at(at + 5, 2), day = number_at(at + 8, 2)
    if year < 0 or month < 0 or day < 0 or at[4] != 45 or at[7] != 45:
        return -(<int64_t>1 << 41)
    return days_of(year, month, day)


cdef inline bint taken_away(int64_t days, Column *column, int64_t row, uint8_t *valid) noexcept nogil:
    """Set an invalid date to NULL, if that is the policy."""
    if days == -(<int64_t>1 << 40) and column.null_dates and valid != NULL:
        valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
        return True
    return False


cdef int dates(
    Column *column, int code, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, int32_t *out,
    uint8_t *valid
) noexcept nogil:
    cdef int64_t row, days, value
    for row in range(rows):
        out[row] = 0
        if start[row] < 0:
            continue
        if code == DATE:
            value = length_at(raw + start[row], 3)
            days = days_of(value >> 9, value >> 5 & 15, value & 31)
        else:
            if size[row] != 10:
                return -1
            days = day_text(raw + start[row])
        if days <= -(<int64_t>1 << 40):
            if not taken_away(days, column, row, valid):
                return -1
            continue
        out[row] = <int32_t>days
    return 0


cdef inline int64_t fraction_us(const uint8_t *at, int digits) noexcept nogil:
    cdef int width = (digits + 1) // 2
    return <int64_t>big_endian(at, width) * POWERS[6 - 2 * width]


cdef int moments(
    Column *column, int code, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, int64_t *out,
    uint8_t *valid
) noexcept nogil:
    cdef int64_t row, days, value, us, time
    cdef int digits = <int>column.number, hour, minute, second, part
    cdef const uint8_t *at
    for row in range(rows):
        out[row] = 0
        if start[row] < 0:
            continue
        at = raw + start[row]
        if code == TIMESTAMP:
            us = <int64_t>big_endian(at, 4) * 1000000 + fraction_us(at + 4, digits)
            if us == 0:
                if not taken_away(-(<int64_t>1 << 40), column, row, valid):
                    return -1
            out[row] = us
            continue
        if code == DATETIME:
            value = <int64_t>big_endian(at, 5) - (<int64_t>1 << 39)
            if value < 0:
                return -1
            us = fraction_us(at + 5, digits)
            hour, minute, second = <int>(value >> 12 & 31), <int>(value >> 6 & 63), <int>(value & 63)
            days = days_of((value >> 22) // 13, (value >> 22) % 13, value >> 17 & 31)
        else:
            if size[row] != (20 + digits if digits else 19):
                return -1
            days = day_text(at)
            hour, minute, second = number_at(at + 11, 2), number_at(at + 14, 2), number_at(at + 17, 2)
            if at[10] != 32 or at[13] != 58 or at[16] != 58 or hour < 0 or minute < 0 or second < 0:
                return -1
            us = 0
            if digits:
                part = number_at(at + 20, digits)
                if at[19] != 46 or part < 0:
                    return -1
                us = part * POWERS[6 - digits]
        if hour > 23 or minute > 59 or second > 59 or us > 999999:
            return -1
        if days <= -(<int64_t>1 << 40):
            if not taken_away(days, column, row, valid):
                return -1
            continue
        time = (hour * 60 + minute) * 60 + second
        out[row] = (days * 86400 + time) * 1000000 + us
    return 0


cdef int times(
    Column *column, int code, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, int64_t *out
) noexcept nogil:
    cdef int64_t row, packed, whole, us, length
    cdef int digits = <int>column.number, width = (<int>column.number + 1) // 2, hour, minute, second, tail, hundreds
    cdef bint negative
    cdef const uint8_t *at
    for row in range(rows):
        out[row] = 0
        if start[row] < 0:
            continue
        at = raw + start[row]
        if code == TIME:
            packed = <int64_t>big_endian(at, 3 + width) - (<int64_t>0x800000 << 8 * width)
            negative = packed < 0
            packed = -packed if negative else packed
            whole = packed >> 8 * width
            us = (packed & ((<int64_t>1 << 8 * width) - 1)) * POWERS[6 - 2 * width]
            hour, minute, second = <int>(whole >> 12), <int>(whole >> 6 & 63), <int>(whole & 63)
        else:
            negative = size[row] > 0 and at[0] == 45
            tail = digits + 1 if digits else 0
            length = size[row] - negative - tail
            if length < 8 or length > 9:
                return -1
            at += negative
            hundreds = 0
            if length == 9:
                hundreds = number_at(at, 1)
                at += 1
            hour, minute, second = number_at(at, 2), number_at(at + 3, 2), number_at(at + 6, 2)
            if hundreds < 0 or hour < 0 or minute < 0 or second < 0 or at[2] != 58 or at[5] != 58:
                return -1
            hour += 100 * hundreds
            us = 0
            if digits:
                us = number_at(at + 9, digits)
                if at[8] != 46 or us < 0:
                    return -1
                us *= POWERS[6 - digits]
        if hour > 1023 or minute > 59 or second > 59 or us > 999999:
            return -1
        whole = (<int64_t>(hour * 60 + minute) * 60 + second) * 1000000 + us
        out[row] = -whole if negative else whole
    return 0


cdef int decimals(
    Column *column, const uint8_t *raw, const int64_t *start, int64_t rows, int128 *out
) noexcept nogil:
    cdef int precision = <int>(column.number >> 8), scale = <int>(column.number & 0xFF)
    cdef int groups = 0, g, i, at
    cdef int[16] sizes
    cdef int[16] digits
    cdef int64_t row
    cdef uint32_t group, flip
    cdef uint8_t[64] value
    cdef int128 number
    if (precision - scale) % 9:
        digits[groups] = (precision - scale) % 9
        groups += 1
    for i in range((precision - scale) // 9 + scale // 9):
        digits[groups] = 9
        groups += 1
    if scale % 9:
        digits[groups] = scale % 9
        groups += 1
    for g in range(groups):
        sizes[g] = BYTES_OF[digits[g]]
    for row in range(rows):
        out[row] = 0
        if start[row] < 0:
            continue
        memcpy(value, raw + start[row], column.width)
        flip = 0 if value[0] & 0x80 else 0xFFFFFFFF
        value[0] ^= 0x80
        number = 0
        at = 0
        for g in range(groups):
            group = <uint32_t>big_endian(value + at, sizes[g])
            group ^= flip >> (32 - 8 * sizes[g])
            if group >= <uint32_t>POWERS[digits[g]]:
                return -1
            number = number * POWERS[digits[g]] + group
            at += sizes[g]
        out[row] = -number if flip else number
    return 0


cdef int integer_texts(
    Column *column, int code, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, uint8_t *out
) noexcept nogil:
    cdef int64_t row, i, length
    cdef uint64_t value, digit, most
    cdef bint negative, signed = code != UNSIGNED_TEXT and not (code == MEDIUM_TEXT and not column.number)
    cdef int width = 4 if code == MEDIUM_TEXT else 2 if code == YEAR_TEXT else <int>column.number
    cdef const uint8_t *at
    most = <uint64_t>-1 >> (64 - 8 * width) >> signed
    for row in range(rows):
        value = 0
        negative = False
        if start[row] >= 0:
            at, length = raw + start[row], size[row]
            if signed and length and at[0] == 45:
                negative = True
                at += 1
                length -= 1
            if length < 1 or length > 20:
                return -1
            for i in range(length):
                digit = <uint64_t>(at[i] - 48)
                if digit > 9 or value > (<uint64_t>-1 - digit) // 10:
                    return -1
                value = value * 10 + digit
            if value > most + negative:
                return -1
            if negative:
                value = 0 - value
        if width == 8:
            (<uint64_t *>out)[row] = value
        elif width == 4:
            (<uint32_t *>out)[row] = <uint32_t>value
        elif width == 2:
            (<uint16_t *>out)[row] = <uint16_t>value
        else:
            out[row] = <uint8_t>value
    return 0


cdef int floats(
    int width, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, uint8_t *out
) noexcept nogil:
    cdef int64_t row, i
    cdef char[64] text
    cdef char *end
    cdef double value
    cdef uint8_t letter
    for row in range(rows):
        value = 0
        if start[row] >= 0:
            if size[row] < 1 or size[row] > 63:
                return -1
            memcpy(text, raw + start[row], size[row])
            text[size[row]] = 0
            for i in range(size[row]):
                letter = text[i]
                if not (48 <= letter <= 57 or letter == 45 or letter == 43 or letter == 46 or letter == 101):
                    return -1
            value = strtod(text, &end)
            if end != text + size[row]:
                return -1
        if width == 8:
            (<double *>out)[row] = value
        else:
            (<float *>out)[row] = <float>value
    return 0


cdef int decimal_texts(
    Column *column, const uint8_t *raw, const int64_t *start, const int64_t *size, int64_t rows, int128 *out
) noexcept nogil:
    """[-]digits[.digits], with exactly `scale` digits after the point."""
    cdef int scale = <int>(column.number & 0xFF), precision = <int>(column.number >> 8), digits
    cdef int64_t row, i, length, point
    cdef int128 number
    cdef bint negative
    cdef const uint8_t *at
    for row in range(rows):
        out[row] = 0
        if start[row] < 0:
            continue
        at, length = raw + start[row], size[row]
        negative = length > 0 and at[0] == 45
        at += negative
        length -= negative
        point = length - scale - 1 if scale else length
        if point < 1 or length > 60:
            return -1
        number = 0
        digits = 0
        for i in range(length):
            if i == point:
                if at[i] != 46:
                    return -1
                continue
            if at[i] < 48 or at[i] > 57:
                return -1
            digits += digits > 0 or at[i] > 48
            if digits > precision:
                return -1
            number = number * 10 + (at[i] - 48)
        out[row] = -number if negative else number
    return 0
