"""Plays episodes with a frozen policy; the same ones every time.

The environments that a policy can be evaluated in are known by their spaces and masks.
"""

import dataclasses
import inspect
import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.spaces import Box, Dict, Space

from fastppo.envs import faults, masks
from fastppo.envs.make import EnvFactory, Factory, make_envs, spaces_of
from fastppo.envs.source import EnvSource
from fastppo.envs.wrappers import step_limit
from fastppo.errors import ConfigError, EnvError, Error, Fix, Omit, Set
from fastppo.machine import kernels
from fastppo.machine.kernels import ActionNoise, Purpose
from fastppo.networks.torch_state import preserved_buffers, seeded_rng
from fastppo.policy import Policy
from fastppo.settings.values import check_episodes, return_text
from fastppo.spaces.leaves import CHOICES, brief_text, mask_leaf, observation_storage
from fastppo.stepping.environments import Environments, RunningEpisode

WINDOW, FRAMES = "human", "rgb_array"  # render modes
MUJOCO_MODELS = "gymnasium.envs.mujoco."  # their modules
MAX_ENVS = 16  # played side by side
MAX_STEPS = 30_000  # of an episode, in an environment that has no time limit


class Evaluation(NamedTuple):
    """Undiscounted returns of whole episodes, in the rewards that the environment gave."""

    mean: float
    std: float  # over episodes, ddof 1; NaN for one
    ci95: float  # half the 95 % interval of the mean, normal approximation
    returns: np.ndarray  # f64 [episodes]
    lengths: np.ndarray  # i64 [episodes], steps
    scores: np.ndarray  # f64 [episodes] of a match, see Game.score; else empty

    def __str__(self) -> str:
        if len(self.returns) == 1:
            return f"{return_text(self.mean)} (1 episode)"
        scale = max(abs(self.mean), self.ci95)
        return (f"{return_text(self.mean, scale)} ± {return_text(self.ci95, scale)}"
                f" ({len(self.returns)} episodes)")


def evaluate(policy: Policy, factories: Sequence[Factory], seed: int, episodes: int,
             deterministic: bool = True,
             report: Callable[[np.ndarray], None] = lambda returns: None,
             make: Callable[..., "EvaluationEnvs"] | None = None) -> Evaluation:
    """Plays episodes 0 .. episodes - 1 of the evaluation's own seeds, in environments of its own.

    It changes nothing of the training. `make` makes the environments, such as MatchEnvs. After
    every step `report` is called with the returns of the episodes that have ended. Raises EnvError
    for an environment that fails, or without a time limit does not end.
    """
    check_episodes(episodes)
    with evaluation_envs(policy, factories[:min(episodes, MAX_ENVS)], seed, make) as envs:
        returns, lengths = envs.play(episodes, deterministic, report)
    std = float(returns.std(ddof=1)) if episodes > 1 else math.nan
    half = 1.96 * std / math.sqrt(episodes)
    scores = np.array([score for _, score in sorted(envs.scores.items())])
    return Evaluation(float(returns.mean()), std, half, returns, lengths, scores)


@contextmanager
def evaluation_envs(policy: Policy, factories: Sequence[Factory], seed: int,
                    make: Callable[..., "EvaluationEnvs"] | None = None
                    ) -> "Iterator[EvaluationEnvs]":
    """Environments for episodes with a frozen policy; then they are closed.

    The network's buffers and torch's generator are then as before.
    """
    envs = (make or EvaluationEnvs)(policy, factories, seed)
    try:
        with preserved_buffers(policy.net), \
                seeded_rng(seed, policy.observer.count.device, alone=False):
            yield envs
    finally:
        envs.close()


class EvaluationEnvs(Environments):
    """Environments in which the episodes of an evaluation are played side by side.

    A game of several agents is that of its first seat; all agents act by the policy.
    """

    def __init__(self, policy: Policy, factories: Sequence[Factory], seed: int):
        super().__init__(factories, seed, name="evaluation, ")
        self.check_apart()
        self.policy, self.layout, count = policy, policy.observer.layout, len(self.envs)
        self.obs = np.zeros((count, *self.layout.store.shape), self.layout.store.dtype)
        self.states = np.zeros((count, policy.memory), np.float32)
        self.scores: dict[int, float] = {}  # by episode
        self.limits = [MAX_STEPS if step_limit(env) is None else math.inf for env in self.envs]

    def play(self, episodes: int, deterministic: bool, report: Callable[[np.ndarray], None]
             ) -> tuple[np.ndarray, np.ndarray]:
        """Plays the episodes: (returns f64 [episodes], lengths i64 [episodes]).

        Environment e of n plays episodes e, e + n, ...: a fixed share, because otherwise short
        episodes would count more than long ones. The return of a game is the mean of its agents'.
        """
        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        active, count = [*self.starts], len(self.starts)
        ended = np.zeros(episodes, bool)
        for number, e in enumerate(self.starts):
            self.begin(e, number)
        while active:
            for e, rew, over in self.steps(active, deterministic):
                number = self.running[e].number
                returns[number] += rew
                lengths[number] += 1
                ended[number] = over
                if over and number + count < episodes:
                    self.begin(e, number + count)
                elif over:
                    active.remove(e)
            report(returns[ended])
        return returns, lengths

    def begin(self, e: int, number: int) -> None:
        """Resets environment e into episode `number` of the evaluation."""
        self.states[e:e + self.agents] = 0.0
        self.begin_episode(e, self.new_episode(e, number))

    def steps(self, active: Sequence[int], deterministic: bool
              ) -> Iterator[tuple[int, float, bool]]:
        """Takes a step in each of the `active` environments: (environment, reward, True if over).

        Raises EnvError for an episode without a time limit that does not end.
        """
        active = tuple(active)
        self.now += 1
        rows = [row for e in active for row in self.acting(e)]
        taken = dict(zip(rows, self.decide(np.array(rows), deterministic)))
        for e in active:
            rew, over = self._step(e, taken)
            if not over and self.now - self.running[e].start >= self.limits[e] - 1:
                raise EnvError(f"episode {self.running[e].number} has not ended after"
                               f" {MAX_STEPS:,} steps, and the environment has no time limit",
                               Set(max_episode_steps=1_000))
            yield e, rew, over

    def decide(self, rows: np.ndarray, deterministic: bool) -> list[Any]:
        """The actions of `rows`, the likeliest or sampled ones."""
        return self.decide_by(self.policy, self.states, rows, deterministic)

    def decide_by(self, player: Any, states: np.ndarray, rows: np.ndarray, deterministic: bool
                  ) -> list[Any]:
        """The actions of a `player`, whose memory [e s] is in `states`, for `rows`."""
        noise = None if deterministic else np.concatenate([
            self._noise(row, player.head) for row in rows])
        actions, states[rows] = player.decide(self.obs[rows], noise, states[rows])
        return actions

    def acting(self, e: int) -> list[int]:
        """The rows that act in the next step of environment e."""
        return [e] if self.agents == 1 else [
            e + k for k, alive in enumerate(self.envs[e].game.alive) if alive]

    def _step(self, e: int, taken: dict[int, Any]) -> tuple[float, bool]:
        """(reward, True if over) of a step of environment e with the actions by row."""
        action = taken[e] if self.agents == 1 else [
            taken.get(row) for row in range(e, e + self.agents)]
        rew, term, trunc, _ = self.take_step(e, action)
        return rew, term or trunc

    def new_episode(self, e: int, number: int) -> RunningEpisode:
        """Episode `number` of the evaluation; its seed is the same in every environment."""
        seed = kernels.episode_seed(self.seed, Purpose.EVALUATE, 0, number)
        return RunningEpisode(number, seed, self.now + 1)

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Stores an observation as training does; raises ValueError if its space refuses it."""
        game = self.envs[e].game if self.agents > 1 else None
        for k, one in obs.items() if game else ((0, obs),):
            row, over = slice(e + k, e + k + 1), not game.alive[k] if game else ended
            self.obs[row] = self.layout.rows([one])
            if not over and (found := self.layout.unusable(self.obs[row])):
                raise found[1]

    def _noise(self, e: int, head: Any) -> np.ndarray:
        """The random numbers [1 k] for this step of the running episode of environment e."""
        first = e - e % self.agents
        number, _, start, _ = self.running[first]
        step = self.now - start
        noise = ActionNoise(head.noise, self.seed, number * self.agents + e - first + 1, 1)
        return noise.at(step - step % head.noise_steps if head.noise_steps else 0, Purpose.EVALUATE)


def evaluation_factories(source: EnvSource, env: Any = None, name: str = "env") -> list[Factory]:
    """The factories of environments for an evaluation: of `env`, given as `name`, or the run's own.

    Raises ConfigError if the environment cannot be made, has other spaces than the environments of
    training, or if only one of them has action masks.
    """
    if env is None:
        return source.evaluation_factories()
    try:
        factories = source.evaluation_factories(env, name)
        envs = make_envs(factories[:1])
    except Error as error:
        if name == "env" or error.what.startswith(name):
            raise
        raise ConfigError(f"{name} is {env!r}: {error.what}", error.fix) from error
    try:
        found, where = spaces_of(envs[0]), masks.mask_source(envs[0])
    finally:
        faults.close_all(envs)
    check_spaces(f"{name} is {env!r}, whose", (source.obs_space, source.act_space), found,
                 ("give one of the same spaces", Omit(name)))
    trained = mask_leaf(source.obs_space, source.act_space) is not None
    if isinstance(source.act_space, CHOICES) and bool(where) != trained:
        has, wanted = ("an", "without") if where else ("no", "with")
        raise ConfigError(f"{name} is {env!r}, which has {has} action mask, but the policy is"
                          f" trained {wanted} one", (f"give one {wanted} a mask", Omit(name)))
    return factories


def check_spaces(whose: str, ours: tuple[Space, Space], theirs: tuple[Space, Space], fix: Fix
                 ) -> None:
    """Raises ConfigError if the spaces of an environment, `theirs`, are not those of a policy.

    Both are (observation space, action space); `whose` begins the text of the error.
    """
    for what, our, their in zip(("observations", "actions"), ours, theirs):
        if not spaces_match(our, their, what == "observations"):
            found, wanted = (brief_text(space, 1_000) for space in (their, our))
            raise ConfigError(f"{whose} {what} are of the space {found}, but the policy is trained"
                              f" for {wanted}", fix)


def spaces_match(ours: Space, theirs: Space, bounds_free: bool) -> bool:
    """True if two spaces are equal; `bounds_free`: Boxes too, if they are stored the same way."""
    if bounds_free and isinstance(ours, Box) and isinstance(theirs, Box):
        return observation_storage(ours) == observation_storage(theirs)
    if bounds_free and isinstance(ours, Dict) and isinstance(theirs, Dict):
        return ours.keys() == theirs.keys() and all(
            spaces_match(ours[key], theirs[key], True) for key in ours)
    return ours == theirs


def with_render_mode(factory: EnvFactory, mode: str) -> EnvFactory:
    """`factory` with the argument render_mode, if its constructor takes one.

    The camera of Gymnasium's MuJoCo models follows the body, unless the arguments choose another.
    """
    maker = factory.constructor
    if isinstance(maker, EnvSpec):
        maker = maker.entry_point
        maker = load_env_creator(maker) if isinstance(maker, str) else maker
    arguments = {**factory.kwargs, "render_mode": mode}
    is_model = str(getattr(factory.constructor, "entry_point", "")).startswith(MUJOCO_MODELS)
    if is_model and not any("camera" in name for name in arguments):
        arguments["camera_name"] = "track"  # without a name it stands still since Gymnasium 1.4
    takes_it = any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD
                   for one in inspect.signature(maker).parameters.values())
    return dataclasses.replace(factory, kwargs=arguments) if takes_it else factory
