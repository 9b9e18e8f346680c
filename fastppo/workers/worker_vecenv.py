"""The environments of a run in worker processes, with the interface of Serial."""

import pickle
from typing import Any, Sequence

from fastppo.machine import global_rng
from fastppo.stepping.actors import CentralActor, first_turn
from fastppo.stepping.environments import ResetOptions
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.workers import protocol
from fastppo.workers.protocol import worker_slices
from fastppo.workers.team import WorkerRestarts, WorkerTeam


class WorkerVecEnv:
    """Environments in worker processes; the same calls and the same arrays as Serial.

    `central` computes the actions in the main process; None if the workers do. `restarts` starts
    the workers again after a fault. Each environment has as many rows as `agents`.
    """

    def __init__(self, team: WorkerTeam, steps: int, central: CentralActor | None,
                 restarts: WorkerRestarts | None = None, agents: int = 1):
        self.restarts, self.agents = restarts, agents
        self.team, self.steps, self.central, self.begins = team, steps, central, 0
        self._inferred = -1, 0  # the first turn of a rollout, and how many turns of it are done
        self._warned = False

    def warmup(self, steps: int) -> None:
        """See Serial.warmup."""
        self.team.run(protocol.WARMUP, steps)

    def begin(self, resumed: ResumedEpisodes | None = None) -> list[int]:
        """See Serial.begin."""
        team, restarted, self._inferred = self.team, [], (-1, 0)
        if self.central:
            self.central.iteration = None
        slices = worker_slices(len(team.factories), len(team.workers))
        self._send(protocol.START, [
            resumed and resumed.part(*(self.agents * e for e in one)) for one in slices])
        for worker in team.workers:
            first = self.agents * (worker.first_env - team.first)
            restarted += [first + e for e in worker.mailbox.read()]
        return restarted

    def use_options(self, history: ResetOptions) -> None:
        """See Serial.use_options."""
        self._send(protocol.ASK, [history] * len(self.team.workers))

    def rollout(self, iteration: int) -> None:
        """See Serial.rollout."""
        if self.central:
            self.team.post(protocol.ROLLOUT, iteration)
            self.central.start(iteration)
            self._infer(first_turn(iteration, self.steps, len(self.central.groups)))
        self.team.run(protocol.ROLLOUT, iteration)
        if self.central:
            self.central.finish(self.steps)
        if not self._warned:
            self._warned = global_rng.warn_global_rng(self.team.arena["drawn"])

    def close(self) -> None:
        """Stops the processes; always returns. A second call does nothing."""
        self.team.close()

    def _send(self, command: int, messages: Sequence[Any]) -> None:
        """Makes every worker run a command that reads its message."""
        self.team.finish_last()  # after an interrupt, the command before may still run
        for worker, message in zip(self.team.workers, messages):
            worker.mailbox.write(pickle.dumps(message))
        self.begins += 1
        self.team.run(command, self.begins)

    def _infer(self, first: int) -> None:
        """Infers for one group of environments while the other one steps, from turn `first` on."""
        groups, cells = self.central.groups, self.team.cells
        begin = self._inferred[1] if self._inferred[0] == first else 0
        for k in range(begin, self.steps * len(groups)):
            t, g = divmod(k, len(groups))
            self.team.wait(cells.stepped, first + 1 + max(0, k - len(groups) + 1))
            self.central.infer(t, groups[g])
            cells.turns[g].post(first + k + 1 & 0xFFFFFFFF)
            self._inferred = first, k + 1
