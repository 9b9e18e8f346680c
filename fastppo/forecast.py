"""How much memory a run will ask for beside its arena, and which setting makes it fit."""

from typing import Callable

from .arena import Spec, fitting, size_of
from .config import Config

# Bytes of a worker's own memory, beside the environments': 21 to 28 MiB were measured.
WORKER = 32 << 20

# Vectors as long as the parameters: gradient, Adam's moments, a copy of them and of the parameters
# to go back to, temporary ones; the kernel's has the gradients of eight shards and packed weights.
VECTORS = {"torch": 9, "kernel": 18}


def beside(config: Config, spec: Spec) -> int:
    """About how many bytes a run asks for beside the arena of `spec`, once its policy is built.

    A bound for what we allocate ourselves; what the environments hold is not known.
    """
    rows, width = config.num_envs * config.num_steps, sum(config.hidden_sizes) or 1
    obs, act = (size_of({name: spec[name]}) for name in ("obs", "act"))
    copies = obs + 32 * rows  # for the moments; a rollout's order and temporary columns
    if config.learner == "torch":
        # Shuffled samples; of a minibatch, two networks' sums, activations and their gradients.
        copies += obs + act + 16 * rows + 24 * width * -(-rows // config.num_minibatches)
    vectors = VECTORS[config.learner] * size_of({"params": spec["params"]})
    return copies + vectors + WORKER * config.num_workers


def remedy(config: Config, spec_of: Callable[[Config], Spec], one_id: bool, free: int) -> str:
    """The setting with which a run of `config` fits into `free` bytes and all else stays.

    `one_id`: whether the number of environments is ours to choose.
    """
    def need(**changes) -> int:
        tried = config.replace(num_minibatches=1, **changes)
        tried = tried.replace(num_minibatches=min(config.num_minibatches,
                                                  tried.num_envs * tried.num_steps))
        spec = spec_of(tried)
        return size_of(spec) + beside(tried, spec)

    def most(name: str) -> int:
        other = config.num_envs * config.num_steps // getattr(config, name)
        fit = fitting(lambda n: need(**{name: n}), free, getattr(config, name))
        return fit if fit * other >= config.num_minibatches else 0

    for name in ("num_envs", "num_steps") if one_id else ("num_steps",):
        if fit := most(name):
            return f"--{name}={fit}"
    if need(num_workers=0) <= free:
        return "--num_workers=0"
    return "free memory, or train a smaller network on smaller observations"
