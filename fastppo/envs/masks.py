"""Action masks: wherever an environment has them, they become a part of its observations.

    obs["action_mask"]   is one already
    env.action_masks()   else is asked after every reset and step (found through wrappers)
    info["action_mask"]  else, if the first reset has one, is read there

A mask is flags, true for what is legal: one for every choice of a Discrete; of a MultiDiscrete one
factor after the other; of a MultiBinary two a bit, whether it may be 0 and whether it may be 1.
The rest of the package knows masks as a part of observations alone (spaces.mask_at).
"""

import logging
from typing import Any, Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Space
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from fastppo.envs.observations import parse_mask, with_mask
from fastppo.envs.spaces import (
    CHOICES,
    MASK,
    OBS_KEY,
    MaskedDict,
    choice_counts,
    has_mask,
    subspaces,
)
from fastppo.machine.global_rng import preserved_global_rng

MASK_METHOD = "action_masks"
IN_OBS = f"observation[{MASK!r}]"

log = logging.getLogger("fastppo")


def has_hidden_masks(envs: Sequence[gym.Env]) -> bool:
    """Whether environments have masks that their observations do not show, the first one decides.

    It is reset for that where it has no method, in a process whose shared generators are kept.
    """
    return _to_show(mask_source(envs), envs[0].action_space)


def mask_source(envs: Sequence[gym.Env]) -> str:
    """Where environments have their masks, "" for nowhere: the first one decides, as for `shown`.

    What a Masked one shows does not count, but what it was made of.
    """
    env = envs[0].env if isinstance(envs[0], ActionMaskWrapper) else envs[0]
    return _place(env, env.observation_space, any(map(_method, envs)), 0)


def masked_space(obs_space: Space, act_space: Space) -> Dict:
    """The space of observations with the mask beside them, or among the parts of a Dict."""
    mask = MultiBinary(int(choice_counts(act_space).sum()))
    if isinstance(obs_space, Dict):
        return Dict({**dict(subspaces(obs_space)), MASK: mask})
    return MaskedDict({OBS_KEY: obs_space, MASK: mask})


def wrap_mask(env: gym.Env) -> gym.Env:
    """`env` with its mask in its observations, where it is not there."""
    return ActionMaskWrapper(env) if _wanted(env.observation_space, env.action_space) else env


class ActionMaskWrapper(gym.Wrapper):
    """An environment whose observations show its action mask: Dict(obs=..., action_mask=...).

    Its answers are ValueErrors where the mask is missing or no mask. What is legal after an
    episode's last step nobody asks: there everything is.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = masked_space(env.observation_space, env.action_space)
        self.legal, self.all = _method(env), np.ones(self.observation_space[MASK].shape, bool)

    def reset(self, **kwargs):
        """As the environment's own."""
        obs, info = self.env.reset(**kwargs)
        return with_mask(self.observation_space, obs, self._mask(info)), info

    def step(self, action):
        """As the environment's own."""
        return self.around(self.env.step)(action)

    def around(self, step: Callable) -> Callable:
        """`step`, of this environment or of one inside it, with the mask in what it returns."""
        def masked(action):
            obs, rew, term, trunc, info = step(action)
            legal = self.all if term or trunc else self._mask(info)
            return with_mask(self.observation_space, obs, legal), rew, term, trunc, info
        return masked

    def _mask(self, info: dict) -> np.ndarray:
        if self.legal:
            return parse_mask(self.legal(), len(self.all), f"{MASK_METHOD}()")
        if MASK not in info:
            raise ValueError(f"info has no {MASK!r}, which it had at the first reset of all")
        return parse_mask(info[MASK], len(self.all), f"info[{MASK!r}]")


class VectorActionMaskWrapper(VectorWrapper):
    """A vector environment as a Masked one: its own method, its environments', or info's arrays."""

    def __init__(self, env: VectorEnv):
        super().__init__(env)
        self.single_observation_space = masked_space(env.single_observation_space,
                                               env.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.legal, self.same = _vector_method(env), AutoresetMode.SAME_STEP
        self.size = self.single_observation_space[MASK].n

    def reset(self, *, seed=None, options=None):
        """As the vector environment's own."""
        # Gymnasium's own take the mask of who is reset out of the options.
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, self._masks(info, which)), info

    def step(self, actions):
        """As the vector environment's own; final observations have a mask, too: all is legal."""
        obs, rew, term, trunc, info = self.env.step(actions)
        same = self.metadata.get("autoreset_mode") in (self.same, self.same.value)
        going_on = same | ~(np.asarray(term, bool) | np.asarray(trunc, bool))
        if "final_obs" in info:
            final = np.full(self.num_envs, None, object)
            for e, one in enumerate(info["final_obs"]):
                final[e] = one if one is None else self._joined(one, np.ones(self.size, bool))
            info = {**info, "final_obs": final}
        return self._joined(obs, self._masks(info, going_on)), rew, term, trunc, info

    def _joined(self, obs: Any, masks: np.ndarray) -> dict:
        return with_mask(self.single_observation_space, obs, masks)

    def _masks(self, info: dict, which: np.ndarray) -> np.ndarray:
        """The masks, bool [e n], of the environments `which`; all is legal in the others."""
        where = f"{MASK_METHOD}()" if self.legal else f"info[{MASK!r}]"
        found = self.legal() if self.legal else info.get(MASK)
        there = np.broadcast_to(info.get(f"_{MASK}", found is not None), self.num_envs)
        if not self.legal and (which & ~there).any():
            raise ValueError(f"{where} is missing of environment {int((which & ~there).argmax())},"
                             " although the first reset of all had one")
        masks = np.ones((self.num_envs, self.size), bool)
        for e in np.flatnonzero(which):
            masks[e] = parse_mask(found[e], self.size, f"{where} of environment {e}")
        return masks


def wrap_vector_mask(env: VectorEnv) -> VectorEnv:
    """`env` with masks in its observations, where it has them and they are not there.

    Where it has no method it is reset to see its infos.
    """
    where = _place(env, env.single_observation_space, bool(_vector_method(env)), None)
    return VectorActionMaskWrapper(env) if _to_show(where, env.single_action_space) else env


def _wanted(obs_space: Space, act_space: Space) -> bool:
    """Whether a mask would make sense, and is not a part of the observations."""
    return isinstance(act_space, CHOICES) and not has_mask(obs_space)


def _place(env: gym.Env | VectorEnv, obs_space: Space, method: bool, seed: int | None) -> str:
    """Where one environment, or one of a vector, has its masks; "" for nowhere."""
    if has_mask(obs_space):
        return IN_OBS
    return f"{MASK_METHOD}()" if method else f"info[{MASK!r}]" if _in_info(env, seed) else ""


def _to_show(where: str, act_space: Space) -> bool:
    """Whether masks that are `where` must be put into the observations; says where it is no use."""
    useful = isinstance(act_space, CHOICES)
    if where and not useful:
        log.warning("the environment has %s, but masks are for Discrete, MultiDiscrete and"
                    " MultiBinary actions, not %s: it forbids nothing", where, act_space)
    return useful and where not in ("", IN_OBS)


def _in_info(env: gym.Env | VectorEnv, seed: int | None) -> bool:
    """Whether the first reset has a mask in its info; not where it fails, which its run tells."""
    try:
        with preserved_global_rng():
            return MASK in env.reset(seed=seed)[1]
    except Exception:  # an environment may raise anything
        return False


def _method(env: gym.Env) -> Callable | None:
    """The environment's action_masks, or None."""
    try:
        found = env.get_wrapper_attr(MASK_METHOD)
    except AttributeError:
        return None
    return found if callable(found) else None


def _vector_method(env: VectorEnv) -> Callable | None:
    """The vector environment's action_masks, or that of all its environments; or None."""
    if callable(own := getattr(env, MASK_METHOD, None)):
        return own
    try:  # asked like this, none of Gymnasium's own ends at an environment without it
        having = env.call("has_wrapper_attr", MASK_METHOD)
    except Exception:  # there is no `call`, or it calls nothing else
        return None
    return (lambda: env.call(MASK_METHOD)) if having and all(having) else None
