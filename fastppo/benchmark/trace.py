"""A timeline of a run's processes, as a trace file for ui.perfetto.dev.

Format: Trace Event Format, complete ("X") events [Google, Trace Event Format, 2016].
"""

from typing import Any, NamedTuple, Sequence

from fastppo.workers.protocol import COMMANDS, STAMPS


class Span(NamedTuple):
    """An interval of one process's work, in nanoseconds of time.monotonic_ns."""

    worker: int  # -1: the main process
    name: str
    start: int
    end: int


class Stamps:
    """The commands that a trainer's workers have completed; `pids`: the main process's, theirs."""

    def __init__(self, ppo):
        import os
        self.team = getattr(ppo.collector.vec, "team", None)
        self.arena = ppo.arena
        workers = self.team.workers if self.team else []
        self.pids = [os.getpid(), *(worker.process.pid for worker in workers)]
        self.last = self._last_command

    @property
    def _last_command(self) -> int:
        return self.team.posted.generation if self.team else 0

    def new(self) -> list[Span]:
        """The spans of the commands since the last call, at most the last STAMPS of them."""
        first, self.last = max(self.last, self._last_command - STAMPS), self._last_command
        return [Span(w, COMMANDS[command], start, end)
                for generation in range(first + 1, self.last + 1)
                for w, (command, start, end) in enumerate(
                    self.arena["stamps"][:, generation % STAMPS].tolist())]


def events(spans: Sequence[Span], pids: Sequence[int]) -> dict[str, Any]:
    """The trace of `spans`, with a track for each of `pids`: the main process, then the workers."""
    names = ["main", *(f"worker {w}" for w in range(len(pids) - 1))]
    trace: list[dict[str, Any]] = []
    for i, (pid, name) in enumerate(zip(pids, names)):
        trace += [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
                  {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": i}}]
    zero = min((span[2] for span in spans), default=0)
    for worker, name, start, end in spans:
        pid = pids[worker + 1]
        trace.append({"ph": "X", "name": name, "cat": "fastppo", "pid": pid, "tid": pid,
                      "ts": (start - zero) / 1000, "dur": (end - start) / 1000})
    return {"traceEvents": trace, "displayTimeUnit": "ms"}
