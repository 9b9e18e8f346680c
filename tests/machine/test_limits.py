"""What the machine lets a process have, read from trees of files as kernels and containers show."""

import os
from types import SimpleNamespace

import pytest
from pretend_machine import pretend

from fastppo.machine import limits
from fastppo.machine.limits import (
    NO_LIMIT,
    affinity_cores,
    core_quota,
    free_memory,
    is_terminal,
    memory_sizes,
    usable_cores,
)

pytestmark = pytest.mark.this_machine
GIB = 1 << 30
V2, V1 = "0::/a/b\n", "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n"


@pytest.fixture
def tree(tmp_path):
    """A function that writes files below a root, and returns the root."""
    def write(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path
    return write


def test_this_machine_has_cores_and_memory():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_memory() <= total
    assert 1 <= usable_cores() <= os.cpu_count()


def test_where_nothing_can_be_read_there_is_no_limit(tmp_path):
    assert free_memory(tmp_path) == NO_LIMIT
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_sizes_and_quotas_are_the_smallest_of_the_groups(tree):
    root = tree({"proc/meminfo": f"MemTotal: {9 << 20} kB\n", "proc/self/cgroup": V2,
                 "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5\n",
                 "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
                 "sys/fs/cgroup/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/cpu.max": "max 1\n"})
    assert memory_sizes(root) == (9 * GIB, 5)
    assert core_quota(root) == 0.5 and usable_cores(root) == 1


def test_without_groups_there_is_neither_a_quota_nor_a_limit(tmp_path):
    assert core_quota(tmp_path) == float("inf")
    assert memory_sizes(tmp_path) == (NO_LIMIT, NO_LIMIT)
    assert affinity_cores() == len(os.sched_getaffinity(0))


def test_free_memory_is_the_machines_where_no_group_limits(tree):
    root = tree({"proc/meminfo": f"MemTotal: {9 << 20} kB\nMemAvailable:  {3 << 20} kB\n",
                 "proc/self/cgroup": V2, "sys/fs/cgroup/a/b/memory.max": "max\n",
                 "sys/fs/cgroup/a/b/memory.current": "5\n"})
    assert free_memory(root) == 3 * GIB


@pytest.mark.parametrize("cgroup, folder, limit, usage, cached", [
    (V2, "sys/fs/cgroup/a/b", "memory.max", "memory.current", "inactive_file"),
    (V2, "sys/fs/cgroup/a", "memory.max", "memory.current", "inactive_file"),
    ("0::/on/the/host/alone\n", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (V1, "sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"),
    (V1, "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"),
])
def test_any_group_above_may_limit_in_both_versions_and_a_cached_file_is_free(
        tree, cgroup, folder, limit, usage, cached):
    root = tree({"proc/meminfo": f"MemAvailable: {8 << 20} kB\n", "proc/self/cgroup": cgroup,
                 f"{folder}/{limit}": f"{5 * GIB}\n", f"{folder}/{usage}": f"{3 * GIB}\n"})
    assert free_memory(root) == 2 * GIB
    tree({f"{folder}/memory.stat": f"anon 5\n{cached} {GIB}\n"})
    assert free_memory(root) == 3 * GIB


def test_a_group_that_is_full_leaves_nothing(tree):
    root = tree({"proc/self/cgroup": V2, "sys/fs/cgroup/memory.max": "1000",
                 "sys/fs/cgroup/memory.current": "1001"})
    assert free_memory(root) == 0


@pytest.mark.parametrize("cgroup, files, wanted", [
    (V2, {"sys/fs/cgroup/a/cpu.max": "150000 100000"}, 2),
    (V2, {"sys/fs/cgroup/a/b/cpu.max": "50000 100000"}, 1),
    (V2, {"sys/fs/cgroup/cpu.max": "max 100000"}, 64),
    (V1, {"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "300000",
          "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 3),
    (V1, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 1),
    (V1, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 64),
])
def test_usable_cores_are_what_the_tightest_quota_pays_for(tree, monkeypatch, cgroup, files,
                                                           wanted):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert usable_cores(tree({"proc/self/cgroup": cgroup, **files})) == wanted


@pytest.mark.parametrize("tty, term, wanted", [
    (True, "xterm", True), (False, "xterm", False), (True, "dumb", False), (True, "", False)])
def test_a_terminal_that_knows_no_codes_is_none(monkeypatch, tty, term, wanted):
    monkeypatch.setenv("TERM", term)
    assert is_terminal(SimpleNamespace(isatty=lambda: tty)) is wanted
    assert not is_terminal(None)  # of a program without a console


def test_a_pretended_machine_answers_everywhere(monkeypatch):
    for name in ("affinity_cores", "core_quota", "cpu_flags", "is_terminal"):
        monkeypatch.setattr(limits, name, getattr(limits, name))  # it comes back
    pretend("cores-16 bf16")
    assert (limits.usable_cores(), limits.has_bf16()) == (16, True)
    pretend("cores-1 no-bf16 no-terminal")
    assert (limits.usable_cores(), limits.has_bf16()) == (1, False)
