"""What this machine answers: cores, memory, instructions, GPUs, a terminal; asked here alone.

And the numbers of the processes that torchrun has started for a run.

Choices and errors depend on it. Others ask through the module, limits.usable_cores(), so that a
test that replaces one answer replaces it everywhere.

Control groups nest, and each one may set a limit. Versions 1 and 2 of Linux are read. In a
container the path in /proc/self/cgroup may be the host's; then only its top folder exists here.
"""

import ctypes
import math
import os
import platform
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Iterator, Sequence

ROOT = Path("/")
DRIVER = Path("/proc/driver/nvidia/version")
NO_LIMIT = 2**63
SMALL_MEMORY = 1 << 20  # bytes; so few are taken without a question whether they are free
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
VECTORS = re.compile(r"(avx|fma|sse4|ssse3|f16c|amx|asimd|sve|neon)\w*$")
LARGEST_KEPT = 32 << 20  # bytes; mallopt refuses a higher MMAP_THRESHOLD


def usable_cores(root: Path = ROOT) -> int:
    """Cores this process may use: its affinity, or its control groups' quotas if they are less."""
    return max(1, math.ceil(min(affinity_cores(), core_quota(root))))


def affinity_cores() -> int:
    """Cores that the system lets this process run on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


def is_terminal(stream: Any) -> bool:
    """True if a line of `stream` can be replaced: a terminal that knows control codes."""
    return (stream is not None and stream.isatty()
            and os.environ.get("TERM", "") not in ("", "dumb"))


def has_display() -> bool:
    """True if a window can probably be opened."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def no_gpu() -> str:
    """The reason for which torch can use no GPU; "" if it can use one."""
    import torch  # here: the other questions are asked without it
    if torch.cuda.is_available():
        return ""
    if not (torch.version.cuda or torch.version.hip):
        return f"this torch ({torch.__version__}) was built without CUDA"
    return "there is no NVIDIA driver" if torch.version.cuda and not DRIVER.exists() else \
        "the driver shows this process no GPU that torch can use"


def gpus() -> int:
    """The number of GPUs that torch can use."""
    import torch
    return 0 if no_gpu() else torch.cuda.device_count()


def has_bf16(device: str = "cpu") -> bool:
    """True if a device gains from bf16: a CPU with AMX. With AVX512-BF16 alone none is gained."""
    if device == "cpu":
        return "amx_bf16" in cpu_flags()
    import torch
    return torch.cuda.is_bf16_supported(including_emulation=False)


def cpu_flags() -> list[str]:
    """The vector instructions of this CPU, sorted; none if the system does not list them."""
    return sorted(filter(VECTORS.match, _cpu_info("flags|Features").split()))


def cpu_model() -> str:
    """The name of the CPU, or of its architecture."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def core_quota(root: Path = ROOT) -> float:
    """Cores' worth of time that the control groups of this process allow; infinite without one."""
    quotas = [math.inf]
    for folder in _control_groups(root):
        quota = _read_words(folder, "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0].isdigit():  # "max" or -1: no limit
            quotas.append(int(quota[0]) / int(quota[1]))
    return min(quotas)


def free_memory(root: Path = ROOT) -> int:
    """Bytes this process can still allocate, on the machine and in each of its control groups.

    Cached files that the kernel can drop count as free.
    """
    free = _read_table(root / "proc/meminfo").get("MemAvailable:", NO_LIMIT // 1024) * 1024
    for folder in _control_groups(root):
        limit = _read_words(folder, "memory.max", "memory.limit_in_bytes")
        used = _read_words(folder, "memory.current", "memory.usage_in_bytes")
        if limit and used and limit[0].isdigit():
            stat = _read_table(folder / "memory.stat")
            cached = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            free = min(free, int(limit[0]) - int(used[0]) + cached)
    return max(0, free)


def memory_sizes(root: Path = ROOT) -> tuple[int, int]:
    """(bytes of the machine's memory, bytes that the control groups allow); NO_LIMIT if unknown."""
    limits = [_read_words(folder, "memory.max", "memory.limit_in_bytes")
              for folder in _control_groups(root)]
    allowed = [int(limit[0]) for limit in limits if limit and limit[0].isdigit()]
    total = _read_table(root / "proc/meminfo").get("MemTotal:", NO_LIMIT // 1024) * 1024
    return total, min(allowed, default=NO_LIMIT)


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory of up to 32 MiB a piece, to use it again; False without glibc.

    Else torch's large buffers go back to the system at each minibatch, and come anew page by page.
    It holds for the whole process and cannot be undone, so only commands call it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(TRIM_THRESHOLD, -1))


def memory_kills(root: Path = ROOT) -> int:
    """Processes that Linux has killed since its start because memory ran out; -1 if unknown."""
    return _read_table(root / "proc/vmstat").get("oom_kill", -1)


def _control_groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups, and of all groups above them."""
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)  # no controllers: version 2
        group = PurePosixPath(path)
        for name in (controllers, *controllers.split(",")):
            for parent in (group, *group.parents):
                yield root / "sys/fs/cgroup" / name / parent.relative_to("/")


def _cpu_info(name: str) -> str:
    """The first value in /proc/cpuinfo whose name fits a pattern; "" if there is none."""
    text = "\n".join(_read_lines(Path("/proc/cpuinfo")))
    found = re.search(rf"^(?:{name})\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not Linux, or no such group
        return []


def _read_words(folder: Path, *names: str) -> list[str]:
    """The words of those of these files that exist: a version 1 file or a version 2 file."""
    return " ".join(line for name in names for line in _read_lines(folder / name)).split()


def _read_table(path: Path) -> dict[str, int]:
    """The numbers of a file whose lines begin with a name and a number."""
    return {words[0]: int(words[1]) for words in map(str.split, _read_lines(path))
            if len(words) > 1 and words[1].isdigit()}


def rank_of_process() -> int:
    """The number of this process among those that torchrun has started; 0 without torchrun."""
    return int(os.environ.get("RANK", 0)) if rank_count() > 1 else 0


def rank_count() -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def ranks_here() -> int:
    """The number of these processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", rank_count())) if rank_count() > 1 else 1


def device_number(device_ids: Sequence[int] | None) -> int:
    """The number of the GPU that this process uses: of `device_ids` that of its place here.

    Ranks share GPUs where there are fewer.
    """
    local = int(os.environ.get("LOCAL_RANK", 0)) if rank_count() > 1 else 0
    return device_ids[local % len(device_ids)] if device_ids else local


class OneProcess:
    """The ranks of a run in one process; those that torchrun starts have a class of this form.

    This process is number `rank` of `size`. All must make the same calls in the same order.
    """

    rank, size = 0, 1

    def own(self, count: int) -> range:
        """Those of `count` environments, or other things, that this rank has."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, one: Any) -> list[Any]:
        """The objects that all ranks give, in the order of the ranks."""
        return [one]

    def join(self, *tensors: Any) -> list[Any]:
        """Tensors [t e ...] of this rank's environments, completed by those of the others."""
        return [*tensors]

    def share(self, one: Any) -> Any:
        """The object that rank 0 gives."""
        return one if self.size == 1 else self.gather(one)[0]

    def close(self) -> None:
        """Leaves the group of processes, if it was made here; a second call does nothing."""
