"""Who did what when: the spans of a run's processes, as a file that ui.perfetto.dev opens.

Format: Trace Event Format, complete ("X") events [Google, Trace Event Format, 2016].
"""

from typing import Any, NamedTuple, Sequence

from fastppo.workers.protocol import COMMANDS, STAMPS


class Span(NamedTuple):
    """What one process did, in nanoseconds of time.monotonic_ns."""

    worker: int  # -1: the main process
    name: str
    start: int
    end: int


class Stamps:
    """The commands that a trainer's workers have carried out; `pids` are theirs after main's."""

    def __init__(self, ppo):
        import os
        self.team = getattr(ppo.collector.vec, "team", None)
        self.stamps = ppo.arena["stamps"]
        workers = self.team.workers if self.team else []
        self.pids = [os.getpid(), *(worker.process.pid for worker in workers)]
        self.seen = self._given

    @property
    def _given(self) -> int:
        return self.team.posted.generation if self.team else 0

    def new(self) -> list[Span]:
        """The spans of the commands since the last call, of which at most STAMPS are kept."""
        first, self.seen = max(self.seen, self._given - STAMPS), self._given
        return [Span(w, COMMANDS[command], start, end)
                for generation in range(first + 1, self.seen + 1)
                for w, (command, start, end) in enumerate(
                    self.stamps[:, generation % STAMPS].tolist())]


def events(spans: Sequence[Span], pids: Sequence[int]) -> dict[str, Any]:
    """The trace of `spans`, a track for each of `pids`: the main process's, then the workers'."""
    names = ["main", *(f"worker {w}" for w in range(len(pids) - 1))]
    found: list[dict[str, Any]] = []
    for i, (pid, name) in enumerate(zip(pids, names)):
        found += [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
                  {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": i}}]
    zero = min((span[2] for span in spans), default=0)
    for worker, name, start, end in spans:
        pid = pids[worker + 1]
        found.append({"ph": "X", "name": name, "cat": "fastppo", "pid": pid, "tid": pid,
                      "ts": (start - zero) / 1000, "dur": (end - start) / 1000})
    return {"traceEvents": found, "displayTimeUnit": "ms"}
