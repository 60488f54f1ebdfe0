# The kernels of `decimals.py`: numeric and money.

_KERNELS.update({
    "text.decimal": (DECIMAL_TEXT, 0),
    "binary.decimal": (DECIMAL, 0),
    "binary.numeric": (NUMERIC, 0),
    "binary.money": (MONEY, 16),
})


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
    cdef const uint8_t *raw
    for i in range(a, b):
        cell = column.cells[i]
        limbs[0] = limbs[1] = limbs[2] = limbs[3] = 0
        negative = False
        if cell.size >= 0:
            raw = data + cell.start
            size = cell.size
            negative = size > 0 and raw[0] == c'-'
            if negative:
                raw += 1
                size -= 1
            point = size - scale - 1 if scale else size
            if point < 1 or (scale and raw[point] != c'.'):
                return False
            if point > column.kind.precision - scale and not (point == 1 and raw[0] == c'0'):
                return False
            number, factor = 0, 1
            for j in range(size):
                if j == point:
                    continue
                digit = <uint8_t>(raw[j] - c'0')
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


cdef inline bint _decimal(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """A numeric of a fixed scale: groups of four digits; the last group is cut at the end of the scale."""
    cdef int64_t i
    cdef int width = column.kind.width, scale = column.kind.scale
    cdef int high = (column.kind.precision - scale + 3) // 4, low = (scale + 3) // 4
    cdef int cut = 1, power, at, groups, weight, sign, digits, factor
    cdef bint narrow = column.kind.precision <= 18
    cdef uint64_t limbs[4]
    cdef uint64_t number, most = 1, room
    cdef Cell cell
    cdef const uint8_t *raw
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
            raw = data + cell.start
            groups, weight, sign = be16(raw), <int16_t>be16(raw + 2), be16(raw + 4)
            if cell.size != 8 + 2 * groups or (sign != 0 and sign != 0x4000):
                return False
            if groups and (weight >= high or groups - 1 - weight > low):
                return False
            raw += 8
            if narrow:
                number = 0
                for power in range(high - 1, -low - 1, -1):
                    at, digits, factor = weight - power, 0, 10000
                    if 0 <= at < groups:
                        digits = be16(raw + 2 * at)
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
                        digits = be16(raw + 2 * at)
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
    """An upper bound for the bytes of a numeric's text."""
    cdef int weight
    if cell.size < 8:
        return 0
    weight = <int16_t>be16(data + cell.start + 2)
    return 4 * (weight + 1 if weight >= 0 else 1) + (be16(data + cell.start + 6) & 0x3FFF) + 2


cdef inline bint _numeric(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    """A numeric as the server prints it: groups of four digits, and the number of digits after the point that it
    contains."""
    cdef int64_t i
    cdef int groups, weight, sign, scale, at, digits, left
    cdef uint8_t *out = column.values + column.offsets[a]
    cdef const uint8_t *raw
    cdef Cell cell
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size >= 0:
            if cell.size < 8:
                return False
            raw = data + cell.start
            groups, weight, sign = be16(raw), <int16_t>be16(raw + 2), be16(raw + 4)
            scale = <int16_t>be16(raw + 6)
            if cell.size != 8 + 2 * groups or scale < 0 or scale > 0x3FFF:
                return False
            if (sign != 0 and sign != 0x4000) or (groups == 0 and (sign or weight)):
                return False
            raw += 8
            for at in range(groups):
                if be16(raw + 2 * at) > 9999:
                    return False
            if sign:
                out[0] = c'-'
                out += 1
            if weight < 0 or groups == 0:
                out[0] = c'0'
                out += 1
            else:
                digits = be16(raw)
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
                    digits = be16(raw + 2 * at) if at < groups else 0
                    out = _two(_two(out, digits // 100), digits % 100)
            if scale:
                if groups and weight < 0 and not be16(raw):
                    return False
                out[0] = c'.'
                out += 1
                at = weight + 1
                left = scale
                while left > 0:
                    digits = be16(raw + 2 * at) if 0 <= at < groups else 0
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
            elif groups and not be16(raw):
                return False
        column.offsets[i + 1] = <int32_t>(out - column.values)
    return True


cdef inline bint _money(Column *column, const uint8_t *data, int64_t a, int64_t b) noexcept nogil:
    cdef int64_t i, cents
    cdef Cell cell
    cdef int64_t *out = <int64_t *>column.values
    for i in range(a, b):
        cell = column.cells[i]
        if cell.size == 8:
            cents = <int64_t>be64(data + cell.start)
            out[2 * i], out[2 * i + 1] = cents, cents >> 63
        elif cell.size < 0:
            out[2 * i] = out[2 * i + 1] = 0
        else:
            return False
    return True
