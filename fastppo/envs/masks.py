"""Action masks: wherever an environment has them, they become a part of its observations.

    obs["action_mask"]   the mask is a part of the observations already
    env.action_masks()   otherwise it is called after every reset and step (found through wrappers)
    info["action_mask"]  otherwise it is read there, if the first reset has one

A mask is an array of flags, true for legal choices: one flag for each choice of a Discrete; of a
MultiDiscrete one factor after the other; of a MultiBinary two for each bit, for 0 and for 1.
The rest of the package only knows masks that are a part of observations (spaces.mask_leaf).
"""

import logging
from typing import Any, Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from fastppo.envs.faults import first_info
from fastppo.spaces.leaves import CHOICES, MASK, has_mask, is_batch, masked_space
from fastppo.spaces.observations import parse_mask, with_mask

MASK_METHOD = "action_masks"
IN_OBS, IN_METHOD, IN_INFO = f"observation[{MASK!r}]", f"{MASK_METHOD}()", f"info[{MASK!r}]"

log = logging.getLogger("fastppo")


def has_hidden_masks(envs: Sequence[gym.Env | VectorEnv]) -> bool:
    """Returns True if environments of one kind have masks outside their observations.

    Warns if they have masks, but actions that cannot be masked.
    """
    env = next(filter(_mask_method, envs), envs[0])
    place, act_space = mask_source(env), _single(env, "action_space")
    useful = isinstance(act_space, CHOICES)
    if place and not useful:
        log.warning("the environment has %s, but masks are for Discrete, MultiDiscrete and"
                    " MultiBinary actions, not %s: it forbids nothing", place, act_space)
    return useful and place not in ("", IN_OBS)


def mask_source(env: gym.Env | VectorEnv) -> str:
    """The place where an environment has its masks, "" without masks.

    If it has no method for masks, it is reset to look into its info. An ActionMaskWrapper is looked
    through.
    """
    env = env.env if isinstance(env, ActionMaskWrapper) else env
    if has_mask(_single(env, "observation_space")):
        return IN_OBS
    if _mask_method(env):
        return IN_METHOD
    return IN_INFO if MASK in first_info(env) else ""


def wrap_mask(env: gym.Env) -> gym.Env:
    """`env` with its mask in its observations; as it is if the mask is there, or has no use."""
    needed = isinstance(env.action_space, CHOICES) and not has_mask(env.observation_space)
    return ActionMaskWrapper(env) if needed else env


class ActionMaskWrapper(gym.Wrapper):
    """An environment with its action mask in its observations: Dict(obs=..., action_mask=...).

    `reset` and `step` raise ValueError if the mask is missing or invalid. After an episode's last
    step the environment is not asked: every choice is legal there.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = masked_space(env.observation_space, env.action_space)
        self.method = _mask_method(env)
        self.all_legal = np.ones(self.observation_space[MASK].shape, bool)

    def reset(self, **kwargs):
        """The environment's reset, with the mask in the observation."""
        obs, info = self.env.reset(**kwargs)
        return with_mask(obs, self._mask(info)), info

    def step(self, action):
        """The environment's step, with the mask in the observation."""
        return self.masked_step(self.env.step)(action)

    def masked_step(self, step: Callable) -> Callable:
        """`step`, of this environment or of one inside it, with the mask in the observation."""
        def masked(action):
            obs, rew, term, trunc, info = step(action)
            mask = self.all_legal if term or trunc else self._mask(info)
            return with_mask(obs, mask), rew, term, trunc, info
        return masked

    def _mask(self, info: dict) -> np.ndarray:
        if self.method:
            return parse_mask(self.method(), len(self.all_legal), IN_METHOD)
        return parse_mask(info.get(MASK), len(self.all_legal), IN_INFO)


class VectorActionMaskWrapper(VectorWrapper):
    """A vector environment with its action masks in its observations.

    They are from its own method, the method of its environments, or the arrays in its infos.
    """

    def __init__(self, env: VectorEnv):
        super().__init__(env)
        self.single_observation_space = masked_space(env.single_observation_space,
                                                     env.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.method = _mask_method(env)
        self.size = self.single_observation_space[MASK].n

    def reset(self, *, seed=None, options=None):
        """The vector environment's reset, with masks in the observations."""
        # Gymnasium's vector environments remove reset_mask from the options.
        active = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_masks(obs, info, active), info

    def step(self, actions):
        """The vector environment's step, with masks in the observations; all legal in final_obs."""
        obs, rew, term, trunc, info = self.env.step(actions)
        same_step = AutoresetMode(self.metadata["autoreset_mode"]) is AutoresetMode.SAME_STEP
        active = same_step | ~(np.asarray(term, bool) | np.asarray(trunc, bool))
        if (final := info.get("final_obs")) is not None:
            legal = np.ones((self.num_envs, self.size), bool)
            info = {**info, "final_obs": with_mask(final, legal) if is_batch(final) else [
                None if one is None else with_mask(one, legal[0]) for one in final]}
        return self._with_masks(obs, info, active), rew, term, trunc, info

    def _with_masks(self, obs: Any, info: dict, active: np.ndarray) -> dict:
        """Observations with the masks of the `active` environments; all true in the others."""
        if self.method:
            where, found, present = IN_METHOD, self.method(), active
        else:
            where, found = IN_INFO, info.get(MASK)
            present = np.broadcast_to(info.get(f"_{MASK}", found is not None), self.num_envs)
        masks = np.ones((self.num_envs, self.size), bool)
        for e in np.flatnonzero(active):
            mask = found[e] if present[e] else None
            masks[e] = parse_mask(mask, self.size, f"{where} of environment {e}")
        return with_mask(obs, masks)


def _single(env: gym.Env | VectorEnv, name: str) -> Space:
    """The space `name` of an environment, or of one environment of a vector environment."""
    return getattr(env, f"single_{name}" if isinstance(env, VectorEnv) else name)


def _mask_method(env: gym.Env | VectorEnv) -> Callable | None:
    """The method action_masks of an environment, of a vector environment or of all its parts."""
    if isinstance(env, gym.Env):
        return env.get_wrapper_attr(MASK_METHOD) if env.has_wrapper_attr(MASK_METHOD) else None
    if callable(method := getattr(env, MASK_METHOD, None)):
        return method
    try:  # AsyncVectorEnv would end if action_masks itself were called and missing
        found = env.call("has_wrapper_attr", MASK_METHOD)
    except Exception:  # this vector environment has no such `call`
        return None
    return (lambda: env.call(MASK_METHOD)) if found and all(found) else None
