"""How much memory a run will ask for beside its arena, and which setting makes it fit."""

from itertools import pairwise
from typing import Callable

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.machine.arena import Spec, largest_fitting, spec_bytes
from fastppo.machine.limits import free_memory
from fastppo.settings.fixes import flag

# Bytes of a worker's own memory, beside the environments': 21 to 28 MiB were measured.
WORKER_BYTES = 32 << 20

# Vectors as long as the parameters: gradient, Adam's moments, a copy of them and of the parameters
# to go back to, temporary ones; the kernel's has the gradients of eight shards and packed weights.
PARAMETER_VECTORS = {"torch": 9, "kernel": 18}
# Those of a worker that acts: packed weights for acting, and for both ways of an update's shards.
PACKED_VECTORS = {"local": 3, "central": 0}


def bytes_beside_arena(config: Config, spec: Spec) -> int:
    """About how many bytes a run asks for beside the arena of `spec`, once its policy is built.

    A bound for what we allocate ourselves; what the environments hold is not known.
    """
    rows, width = config.num_envs * config.num_steps, sum(config.hidden_sizes) or 1
    obs, act = (spec_bytes({name: spec[name]}) for name in ("obs", "act"))
    copies = obs + 32 * rows  # for the moments; a rollout's order and temporary columns
    if config.learner == "torch":
        # Shuffled samples; of a minibatch, two networks' sums, activations and their gradients.
        copies += obs + act + 16 * rows + 24 * width * -(-rows // config.num_minibatches)
    vector = spec_bytes({"params": spec["params"]})
    worker = WORKER_BYTES + PACKED_VECTORS[config.acting] * vector
    return copies + PARAMETER_VECTORS[config.learner] * vector + worker * config.num_workers


def check_size(config: Config, inputs: int) -> None:
    """Raise ConfigError where training a built-in network will not fit, before it is made.

    `inputs`: features of an observation; 0 where pictures take them first.
    """
    def need(**changes) -> int:
        tried = config.replace(**changes)
        return 4 * PARAMETER_VECTORS.get(tried.learner, PARAMETER_VECTORS["torch"]) * least_parameters(tried, inputs)

    if need() <= (free := free_memory()):
        return
    smaller = {"hidden_sizes": Config.hidden_sizes}, {"rnn_size": Config.rnn_size}
    fix = next((one for one in smaller if need(**one) <= free), smaller[0] | smaller[1])
    asked = ", ".join(f"{name}={getattr(config, name)}" for name in fix)
    raise ConfigError(
        f"a network with {asked} has at least {least_parameters(config, inputs):,} parameters and"
        f" needs {need() / 2**20:,.0f} MiB to be trained, but {free / 2**20:,.0f} MiB are free",
        " ".join(flag(name, value) for name, value in fix.items()))


def least_parameters(config: Config, inputs: int) -> int:
    """How many parameters a built-in network has at least: its hidden layers' and its memory's."""
    widths = [inputs, *config.hidden_sizes]
    count = sum(a * b for a, b in pairwise(widths))
    if gates := {"gru": 3, "lstm": 4}.get(config.rnn):
        count += gates * config.rnn_size * (config.rnn_size + widths[-1])
    return count if config.shared_critic else 2 * count


def fitting_setting(config: Config, spec_of: Callable[[Config], Spec], one_id: bool, free: int) -> str:
    """The setting with which a run of `config` fits into `free` bytes and all else stays.

    `one_id`: whether the number of environments is ours to choose.
    """
    def need(**changes) -> int:
        tried = config.replace(num_minibatches=1, **changes)
        tried = tried.replace(num_minibatches=min(config.num_minibatches,
                                                  tried.num_envs * tried.num_steps))
        spec = spec_of(tried)
        return spec_bytes(spec) + bytes_beside_arena(tried, spec)

    def most(name: str, **also) -> int:
        other = config.num_envs * config.num_steps // getattr(config, name)
        fit = largest_fitting(lambda n: need(**{name: n}, **also), free, getattr(config, name))
        return fit if fit * other >= config.num_minibatches else 0

    names = ("num_envs", "num_steps") if one_id else ("num_steps",)
    for name in names:
        if fit := most(name):
            return f"--{name}={fit}"
    if need(num_workers=0) <= free:
        return "--num_workers=0"
    for name in names:
        if fit := most(name, num_workers=0):
            return f"--num_workers=0 --{name}={fit}"
    return "free memory, or train a smaller network on smaller observations"
