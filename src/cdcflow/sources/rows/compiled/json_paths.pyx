# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Finds the value of JSON documents at a path, as text, without a Python object per document: a scanner over Arrow's
buffers.

Each document is scanned to its end, because a text that is not a document must stop the capture. The scanner finds the
bytes of the value and copies them. It knows one grammar: RFC 8259, of which Python's `json` accepts more. Documents
whose result is not a copy of bytes in them, or which it does not accept, are left to the plain kernel:

- anything that is not RFC 8259: the plain kernel accepts it (NaN) or refuses it
- a member whose name has a backslash, on the path: it may be the one that the path names
- a surrogate (`\\ud83d`) in the value
- an object or array as the value, unless it is written as the plain kernel would write it (as jsonb is): `, ` and `: `
  between its parts, no backslash, no name twice
- more than 64 levels: how many `json` can read depends on Python's stack
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

import numpy as np
import pyarrow as pa

include "../../engine/compiled/texts.pxi"

cdef extern from * nogil:
    """
    #include <string.h>
    #define EACH(byte) (0x0101010101010101ULL * (byte))
    #define HAS_LESS(word, byte) (((word) - EACH(byte)) & ~(word) & EACH(0x80))
    /* Whether one of 8 bytes is a quote, a backslash or a control character. */
    static inline int is_special(const uint8_t *at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return (HAS_LESS(word, 32) | HAS_LESS(word ^ EACH('"'), 1) | HAS_LESS(word ^ EACH('\\\\'), 1)) != 0;
    }
    """
    bint is_special(const uint8_t *at)


cdef enum:
    DEPTH_MAX = 64
    STEPS_MAX = 64
    NAMES_MAX = 32  # members of an object that is a value: each name is compared with all before it

cdef enum Kind:
    NOTHING, TEXT, VERBATIM, LEFT


cdef struct Step:
    const uint8_t *name  # NULL: a place in an array
    int64_t size  # of the name, or the place


# A document while it is scanned, and the value found at the path so far.
#
# `inside`: how many open containers are part of the value. `copies`: whether these are written exactly as the plain
# kernel would write them, so that their bytes can be copied.
cdef struct Document:
    const uint8_t *end
    const Step *steps
    int steps_count
    int depth
    int inside
    bint copies
    Kind kind
    const uint8_t *start
    int64_t size  # of the value in the document
    int64_t length  # of the value as text


cdef struct Name:
    const uint8_t *start
    int64_t size


# For each byte: 1 if a string ends there, or has something special; 2: a blank; 4: a digit.
cdef uint8_t _CLASS[256]


cdef void _classify() noexcept:
    cdef int i
    for i in range(256):
        _CLASS[i] = (1 if i < 32 or i == c'"' or i == c'\\' else 0) | (4 if c'0' <= i <= c'9' else 0)
    for i in (c' ', c'\t', c'\n', c'\r'):
        _CLASS[i] |= 2


_classify()


cdef inline const uint8_t *_after_blanks(const uint8_t *at, const uint8_t *end) noexcept nogil:
    while at < end and _CLASS[at[0]] & 2:
        at += 1
    return at


cdef inline int _hex_digit(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 32
    return c - c'a' + 10 if c'a' <= c <= c'f' else -1


cdef inline int _code_unit(const uint8_t *at) noexcept nogil:
    """The number of four hexadecimal digits; -1 if these are something else."""
    cdef int i, digit, value = 0
    for i in range(4):
        digit = _hex_digit(at[i])
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


cdef inline const uint8_t *_after_string(
    const uint8_t *at, const uint8_t *end, int64_t *length, bint *escaped, bint *surrogates
) noexcept nogil:
    """Where a string ends whose content begins at `at`; NULL: it is invalid. `length`: of its content as UTF-8."""
    cdef const uint8_t *begin = at
    cdef int64_t saved = 0
    cdef int unit
    cdef uint8_t c
    while True:
        while end - at >= 8 and not is_special(at):
            at += 8
        while at < end and not _CLASS[at[0]] & 1:
            at += 1
        if at >= end or at[0] < 32:
            return NULL
        if at[0] == c'"':
            length[0] = at - begin - saved
            return at + 1
        escaped[0] = True
        if end - at < 2:
            return NULL
        c = at[1]
        if c == c'u':
            unit = _code_unit(at + 2) if end - at >= 6 else -1
            if unit < 0:
                return NULL
            if 0xD800 <= unit < 0xE000:
                surrogates[0] = True
            saved += 6 - (1 if unit < 0x80 else 2 if unit < 0x800 else 3)
            at += 6
        elif (
            c == c'"' or c == c'\\' or c == c'/' or c == c'b' or c == c'f' or c == c'n' or c == c'r' or c == c't'
        ):
            saved += 1
            at += 2
        else:
            return NULL


cdef inline void _copy_text(uint8_t *out, const uint8_t *at, int64_t size, int64_t length) noexcept nogil:
    """The content of a string, as UTF-8."""
    cdef const uint8_t *end = at + size
    cdef int unit
    cdef uint8_t c
    if size == length:
        memcpy(out, at, size)
        return
    while at < end:
        c = at[0]
        if c != c'\\':
            out[0] = c
            out += 1
            at += 1
            continue
        c = at[1]
        if c != c'u':
            out[0] = (
                c'\b' if c == c'b' else c'\f' if c == c'f' else c'\n' if c == c'n' else c'\r' if c == c'r'
                else c'\t' if c == c't' else c
            )
            out += 1
            at += 2
            continue
        unit = _code_unit(at + 2)
        at += 6
        if unit < 0x80:
            out[0] = <uint8_t>unit
            out += 1
        elif unit < 0x800:
            out[0] = <uint8_t>(0xC0 | unit >> 6)
            out[1] = <uint8_t>(0x80 | unit & 63)
            out += 2
        else:
            out[0] = <uint8_t>(0xE0 | unit >> 12)
            out[1] = <uint8_t>(0x80 | unit >> 6 & 63)
            out[2] = <uint8_t>(0x80 | unit & 63)
            out += 3


cdef inline const uint8_t *_after_digits(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Return where the digits at `at` end; NULL if there is no digit."""
    if at >= end or not _CLASS[at[0]] & 4:
        return NULL
    while at < end and _CLASS[at[0]] & 4:
        at += 1
    return at


cdef inline const uint8_t *_after_number(const uint8_t *at, const uint8_t *end) noexcept nogil:
    if at[0] == c'-':
        at += 1
    if at < end and at[0] == c'0':
        at += 1
    else:
        at = _after_digits(at, end)
    if at != NULL and at < end and at[0] == c'.':
        at = _after_digits(at + 1, end)
    if at != NULL and at < end and (at[0] | 32) == c'e':
        at += 1
        if at < end and (at[0] == c'+' or at[0] == c'-'):
            at += 1
        at = _after_digits(at, end)
    return at


cdef inline const uint8_t *_after_word(const uint8_t *at, const uint8_t *end) noexcept nogil:
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    return NULL


cdef const uint8_t *_after_value(Document *one, const uint8_t *at, int level) noexcept nogil:
    """Return where the value at `at` ends; NULL if it is left to the plain kernel. `level`: how many steps of the path
    led here; -1 if this value is not on the path."""
    cdef const uint8_t *begin = at
    cdef const uint8_t *end = one.end
    cdef bint is_value = level == one.steps_count
    cdef bint escaped = False, surrogates = False
    cdef int64_t length = 0
    cdef uint8_t c
    if level >= 0:
        one.kind = NOTHING  # a member of the same name was overridden
    if at >= end:
        return NULL
    c = at[0]
    if c == c'"':
        at = _after_string(at + 1, end, &length, &escaped, &surrogates)
        if at == NULL or is_value and surrogates:
            return NULL
        if one.inside and escaped:
            one.copies = False
        if is_value:
            one.kind, one.start, one.size, one.length = TEXT, begin + 1, at - begin - 2, length
        return at
    if c == c'{' or c == c'[':
        if one.depth == DEPTH_MAX:
            return NULL
        one.depth += 1
        if is_value:
            one.inside, one.copies = 0, True
        if is_value or one.inside:
            one.inside += 1
        if c == c'{':
            at = _after_object(one, at + 1, level)
        else:
            at = _after_array(one, at + 1, level)
        one.depth -= 1
        if one.inside:
            one.inside -= 1
        if at != NULL and is_value:
            one.kind = VERBATIM if one.copies else LEFT
    elif c == c'-' or _CLASS[c] & 4:
        at = _after_number(at, end)
        if is_value:
            one.kind = VERBATIM
    else:
        at = _after_word(at, end)
        if is_value and c != c'n':
            one.kind = VERBATIM
    if is_value and at != NULL:
        one.start, one.size = begin, at - begin
        one.length = one.size
    return at


cdef const uint8_t *_after_object(Document *one, const uint8_t *at, int level) noexcept nogil:
    """As `_after_value`, for an object whose `{` is before `at`."""
    cdef const uint8_t *end = one.end
    cdef const uint8_t *name
    cdef const uint8_t *blank
    cdef const Step *step = NULL
    cdef Name names[NAMES_MAX]
    cdef int64_t size, length = 0
    cdef int count = 0, i, below
    cdef bint escaped, surrogates = False
    if 0 <= level < one.steps_count:
        step = &one.steps[level]
    blank = at
    at = _after_blanks(at, end)
    if at < end and at[0] == c'}':
        if at > blank:
            one.copies = False
        return at + 1
    if at > blank:
        one.copies = False
    while True:
        if at >= end or at[0] != c'"':
            return NULL
        name = at + 1
        escaped = False
        at = _after_string(name, end, &length, &escaped, &surrogates)
        if at == NULL:
            return NULL
        size = at - name - 1
        if escaped:
            if step != NULL:
                return NULL
            one.copies = False
        below = -1
        if step != NULL and step.name != NULL and step.size == size and memcmp(step.name, name, size) == 0:
            below = level + 1
        if one.inside and one.copies:
            if count == NAMES_MAX:
                one.copies = False
            else:
                for i in range(count):
                    if names[i].size == size and memcmp(names[i].start, name, size) == 0:
                        one.copies = False
                names[count].start, names[count].size = name, size
                count += 1
        blank = at
        at = _after_blanks(at, end)
        if at >= end or at[0] != c':':
            return NULL
        if at > blank:
            one.copies = False
        blank = at + 1
        at = _after_blanks(blank, end)
        if at != blank + 1 or blank[0] != c' ':
            one.copies = False
        at = _after_value(one, at, below)
        if at == NULL:
            return NULL
        at = _after_part(one, at, c'}')
        if at == NULL or (at - 1)[0] == c'}':
            return at
        at = _after_comma(one, at)


cdef const uint8_t *_after_array(Document *one, const uint8_t *at, int level) noexcept nogil:
    """As `_after_value`, for an array whose `[` is before `at`."""
    cdef const uint8_t *end = one.end
    cdef const uint8_t *blank = at
    cdef int64_t place = -1, number = 0
    if 0 <= level < one.steps_count and one.steps[level].name == NULL:
        place = one.steps[level].size
    at = _after_blanks(at, end)
    if at > blank:
        one.copies = False
    if at < end and at[0] == c']':
        return at + 1
    while True:
        at = _after_value(one, at, level + 1 if number == place else -1)
        if at == NULL:
            return NULL
        at = _after_part(one, at, c']')
        if at == NULL or (at - 1)[0] == c']':
            return at
        at = _after_comma(one, at)
        number += 1


cdef inline const uint8_t *_after_part(Document *one, const uint8_t *at, uint8_t closing) noexcept nogil:
    """After the comma, or what closes the container, that follows a part of it; NULL: neither does."""
    cdef const uint8_t *blank = at
    at = _after_blanks(at, one.end)
    if at > blank:
        one.copies = False
    if at >= one.end or at[0] != c',' and at[0] != closing:
        return NULL
    return at + 1


cdef inline const uint8_t *_after_comma(Document *one, const uint8_t *at) noexcept nogil:
    cdef const uint8_t *blank = at
    at = _after_blanks(at, one.end)
    if at != blank + 1 or blank[0] != c' ':
        one.copies = False
    return at


cdef struct Text:
    const uint8_t *start
    int64_t size
    int64_t length
    Kind kind


cdef int64_t _scan(
    const Values *documents, const Step *steps, int steps_count, Text *texts, int64_t *left
) noexcept nogil:
    """Find the value of each document at the path; return the size of all values. `left`: how many documents are left
    to the plain kernel."""
    cdef Document one
    cdef const uint8_t *at
    cdef int64_t i, total = 0
    for i in range(documents.count):
        if not is_valid(documents, i):
            texts[i].kind = NOTHING
            continue
        one.end = documents.data + documents.offsets[i + 1]
        one.steps, one.steps_count = steps, steps_count
        one.depth, one.inside, one.copies, one.kind = 0, 0, False, NOTHING
        at = _after_value(&one, _after_blanks(documents.data + documents.offsets[i], one.end), 0)
        if at == NULL or _after_blanks(at, one.end) != one.end:
            one.kind = LEFT
        texts[i].kind, texts[i].start, texts[i].size, texts[i].length = one.kind, one.start, one.size, one.length
        if one.kind == LEFT:
            left[0] += 1
        elif one.kind != NOTHING:
            total += one.length
    return total


cdef void _copy(const Text *texts, int64_t count, uint8_t *data, int32_t *offsets, uint8_t *bits) noexcept nogil:
    cdef int64_t i, at = 0
    offsets[0] = 0
    for i in range(count):
        if texts[i].kind == TEXT or texts[i].kind == VERBATIM:
            if texts[i].kind == TEXT:
                _copy_text(data + at, texts[i].start, texts[i].size, texts[i].length)
            else:
                memcpy(data + at, texts[i].start, texts[i].size)
            at += texts[i].length
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
        offsets[i + 1] = <int32_t>at


def texts_at(documents, path):
    """Return the value of each document of a string array at a path, as text: NULL if it has no value there, or null.

    The second result has the indices of the documents that are left to the plain kernel, which are NULL in the first;
    None if no document is.
    """
    cdef int64_t count = len(documents), total, left = 0
    cdef Step steps[STEPS_MAX]
    cdef int steps_count = len(path), i
    cdef Values values
    cdef Text *texts
    if documents.null_count == count:
        return pa.nulls(count, pa.string()), None
    if steps_count > STEPS_MAX:
        return pa.nulls(count, pa.string()), np.arange(count)
    names = [step.encode() if isinstance(step, str) else step for step in path]
    for i in range(steps_count):
        if isinstance(names[i], bytes):
            steps[i].name, steps[i].size = <const uint8_t *><const char *>(<bytes>names[i]), len(names[i])
        else:
            steps[i].name, steps[i].size = NULL, names[i]
    values = values_of(documents)
    texts = <Text *>malloc(count * sizeof(Text))
    if texts == NULL:
        raise MemoryError
    try:
        if count < _UNLOCKED:
            total = _scan(&values, steps, steps_count, texts, &left)
        else:
            with nogil:
                total = _scan(&values, steps, steps_count, texts, &left)
        return _copied(texts, count, total), _places_left(texts, count, left) if left else None
    finally:
        free(texts)


cdef object _copied(const Text *texts, int64_t count, int64_t total):
    cdef Texts found = Texts(count, total)
    if count < _UNLOCKED:
        _copy(texts, count, found.data, found.offsets, found.bits)
    else:
        with nogil:
            _copy(texts, count, found.data, found.offsets, found.bits)
    return found.array()


cdef object _places_left(const Text *texts, int64_t count, int64_t left):
    places = np.empty(left, np.int64)
    cdef int64_t *place = <int64_t *><uintptr_t>places.ctypes.data
    cdef int64_t i, found = 0
    for i in range(count):
        if texts[i].kind == LEFT:
            place[found] = i
            found += 1
    return places
