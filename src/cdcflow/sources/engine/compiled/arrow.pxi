# Arrow arrays from C: the C data interface (docs of Arrow, "The Arrow C data interface"), over memory of one arena.
#
# All buffers and nodes of one record batch are in one arena, which is freed when Arrow releases the batch. Arrays that
# other code built may be added as children; they are released together with it.

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <stdlib.h>

    #ifdef CDCFLOW_SANITIZE
    #define BLOCK_SIZE_MIN 0  /* one block per piece, so that the sanitizer sees its end */
    #else
    #define BLOCK_SIZE_MIN 16384
    #endif

    struct ArrowArray {
        int64_t length;
        int64_t null_count;
        int64_t offset;
        int64_t n_buffers;
        int64_t n_children;
        const void **buffers;
        struct ArrowArray **children;
        struct ArrowArray *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    """
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept nogil
        void *private_data

    void *aligned_alloc(size_t alignment, size_t size)
    const size_t BLOCK_SIZE_MIN


cdef struct Block:
    Block *before
    size_t size
    size_t used


cdef inline void *take(Block **arena, size_t size) noexcept nogil:
    """Memory at a multiple of 64 bytes; NULL if there is none. The last 64 bytes are spare: writers may overrun."""
    cdef Block *block = arena[0]
    cdef size_t whole, wanted = (size + 127) & ~<size_t>63
    if block == NULL or block.used + wanted > block.size:
        whole = wanted + 64
        if whole < BLOCK_SIZE_MIN:
            whole = BLOCK_SIZE_MIN
        block = <Block *>aligned_alloc(64, whole)
        if block == NULL:
            return NULL
        block.before = arena[0]
        block.size = whole
        block.used = 64
        arena[0] = block
    block.used += wanted
    return <uint8_t *>block + block.used - wanted


cdef inline void give_up(Block *arena) noexcept nogil:
    cdef Block *before
    while arena != NULL:
        before = arena.before
        free(arena)
        arena = before


cdef inline void _released(ArrowArray *array) noexcept nogil:
    array.release = NULL


cdef inline void _released_with_children(ArrowArray *array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
    array.release = NULL


cdef inline void _released_with_arena(ArrowArray *array) noexcept nogil:
    cdef Block *arena = <Block *>array.private_data
    _released_with_children(array)
    give_up(arena)


cdef inline ArrowArray *node(Block **arena, int64_t length, int buffers, int64_t children) noexcept nogil:
    """An array without NULLs whose `buffers` and `children` the caller fills in; NULL if there is no memory."""
    cdef ArrowArray *array = <ArrowArray *>take(arena, sizeof(ArrowArray) + (buffers + children) * sizeof(void *))
    if array == NULL:
        return NULL
    memset(array, 0, sizeof(ArrowArray) + (buffers + children) * sizeof(void *))
    array.length = length
    array.n_buffers = buffers
    array.n_children = children
    array.buffers = <const void **>(array + 1)
    array.children = <ArrowArray **>(array.buffers + buffers)
    array.release = _released
    return array


cdef inline void own(ArrowArray *root, Block *arena) noexcept nogil:
    """Free the arena together with the root."""
    root.private_data = arena
    root.release = _released_with_arena
