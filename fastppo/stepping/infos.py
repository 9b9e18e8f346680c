"""What environments say of an episode at its end, beside what we count: shown as env/<name>.

Of an info only the finite numbers of the step that ends an episode travel, and only those of the
last episodes of a rollout: so infos cost nothing per step. What is shown does not depend on how
many workers there are.
"""

import json
from typing import Any

import numpy as np

from fastppo.machine.arena import Arena, Spec

EPISODE_WINDOW = 100  # finished episodes that charts/episodic_return and env/<name> are means of
MAX_INFO_KEYS = 32  # numbers an episode may tell, and names a run may show
MAX_KEY_LENGTH = 40  # longest name
INFO_BYTES = 262_144  # of one process's slot: WINDOW times SLOTS numbers and names fit

Scalars = dict[str, float]
InfosByStep = dict[tuple[int, int], Scalars]  # (t, e) of the step that ended the episode -> its numbers


def finite_scalars(info: Any) -> Scalars:
    """The finite real scalars of an info by name, flags as 0 and 1: the first SLOTS of them."""
    found = {}
    for name, value in dict.items(info) if isinstance(info, dict) else ():
        number = _number(value)
        if number is not None and _fits(name) and len(found) < MAX_INFO_KEYS:
            found[name] = number
    return found


def finite_scalars_of(info: dict, e: int) -> Scalars:
    """The same of environment `e` of a vector environment, from the arrays [e] of its info.

    Those of an episode's end are in "final_info" where the environment has been reset already; a
    mask "_name" says whose `name` is.
    """
    info = info.get("final_info", info)
    if not isinstance(info, dict):
        return finite_scalars(info[e])
    return finite_scalars({name: column[e] for name, column in info.items() if _of(e, info, name)})


def _of(e: int, info: dict, name: str) -> bool:
    if isinstance(name, str) and name[:1] == "_" and name[1:] in info:
        return False  # a mask
    mask, column = info.get(f"_{name}"), info[name]
    return np.ndim(column) > 0 and len(column) > e and (mask is None or bool(mask[e]))


def _fits(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= MAX_KEY_LENGTH and name.isprintable()


def _number(value: Any) -> float | None:
    scalar = isinstance(value, (bool, int, float, np.generic, np.ndarray)) and np.ndim(value) == 0
    if not scalar or np.asarray(value).dtype.kind not in "bifu":
        return None
    number = float(value)
    return number if np.isfinite(number) else None


class EpisodeInfos:
    """The numbers of the last WINDOW episodes that ended in this rollout and told any."""

    def __init__(self, first: int = 0):
        self.first, self.told = first, {}

    def clear(self) -> None:
        """A rollout begins."""
        self.told = {}

    def add(self, t: int, e: int, found: Scalars) -> None:
        """Step t ended an episode of environment e of the slice; twice is fine."""
        if found:
            self.told[t, self.first + e] = found
            if len(self.told) > EPISODE_WINDOW:
                del self.told[next(iter(self.told))]

    def tell(self, slot: np.ndarray) -> None:
        """Write them where the main process finds them: `slot`, u1 [bytes]."""
        names = list(dict.fromkeys(name for found in self.told.values() for name in found))
        place = {name: i for i, name in enumerate(names)}
        rows = [[t, e, *[part for name, number in found.items() for part in (place[name], number)]]
                for (t, e), found in self.told.items()]
        word = json.dumps([names, rows], separators=(",", ":"), ensure_ascii=False).encode()
        if len(word) > len(slot) - 4:  # thousands of long names
            word = b"[[],[]]"
        slot[:4] = np.frombuffer(len(word).to_bytes(4, "little"), np.uint8)
        slot[4:4 + len(word)] = np.frombuffer(word, np.uint8)


def infos_spec(workers: int) -> Spec:
    """Where `workers` processes, or the main one alone, tell their Ends and of global noise."""
    slots = max(1, workers)
    return {"infos": ("u1", (slots, INFO_BYTES)), "drawn": ("|b1", (slots, 3))}


def read_infos(arena: Arena) -> InfosByStep:
    """What all processes have told of a rollout, in the order (t, e)."""
    found = {}
    for slot in arena["infos"]:
        names, rows = json.loads(slot[4:4 + int.from_bytes(slot[:4].tobytes(), "little")].tobytes())
        for t, e, *pairs in rows:
            found[t, e] = {names[i]: number for i, number in zip(pairs[::2], pairs[1::2])}
    return dict(sorted(found.items()))
