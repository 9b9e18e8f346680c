"""The state of the environments between two rollouts, which a checkpoint saves."""

from typing import Any, NamedTuple

import numpy as np

from fastppo.envs.spaces import leaf_arrays
from fastppo.machine.arena import Arena
from fastppo.stepping.replay import EpisodeHistory, EpisodeLog, LogState, ResumedEpisodes


class Boundary(NamedTuple):
    """The state of the environments after a rollout."""

    progress: tuple[int, int, int]  # see collect.Progress
    returns: tuple[np.ndarray, ...]  # the state of ReturnScaling
    log: LogState
    obs: np.ndarray  # [e ...] the observations with which the next rollout begins, as stored
    memory: np.ndarray  # f32 [e s] the recurrent state there


def boundary_of(arena: Arena, progress: tuple, returns: tuple, log: EpisodeLog) -> Boundary:
    """The Boundary at the end of the arena's rollout; copies."""
    return Boundary(progress, returns, log.state, arena["obs"][-1].copy(),
                    arena["state"][-1].copy())


def boundary_tree(boundary: Boundary, log: EpisodeLog) -> dict[str, Any]:
    """A Boundary as a dict of arrays and numbers; each environment has its actions alone."""
    histories = log.histories(boundary.log) if boundary.log.step else []
    kept = [one.actions for one in histories if one.actions is not None]
    return {"progress": boundary.progress, "returns": boundary.returns, "step": boundary.log.step,
            "episodes": boundary.log.episodes,
            "length": np.array([-1 if one.actions is None else len(one.actions)
                                for one in histories], np.int64),
            "actions": np.concatenate(kept) if kept else log.views.act[:0, 0],
            "obs": leaf_arrays(boundary.obs), "memory": boundary.memory}


def resumed_episodes(tree: dict[str, Any], rows: np.ndarray) -> ResumedEpisodes:
    """The episodes of a `boundary_tree`; its observations are copied into `rows` [e ...].

    Raises ValueError if its arrays do not fit each other or the rows.
    """
    episodes, length = tree["episodes"], tree["length"]
    if not (len(length), 4) == (len(rows), 4) == episodes.shape or len(tree["actions"]) != length[
            length > 0].sum():
        raise ValueError("the running episodes do not fit each other")
    for field, values in zip(leaf_arrays(rows), tree["obs"], strict=True):
        if field.shape != values.shape or field.dtype != values.dtype:
            raise ValueError(f"observations are {values.dtype} {values.shape}, not"
                             f" {field.dtype} {field.shape}")
        field[...] = values
    actions = np.split(tree["actions"], np.cumsum(length.clip(0))[:-1])
    return ResumedEpisodes(int(tree["step"]), [
        EpisodeHistory(*map(int, one), None if count < 0 else taken)
        for one, count, taken in zip(episodes, length, actions)], rows)
