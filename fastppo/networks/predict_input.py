"""Checks the arguments of `predict` and `value`, and stores observations as training does."""

import numpy as np

from fastppo.errors import InputError, NonFiniteError
from fastppo.spaces.leaves import MASK, brief_text
from fastppo.spaces.observations import ObservationLayout, parse_mask, with_mask


def stored_batch(obs, layout: ObservationLayout, mask=None) -> tuple[np.ndarray, bool]:
    """(stored rows [b ...], True if `obs` is one observation and no batch).

    `mask`: the action mask if it is not in `obs`; True: everything is legal. Raises InputError for
    an observation that training refuses, and if no action is legal.
    """
    if layout.mask is None and mask is not None and mask is not True:
        raise InputError("an action mask was given, but the policy has learnt without one",
                         "leave action_mask out")
    if layout.mask is not None and mask is None and not (isinstance(obs, dict) and MASK in obs):
        raise InputError("the observation lacks the action mask with which the policy has learnt",
                         f"policy.predict(obs, {MASK}=info['{MASK}'])")
    try:
        if mask is not None and layout.mask is not None:
            obs = with_mask(obs, mask)
        if layout.mask is not None:
            obs = _with_parsed_mask(obs, layout, mask)
        shape = layout.batch_shape(obs)
        rows = layout.batch(obs, *shape) if shape else layout.rows([obs])
    except Exception as error:  # an object of the user's may raise anything
        raise InputError(f"the observation does not fit the space {brief_text(layout.space)}:"
                         f" {type(error).__name__}: {error}", "give an element of this space, which"
                         " env.reset() and env.step() return first, or a batch of them") from error
    if found := layout.unusable(rows):
        raise InputError(f"{found[1]}, in row {found[0]}",
                         "give the mask of an observation with which an episode goes on")
    return rows, not shape


def _with_parsed_mask(obs, layout: ObservationLayout, mask) -> dict:
    """`obs` with its action mask as bool [choices] or [b choices]; ValueError if it is no mask."""
    shape = (*layout.batch_shape(obs), int(layout.factors.sum()))
    legal = np.ones(shape, bool) if mask is True else parse_mask(
        obs[MASK], shape[-1], "the action mask", shape[:-1])
    return {**obs, MASK: legal}


def check_state(state, rows: int, size: int) -> None:
    """Raises InputError unless `state` is None or a float32 array [rows size]."""
    if state is None:
        return
    if not size:
        raise InputError("predict was given a state, but the policy has no memory", "leave it out")
    found = f"{state.dtype} {list(state.shape)}" if isinstance(state, np.ndarray) else type(state)
    if found != (wanted := f"float32 {[rows, size]}"):
        raise InputError(f"the state is {found}, not {wanted}", "give what the last predict"
                         " returned: action, state = policy.predict(obs, state=state)")


def check_parameters(params) -> None:
    """Raises NonFiniteError for action parameters [b p], a tensor, with NaN.

    Distributions of torch check theirs.
    """
    if hasattr(params, "isnan") and params.isnan().any():
        row = int(params.isnan().flatten(1).any(1).nonzero()[0, 0])
        raise NonFiniteError(f"the network's action parameters (logits) for row {row} are NaN",
                             "return finite numbers from the model's forward; train a built-in"
                             " network with a lower lr")
