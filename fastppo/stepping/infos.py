"""Numbers that environments report at the end of an episode, shown as env/<name>.

Only the finite numbers in the info of an episode's last step are kept, and only those of the last
episodes of a rollout: other steps cost nothing. The numbers shown do not depend on how many workers
there are.
"""

import json
from typing import Any

import numpy as np

from fastppo.machine.arena import Arena, Spec

EPISODE_WINDOW = 100  # finished episodes that charts/episodic_return and env/<name> are means of
MAX_INFO_KEYS = 32  # numbers of an episode, and names of a run
MAX_KEY_LENGTH = 40  # characters of a name
INFO_BYTES = 262_144  # of one process: as many numbers and names as these limits allow

Scalars = dict[str, float]
InfosByStep = dict[tuple[int, int], Scalars]  # (t, e) of an episode's last step -> its numbers


def finite_scalars(info: Any) -> Scalars:
    """The first MAX_INFO_KEYS finite real scalars of an info, by name; flags are 0 and 1."""
    scalars = {}
    for name, value in dict.items(info) if isinstance(info, dict) else ():
        number = _finite_number(value)
        shown = isinstance(name, str) and len(name) <= MAX_KEY_LENGTH and name.isprintable()
        if number is not None and shown and len(scalars) < MAX_INFO_KEYS:
            scalars[name] = number
    return scalars


def finite_scalars_of(info: dict, e: int) -> Scalars:
    """The same for environment `e` of a vector environment, from the arrays [e] of its info.

    If the environment has already been reset, they are those of "final_info". A mask "_name" has
    the environments that reported `name`.
    """
    info = info.get("final_info", info)
    if not isinstance(info, dict):
        return finite_scalars(info[e])
    return finite_scalars({name: column[e] for name, column in info.items()
                           if _has_reported(e, info, name)})


def _has_reported(e: int, info: dict, name: Any) -> bool:
    if isinstance(name, str) and name[:1] == "_" and name[1:] in info:
        return False  # a mask
    mask, column = info.get(f"_{name}"), info[name]
    return np.ndim(column) > 0 and len(column) > e and (mask is None or bool(mask[e]))


def _finite_number(value: Any) -> float | None:
    scalar = isinstance(value, (bool, int, float, np.generic, np.ndarray)) and np.ndim(value) == 0
    if not scalar or np.asarray(value).dtype.kind not in "bifu":
        return None
    number = float(value)
    return number if np.isfinite(number) else None


class EpisodeInfos:
    """The numbers of the last EPISODE_WINDOW episodes that ended in a rollout and reported any.

    `first` is the number of the process's first environment in the run.
    """

    def __init__(self, first: int = 0):
        self.first, self.scalars = first, {}

    def clear(self) -> None:
        """Begins a rollout."""
        self.scalars = {}

    def add(self, t: int, e: int, scalars: Scalars) -> None:
        """Adds the numbers of an episode of environment e that ended in step t."""
        if scalars:
            self.scalars[t, self.first + e] = scalars
            if len(self.scalars) > EPISODE_WINDOW:
                del self.scalars[next(iter(self.scalars))]

    def write(self, slot: np.ndarray) -> None:
        """Writes them to `slot`, u1 [bytes], which the main process reads."""
        rows = [[t, e, scalars] for (t, e), scalars in self.scalars.items()]
        text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > len(slot) - 4:
            text = b"[]"
        slot[:4] = np.frombuffer(len(text).to_bytes(4, "little"), np.uint8)
        slot[4:4 + len(text)] = np.frombuffer(text, np.uint8)


def infos_spec(workers: int) -> Spec:
    """The arrays in which `workers` processes, or the main one, report infos and global draws."""
    slots = max(1, workers)
    return {"infos": ("u1", (slots, INFO_BYTES)), "drawn": ("|b1", (slots, 3))}


def read_infos(arena: Arena) -> InfosByStep:
    """The numbers that all processes have written for a rollout, in the order of (t, e)."""
    infos = {}
    for slot in arena["infos"]:
        size = int.from_bytes(slot[:4].tobytes(), "little")
        for t, e, scalars in json.loads(slot[4:4 + size].tobytes()):
            infos[t, e] = scalars
    return dict(sorted(infos.items()))
