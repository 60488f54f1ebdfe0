# The kernels of `temporal.py`: dates, times and intervals.

_KERNELS.update({
    "text.date": (DATE_TEXT, 4),
    "binary.date": (DATE, 4),
    "text.timestamp": (TIMESTAMP_TEXT, 8),
    "binary.timestamp": (TIMESTAMP, 8),
    "binary.time": (TIME, 0),
    "binary.timetz": (TIMETZ, 0),
    "binary.interval": (INTERVAL, 16),
})


cdef inline bint _moment_text(Column *column, const uint8_t *data, int64_t a, int64_t b, int code) noexcept nogil:
    """2026-11-21, or 2026-11-21 18:30:00.25 followed by +00 in a column with a time zone."""
    cdef int64_t i, days, micros
    cdef int32_t size
    cdef int hour, minute, second, fraction, j
    cdef Cell cell
    cdef const uint8_t *raw
    for i in range(a, b):
        cell = column.cells[i]
        days = micros = 0
        if cell.size >= 0:
            raw = data + cell.start
            size = cell.size
            if size < 10 or raw[4] != c'-' or raw[7] != c'-':
                return False
            days = _days_of(_number_at(raw, 4), _number_at(raw + 5, 2), _number_at(raw + 8, 2))
            if days < -1000000000:
                return False
            if code == DATE_TEXT:
                if size != 10:
                    return False
            else:
                if column.kind.zoned:
                    size -= 3
                    if size < 19 or memcmp(raw + size, b"+00", 3) != 0:
                        return False
                if size < 19 or size > 26 or size == 20:
                    return False
                if raw[10] != c' ' or raw[13] != c':' or raw[16] != c':':
                    return False
                hour, minute = _number_at(raw + 11, 2), _number_at(raw + 14, 2)
                second = _number_at(raw + 17, 2)
                if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
                    return False
                fraction = 0
                if size > 19:
                    if raw[19] != c'.':
                        return False
                    fraction = _number_at(raw + 20, size - 20)
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


cdef inline int _number_at(const uint8_t *raw, int digits) noexcept nogil:
    """This many digits as a number; negative if one of them is not a digit."""
    cdef int value = 0, j
    cdef uint8_t digit
    for j in range(digits):
        digit = <uint8_t>(raw[j] - c'0')
        if digit > 9:
            return -1
        value = value * 10 + digit
    return value


cdef inline int64_t _days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days since 1970 of a day in the years 1 to 9999; less than -10**9 if there is no such day."""
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


cdef inline bint _date(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, days
    cdef Cell cell
    cdef int32_t *out = <int32_t *>column.values
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 4:
            days = <int32_t>be32(data + cell.start)
            if days > 2147483646 - EPOCH_DAYS or days < -2147483647:
                return False
            out[i] = <int32_t>(days + EPOCH_DAYS)
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


cdef inline uint8_t *_clock(uint8_t *out, int64_t hours, int64_t minutes, int64_t seconds, int parts) noexcept nogil:
    out = _two(out, hours)
    if parts > 1:
        out[0] = c':'
        out = _two(out + 1, minutes)
    if parts > 2:
        out[0] = c':'
        out = _two(out + 1, seconds)
    return out


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
