"""Records a rollout: observations, rewards, and the returns, lengths and infos of episodes."""

import json
import logging
from typing import Any, NamedTuple, Sequence

import numpy as np

from fastppo.envs.atari import SAME_GAME
from fastppo.machine import kernels
from fastppo.machine.shared_memory import Arena, Spec
from fastppo.spaces.leaves import fitting_array, leaf_arrays
from fastppo.spaces.observations import NonFiniteValue, ObservationLayout
from fastppo.stepping.environments import Environments, RunningEpisode

MOST_DISCARDED = 100  # steps in a row, of an environment whose numbers are not finite
EPISODE_WINDOW = 100  # finished episodes that charts/episodic_return and env/<name> are means of
MAX_INFO_KEYS = 32  # numbers of an episode, and names of a run
MAX_KEY_LENGTH = 40  # characters of a name
INFO_BYTES = 262_144  # of one process: as many numbers and names as these limits allow

Scalars = dict[str, float]
InfosByStep = dict[tuple[int, int], Scalars]  # (t, e) of an episode's last step -> its numbers

log = logging.getLogger("fastppo")


class RolloutViews(NamedTuple):
    """The arrays of a rollout that stepping reads and writes, for one slice of environments."""

    obs: np.ndarray  # [t+1 e ...], or [2 e ...]: see rows_by_step
    stacks: np.ndarray  # i64 [t+1 e k] see FrameStore; empty where each observation is stored whole
    act: np.ndarray  # [t e ...] as the policy chose it
    logp: np.ndarray  # f32 [t e] of act
    val: np.ndarray  # f32 [t e] value of obs[t]
    nxt: np.ndarray  # f32 [t e] value of the true successor, where an episode is truncated
    valid: np.ndarray  # bool [t e] false for rows that are no step
    acting: np.ndarray  # bool [t+1 e] false for an agent of a game that does not act
    raw: np.ndarray  # f32 [t e]
    term: np.ndarray  # bool [t e]
    trunc: np.ndarray  # bool [t e]
    total: np.ndarray  # f64 [t e] return of the episode until this step
    length: np.ndarray  # i64 [t e] its length in steps; 0 where none ended
    same_game: np.ndarray  # bool [t e] the episode that begins after it continues its game
    duels: np.ndarray  # f32 [t e 2] (snapshot, score of the policy) of a game that is over, or NaN
    against: np.ndarray  # i8 [t+1 e] the snapshot that acts; -1: the policy itself
    fin: np.ndarray  # [e ...] the last final observation
    frames: np.ndarray  # [e f ...] see FrameStore
    rows: np.ndarray  # u1 [e bytes] the state of compiled environments
    infos: np.ndarray  # u1 [bytes] see write_infos
    drawn: np.ndarray  # bool [3] see GlobalRngWatch

    @classmethod
    def of(cls, arena: Arena, first: int, last: int, worker: int = 0) -> "RolloutViews":
        """The views of environments [first, last), which `worker` steps."""
        return cls(*(arena[name][:, first:last] for name in cls._fields[:-5]),
                   *(arena[name][first:last] for name in ("fin", "frames", "rows")),
                   arena["infos"][worker], arena["drawn"][worker])


class RolloutRecorder:
    """The rewards of a slice of environments, and the record of the episodes that end.

    Steps are counted from 0; `origin` is the first step of the rollout. Returns are summed in
    float64 at the end of a rollout, so a step that is taken again after an interrupt counts once.
    """

    def __init__(self, views: RolloutViews, first: int = 0, origin: int = 0):
        self.views, self.first = views, first
        self.infos: InfosByStep = {}
        self.rewards = np.zeros(views.raw.shape)  # f64 [t e] as the environments returned them
        self.origin, self.returns = origin, np.zeros(views.raw.shape[1])  # of episodes before it
        self.next_rollout = self.origin, self.returns

    def start_rollout(self) -> None:
        """Continues where the last rollout ended."""
        obs, frames, steps = self.views.obs, self.views.frames, len(self.rewards)
        obs[0] = obs[steps % len(obs)]
        for x in (self.views.acting, self.views.against):
            x[0] = x[steps]
        if frames.size:  # see FrameStore
            stacks = self.views.stacks
            frames[:, :stacks.shape[2]] = frames[:, steps:]
            stacks[0] = stacks[steps] - steps
        self.origin, self.returns = self.next_rollout
        self.infos = {}

    def end(self, t: int, e: int, start: int, term: bool, trunc: bool, info: dict) -> None:
        """Records that the episode of environment e that began at step `start` ended in row t."""
        views = self.views
        views.term[t, e], views.trunc[t, e] = term, trunc
        views.length[t, e] = self.origin + t + 1 - start
        views.same_game[t, e] = False
        if isinstance(info, dict) and info:
            views.same_game[t, e] = again = continues_game(info)
            if not again and (numbers := finite_scalars(info)):  # those of games are shown
                self.infos[t, self.first + e] = numbers

    def finish_rollout(self, steps: int) -> None:
        """Writes the rewards and returns of a rollout, and the infos of the episodes that ended."""
        views, rewards, returns = self.views, self.rewards[:steps], self.returns.copy()
        ended, total = views.length[:steps] > 0, np.empty_like(rewards)
        kernels.discounted(rewards, ended, np.ones_like(ended), 1.0, returns, total)
        views.raw[:steps], views.total[:steps] = rewards, total
        write_infos(views.infos, self.infos)
        self.next_rollout = self.origin + steps, returns


def continues_game(info: Any) -> bool:
    """True for the info of an episode's end or a reset, any object, after which a game goes on."""
    again = info.get(SAME_GAME) if isinstance(info, dict) else None
    return isinstance(again, (bool, float)) and bool(again)


def finite_scalars(info: Any) -> Scalars:
    """The first MAX_INFO_KEYS finite real scalars of an info, by name; flags are 0 and 1."""
    scalars = {}
    for name, value in dict.items(info) if isinstance(info, dict) else ():
        shown = isinstance(name, str) and len(name) <= MAX_KEY_LENGTH and name.isprintable()
        number = isinstance(value, (bool, int, float, np.generic, np.ndarray)) and np.ndim(
            value) == 0 and np.asarray(value).dtype.kind in "bifu" and np.isfinite(float(value))
        if number and shown and len(scalars) < MAX_INFO_KEYS:
            scalars[name] = float(value)
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


def write_infos(slot: np.ndarray, infos: InfosByStep) -> None:
    """Writes the last EPISODE_WINDOW of `infos` to `slot`, u1 [bytes]; the main process reads it.
    """
    rows = [[t, e, scalars] for (t, e), scalars in list(infos.items())[-EPISODE_WINDOW:]]
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


class FrameStore:
    """The frames of the observations of environments [first, first + n), and which are in a stack.

    frames [n f ...] has the f = T + k frames of a rollout of T steps; the newest one of step t is
    frame t + k - 1. stacks i64 [t+1 n k] are the frames of an observation, counted over all
    environments. Those of step t are frame t or later ones.

    The observations themselves have two rows, for even and for odd steps: one is read while the
    next one is written.
    """

    def __init__(self, frames: np.ndarray, stacks: np.ndarray, first: int):
        self.frames, self.stacks, self.depth = frames, stacks, stacks.shape[2]
        self.base = np.arange(first, first + len(frames)) * frames.shape[1]

    def store_whole(self, rows: np.ndarray) -> None:
        """Stores all frames of observations [n k ...], those before the first step of a rollout."""
        last = len(self.stacks) - 1
        self.frames[:, last:] = rows
        self.stacks[last] = self.base[:, None] + last + np.arange(self.depth)

    def store(self, t: int, rows: np.ndarray, group: range, running: Sequence[RunningEpisode],
              now: int) -> None:
        """Stores the newest frames of the observations [n k ...] of row t for a `group`.

        Where the `running` [n] episode begins after step `now`, a stack is this frame alone.
        """
        part, newest = slice(group.start, group.stop), t + self.depth - 1
        self.frames[part, newest] = rows[part, -1]
        self.stacks[t, part, :-1] = self.stacks[t - 1, part, 1:]
        self.stacks[t, part, -1] = self.base[part] + newest
        for e in group:
            if running[e].start > now:
                self.stacks[t, e] = self.base[e] + newest


def rows_by_step(obs: np.ndarray, steps: int) -> list[np.ndarray]:
    """The row of the observations of each step, 0 to `steps`, in obs [t+1 e ...] or [2 e ...]."""
    return [obs[t % len(obs)] for t in range(steps + 1)]


def discard_or_raise(envs: Environments, recorder: RolloutRecorder, t: int, e: int,
                     error: BaseException) -> None:
    """Raises the EnvError for a step that failed, or discards it if a number is not finite.

    Then row t of environment e becomes no step and ends the episode, which is truncated with the
    observation before it. The value of that one is known, because it was acted on. Raises the
    EnvError, too, after MOST_DISCARDED steps in a row: such an environment gives no samples.
    """
    if not (envs.rules.reset_on_nan and isinstance(error, NonFiniteValue)):
        raise envs.fault(e, "step()", error) from error
    last, count = envs.discarded[e]
    envs.discarded[e] = envs.now, count + 1 if last == envs.now - 1 else 1
    if envs.discarded[e][1] >= MOST_DISCARDED:
        error = NonFiniteValue(f"{error}, like those of {MOST_DISCARDED - 1} steps before it")
        raise envs.fault(e, "step()", error)
    views = recorder.views
    views.valid[t, e], recorder.rewards[t, e] = False, 0.0
    if t and not (views.term[t - 1, e] or views.trunc[t - 1, e]):
        views.trunc[t - 1, e], views.nxt[t - 1, e] = True, views.val[t, e]
    recorder.end(t, e, envs.running[e].start, False, True, {})
    envs.begin_next(e)


class LeafSlot:
    """The place of one structured observation: `slot[...] = arrays` copies its leaves there."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views

    def __setitem__(self, index: Any, arrays: list[np.ndarray]) -> None:
        for view, array in zip(self.views, arrays):
            view[...] = array


class ObservationWriter:
    """Copies observations at once, because an environment may reuse its array.

    `rows` are those of the rollout buffer by step; `first` is the number of the first environment.

    They are staged: a slot is a view of one observation, made once, which costs half of indexing
    the row of the buffer, and the observations of a group are copied to the row together.

    An array of `shape` and `dtype` can be copied to a slot as it is; others must be converted. The
    staging array becomes float64 with the first Box observation that is not float32: a cast that
    overflows makes numpy warn, and only `copy` casts, without that warning. An infinity is found
    later.
    """

    def __init__(self, views: RolloutViews, layout: ObservationLayout, first: int = 0):
        self.rows, row = rows_by_step(views.obs, len(views.raw)), views.obs[0]
        self.frames = FrameStore(views.frames, views.stacks, first) if views.frames.size else None
        self.layout, self.plain, self.stored = layout, layout.is_box, row.dtype
        self.shape, self.dtype = row.shape[1:] if self.plain else None, row.dtype
        self.staging = np.zeros_like(row)
        self.slots = self._slots(self.staging)

    def convert(self, obs: Any) -> Any:
        """`obs` as it is copied to a slot; raises ValueError if it is not of the space."""
        if type(obs) is np.ndarray and obs.shape == self.shape and obs.dtype == self.dtype:
            return obs
        if not self.plain:
            return self.layout.to_arrays(obs)
        array = fitting_array(obs, "observation", self.shape, self.stored)
        if self.staging.dtype == np.float32 and array.dtype != np.float32:
            wide = self.staging.astype(np.float64)
            # One statement, because no interrupt strikes between the parts of a statement.
            self.slots[:], self.staging = self._slots(wide), wide
        self.dtype = array.dtype
        return array

    def copy(self, row: np.ndarray, group: range) -> None:
        """Copies the staged observations of `group` to `row`, [e ...] of the rollout or of fin."""
        part = slice(group.start, group.stop)
        if self.staging.dtype == self.stored:
            row[part] = self.staging[part]
            return
        with np.errstate(over="ignore"):
            row[part] = self.staging[part]

    def _slots(self, rows: np.ndarray) -> list:
        if self.plain:
            return [rows[e, ...] for e in range(len(rows))]
        arrays = leaf_arrays(rows)
        return [LeafSlot([array[e, ...] for array in arrays]) for e in range(len(rows))]
