"""Environments of one process: resets, running episodes, replay, and errors that name the place."""

import copy
import math
import weakref
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs
from fastppo.envs.wrappers import unchecked_step
from fastppo.errors import ConfigError, EnvError, FaultPlace
from fastppo.machine import kernels
from fastppo.spaces.observations import NonFiniteValue, ObservationLayout

REWARD_MAX = float(np.finfo(np.float32).max)
# A reward of one of these types is checked faster.
SCALAR_TYPES = frozenset({int, float, np.float32, np.float64, np.int32, np.int64})
WARMUP_EPISODE = -1  # training's episodes are 0, 1, 2, ...; the warm-up's are -1, -2, -3, ...
SNAPSHOTS = 8  # of earlier policies
SUBSTITUTE = 1 << 31  # added to the number of an episode whose own seed cannot be used


class RunningEpisode(NamedTuple):
    """An environment's running episode; replaced as a whole when the next one has begun."""

    number: int
    seed: int | None
    start: int  # its first step, in the count of `Environments.now`
    limit: float = math.inf  # steps after which it is truncated


class EpisodeRules(NamedTuple):
    """What is done about episodes that cannot go on."""

    replay_timeout: float = math.inf  # seconds for the replay of one
    reset_on_nan: bool = False  # a number that is not finite ends it
    cuts: dict[tuple[int, int], int] = {}  # (environment, number) of one that failed twice -> step
    past: float = 0.0  # share of the games against earlier policies


NO_RULES = EpisodeRules()
# The options of resets from time to time: (step, None or a dict or one for each environment).
ResetOptions = Sequence[tuple[int, Any]]
OPEN: weakref.WeakSet = weakref.WeakSet()  # all Environments of this process


class Environments:
    """Environments [first, first + n) of a run, in one process, and their running episodes.

    A game of several `agents` has as many rows here, one after the other, and the first stands for
    the game. `seed` is the run's, `now` the number of the current step. Before every call into an
    environment `note(step, env)`, if there is one, is called with the step of its episode or -1 for
    a reset. `name` is that of the worker. Raises EnvError for a fault of an environment.
    """

    def __init__(self, factories: Sequence[Factory], seed: int | None, first: int = 0,
                 note: Callable[[int, int], None] | None = None, name: str = "",
                 rules: EpisodeRules = NO_RULES):
        self.envs, self.seed, self.first = make_envs(factories, first, name), seed, first
        self.note, self.name, self.rules = note, name, rules
        self.running, self.now = [RunningEpisode(-1, None, 0)] * len(self.envs), -1
        self.discarded = [(-1, 0)] * len(self.envs)  # last step that was, and how many in a row
        self.options: ResetOptions = ()
        self.agents = len(self.envs) // len(factories)
        self.starts = range(0, len(self.envs), self.agents)  # rows with which episodes begin
        OPEN.add(self)

    def number(self, e: int) -> int:
        """The number in the run of the environment, or the game, of row e."""
        return (self.first + e) // self.agents

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Stores an observation of environment e, with which an episode begins or not.

        A subclass says where.
        """
        raise NotImplementedError

    def new_episode(self, e: int, number: int) -> RunningEpisode:
        """Episode `number` of environment e, which begins with the next step.

        One that failed twice ends before that step; it has another seed if it cannot even begin.
        """
        cut = self.rules.cuts.get((self.number(e), number), math.inf)
        seed = None if self.seed is None else kernels.episode_seed(
            self.seed, kernels.Purpose.ENV_SEED, self.number(e), number + SUBSTITUTE * (cut <= 0))
        return RunningEpisode(number, seed, self.now + 1, cut if cut > 0 else math.inf)

    def begin_episode(self, e: int, episode: RunningEpisode, **options: Any) -> dict:
        """Resets environment e into `episode` and returns the info; `running` is replaced last."""
        if self.note is not None:
            self.note(-1, e)
        if (given := options_at(self.options, self.number(e), episode.start)) is not None:
            options = {"options": copy.deepcopy(given)}  # which an environment may change
        try:
            obs, info = self.envs[e].reset(seed=episode.seed, **options)
            self.receive(e, obs, info, episode)
        except BaseException as error:
            fault = self.fault(e, "reset()", error, episode)
            if options:
                fault.fix = "give it other reset_options"
            raise fault from error
        self.running[e] = episode
        return info

    def use_options(self, history: ResetOptions) -> None:
        """Makes later resets, also those of replays, have the options of a `history`."""
        self.options = history

    def begin_next(self, e: int) -> None:
        """Begins the episode after the running one of environment e."""
        number = self.running[e].number
        self.begin_episode(e, self.new_episode(e, number + 1 if number >= 0 else number - 1))

    def episode_step(self, e: int, limit: float, layout: ObservationLayout
                     ) -> tuple[Callable[[Any], tuple], float]:
        """(step, limit) of an episode of environment e, see unchecked_step.

        It is truncated after `limit` at the latest. With reset_on_nan, the step raises
        NonFiniteValue.
        """
        step, longest = unchecked_step(self.envs[e])
        return finite_step(step, layout) if self.rules.reset_on_nan else step, min(limit, longest)

    def checked(self, rew: Any, term: Any, trunc: Any) -> tuple[float, bool, bool]:
        """(reward, terminated, truncated) of a step; raises ValueError for what is none."""
        return checked_reward(rew), *map(checked_flag, (term, trunc), ("terminated", "truncated"))

    def take_step(self, e: int, action: Any) -> tuple[float, bool, bool, dict]:
        """(reward, terminated, truncated, info) of a step of environment e, checked."""
        if self.note is not None:
            self.note(self.now - self.running[e].start, e)
        try:
            obs, rew, term, trunc, info = self.envs[e].step(action)
            rew, term, trunc = self.checked(rew, term, trunc)
            self.receive(e, obs, info, ended=term or trunc)
        except BaseException as error:
            raise self.fault(e, "step()", error) from error
        return rew, term, trunc, info

    def check(self, rows: np.ndarray, layout: ObservationLayout, first: int = 0) -> None:
        """Raises EnvError for an observation of rows [e ...] for which no action can be chosen.

        `first` is the environment of the first row.
        """
        if found := layout.unusable(rows):
            e, error = first + found[0], found[1]
            new = self.running[e].start > self.now
            raise self.fault(e, "reset()" if new else "step()", error)

    def fault(self, e: int, field: str, error: BaseException,
              episode: RunningEpisode | None = None) -> EnvError:
        """The error for environment e, which failed in `field` at this step of its episode."""
        number, seed, start, _ = episode or self.running[e]
        step = -1 if field == "reset()" else self.now - start
        begun = number >= 0 or seed is not None
        where = f"{faults.episode_text(seed, number)}, step {max(0, step)}" if begun else \
            "before its first episode"
        found = faults.env_error(
            f"environment {self.number(e)} ({self.name}{where})", field, error, faults.IN_MAIN
            if self.name.startswith("worker") else "correct it; a breakpoint() in it works",
            self.envs[e].unwrapped)
        found.places = (FaultPlace(self.number(e), number, step),) * begun
        return found

    def check_apart(self) -> None:
        """Raises ConfigError for an environment in which others of this process take steps, too."""
        others = {id(env.unwrapped) for one in OPEN if one is not self for env in one.envs}
        if others & {id(env.unwrapped) for env in self.envs}:
            OPEN.discard(self)
            raise ConfigError("for an evaluation the factory returned the one that training steps",
                              "make a new environment in every call: PPO(lambda: MyEnv())")

    def close(self) -> None:
        """Closes the environments; an error of one of them is printed."""
        OPEN.discard(self)
        faults.close_all(self.envs)


def options_at(history: ResetOptions, env: int, start: int) -> dict[str, Any] | None:
    """The options of the episode of environment `env` that begins with step `start`.

    Those that were set at a step are of episodes that begin after it, or with step 0.
    """
    given = next((one for step, one in reversed(history) if step < max(start, 1)), None)
    return given[env] if isinstance(given, (list, tuple)) else given


def checked_reward(rew) -> float:
    """`rew` as a float; raises ValueError unless it is one real number, finite in float32."""
    if type(rew) in SCALAR_TYPES and abs(rew) <= REWARD_MAX:
        return float(rew)
    try:
        if isinstance(rew, (str, bytes)) or np.ndim(rew):
            raise TypeError
        value = float(rew)
    except (TypeError, ValueError, RuntimeError):  # numpy and torch raise different ones
        many = " of one agent and objective" * (np.ndim(rew) > 0 and len(rew) > 1)
        raise ValueError(f"the reward is {rew!r}, not a number{many}") from None
    if not abs(value) <= REWARD_MAX:
        raise NonFiniteValue(f"the reward is {value}, not finite in float32")
    return value


def checked_flag(value, name: str = "a flag") -> bool:
    """`value` as a bool; raises ValueError for other values, such as None."""
    if isinstance(value, (bool, np.bool_)) or np.ndim(value) == 0 and value in (0, 1):
        return bool(value)
    raise ValueError(f"{name} is {value!r}, not True or False")


def finite_step(step: Callable[[Any], tuple], layout: ObservationLayout) -> Callable[[Any], tuple]:
    """`step`, but it raises NonFiniteValue for a reward or an observation that is not finite."""
    def checked(action: Any) -> tuple:
        obs, rew, *rest = step(action)
        checked_reward(rew)
        layout.rows([obs])
        return obs, rew, *rest
    return checked
