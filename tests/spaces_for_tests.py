"""Observation and action spaces of every kind, for tests."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

VECTOR, PICTURE = Box(-3, 9, (2, 2), np.float64), Box(0, 255, (3, 4, 1), np.uint8)

OBS = {
    "vector": VECTOR, "scalar": Box(-1, 1, (), np.float32), "picture": PICTURE,
    "flags": Box(0, 1, (3,), np.bool_), "whole": Box(-5, 5, (2,), np.int32),
    "discrete": Discrete(4, start=-2), "multi": MultiDiscrete([[2, 3], [4, 2]]),
    "binary": MultiBinary((2, 2)), "tuple": Tuple([Discrete(3), VECTOR]),
    "dict": Dict(eye=PICTURE, inner=Dict(a=MultiBinary(2), b=Tuple([Discrete(2), VECTOR]))),
}

ACT = {
    "discrete": Discrete(3, start=5), "multi": MultiDiscrete([[2, 3]], start=[[1, -1]]),
    "binary": MultiBinary((1, 2)), "box": Box(-0.5, 2, (2, 1), np.float64),
    "scalar": Box(-1, 1, (), np.float32), "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
    "whole": Box(0, 9, (2,), np.int64), "bytes": Box(0, 255, (1,), np.uint8),
    "tuple": Tuple([Discrete(2), Box(-1, 1, (2,))]),
    "dict": Dict(go=Dict(a=MultiBinary(2), b=MultiDiscrete([2, 2])), how=Box(-1, 1, (1,))),
}
