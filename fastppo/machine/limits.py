"""What the machine lets this process have: cores and memory, within its control groups.

Groups nest, and each of them may limit; both versions of Linux's are read. Inside a container the
path in /proc/self/cgroup may be the host's, of which only the top is there.
"""

import os
from pathlib import Path, PurePosixPath
from typing import Iterator

ROOT = Path("/")
NO_LIMIT = 2**63


def usable_cores(root: Path = ROOT) -> int:
    """Cores this process may use: its affinity, or what its control groups' quotas pay for."""
    bound = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    for folder in _groups("cpu", root):
        words = _words(folder / "cpu.max") or (_words(folder / "cpu.cfs_quota_us")
                                               + _words(folder / "cpu.cfs_period_us"))
        if len(words) == 2 and words[0].isdigit():  # else "max", or -1
            cores = min(cores, -(-int(words[0]) // int(words[1])))
    return max(1, cores)


def free_memory(root: Path = ROOT) -> int:
    """Bytes this process can still have: of the machine's, and of each of its control groups'.

    A file that was read and can be dropped from memory counts as free.
    """
    free = [NO_LIMIT]
    available = _table(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        free.append(available * 1024)
    for folder in _groups("memory", root):
        limit = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if limit and used and limit[0].isdigit():
            stat = _table(folder / "memory.stat")
            cached = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            free.append(int(limit[0]) - int(used[0]) + cached)
    return max(0, min(free))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control groups that may limit `controller`, outermost first."""
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        if not names:
            tops = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in names.split(","):
            tops = [f"sys/fs/cgroup/{names}"] + [f"sys/fs/cgroup/{controller}"] * ("," in names)
        else:
            continue
        parts = PurePosixPath(path).parts[1:]
        for top in tops:
            yield from (root.joinpath(top, *parts[:depth]) for depth in range(len(parts) + 1))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not Linux, or no such group
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _table(path: Path) -> dict[str, int]:
    """A file of lines that begin with a name and a number."""
    return {words[0]: int(words[1]) for words in map(str.split, _lines(path))
            if len(words) > 1 and words[1].isdigit()}
