"""A time of day that a test sets for one process: its machine's clock jumps, and no other process notices.

The library between the process and libc shifts the time of day alone. Clocks that are never set are not changed, as on
a machine whose clock an operator or NTP sets. What waits until a time of day waits as long as before the jump.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long none = 0;
static volatile long long *moved = &none;
static int (*get)(clockid_t, struct timespec *);
static int (*wait_for)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*wait_sem)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    get = dlsym(RTLD_NEXT, "clock_gettime");
    wait_for = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!wait_for) wait_for = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    wait_sem = dlsym(RTLD_NEXT, "sem_timedwait");
    const char *path = getenv("MOVED_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) moved = found;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!get) begin();
    int failed = get(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *moved;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) { at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* For the kernel there was no jump. Times since the machine was started are far smaller. */
static struct timespec unmoved(const struct timespec *until) {
    struct timespec real = *until;
    if (real.tv_sec > 1000000000) real.tv_sec -= *moved;
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until) {
    struct timespec real = unmoved(until);
    return wait_for(c, m, &real);
}

int sem_timedwait(sem_t *s, const struct timespec *until) {
    struct timespec real = unmoved(until);
    return wait_sem(s, &real);
}
"""


@dataclass(frozen=True, slots=True)
class MovedClock:
    """The time of day of the processes that have `environment`, from its creation that of the machine."""

    folder: Path

    def __post_init__(self) -> None:
        compiler = shutil.which("cc")
        assert compiler is not None, "the test of clock jumps needs a C compiler: apt-get install gcc libc6-dev"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(struct.pack("=q", 0))
        source = self.folder / "clock.c"
        source.write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        assert abs(self._seen_s()) < 60, "the compiled clock shows another time"
        self.move(3600)
        assert abs(self._seen_s() - 3600) < 60, "the compiled clock is not used by Python"
        self.move(0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "MOVED_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """Set it this far ahead of the machine's clock, also for processes that run."""
        with self._file.open("r+b") as file:  # the same file: processes have mapped it
            file.write(struct.pack("=q", seconds))

    @property
    def _file(self) -> Path:
        return self.folder / "moved"

    @property
    def _library(self) -> Path:
        return self.folder / "clock.so"

    def _seen_s(self) -> float:
        """How far a process with this clock is ahead of one without."""
        command = [sys.executable, "-S", "-c", "import time; print(time.time())"]
        found, real = (
            float(subprocess.run(command, check=True, capture_output=True, env=os.environ | more).stdout)
            for more in (self.environment, {})
        )
        return found - real
