# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: libraries = crypto
"""HMAC-SHA-256 and AES-GCM-SIV of columns, by OpenSSL, without a Python object per value and without the GIL.

It needs OpenSSL's headers when it is built, and its library when it is loaded; without them the plain kernels run.
AES-GCM-SIV is in libraries from 3.2 (`HAS_GCM_SIV`); with older ones, `cryptography` encrypts value by value, and its
results become texts here.

A value that occurred shortly before is not computed again: a table of recent rows, by a quick hash of the value, names
a row whose result is copied if its value is equal. So a column with few different values costs a comparison and a copy
per row, and one with many different ones nothing that can be measured. A dictionary of all values, which Arrow could
build, would cost half as much as the digests.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import pyarrow as pa

include "../../engine/compiled/texts.pxi"

cdef extern from * nogil:
    """
    /* SHA256_Init and so on are deprecated, not removed: a copy of what they begin is a copy of a struct, which the
       functions instead of them allocate (OpenSSL 3.0: 206 ns per HMAC, not 132; 3.5: 146). */
    #define OPENSSL_SUPPRESS_DEPRECATED
    #include <openssl/err.h>
    #include <openssl/evp.h>
    #include <openssl/opensslv.h>
    #include <openssl/sha.h>
    #if OPENSSL_VERSION_MAJOR < 3
    #error "OpenSSL 3 or newer is needed"
    #endif
    static const char DIGITS[] = "0123456789abcdef";
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    """
    ctypedef struct EVP_CIPHER:
        pass
    ctypedef struct EVP_CIPHER_CTX:
        pass
    EVP_CIPHER *EVP_CIPHER_fetch(void *library, const char *name, const char *properties)
    EVP_CIPHER_CTX *EVP_CIPHER_CTX_new()
    void EVP_CIPHER_CTX_free(EVP_CIPHER_CTX *context)
    int EVP_EncryptInit_ex2(
        EVP_CIPHER_CTX *context, const EVP_CIPHER *cipher, const uint8_t *key, const uint8_t *nonce, const void *none
    )
    int EVP_EncryptUpdate(EVP_CIPHER_CTX *context, uint8_t *out, int *written, const uint8_t *data, int size)
    int EVP_EncryptFinal_ex(EVP_CIPHER_CTX *context, uint8_t *out, int *written)
    int EVP_CIPHER_CTX_ctrl(EVP_CIPHER_CTX *context, int kind, int size, void *out)
    int EVP_CTRL_AEAD_GET_TAG
    void ERR_clear_error()
    const char LETTERS[65]
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
    TAG = 16
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


cdef inline uint64_t quick_hash(const uint8_t *at, int64_t size) noexcept nogil:
    """Return a hash of a value: of all its bytes if it has up to 64, otherwise of 9 words of it."""
    cdef uint64_t word = 0, found = <uint64_t>size
    cdef int64_t step = 8 if size <= 64 else size // 8, place = 0
    while place + 8 <= size:
        memcpy(&word, at + place, 8)
        found = (found ^ word) * <uint64_t>0x9E3779B97F4A7C15
        found ^= found >> 32  # a product spreads a bit to higher ones only
        place += step
    if size >= 8:
        memcpy(&word, at + size - 8, 8)
    else:
        memcpy(&word, at, size)
    found = (found ^ word) * <uint64_t>0xD6E8FEB86659FD93
    found = (found ^ found >> 32) * <uint64_t>0xD6E8FEB86659FD93
    return found ^ found >> 32


cdef inline int64_t row_before(Recent *recent, const Values *values, int64_t row) noexcept nogil:
    """Return a recent row with the same value as this row. If none is known, return -1 and remember this row."""
    cdef const uint8_t *at = values.data + values.offsets[row]
    cdef int64_t size = values.offsets[row + 1] - values.offsets[row], other
    cdef uint64_t found = quick_hash(at, size) & recent.mask
    other = recent.rows[found] - 1
    if other >= 0 and values.offsets[other + 1] - values.offsets[other] == size:
        if memcmp(values.data + values.offsets[other], at, size) == 0:
            return other
    recent.rows[found] = <int32_t>(row + 1)
    return -1


def recent_values(values):
    """How many values of a binary or string array are recognized as equal to a recent one, so that they cost a copy."""
    cdef Recent recent
    cdef Values given
    cdef int64_t row, found = 0
    if len(values):
        given = values_of(values)
        begin_recent(&recent, given.count)
        for row in range(given.count):
            if is_valid(&given, row) and row_before(&recent, &given, row) >= 0:
                found += 1
    return found


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
        """Return the digests of the values of a binary or string array; NULL stays NULL. None: the digests are more
        than 2 GiB."""
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


# ── encrypt ─────────────────────────────────────────────────────────────────────────────────────────────────


cdef EVP_CIPHER *_GCM_SIV = EVP_CIPHER_fetch(NULL, b"AES-256-GCM-SIV", NULL)


cdef inline int64_t _base64_size(int64_t size) noexcept nogil:
    return (size + 2) // 3 * 4


cdef inline void _write_base64(const uint8_t *at, int64_t size, uint8_t *out) noexcept nogil:
    """Bytes as URL-safe base64, with its padding."""
    cdef uint32_t three
    while size >= 3:
        three = <uint32_t>at[0] << 16 | <uint32_t>at[1] << 8 | at[2]
        out[0], out[1] = LETTERS[three >> 18], LETTERS[three >> 12 & 63]
        out[2], out[3] = LETTERS[three >> 6 & 63], LETTERS[three & 63]
        at += 3
        out += 4
        size -= 3
    if size:
        three = <uint32_t>at[0] << 16 | (<uint32_t>at[1] << 8 if size == 2 else 0)
        out[0], out[1] = LETTERS[three >> 18], LETTERS[three >> 12 & 63]
        out[2], out[3] = LETTERS[three >> 6 & 63] if size == 2 else c'=', c'='


cdef struct Owner:
    const uint8_t *key  # NULL: its values become NULL
    const char *prefix
    int64_t prefix_size


cdef class _Owners:
    """Keys and prefixes as pointers, valid while this object exists."""

    cdef object _held
    cdef Owner *all

    def __cinit__(self, keys, prefixes):
        cdef int64_t i, count = len(prefixes)
        self._held = keys, [prefix.encode() for prefix in prefixes]
        self.all = <Owner *>malloc((count + 1) * sizeof(Owner))
        if self.all == NULL:
            raise MemoryError
        for i in range(count):
            self.all[i].key = NULL
            if keys is not None and keys[i] is not None:
                if len(keys[i]) != 32:
                    raise ValueError("a key must have 32 bytes")
                self.all[i].key = <const uint8_t *><const char *>(<bytes>keys[i])
            self.all[i].prefix = <bytes>self._held[1][i]
            self.all[i].prefix_size = len(self._held[1][i])

    def __dealloc__(self):
        free(self.all)


def encrypt_values(values, keys, prefixes, bytes nonce, owners=None):
    """Return the values of a binary or string array, encrypted by AES-256-GCM-SIV, in base64 after a prefix; NULL stays
    NULL.

    `owners`, int64: for each value the index of its key and prefix; None: all values have the first key and prefix. A
    value whose key is None becomes NULL. Returns None if the plain kernel must do it.
    """
    cdef int64_t count = len(values), i, size, total = 0, size_max = 0
    cdef _Owners known = _Owners(keys, prefixes)
    cdef const int64_t *owner = NULL
    cdef Values given
    cdef Texts found
    cdef uint8_t *spare
    cdef bint done
    if values.null_count == count:
        return pa.nulls(count, pa.string())
    if owners is not None:
        owners = np.ascontiguousarray(owners, np.int64)
        owner = <int64_t *><uintptr_t>owners.ctypes.data
    given = values_of(values)
    for i in range(count):
        if is_valid(&given, i) and known.all[owner[i] if owner != NULL else 0].key != NULL:
            size = given.offsets[i + 1] - given.offsets[i] + TAG
            size_max = max(size, size_max)
            total += known.all[owner[i] if owner != NULL else 0].prefix_size + _base64_size(size)
    if total > _BYTES_MAX:
        return None
    found = Texts(count, total)
    spare = <uint8_t *>malloc(size_max + TAG)
    if spare == NULL:
        raise MemoryError
    try:
        if count < _UNLOCKED:
            done = _encrypt(&given, known.all, owner, nonce, spare, found)
        else:
            nonce_at = <const char *>nonce
            with nogil:
                done = _encrypt(&given, known.all, owner, nonce_at, spare, found)
    finally:
        free(spare)
    ERR_clear_error()
    return found.array() if done else None


cdef bint _encrypt(
    const Values *values, const Owner *owners, const int64_t *owner, const char *nonce, uint8_t *spare, Texts found
) noexcept nogil:
    """Write all texts; False: the library refused one."""
    cdef EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new()
    cdef Recent recent
    cdef const Owner *mine = NULL
    cdef const Owner *before = NULL
    cdef uint8_t *out = found.data
    cdef int64_t row, other, size
    cdef bint done = context != NULL
    begin_recent(&recent, values.count)
    found.offsets[0] = 0
    for row in range(values.count if done else 0):
        mine = &owners[owner[row] if owner != NULL else 0]
        if is_valid(values, row) and mine.key != NULL:
            # Equal values of different owners have different texts.
            other = row_before(&recent, values, row) if owner == NULL else -1
            if other >= 0:
                size = found.offsets[other + 1] - found.offsets[other]
                memcpy(out, found.data + found.offsets[other], size)
                out += size
            else:
                size = _encrypt_value(context, values, row, mine, <const uint8_t *>nonce, mine != before, spare)
                if size < 0:
                    done = False
                    break
                before = mine
                memcpy(out, mine.prefix, mine.prefix_size)
                out += mine.prefix_size
                _write_base64(spare, size, out)
                out += _base64_size(size)
            found.bits[row >> 3] |= <uint8_t>(1 << (row & 7))
        found.offsets[row + 1] = <int32_t>(out - found.data)
    EVP_CIPHER_CTX_free(context)
    return done


cdef inline int64_t _encrypt_value(
    EVP_CIPHER_CTX *context, const Values *values, int64_t row, const Owner *owner, const uint8_t *nonce, bint is_new,
    uint8_t *out
) noexcept nogil:
    """Write a value's ciphertext and tag; returns how many bytes they have, -1 if the library refused it."""
    cdef int64_t size = values.offsets[row + 1] - values.offsets[row]
    cdef int written = 0, rest = 0
    if not EVP_EncryptInit_ex2(context, _GCM_SIV if is_new else NULL, owner.key if is_new else NULL, nonce, NULL):
        return -1
    if size and not EVP_EncryptUpdate(context, out, &written, values.data + values.offsets[row], <int>size):
        return -1
    if not EVP_EncryptFinal_ex(context, out + written, &rest) or written + rest != size:
        return -1
    if not EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, out + size):
        return -1
    return size + TAG


def in_base64(contents, prefixes, owners=None):
    """Bytes as texts in base64 after a prefix; None becomes NULL. `owners` as above."""
    cdef int64_t count = len(contents), i, total = 0
    cdef _Owners known = _Owners(None, prefixes)
    cdef const int64_t *owner = NULL
    cdef const Owner *mine
    cdef Texts found
    cdef uint8_t *out
    if owners is not None:
        owners = np.ascontiguousarray(owners, np.int64)
        owner = <int64_t *><uintptr_t>owners.ctypes.data
    for i in range(count):
        if contents[i] is not None:
            total += known.all[owner[i] if owner != NULL else 0].prefix_size + _base64_size(len(<bytes>contents[i]))
    if total > _BYTES_MAX:
        return None
    found = Texts(count, total)
    out = found.data
    found.offsets[0] = 0
    for i in range(count):
        content = contents[i]
        if content is not None:
            mine = &known.all[owner[i] if owner != NULL else 0]
            memcpy(out, mine.prefix, mine.prefix_size)
            out += mine.prefix_size
            _write_base64(<const uint8_t *><const char *>(<bytes>content), len(<bytes>content), out)
            out += _base64_size(len(<bytes>content))
            found.bits[i >> 3] |= <uint8_t>(1 << (i & 7))
        found.offsets[i + 1] = <int32_t>(out - found.data)
    return found.array()


cdef bint _is_standard():
    """Whether the library's AES-256-GCM-SIV has the results of RFC 8452 (C.2), also for a value without bytes: stored
    values were encrypted by another library, and must stay equal."""
    if _GCM_SIV == NULL:
        ERR_clear_error()
        return False
    values = pa.array([b"", b"\x01" + bytes(7)], pa.binary())
    found = encrypt_values(values, [b"\x01" + bytes(31)], [""], b"\x03" + bytes(11))
    return found is not None and found.to_pylist() == [
        "B_X0Fpu_VahADNR-pv1ADw==", "wu8yjlxxyDuEMSITD3Nkt2HguXQn498o"
    ]


HAS_GCM_SIV = _is_standard()
