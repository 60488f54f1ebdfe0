# The values of binary and string arrays, and string arrays that kernels write.
#
# Includers import int32_t, int64_t, uint8_t and uintptr_t from libc.stdint, numpy as np, and pyarrow as pa.

cdef int64_t _UNLOCKED = 256  # with at least this many values, the GIL is released
cdef uint8_t _NO_BYTES = 0


# Value i is the bytes from offsets[i] to offsets[i + 1] of `data`. `valid` is NULL if there are no NULLs; the bit of value
# i is number `first` + i.
cdef struct Values:
    const uint8_t *data
    const int32_t *offsets
    const uint8_t *valid
    int64_t first
    int64_t count


cdef Values values_of(array) except *:
    """The values of a binary or string array, which must not be empty. They live as long as the array."""
    cdef Values values
    valid, offsets, data = array.buffers()
    values.first, values.count = array.offset, len(array)
    values.offsets = <int32_t *><uintptr_t>offsets.address + values.first
    values.data = &_NO_BYTES
    if data is not None and data.size:
        values.data = <uint8_t *><uintptr_t>data.address
    values.valid = NULL
    if valid is not None and array.null_count:
        values.valid = <uint8_t *><uintptr_t>valid.address
    return values


cdef inline bint is_valid(const Values *values, int64_t at) noexcept nogil:
    at += values.first
    return values.valid == NULL or values.valid[at >> 3] >> (at & 7) & 1


cdef class Texts:
    """The buffers of a string array of `count` values with `size` bytes, to be filled: all values are NULL at first.

    They are exactly as large as what is in them, and the last bits are 0: all of a buffer is written to the log.
    """

    cdef object _buffers
    cdef int64_t count
    cdef uint8_t *data
    cdef int32_t *offsets
    cdef uint8_t *bits

    def __cinit__(self, int64_t count, int64_t size):
        data, offsets = np.empty(size, np.uint8), np.empty(count + 1, np.int32)
        bits = np.zeros((count + 7) // 8, np.uint8)
        self._buffers = bits, offsets, data
        self.count = count
        self.data = <uint8_t *><uintptr_t>data.ctypes.data
        self.offsets = <int32_t *><uintptr_t>offsets.ctypes.data
        self.bits = <uint8_t *><uintptr_t>bits.ctypes.data

    cdef object array(self):
        return pa.Array.from_buffers(pa.string(), self.count, [pa.py_buffer(one) for one in self._buffers])
