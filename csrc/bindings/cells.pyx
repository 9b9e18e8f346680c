"""Python's access to cells in shared memory; csrc/sync/cells.h describes the protocol."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t

cdef extern from "sync/cells.h" nogil:
    ctypedef struct fastppo_cell:
        uint32_t value
        int step
        int env
        int state
        uint32_t ticks
        uint32_t awaited
    int FASTPPO_CELL_BYTES
    void fastppo_post(fastppo_cell *cell, uint32_t value)
    void fastppo_hint(fastppo_cell *cell, uint32_t count)
    int64_t fastppo_claim(fastppo_cell *cell)
    uint32_t fastppo_value(fastppo_cell *cell)
    void fastppo_set_state(fastppo_cell *cell, int32_t state)
    int32_t fastppo_state(fastppo_cell *cell)
    int fastppo_wait_change(fastppo_cell *cell, uint32_t seen, int64_t spin_ns, int64_t slice_ns)
    int fastppo_wait_count(fastppo_cell *cell, uint32_t target, int64_t spin_ns, int64_t slice_ns)

CELL_BYTES = FASTPPO_CELL_BYTES


cdef class Cell:
    """One cell of shared memory: `Cell(bytes)` over 128 aligned bytes, uint8 and C-contiguous."""

    cdef fastppo_cell *_cell
    cdef object _owner

    def __init__(self, unsigned char[::1] memory):
        if memory.shape[0] != FASTPPO_CELL_BYTES or <uintptr_t>&memory[0] % FASTPPO_CELL_BYTES:
            raise ValueError("a cell is 128 aligned bytes")
        self._owner = memory.base
        self._cell = <fastppo_cell *>&memory[0]

    def clear(self):
        """Set everything to zero; only before another process uses the cell."""
        self._cell.value = self._cell.step = self._cell.env = self._cell.state = 0
        (<uint32_t *>self._cell)[1] = self._cell.ticks = self._cell.awaited = 0  # 1: sleepers

    def post(self, uint32_t value):
        """Publish `value` after all stores before it, and wake the sleepers."""
        with nogil:
            fastppo_post(self._cell, value)

    def hint(self, uint32_t count=1):
        """Count up, and wake the sleeper if its count is reached; several processes may do this."""
        with nogil:
            fastppo_hint(self._cell, count)

    def claim(self):
        """Claim a piece of the posted round: round << 8 | pieces << 4 | piece; -1 if none is left.

        A round r of `pieces` is posted as r << 8 | pieces << 4.
        """
        return fastppo_claim(self._cell)

    def value(self):
        """The value published last."""
        return fastppo_value(self._cell)

    def wait_change(self, uint32_t seen, int64_t spin_ns, int64_t slice_ns):
        """Returns True once the value differs from `seen`, False after `slice_ns` or a signal."""
        cdef int changed
        if fastppo_value(self._cell) != seen:
            return True
        with nogil:
            changed = fastppo_wait_change(self._cell, seen, spin_ns, slice_ns)
        return bool(changed)

    def wait_count(self, uint32_t target, int64_t spin_ns, int64_t slice_ns):
        """Returns True once the cell has reached `target`, False after `slice_ns` or a signal."""
        cdef int complete
        with nogil:
            complete = fastppo_wait_count(self._cell, target, spin_ns, slice_ns)
        return bool(complete)

    def at(self, int step, int env):
        """Record the writer's position, for reports of its death or a timeout; costs nothing."""
        self._cell.step = step
        self._cell.env = env
        self._cell.ticks += 1

    @property
    def where(self):
        """(step, env, ticks): the position last recorded, and the number of records modulo 2^32."""
        return self._cell.step, self._cell.env, self._cell.ticks

    @property
    def state(self):
        """The writer's state, an int; stores before setting it are visible to its readers."""
        return fastppo_state(self._cell)

    @state.setter
    def state(self, int state):
        fastppo_set_state(self._cell, state)
