# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: libraries = crypto
"""HMAC-SHA-256 of columns, by OpenSSL, without a Python object per value and without the GIL.

It needs OpenSSL's headers when it is built, and its library when it is loaded; without them the plain kernels run.

A value that occurred shortly before is not computed again: a table of recent rows, by a quick hash of the value, names
a row whose result is copied if its value is equal. So a column with few different values costs a comparison and a copy
per row, and one with many different ones nothing that can be measured. A dictionary of all values, which Arrow could
make, costs half as much as the digests.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import pyarrow as pa

include "../../engine/compiled/texts.pxi"

cdef extern from * nogil:
    """
    /* SHA256_Init and so on are deprecated, not removed: a copy of what they begin is a copy of a struct, which the
       functions instead of them allocate (OpenSSL 3.0: 206 ns per HMAC, not 132; 3.5: 146). */
    #define OPENSSL_SUPPRESS_DEPRECATED
    #include <openssl/opensslv.h>
    #include <openssl/sha.h>
    #if OPENSSL_VERSION_MAJOR < 3
    #error "OpenSSL 3 or newer is needed"
    #endif
    static const char DIGITS[] = "0123456789abcdef";
    """
    ctypedef struct SHA256_CTX:
        pass
    int SHA256_Init(SHA256_CTX *context)
    int SHA256_Update(SHA256_CTX *context, const void *data, size_t size)
    int SHA256_Final(uint8_t *digest, SHA256_CTX *context)
    const char DIGITS[17]

cdef enum:
    BLOCK = 64
    DIGEST = 32
    RECENT_MAX = 16384
cdef int64_t _BYTES_MAX = 2**31 - 1


# ── rows with a value that occurred before ──────────────────────────────────────────────────────────────────


cdef struct Recent:
    int32_t rows[RECENT_MAX]  # the numbers of rows, counted from 1, by the hash of their value; or 0
    int64_t mask


cdef void begin_recent(Recent *recent, int64_t count) noexcept nogil:
    cdef int64_t size = 16
    while size < count and size < RECENT_MAX:
        size *= 2
    recent.mask = size - 1
    memset(recent.rows, 0, size * sizeof(int32_t))


cdef inline int64_t row_before(Recent *recent, const Values *values, int64_t row) noexcept nogil:
    """A row before this one with the same value; -1 if no such row is known. This row then is the known one."""
    cdef const uint8_t *at = values.data + values.offsets[row]
    cdef int64_t size = values.offsets[row + 1] - values.offsets[row], other
    cdef uint64_t head = 0, tail = 0, found
    if size >= 8:
        memcpy(&head, at, 8)
        memcpy(&tail, at + size - 8, 8)
    else:
        memcpy(&head, at, size)
    found = (head ^ <uint64_t>size) * <uint64_t>0x9E3779B97F4A7C15
    found = (found ^ found >> 32 ^ tail) * <uint64_t>0xD6E8FEB86659FD93
    found = found >> 40 & recent.mask
    other = recent.rows[found] - 1
    if other >= 0 and values.offsets[other + 1] - values.offsets[other] == size:
        if memcmp(values.data + values.offsets[other], at, size) == 0:
            return other
    recent.rows[found] = <int32_t>(row + 1)
    return -1


# ── hash ────────────────────────────────────────────────────────────────────────────────────────────────────


cdef class Hmac:
    """HMAC-SHA-256 with one key, as text: a prefix and hexadecimal digits. Thread-safe."""

    cdef SHA256_CTX _inner
    cdef SHA256_CTX _outer
    cdef bytes _kept
    cdef const char *_prefix
    cdef size_t _prefix_size

    def __cinit__(self, bytes key, str prefix):
        cdef uint8_t padded[BLOCK]
        cdef SHA256_CTX context
        self._kept = prefix.encode()
        self._prefix, self._prefix_size = self._kept, len(self._kept)
        memset(padded, 0, BLOCK)
        if len(key) <= BLOCK:
            memcpy(padded, <const char *>key, len(key))
        else:
            SHA256_Init(&context)
            SHA256_Update(&context, <const char *>key, len(key))
            SHA256_Final(padded, &context)
        _begin(&self._inner, padded, 0x36)
        _begin(&self._outer, padded, 0x5C)

    def digests(self, values):
        """Those of the values of a binary or string array; NULL stays NULL. None: they are more than 2 GiB."""
        cdef int64_t count = len(values), width = self._prefix_size + 2 * DIGEST
        cdef int64_t size = (count - values.null_count) * width
        cdef Values given
        cdef Texts found
        if values.null_count == count:
            return pa.nulls(count, pa.string())
        if size > _BYTES_MAX:
            return None
        given, found = values_of(values), Texts(count, size)
        if count < _UNLOCKED:
            self._write(&given, found)
        else:
            with nogil:
                self._write(&given, found)
        return found.array()

    cdef void _write(self, const Values *values, Texts found) noexcept nogil:
        cdef Recent recent
        cdef int64_t width = self._prefix_size + 2 * DIGEST, row, other
        cdef uint8_t *out = found.data
        begin_recent(&recent, values.count)
        found.offsets[0] = 0
        for row in range(values.count):
            if is_valid(values, row):
                other = row_before(&recent, values, row)
                if other >= 0:
                    memcpy(out, found.data + found.offsets[other], width)
                else:
                    memcpy(out, self._prefix, self._prefix_size)
                    self._digest(values, row, out + self._prefix_size)
                out += width
                found.bits[row >> 3] |= <uint8_t>(1 << (row & 7))
            found.offsets[row + 1] = <int32_t>(out - found.data)

    cdef inline void _digest(self, const Values *values, int64_t row, uint8_t *out) noexcept nogil:
        """The digest of a value in hexadecimal digits."""
        cdef SHA256_CTX context = self._inner
        cdef uint8_t digest[DIGEST]
        cdef int i
        SHA256_Update(&context, values.data + values.offsets[row], values.offsets[row + 1] - values.offsets[row])
        SHA256_Final(digest, &context)
        context = self._outer
        SHA256_Update(&context, digest, DIGEST)
        SHA256_Final(digest, &context)
        for i in range(DIGEST):
            out[2 * i] = DIGITS[digest[i] >> 4]
            out[2 * i + 1] = DIGITS[digest[i] & 15]


cdef void _begin(SHA256_CTX *context, const uint8_t *key, uint8_t pad) noexcept nogil:
    """Begin the hash of a key's block under one of the pads of HMAC."""
    cdef uint8_t block[BLOCK]
    cdef int i
    for i in range(BLOCK):
        block[i] = key[i] ^ pad
    SHA256_Init(context)
    SHA256_Update(context, block, BLOCK)
