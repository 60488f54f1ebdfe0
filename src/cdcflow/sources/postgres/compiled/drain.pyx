# cython: language_level=3, boundscheck=False, wraparound=False
"""Reads the messages of a connection in COPY state into one piece of memory, without a Python object for each.

It uses the libpq that psycopg has loaded; its functions are passed as addresses (`cdcflow.sources.postgres.copy_reader`
finds them). The caller must have the connection to itself until the call returns.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject

import numpy as np

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *content, Py_ssize_t size)
    char *bytes_content "PyBytes_AS_STRING" (PyObject *of)
    int resize_bytes "_PyBytes_Resize" (PyObject **of, Py_ssize_t size)
    void PyErr_Clear()
    void Py_CLEAR(PyObject *)

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout)
    int POLLIN

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

ctypedef int (*get_copy_data)(void *, char **, int) noexcept nogil
ctypedef int (*consume_input)(void *) noexcept nogil
ctypedef void (*free_memory)(void *) noexcept nogil

cdef enum:
    _PAD = 64
    _HEADER = 25
    _FIRST = 19  # the header of a binary COPY: signature, flags, length of the extension
    _NAP_US = 400  # short enough that the socket's buffer does not fill up
    _ROW = 6  # a row of one column: the number of columns, and the value's length

cdef char *_SIGNATURE = b"PGCOPY\n\xff\r\n\x00"

cdef inline int64_t _int32(const char *at) noexcept nogil:
    cdef const unsigned char *b = <const unsigned char *> at
    return (<int64_t> b[0] << 24) | (b[1] << 16) | (b[2] << 8) | b[3]


cdef class Drain:
    """One connection's messages, as `rows` (a COPY's rows, unchanged), `stream` (XLogData; other messages are returned
    separately) or `window` (rows of one pgoutput message each, returned as XLogData with an empty header)."""

    cdef void *_connection
    cdef get_copy_data _get
    cdef consume_input _consume
    cdef free_memory _free
    cdef int _kind
    cdef bint _begun
    cdef PyObject *_bytes  # the result: no other code has it yet, so it may grow and be written to
    cdef char *_data
    cdef int64_t *_lengths
    cdef Py_ssize_t _size, _room, _usual, _count, _lengths_max

    def __cinit__(self, uintptr_t connection, tuple functions, str kind):
        cdef uintptr_t get = functions[0], consume = functions[1], release = functions[2]
        self._connection = <void *> connection
        self._get = <get_copy_data> get
        self._consume = <consume_input> consume
        self._free = <free_memory> release
        self._kind = ("rows", "stream", "window").index(kind)
        self._begun = False
        self._bytes = NULL
        self._data = NULL
        self._lengths = NULL
        self._size = self._room = self._usual = self._count = self._lengths_max = 0

    def __dealloc__(self):
        Py_CLEAR(self._bytes)
        free(self._lengths)

    def take(self, Py_ssize_t bytes_max, Py_ssize_t messages_max, double linger_s=0):
        """Return the messages that have arrived, and those that keep arriving, for at most `linger_s`: their bytes
        (followed by `PAD` zero bytes), their lengths, the messages that are not XLogData as pairs of (number of
        messages before, bytes), and the state: 1 there may be more, 0 nothing more has arrived yet, -1 the end of the
        COPY, -2 the connection is broken, -4 a row that is not one message."""
        aside = []
        cdef int state
        cdef Py_ssize_t before
        cdef double left = linger_s
        while True:
            with nogil:
                while True:
                    before = self._count
                    state = self._take(bytes_max, messages_max)
                    if state != 0 or left <= 0 or self._count == before:
                        break
                    usleep(_NAP_US)
                    left -= _NAP_US * 1e-6
            if state != 2:
                break
            # The last message is not part of the stream: remove it.
            self._count -= 1
            self._size -= self._lengths[self._count]
            aside.append((self._count, PyBytes_FromStringAndSize(self._data + self._size, self._lengths[self._count])))
        if state == -3:
            raise MemoryError
        data, lengths = self._given()
        return data, lengths, aside, state

    def take_all(self, int descriptor, Py_ssize_t bytes_max):
        """Return the messages up to the end of the COPY, or up to a bound; wait for the network. The result is that of
        `take`, without the messages that are not XLogData."""
        cdef int state
        cdef pollfd readable
        readable.fd = descriptor
        readable.events = POLLIN
        with nogil:
            while True:
                state = self._take(bytes_max, 1 << 62)
                if state != 0:
                    break
                readable.revents = 0
                poll(&readable, 1, -1)
        if state == -3:
            raise MemoryError
        data, lengths = self._given()
        return data, lengths, state

    cdef tuple _given(self):
        cdef int64_t[::1] view
        if self._grow(self._size + _PAD) != 0:
            raise MemoryError
        memset(self._data + self._size, 0, _PAD)
        data = <object> self._bytes
        Py_CLEAR(self._bytes)
        lengths = np.empty(self._count, np.int64)
        if self._count:
            view = lengths
            memcpy(&view[0], self._lengths, self._count * sizeof(int64_t))
        self._usual = min(self._size, 1 << 24)
        self._size = self._room = self._count = 0
        return data, lengths

    cdef int _take(self, Py_ssize_t bytes_max, Py_ssize_t messages_max) noexcept nogil:
        """Take until nothing more has arrived (0), a bound (1), the end (-1), a failure (-2), no memory (-3), or a
        message that is not XLogData (2).

        The socket is read only once all that libpq has was taken. Otherwise its buffer would grow without limit, and
        libpq moves the whole buffer at each read."""
        cdef char *message
        cdef int length, kept
        cdef bint has_read = False
        while True:
            length = self._get(self._connection, &message, 1)
            if length < 0:
                return length
            if length == 0:
                if has_read:
                    return 0
                if not self._consume(self._connection):
                    return -2
                has_read = True
                continue
            has_read = False
            kept = self._keep(message, length)
            self._free(message)
            if kept != 0:
                return kept
            if self._size > bytes_max or self._count >= messages_max:
                return 1

    cdef int _keep(self, char *message, int length) noexcept nogil:
        cdef char *at
        cdef Py_ssize_t skip = 0
        if self._kind == 2:
            if not self._begun:
                self._begun = True
                if length >= _FIRST and memcmp(message, _SIGNATURE, 11) == 0:
                    skip = _FIRST
            if length - skip <= 2:
                return 0  # the end of the rows, or a header alone
            skip += _ROW
            if length < skip or message[skip - 6] != 0 or message[skip - 5] != 1 or _int32(message + skip - 4) != length - skip:
                return -4
            at = self._message(_HEADER + length - skip)
            if at == NULL:
                return -3
            memset(at, 0, _HEADER)
            at[0] = b"w"
            memcpy(at + _HEADER, message + skip, length - skip)
            return 0
        at = self._message(length)
        if at == NULL:
            return -3
        memcpy(at, message, length)
        return 2 if self._kind == 1 and message[0] != b"w" else 0

    cdef char *_message(self, Py_ssize_t length) noexcept nogil:
        """Room for one more message."""
        cdef void *grown
        cdef Py_ssize_t room
        if self._size + length > self._room:
            # Begin with the last result's size: memory that is not written to costs nothing, and growing may copy.
            room = max(2 * self._room, self._size + length, self._usual, 1 << 16)
            with gil:
                if self._grow(room) != 0:
                    return NULL
        if self._count == self._lengths_max:
            room = max(2 * self._lengths_max, 1 << 10)
            grown = realloc(self._lengths, room * sizeof(int64_t))
            if grown == NULL:
                return NULL
            self._lengths, self._lengths_max = <int64_t *> grown, room
        self._lengths[self._count] = length
        self._count += 1
        self._size += length
        return self._data + self._size - length

    cdef int _grow(self, Py_ssize_t room) noexcept:
        """Resize the bytes; -1 if there is no memory."""
        if self._bytes == NULL:
            self._bytes = new_bytes(NULL, room)
        else:
            resize_bytes(&self._bytes, room)
        if self._bytes == NULL:
            PyErr_Clear()
            self._size = self._room = self._count = 0
            return -1
        self._data, self._room = bytes_content(self._bytes), room
        return 0
