"""The record of an update whose numbers were not finite: its rollout, and the weights before it."""

from pathlib import Path
from typing import Any

from fastppo.files.fingerprint import fingerprint
from fastppo.files.run_folder import public_config
from fastppo.files.tensor_file import split_tree, write_tensor_file
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.spaces.leaves import tree_map

RECORD_FORMAT = "fastppo failed update 1"


def write_failed_update(ppo, error: str, path: Path) -> None:
    """Writes the rollout, the weights and what the next update needs of the learner's state.

    Raises CheckpointError if that fails.
    """
    learner, tensors = ppo.learner, {}
    rollout = tree_map(_as_tensors, ppo.rollout._asdict())
    state = {"rollout": rollout, "policy": ppo.policy.state_dict(),
             "optimizer": learner.optimizer.state, "rates": learner.optimizer.rates,
             "coefficients": ppo.coefficients._asdict(), "progress": tuple(ppo.progress)}
    texts = {"state": split_tree(state, "state", tensors), "error": error,
             "config": public_config(ppo.config),
             "fingerprint": fingerprint(ppo.config.torch_threads)}
    write_tensor_file(path, RECORD_FORMAT, tensors, texts, private=True)


def _as_tensors(x: Any) -> Any:
    """`x`; the frames and the numbers of those that are stacked, if it is FrameStacks."""
    return {"frames": x.frames, "stacks": x.stacks} if isinstance(x, FrameStacks) else x
