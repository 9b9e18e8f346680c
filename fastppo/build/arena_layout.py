"""The arrays of a run's shared memory."""

from fastppo.config import Config
from fastppo.machine.arena import Arena, Spec
from fastppo.policy import Policy
from fastppo.stepping.episodes import infos_spec
from fastppo.update.flat_parameters import trained_parameters


def make_arena(config: Config, policy: Policy) -> Arena:
    """The shared memory of a run; ConfigError if there is too little.

    It has the rollout, the parameters, a snapshot of the moments, cells and shards. Frames of
    images that we stack are each stored once.
    """
    moments = ("<f4", (len(policy.observer.shift),))
    params = sum(x.numel() for x in trained_parameters(policy))
    once = (config.vec not in ("native", "envpool") and config.frame_stack > 1
            and policy.observer.layout.is_box and policy.observer.encoding.images)
    workers: Spec = {}
    if config.num_workers:
        from fastppo.workers.protocol import protocol_spec
        from fastppo.workers.update_helper import shards_spec
        if shares_update(config, policy):
            workers = shards_spec(params, config.num_envs * config.num_steps)
        workers |= protocol_spec(config.num_workers, len(env_groups(config.num_envs)))
    arena = Arena({
        **rollout_spec(policy, config.num_steps, config.num_envs,
                       config.frame_stack if once else 0),
        "params": ("<f4", (params,)), "mean": moments, "scale": moments,
        **infos_spec(config.num_workers), **workers})
    arena["stacks"].fill(0)  # workers check these numbers before the first rollout
    return arena


def rollout_spec(policy: Policy, steps: int, envs: int, stacked: int = 0) -> Spec:
    """The arrays of a rollout and of the episodes that ended in it, by name.

    With `stacked` frames, each stored once, step t has row t % 2 of obs (see FrameStore).
    """
    obs, act, te = policy.observer.layout.store, policy.actions.store, (steps, envs)
    scalars = dict.fromkeys(("logp", "val", "raw", "rew", "nxt", "adv", "ret"), ("<f4", te))
    frames, rows = (steps + stacked, steps + 1) if stacked else (0, 0)
    return {"obs": (obs.dtype, (2 if stacked else steps + 1, envs, *obs.shape)),
            "frames": (obs.dtype, (envs if stacked else 0, frames, *obs.shape[1:])),
            "stacks": ("<i8", (rows, envs, stacked)),
            "fin": (obs.dtype, (envs, *obs.shape)),
            "act": (act.dtype, (*te, *act.shape)), **scalars,
            **dict.fromkeys(("term", "trunc", "valid", "same_game"), ("|b1", te)),
            "state": ("<f4", (steps + 1, envs, policy.memory)),
            "total": ("<f8", te), "length": ("<i8", te), "times": ("<f8", (envs + 1, 3))}


def shares_update(config: Config, policy: Policy) -> bool:
    """True if workers compute shards of the update, which needs observations stored as they are."""
    from fastppo.workers.update_helper import helper_count
    return (config.learner == "kernel" and policy.observer.encoding.identity
            and helper_count(config.num_workers) > 0)


def env_groups(envs: int, first: int = 0) -> list[range]:
    """Two halves of environments from the `first` on: inference for one overlaps with steps of the
    other.
    """
    middle, end = first + envs // 2, first + envs
    return [half for half in (range(first, middle), range(middle, end)) if half]
