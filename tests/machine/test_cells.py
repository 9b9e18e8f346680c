"""Cells: what is posted is seen, who waits is woken, counters wrap, a signal ends every sleep."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from fault_envs import guard

from fastppo.workers.protocol import is_behind

_cells = pytest.importorskip("fastppo._cells", exc_type=ImportError)

LONG = 5_000_000_000  # nanoseconds; a guard, never waited out


def cells(count, memory=None):
    """Cells side by side, zeroed."""
    memory = mmap.mmap(-1, 128 * count) if memory is None else memory
    made = [_cells.Cell(row) for row in np.frombuffer(memory, np.uint8).reshape(-1, 128)[:count]]
    for cell in made:
        cell.clear()
    return made


def test_a_cell_is_128_aligned_bytes():
    assert _cells.CELL_BYTES == 128
    block = np.frombuffer(mmap.mmap(-1, 512), np.uint8)
    _cells.Cell(block[128:256])
    for wrong in (block[:127], block[:256], block[64:192], block[::2][:128]):
        with pytest.raises(ValueError):
            _cells.Cell(wrong)
    with pytest.raises((ValueError, TypeError)):
        _cells.Cell(np.zeros(32, np.float32))


def test_a_cell_keeps_its_memory_alive():
    cell, = cells(1)
    cell.post(7)
    junk = [np.ones(128, np.uint8) for _ in range(100)]
    assert cell.value() == 7 and len(junk) == 100


def test_what_is_posted_is_seen_through_every_view_of_the_memory():
    memory = mmap.mmap(-1, 128)
    mine, = cells(1, memory)
    theirs = _cells.Cell(np.frombuffer(memory, np.uint8))
    mine.post(5)
    mine.state = -3
    assert theirs.value() == 5 and theirs.state == -3
    theirs.hint()
    assert mine.value() == 6


def test_clear_sets_everything_to_zero():
    cell, = cells(1)
    cell.post(5)
    cell.at(3, 4)
    cell.state = 2
    cell.clear()
    assert (cell.value(), cell.where, cell.state) == (0, (0, 0, 0), 0)


def test_every_note_of_a_place_can_be_told_from_the_one_before():
    cell, = cells(1)
    cell.at(0, 3)
    first = cell.where
    cell.at(0, 3)
    assert first[:2] == cell.where[:2] == (0, 3) and first != cell.where


@pytest.mark.parametrize("spin", [0, 50_000])
def test_waiting_ends_at_once_where_the_value_is_another_already(spin):
    cell, = cells(1)
    cell.post(1)
    with guard():
        assert cell.wait_change(0, spin, 1000 * LONG)


@pytest.mark.parametrize("spin", [0, 100, 10_000_000])
def test_waiting_ends_with_its_slice(spin):
    cell, = cells(1)
    assert not cell.wait_change(0, spin, 1_000_000)
    assert not cell.wait_change(0, spin, 0)


@pytest.mark.parametrize("wait", ["wait_change", "wait_count"])
@pytest.mark.parametrize("budget", [0, 20_000_000])
def test_a_wait_burns_no_more_of_a_core_than_its_spin_budget(wait, budget):
    cell, = cells(1)
    before = time.thread_time_ns()
    for _ in range(3):
        assert not getattr(cell, wait)(0 if wait == "wait_change" else 1, budget, 100_000_000)
    burnt = time.thread_time_ns() - before  # of the processor: no other program can make it more
    assert burnt <= 3 * budget + 20_000_000


@pytest.mark.parametrize("act", [lambda cell: cell.post(1), lambda cell: cell.hint()])
def test_who_sleeps_is_woken(act):
    cell, = cells(1)
    timer = threading.Timer(0.05, act, [cell])
    timer.start()
    with guard():
        assert cell.wait_change(0, 0, 1000 * LONG)
    timer.join()


def test_all_who_sleep_are_woken():
    cell, woken = *cells(1), []
    sleepers = [threading.Thread(target=lambda: woken.append(cell.wait_change(0, 0, 1000 * LONG)))
                for _ in range(4)]
    for sleeper in sleepers:
        sleeper.start()
    time.sleep(0.05)
    with guard():
        cell.post(1)
        for sleeper in sleepers:
            sleeper.join()
    assert woken == [True] * 4


def test_a_signal_ends_the_wait_and_its_handler_runs():
    cell, = cells(1)
    with guard(), pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        while True:  # as the main process waits: in slices
            cell.wait_change(0, 0, 50_000_000)


def test_a_slice_ends_early_when_a_signal_comes():
    cell, = cells(1)
    seen = []
    before, main = signal.signal(signal.SIGUSR2, lambda *_: seen.append(1)), threading.main_thread()
    try:
        threading.Timer(0.1, signal.pthread_kill, [main.ident, signal.SIGUSR2]).start()
        with guard():
            assert not cell.wait_change(0, 0, 1000 * LONG)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [1]


def test_counters_wrap_at_two_to_the_32():
    cell, = cells(1)
    cell.post(2**32 - 1)
    cell.hint()
    assert cell.value() == 0
    with pytest.raises(OverflowError):
        cell.post(2**32)


@pytest.mark.parametrize("value, target, late", [
    (0, 0, False), (0, 1, True), (1, 0, False), (5, 5, False), (2**32 - 1, 0, True),
    (2**32 - 1, 2**32 - 1, False), (2**32 - 2, 3, True), (3, 2**32 - 2, False),
    (7, 2**32 + 7, False), (7, 2**32 + 8, True), (0, 2**31 - 1, True)])
def test_behind_compares_counters_modulo_two_to_the_32(value, target, late):
    assert is_behind(value, target) is late


PONG = """
import mmap, sys
import numpy as np
from fastppo._cells import Cell
memory = mmap.mmap(int(sys.argv[1]), 256)
ping, pong = (Cell(row) for row in np.frombuffer(memory, np.uint8).reshape(2, 128))
rounds = int(sys.argv[3])
for i in range(1, rounds + 1):
    while ping.value() != i + 2**32 - rounds // 2 & 0xFFFFFFFF:
        ping.wait_change(ping.value(), int(sys.argv[2]), 50_000_000)
    pong.post(i)
"""


@pytest.mark.parametrize("spin, rounds", [(0, 10_000), (20_000, 2_000)])
def test_two_processes_play_ping_pong_and_no_ball_is_lost(spin, rounds):
    fd = os.memfd_create("pong")
    os.ftruncate(fd, 256)
    ping, pong = cells(2, mmap.mmap(fd, 256))
    ping.post(2**32 - rounds // 2)
    command = [sys.executable, "-c", PONG, str(fd), str(spin), str(rounds)]
    with subprocess.Popen(command, pass_fds=[fd]) as other, guard():
        for i in range(1, rounds + 1):
            ping.post(i + 2**32 - rounds // 2 & 0xFFFFFFFF)  # wraps half-way
            while (value := pong.value()) != i:
                assert value == i - 1
                if not pong.wait_change(value, spin, 50_000_000):
                    assert other.poll() in (None, 0)
    os.close(fd)
    assert other.returncode == 0


@contextlib.contextmanager
def four_writers(cell):
    """Threads that hint 5,000 times each, 20,000 in all; they have ended after the block."""
    def write():
        for _ in range(5000):
            cell.hint()
    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    yield
    for writer in writers:
        writer.join()


def test_no_hint_of_several_writers_is_lost():
    cell, = cells(1)
    with guard(), four_writers(cell):
        while (value := cell.value()) != 20_000:
            cell.wait_change(value, 0, 50_000_000)
    assert cell.value() == 20_000


def test_only_the_hint_that_completes_a_count_wakes_who_waits_for_it():
    cell, = cells(1)
    cell.hint(0xFFFFFFFE)  # the count goes over the top of 32 bits
    woken = []
    sleeper = threading.Thread(target=lambda: woken.append(cell.wait_count(1, 0, 1000 * LONG)))
    sleeper.start()
    with guard():
        for value in (0xFFFFFFFF, 0):
            time.sleep(0.02)
            cell.hint()
            assert cell.value() == value and not woken
        cell.hint()
        sleeper.join()
    assert woken == [True]
    assert cell.wait_count(0, 0, 1000 * LONG) and not cell.wait_count(2, 0, 1_000_000)


@pytest.mark.parametrize("spin", [0, 1_000_000])
def test_a_count_made_by_several_is_waited_for_once(spin):
    cell, = cells(1)
    with guard(), four_writers(cell):
        assert cell.wait_count(20_000, spin, 1000 * LONG)


def test_every_piece_of_a_round_is_claimed_once_by_several_claimants():
    board, = cells(1)
    for number in range(200):
        board.post(number << 8 | 13 << 4)
        taken = [[], [], []]

        def take(mine):
            while (claimed := board.claim()) >= 0:
                mine.append(claimed)

        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        want = [number << 8 | 13 << 4 | piece for piece in range(13)]
        assert sorted(sum(taken, [])) == want


def test_a_round_without_pieces_has_nothing_to_claim():
    board, = cells(1)
    for value in (0, 1, 5 << 8, 5 << 8 | 3 << 4 | 3):
        board.post(value)
        assert board.claim() == -1 and board.value() == value
