"""Actions: from what a policy samples and a rollout stores to what the environment gets.

The `form` of the components of a Box, low and high being its bounds:

    clip    clip(act, low, high)
    scale   low + (clip(act, -1, 1) + 1) / 2 * (high - low)
    tanh    low + (tanh(act) + 1) / 2 * (high - low)
    unit    low + clip(act, 0, 1) * (high - low)

Choices count from 0 in what is stored. Nothing here imports torch: workers live by this module.
"""

import math
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from fastppo.envs.spaces import (
    CHOICES,
    Storage,
    action_storage,
    build_structure,
    choice_counts,
    choice_starts,
    leaves,
    subspaces,
)
from fastppo.errors import SpaceError

# From a stored component to a place between the bounds, 0 to 1, and back from a place.
FORMS: dict[str, tuple[Callable, Callable] | None] = {
    "clip": None,
    "scale": (lambda act: (np.clip(act, -1, 1) + 1) / 2, lambda place: 2 * place - 1),
    "tanh": (lambda act: (np.tanh(act) + 1) / 2,
             lambda place: np.arctanh(np.clip(2 * place - 1, -1 + 1e-6, 1 - 1e-6))),
    "unit": (lambda act: np.clip(act, 0, 1), lambda place: place),
}

LARGEST = float(np.finfo(np.float32).max)
Part = Callable[[np.ndarray], list[Any]]


class ActionMapping(NamedTuple):
    """The actions of a space, and the form in which a policy chooses those of a Box."""

    space: Space
    form: str = "clip"

    @property
    def store(self) -> Storage:
        """How one is kept in a rollout."""
        return action_storage(self.space)

    @property
    def size(self) -> int:
        """Components of one: 1 of a Discrete, the numbers of a Box, those of all its leaves."""
        return math.prod(self.store.shape)

    def to_env(self) -> Callable[[np.ndarray], list[Any]]:
        """The function from stored actions [n ...] to n actions of the environment.

        The arrays it returns are fresh, so an environment may keep them.
        """
        if not subspaces(self.space):
            return _part(self.space, self.form)
        found, whole = leaves(self.space), self.space
        makes = [_part(leaf.space, self.form) for leaf in found]
        cuts = np.cumsum([math.prod(leaf.space.shape) for leaf in found])[:-1]

        def composite(act: np.ndarray) -> list[Any]:
            columns = [make(_stored(leaf.space, part)) for make, leaf, part in zip(
                makes, found, np.split(act, cuts, axis=1))]
            return [build_structure(whole, iter(row)) for row in zip(*columns)]
        return composite

    def stacked(self, actions: Sequence[Any]) -> Any:
        """The environment's actions, any number of them, as the batch that a VectorEnv takes."""
        found = leaves(self.space)
        columns = [np.array([leaf.of(action) for action in actions], leaf.space.dtype).reshape(
            -1, *leaf.space.shape) for leaf in found]
        return build_structure(self.space, iter(columns))

    def random(self, u: np.ndarray, z: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """n uniformly random legal stored actions from noise, uniform u and normal z [n k].

        Without two finite bounds a Box has no uniform law: then exponential from the one bound, or
        normal, as Gymnasium's own `sample` has it. `mask`, bool [n choices]: which are legal.
        """
        found, first, columns = leaves(self.space), 0, []
        for leaf in found:
            part = slice(first, first := first + math.prod(leaf.space.shape))
            columns.append(_chosen(leaf.space, u[:, part], mask) if isinstance(leaf.space, CHOICES)
                           else _placed(leaf.space, self.form, u[:, part], z[:, part]))
        store = self.store
        return np.concatenate(columns, 1).astype(store.dtype).reshape(-1, *store.shape)


def check_form(space: Space, form: str, asked: str) -> None:
    """Raise SpaceError where a form needs bounds that `space` has not; `asked` is the setting."""
    for leaf in leaves(space):
        box = leaf.space
        why = _boundless(box) if form != "clip" and isinstance(box, Box) else ""
        if why:
            raise SpaceError(f"{asked} maps actions to their bounds, but the space {box} has {why}",
                             f"leave {asked} out, or give {_narrowed(space)}")


def _narrowed(space: Space) -> str:
    """How to give actions other bounds: code where one pair within those there are can be named."""
    if subspaces(space):
        return "that Box narrower bounds"
    below, above = float(space.low.max()), float(space.high.min())
    low = min(max(below, -1.0), max(above - 2.0, below))
    high = min(low + 2.0, above)
    if not -1e5 < low < high < 1e5:  # of other components, or that few digits do not name
        return "the environment narrower bounds"
    return ("the environment narrower bounds: gymnasium.wrappers.TransformAction(env, lambda"
            f" action: action, gymnasium.spaces.Box({low:g}, {high:g}, env.action_space.shape,"
            " env.action_space.dtype))")


def bounds_of(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) [n] of a Box; of whole numbers as f64, which are rounded inwards if at all."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if space.dtype.kind == "f":
        return low, high
    return _rounded(low, math.inf), _rounded(high, -math.inf)


def _rounded(bounds: np.ndarray, way: float) -> np.ndarray:
    pairs = [(float(exact), exact) for exact in bounds.tolist()]
    return np.array([near if near == exact or (near > exact) == (way > 0)
                     else math.nextafter(near, way) for near, exact in pairs], np.float64)


def _boundless(box: Box) -> str:
    """What the bounds of a Box lack for a map onto what is between them; "" for nothing."""
    if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
        return "none on some side"
    with np.errstate(over="ignore"):
        if box.dtype.kind == "f":
            wide = not np.isfinite(box.high - box.low).all()
            return f"a range beyond the largest number of {box.dtype}" if wide else ""
    exact = max(np.abs(bound.astype("f8")).max() for bound in (box.low, box.high)) < 2.0**53
    return "" if exact else "bounds of 2**53 or more, which are no exact floats"


def _stored(space: Space, part: np.ndarray) -> np.ndarray:
    """The columns [n k] of one leaf of a composite action, as if it were alone."""
    store = action_storage(space)
    return part.astype(store.dtype).reshape(-1, *store.shape)


def _part(space: Space, form: str) -> Part:
    """The function of one leaf."""
    if isinstance(space, Discrete):
        dtype, start = space.dtype, space.start
        return lambda act: list((act + start).astype(dtype, copy=False))
    shape, dtype = space.shape, space.dtype
    place = _chooser(space) if isinstance(space, CHOICES) else _placer(space, form)

    def part(act: np.ndarray) -> list[Any]:
        actions = place(act).astype(dtype).reshape(len(act), *shape)
        return list(actions) if shape else [row.reshape(()) for row in actions[:, None]]
    return part


def _chooser(space: Space) -> Callable[[np.ndarray], np.ndarray]:
    start = np.broadcast_to(choice_starts(space), space.shape).reshape(-1)
    return lambda act: act + start


def _placer(space: Box, form: str) -> Callable[[np.ndarray], np.ndarray]:
    low, high = bounds_of(space)  # clipped as float, then to the nearest whole number
    known, whole = FORMS[form], (lambda act: act) if space.dtype.kind == "f" else np.rint
    if known is None:
        return lambda act: np.clip(whole(act), low, high)
    span = high - low
    return lambda act: np.clip(whole(low + known[0](act) * span), low, high)


def _chosen(space: Space, u: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Random choices [n k], of the legal ones where there is a mask."""
    many = choice_counts(space)
    if mask is None:
        return np.minimum((u * many).astype(np.int64), many - 1)
    columns = []
    for i, legal in enumerate(np.split(mask, np.cumsum(many)[:-1], axis=1)):
        below = np.cumsum(legal, axis=1)
        columns.append((below <= (u[:, i] * below[:, -1])[:, None]).sum(1))
    return np.stack(columns, 1)


def _placed(space: Box, form: str, u: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Random components [n k] of a Box, as they are stored."""
    if FORMS[form] is not None:
        return FORMS[form][1](u.astype("f8"))
    low, high = space.low.reshape(-1).astype("f8"), space.high.reshape(-1).astype("f8")
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = (np.where(one, bound, 0.0).clip(-LARGEST, LARGEST)  # of what is stored
                 for one, bound in ((below, low), (above, high)))
    tail = -np.log1p(-u.astype("f8"))
    open_ended = np.where(below, base + tail, np.where(above, top - tail, z))
    return np.where(below & above, base + (top - base) * u, open_ended)
