"""The snapshots between rollouts, at which the environments of a run can begin again.

    save -> a rollout -> save -> a rollout that fails -> restore -> begin, in new environments
                     `-> a checkpoint -> load -> begin, in another process
"""

from typing import Any, NamedTuple, Sequence

import numpy as np

from fastppo.machine.arena import Arena
from fastppo.spaces.leaves import leaf_arrays
from fastppo.stepping.episodes import ReturnScaling, rows_by_step
from fastppo.stepping.replay import EpisodeHistory, EpisodeLog, LogState, ResumedEpisodes


class EnvSnapshot(NamedTuple):
    """The state of the environments after a rollout."""

    progress: tuple[int, int, int]  # see collect.Progress
    returns: tuple[np.ndarray, ...]  # the state of ReturnScaling
    log: LogState
    obs: np.ndarray  # [e ...] the observations with which the next rollout begins, as stored
    memory: np.ndarray  # f32 [e s] the recurrent state there


class EnvSnapshots:
    """The snapshots of a run: the last one, and the episodes with which environments begin.

    `log` has the actions of the running episodes, `last` is the boundary before the rollout that
    began last. `resumed`, of a checkpoint or of a rollout that failed, is what the next `begin`
    continues; without it new episodes begin.
    """

    def __init__(self, arena: Arena, returns: ReturnScaling, log: EpisodeLog):
        self.arena, self.returns, self.log = arena, returns, log
        self.last: EnvSnapshot | None = None
        self.resumed: ResumedEpisodes | None = None
        self.last_obs = rows_by_step(arena["obs"], len(arena["raw"]))[-1]  # of a rollout

    def now(self, progress: tuple[int, int, int]) -> EnvSnapshot:
        """The boundary after as many rollouts as `progress` says, also inside the next one."""
        if self.last is not None and self.last.progress == progress:
            return self.last
        return EnvSnapshot(progress, self.returns.state, self.log.state, self.last_obs.copy(),
                        self.arena["state"][-1].copy())

    def begin(self, vec: Any) -> None:
        """Brings the environments to where the next rollout begins."""
        restarted = vec.begin(self.resumed)
        if self.resumed is not None:
            self.log.resume(self.resumed, restarted)
        self.arena["state"][-1, restarted] = 0.0
        self.last = None

    def restore(self, progress: tuple[int, int, int]) -> None:
        """Makes new environments begin where the last rollout ended, or one that failed began."""
        at = self.now(progress)
        self.resumed = ResumedEpisodes(at.log.step, self.log.histories(at.log), at.obs)
        self.arena["state"][-1] = at.memory

    def load(self, tree: dict[str, Any], progress: tuple[int, int, int]) -> None:
        """Makes the environments begin at a boundary from `snapshot_tree`.

        Raises ValueError if its arrays do not fit this run.
        """
        memory, obs = self.arena["state"][-1], np.empty_like(self.last_obs)
        if tree["step"] != progress[0] * len(self.arena["raw"]):
            raise ValueError(f"it has taken {tree['step']} steps in {progress[0]} rollouts")
        check_alike([*tree["returns"], tree["memory"]], [*self.returns.state, memory])
        self.returns.state = tree["returns"]
        if tree["step"]:
            check_alike([tree["actions"][:0]], [self.log.views.act[:0, 0]])
            self.resumed = resumed_episodes(tree, obs)
            self.log.resume(self.resumed, ())
            memory[...] = tree["memory"]
            self.last = EnvSnapshot(progress, tree["returns"], self.log.state, obs, tree["memory"])


def snapshot_tree(boundary: EnvSnapshot, log: EpisodeLog) -> dict[str, Any]:
    """A EnvSnapshot as a dict of arrays and numbers; each environment has its actions alone."""
    histories = log.histories(boundary.log) if boundary.log.step else []
    kept = [one.actions for one in histories if one.actions is not None]
    return {"progress": boundary.progress, "returns": boundary.returns, "step": boundary.log.step,
            "episodes": boundary.log.episodes, "totals": boundary.log.totals,
            "length": np.array([-1 if one.actions is None else len(one.actions)
                                for one in histories], np.int64),
            "actions": np.concatenate(kept) if kept else log.views.act[:0, 0],
            "obs": leaf_arrays(boundary.obs), "memory": boundary.memory}


def resumed_episodes(tree: dict[str, Any], rows: np.ndarray) -> ResumedEpisodes:
    """The episodes of a `snapshot_tree`; its observations are copied into `rows` [e ...].

    Raises ValueError if its arrays do not fit each other or the rows.
    """
    episodes, length = tree["episodes"], tree["length"]
    totals = tree.get("totals", np.full(len(rows), np.nan))  # which older files lack
    if not (len(length), 4) == (len(rows), 4) == (*totals.shape, 4) == episodes.shape or len(
            tree["actions"]) != length[length > 0].sum():
        raise ValueError("the running episodes do not fit each other")
    check_alike(tree["obs"], leaf_arrays(rows))
    for field, values in zip(leaf_arrays(rows), tree["obs"]):
        field[...] = values
    actions = np.split(tree["actions"], np.cumsum(length.clip(0))[:-1])
    return ResumedEpisodes(int(tree["step"]), [
        EpisodeHistory(*map(int, one), None if count < 0 else taken, float(total))
        for one, count, taken, total in zip(episodes, length, actions, totals)], rows)


def check_alike(arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Raises ValueError unless `arrays` have the shapes and dtypes of those that they replace."""
    for one, two in zip(arrays, wanted, strict=True):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            raise ValueError(f"it has {one.dtype} {one.shape} for {two.dtype} {two.shape}")
