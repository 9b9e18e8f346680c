"""Comparisons of what two vector environments answer."""

import numpy as np
from gymnasium.vector import AutoresetMode


def assert_same(ours, theirs):
    """Equal in structure, in type where it is an array, and in every number."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (tuple, list)) or getattr(theirs, "dtype", None) == "O":
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            assert_same(one, other)
    else:
        if isinstance(theirs, np.ndarray):
            assert type(ours) is np.ndarray and ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def assert_same_steps(ours, theirs, steps, seed=7):
    """Equal answers of two vector environments to the same random actions, resets included."""
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
    theirs.action_space.seed(seed)
    for _ in range(steps):
        actions = theirs.action_space.sample()
        reply, wanted = ours.step(actions), theirs.step(actions)
        assert_same(reply, wanted)
        disabled = ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        if disabled and (over := wanted[2] | wanted[3]).any():
            assert_same(ours.reset(options={"reset_mask": over}),
                        theirs.reset(options={"reset_mask": over.copy()}))
