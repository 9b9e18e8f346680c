"""Checks what `predict` and `value` are given, and brings it into stored rows."""

import numpy as np
from gymnasium.spaces import Tuple

from fastppo.envs.observation_checks import find_unusable
from fastppo.envs.observations import ObservationLayout, parse_mask
from fastppo.envs.spaces import MASK, Storage, can_store
from fastppo.errors import Error, InputError

ANSWERED = {2: "obs, info = env.reset()",
            5: "obs, reward, terminated, truncated, info = env.step(action)"}
PASSED_ON = "give what the last predict returned: action, state = policy.predict(obs, state=state)"


def stored_batch(obs, seen: ObservationLayout, mask=None) -> tuple[np.ndarray, bool]:
    """`obs`, one observation or a batch of any size, as stored rows [b ...]; whether it was one.

    `mask`: the action mask, where it is not in `obs`; True: everything is legal. Raises InputError
    for another shape, and for a dtype that training would refuse.
    """
    whole = isinstance(obs, tuple) and len(obs) in ANSWERED and isinstance(obs[-1], dict)
    if whole and not isinstance(seen.shown, Tuple):
        raise InputError("this is an environment's whole answer, not the observation alone",
                         ANSWERED[len(obs)])
    if seen.mask is None and mask is not None and mask is not True:
        raise InputError("an action mask was given, but the policy has learnt without one",
                         "leave action_mask out")
    if seen.plain:
        return _boxes(obs, seen.store)
    try:
        obs = obs if seen.mask is None or mask is None else seen.whole(obs, mask)
        lead = seen.lead(obs)
        if seen.mask is not None:
            obs = {**obs, MASK: _mask(obs[MASK], (*lead, int(seen.factors.sum())))}
        return (seen.batch(obs, *lead), False) if lead else (seen.rows([obs]), True)
    except InputError:
        raise
    except (ValueError, KeyError, IndexError, TypeError) as error:
        lacks = seen.mask is not None and not (isinstance(obs, dict) and MASK in obs)
        why = "it lacks the action mask with which the policy has learnt" if lacks else error
        raise InputError(f"the observation does not fit the space {seen.space}: {why}",
                         f"policy.predict(obs, {MASK}=info['{MASK}'])" if lacks else
                         "one that its `sample()` could give, or a batch of them") from error


def _mask(mask, shape: tuple[int, ...]) -> np.ndarray:
    """A mask, as environments may give it, as bool of `shape`; InputError for what is none."""
    try:
        return parse_mask(mask, shape[-1], "the action mask", shape[:-1])
    except ValueError as error:
        one = len(shape) == 2 and np.shape(mask) == shape[1:]
        raise InputError(str(error), f"{MASK}=np.broadcast_to(mask, {shape}), if all have the same"
                         if one else f"an array of bool, of shape {shape}") from error


def _boxes(obs, store: Storage) -> tuple[np.ndarray, bool]:
    """`batch` for a plain Box."""
    row, dtype = store.shape, np.dtype(store.dtype)
    fix = f"an array of {dtype} and shape {row}, or a batch of them"
    try:
        array = np.asarray(obs)
    except Exception as error:  # a ragged list, a tensor elsewhere, or an object of the user's
        raise InputError(f"the observation is no array: {error}", fix) from error
    single = array.ndim == len(row)
    if array.ndim - len(row) not in (0, 1) or array.shape[array.ndim - len(row):] != row:
        raise InputError(f"an observation of shape {array.shape} does not fit the space's {row}",
                         fix)
    if not can_store(dtype, array.dtype):
        raise InputError(f"the observation is {array.dtype}, which {dtype} does not keep", fix)
    with np.errstate(over="ignore"):
        return np.require(array[None] if single else array, dtype, "CW"), single


def check_rows(rows: np.ndarray, seen: ObservationLayout) -> None:
    """Raise InputError for the first stored observation of [b ...] on which nobody can act."""
    if found := find_unusable(rows, seen):
        row, why = found
        raise InputError(f"{why}, in row {row}", "look where it comes from: training refuses it")


def check_state(state, rows: int, size: int) -> None:
    """Raise InputError for what is no memory of `size` numbers for `rows` observations."""
    if state is None:
        return
    if not size:
        raise InputError("predict was given a state, but the policy has no memory", "leave it out")
    own = isinstance(state, np.ndarray)
    if not own or state.shape != (rows, size) or state.dtype != np.float32:
        told = f"{state.dtype} {list(state.shape)}" if own else f"of type {type(state).__name__}"
        raise InputError(f"the state is {told}, not float32 {[rows, size]}", PASSED_ON)
    if not (finite := np.isfinite(state)).all():
        raise InputError(f"the state has {state[~finite][0]} in row {np.argwhere(~finite)[0, 0]}",
                         PASSED_ON)


def check_parameters(params):
    """A network's action parameters [b p], a tensor; raises Error for the first row with a NaN."""
    if hasattr(params, "isnan") and params.isnan().any():  # distributions refuse NaN themselves
        row = int(params.isnan().flatten(1).any(1).nonzero()[0, 0])
        raise Error(f"the network's action parameters for row {row} are not numbers (NaN)",
                    "return finite numbers from the model's forward; of a built-in network: train"
                    " it with a lower --lr")
    return params
