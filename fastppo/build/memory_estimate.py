"""Estimates the memory of a run beside its arena, and finds settings that need less."""

import math
from itertools import pairwise, product
from typing import Callable, Sequence

import numpy as np
import torch

from fastppo.build.check_settings import SMALL, largest_image, resizable
from fastppo.build.compiled_support import is_plain_mlp
from fastppo.config import Config, default_of
from fastppo.errors import ConfigError
from fastppo.machine.arena import Spec, spec_bytes
from fastppo.machine.limits import free_memory
from fastppo.machine.ranks import rank_count
from fastppo.networks.cnn import dense_weights
from fastppo.networks.heads import least_outputs
from fastppo.policy import Policy
from fastppo.settings.fixes import Fix, Set
from fastppo.settings.spelling import IMAGE_MODELS
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

# Bytes of a worker process without its environments: 21 to 28 MiB were measured.
WORKER_BYTES = 32 << 20

# Bytes of an emulator of Atari games and its start states: 2.3 to 3 MiB were measured.
GAME_BYTES = 3 << 20

# Bytes of torch itself where it computes the update on the CPU. Measured as VmRSS on Linux x86-64
# with torch 2 for CPUs: importing torch takes 185 MiB, of which 125 MiB are in use for good when
# the arena is made. The other 60 MiB are pages of its libraries; the system counts them as free,
# because it can read them again, but each update needs them, 110 MiB in all with an update's own.
TORCH_BYTES = 128 << 20

# Vectors as long as the parameters: gradient, Adam's moments, copies of them and of the parameters
# for a rollback, temporary ones; the kernel's has gradients of eight shards and packed weights.
PARAMETER_VECTORS = {"torch": 9, "graph": 9, "kernel": 18}
# The same of a worker: packed weights to act with, and for both directions of an update's shards.
PACKED_VECTORS = {"local": 3, "central": 0}


def bytes_beside_arena(config: Config, spec: Spec, activations: int, columns: int,
                       invalid: bool = False) -> int:
    """About how many bytes a run allocates beside the arena of `spec`, once its policy is built.

    `activations`: see activation_bytes; `columns`: those of all observations that are encoded at
    once; with `invalid` rows the valid ones are copied. What environments allocate is known of
    Atari games only.
    """
    rows = config.num_envs * config.num_steps
    obs, act, vector = (spec_bytes({name: spec[name]}) for name in ("obs", "act", "params"))
    # A rollout's order, temporary columns; encoded observations, and their parts.
    total = obs * invalid + 32 * rows + 9 * rows * columns
    total += GAME_BYTES * config.num_envs * (config.preprocessing == "atari")
    if config.learner != "kernel":
        # Shuffled samples, of frames that are stored once one minibatch; its activations and their
        # gradients.
        minibatch = -(-rows // (config.num_minibatches * config.num_microbatches))
        shuffled = max(obs, minibatch * obs // math.prod(spec["obs"][1][:2]))
        total += TORCH_BYTES + shuffled + act + 16 * rows + 2 * activations * minibatch
    if config.learner == "graph" and config.device == "cpu":  # all frames, too; and the mirror
        frames = spec_bytes({name: spec[name] for name in ("frames", "stacks")})
        total += frames + (config.acting == "central") * (obs + frames)
    worker = WORKER_BYTES + PACKED_VECTORS[config.acting] * vector
    return total + PARAMETER_VECTORS[config.learner] * vector + worker * config.num_workers


def activation_bytes(policy: Policy) -> int:
    """Bytes per observation that a forward pass of torch keeps for the backward pass."""
    def kept(rows: int) -> int:
        store, storages = policy.observer.layout.store, {}

        def note(x: torch.Tensor) -> torch.Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x
        obs = policy.observer.tensors(np.zeros((rows, *store.shape), store.dtype))
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            out = policy(obs)  # noqa: F841  holds what it keeps
            return sum(storages.values())
    return (kept(4) - kept(2)) // 2  # without the weights


def bytes_on_gpu(config: Config, spec: Spec, activations: int, columns: int,
                 simulated: bool = False) -> int:
    """About how many bytes a run allocates on a GPU, beside the context and libraries of CUDA.

    `spec` is that of its arena, `activations`: see activation_bytes; `columns` have moments; a run
    that is `simulated` has its rollout there, too. Under torchrun they are those of one process,
    which has a mirror of all environments, and samples of its own ones.
    """
    rows, ranks = config.num_envs * config.num_steps, rank_count()
    minibatch = -(-rows // (config.num_minibatches * config.num_microbatches))
    samples = 24 * rows + spec_bytes({
        name: spec[name] for name in ("obs", "frames", "stacks", "act")})
    row = spec_bytes({"obs": spec["obs"]}) // math.prod(spec["obs"][1][:2])
    copies = 3 if simulated else 1  # shuffled or static samples; rollout, final ones
    own = copies * samples + (row + 2 * activations) * minibatch
    own += 12 * columns * rows  # numbers for the moments, in f32 and f64
    return (samples + own // ranks
            + PARAMETER_VECTORS[config.learner] * spec_bytes({"params": spec["params"]}))


def check_gpu_memory(config: Config, need: Callable[[Config], int], free: int, name: str) -> None:
    """Raises ConfigError if a run needs more than `free` bytes of its GPU: need(config).

    The fix splits the minibatch, whose activations are usually most of it, or reduces the setting
    `name`, num_envs or num_steps.
    """
    if (wanted := need(config)) <= free:
        return
    rows = config.num_envs * config.num_steps // config.num_minibatches
    parts = (2**i for i in range(1, rows.bit_length()))
    micro = next((config.num_microbatches * n for n in parts if need(config.replace(
        num_microbatches=config.num_microbatches * n)) <= free), None)
    given = getattr(config, name)
    fewer = next((n for n in (given >> i for i in range(1, 64)) if n and n
                  * config.num_envs * config.num_steps >= given * config.num_minibatches
                  and (name != "num_envs" or n % rank_count() == 0)
                  and need(config.replace(**{name: n})) <= free), None)
    fixes = [Set(**{setting: value}) for setting, value in (
        ("num_microbatches", micro), (name, fewer)) if value]
    raise ConfigError(f"the run needs about {wanted >> 20:,} MiB on {config.device}, where"
                      f" {free >> 20:,} MiB are free",
                      tuple(fixes) or "use a smaller network or smaller observations")


def check_network_size(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError if there is too little memory to train a built-in network.

    It is called before the network is built, which takes long where it is large.
    """
    inputs = ObservationEncoding(seen).size if is_plain_mlp(config) else 0
    outputs, images = least_outputs(seen.act_space), 0
    if config.model in IMAGE_MODELS:
        shapes = [leaf.image_shape for leaf in ObservationEncoding(seen).leaves]
        images = sum(dense_weights(config.model, shape) for shape in shapes
                     if shape and min(shape[1:]) >= IMAGE_MODELS[config.model])

    def count(config: Config) -> int:
        return least_parameters(config, inputs, outputs) + images
    each, free = 4 * PARAMETER_VECTORS.get(config.learner, 9), free_memory()
    if (need := each * count(config)) > free:
        smaller = {name: default_of(name) for name in ("hidden_sizes", "rnn_size")
                   if getattr(config, name) != default_of(name)}
        fits = each * count(config.replace(**smaller)) <= free
        raise ConfigError(f"the network has at least {count(config):,} parameters and needs"
                          f" {need >> 20:,} MiB to be trained, but {free >> 20:,} MiB are free",
                          Set(**smaller) if fits else resizing(config, seen, need, free)
                          or "use smaller observations, or fewer actions")


def least_parameters(config: Config, inputs: int, outputs: int = 0) -> int:
    """The weights of a built-in network's hidden layers and `outputs`; it has biases, too."""
    widths, gates = [inputs, *config.hidden_sizes], {"none": 0, "gru": 3, "lstm": 4}[config.rnn]
    features = config.rnn_size if gates else widths[-1]
    count = sum(a * b for a, b in pairwise(widths))
    count += gates * config.rnn_size * (config.rnn_size + widths[-1])
    return count * (1 if config.shared_critic else 2) + features * outputs


def resizing(config: Config, seen: ObservationLayout, need: int, free: int) -> tuple[Set, ...]:
    """The fix that makes an image small, if less than `free` of `need` bytes then remain."""
    small = resizable(config, seen) and need * SMALL**2 < free * math.prod(largest_image(seen))
    return (Set(resize=SMALL),) * small


def fitting_setting(config: Config, need: Callable[[Config], int], names: Sequence[str],
                    free: int) -> Fix:
    """The fix for a run that needs more than `free` bytes: settings that leave about a tenth free.

    One of `names` (num_envs, num_steps) is reduced in proportion to need(config), the bytes of a
    run; if no value of it suffices, there are no workers either.
    """
    smallest = config.replace(num_envs=1, num_steps=1, num_minibatches=1)
    for changes, name in product(({}, {"num_workers": 0}), names):
        total, fixed = (need(x.replace(**changes)) for x in (config, smallest))
        given = getattr(config, name)
        count = int(given * min(1.0, (0.9 * free - fixed) / (total - fixed)))
        if count * config.num_envs * config.num_steps >= given * config.num_minibatches:
            return Set(**changes, **({name: count} if count < given else {}))
    return "free memory, or train a smaller network on smaller observations"
