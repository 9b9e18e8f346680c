"""Games of several agents, those of PettingZoo: one row of the rollout for each agent.

    {agent: obs} of env.reset, env.step  ->  one space for all agents  ->  row k: possible_agents[k]

An agent's observation has its number beside it, or an image in it, so that one network plays for
all of them. In a ParallelEnv all agents act at once, in an AEC one after the other.
"""

import math
import pkgutil
from typing import Any, Callable, Container, Iterator, Mapping, NamedTuple, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

from fastppo.errors import ConfigError, Omit, Set, SpaceError
from fastppo.spaces.leaves import (
    AGENT,
    CHOICES,
    MASK,
    OBS_KEY,
    STATE,
    brief_text,
    channels_are_last,
    fitting_array,
    mask_leaf,
    masked_space,
)

LEFT = "{} has left the game, but neither terminated nor truncated"
RETURNED = "{} is in the game again after its end"


def entry(what: str, given: Mapping[str, Any], agent: str) -> Any:
    """The entry of an agent in a dict of a game; ValueError if it is missing."""
    try:
        return given[agent]
    except (KeyError, TypeError):
        raise ValueError(f"there is no {what} of {agent}: reset() and step() return dicts that have"
                         " all agents which are alive, or were so before the step") from None


class Turn(NamedTuple):
    """What a step gave to an agent that takes part in the game."""

    rew: Any
    term: Any
    trunc: Any


class Game(gym.Env):
    """A ParallelEnv, whose agents have one observation space and one action space.

    `seats` are its rows. Spaces that differ between agents are padded, see `common_space`. With
    `agent_index` observations have the number of the agent, one-hot in the network, or an image of
    uint8 as one more channel or frame; with `shows_state` the state of the whole game. `alive` [n]
    says who acts in the next step; nobody does when the game is over, and all who took part are
    `ended`. `totals` [n] are their returns, `counts` [n] how often they have acted. It is truncated
    after `limit` steps.
    """

    def __init__(self, env: Any, agent_index: bool = True, shows_state: bool = False,
                 limit: float = math.inf):
        self.env, self.agents, self.limit = env, list(env.possible_agents), limit
        self.obs = {agent: env.observation_space(agent) for agent in self.agents}
        self.acts = {agent: env.action_space(agent) for agent in self.agents}
        self.metadata, self.render_mode = env.metadata or {}, getattr(env, "render_mode", None)
        self.action_space = common_space("actions", self.acts)
        self.obs_space = common_space("observations", self.obs)
        agent_index, space, beside = agent_index and len(self.agents) > 1, self.obs_space, {}
        self.number_axis = image_axis(space) if agent_index else None
        if self.number_axis is not None:
            space = Box(0, 255, self._numbered(0, np.zeros_like(space.low)).shape, np.uint8)
        elif agent_index:
            beside[AGENT] = Discrete(len(self.agents))
        if shows_state:
            if not hasattr(env, "state_space"):
                raise ConfigError("the game has no state_space, for critic_keys=state",
                                  Omit("critic_keys"))
            beside[STATE] = env.state_space
        parts = space.spaces if isinstance(space, Dict) else {OBS_KEY: space}
        if AGENT in beside and AGENT in parts:
            raise SpaceError(f"the observations have a part {AGENT!r}, which would be the number of"
                             " the agent", Set(agent_index=False))
        self.beside, space = beside, Dict({**parts, **beside}) if beside else space
        self.masked = isinstance(self.action_space, CHOICES) and mask_leaf(
            space, self.action_space) is None and (
            any(one != self.action_space for one in self.acts.values()) or any(
                MASK in info for info in (env.reset(seed=0) or ((), env.infos))[1].values()))
        self.observation_space = masked_space(space, self.action_space) if self.masked else space
        self.seats = [Seat(self, k) for k in range(len(self.agents))]
        self.alive, self.ended, self.steps = [False] * len(self.agents), set[str](), 0
        self.totals, self.counts = [0.0] * len(self.agents), [0] * len(self.agents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins a game: ({row: observation} of the agents that are there, {})."""
        self.steps, self.ended = 0, set()
        self.totals, self.counts = [0.0] * len(self.agents), [0] * len(self.agents)
        obs = self._begin(*self.env.reset(seed=seed, options=options) or ())
        if not any(self.alive):
            raise ValueError("the game has no agents after its reset")
        return obs, {}

    def _begin(self, obs: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[int, Any]:
        """The observations by row with which a game begins."""
        self.alive = [agent in self.env.agents for agent in self.agents]
        return self._seen(obs, infos, self.alive)

    def step(self, actions: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Turn]]:
        """Plays the actions [n] of the agents that are alive: observations and turns by row.

        Those who are new have an observation and no turn. Raises ValueError for an agent that
        leaves without its end, comes back, is rewarded without being there, or is unknown.
        """
        acting = {agent: self._action(agent, action) for agent, action, alive in zip(
            self.agents, actions, self.alive) if alive}
        obs, rews, terms, truncs, infos = self.env.step(acting)
        self.steps += 1
        there = set(self.env.agents)
        self._check_known(*there, *rews)
        if gone := sorted({*rews} - {*acting} - there):
            raise ValueError(f"{gone[0]} is rewarded, but is not in the game")
        cut = self.steps >= self.limit
        turns = {k: Turn(entry("reward", rews, agent), entry("termination", terms, agent),
                         entry("truncation", truncs, agent) or cut)
                 for k, agent in enumerate(self.agents) if agent in acting}
        for k, (rew, term, trunc) in turns.items():
            self.totals[k] += float(rew)
            self.counts[k] += 1
            if term or trunc:
                self.ended.add(self.agents[k])
            elif self.agents[k] not in there:
                raise ValueError(LEFT.format(self.agents[k]))
        if again := sorted((there & self.ended) - {*acting}):
            raise ValueError(RETURNED.format(again[0]))
        self.alive = [agent in there and agent not in self.ended and not cut
                      for agent in self.agents]
        seen = [alive or k in turns for k, alive in enumerate(self.alive)]
        return self._seen(obs, infos, seen), turns

    def score(self, k: int) -> float:
        """How agent k does so far: 1 with a higher return than the mean of the others', 0.5 with as
        high a one, 0 with a lower one.
        """
        return (np.sign(np.round(self.totals[k] - np.mean(self.totals), 6)) + 1) / 2

    def _check_known(self, *agents: str) -> None:
        if unknown := [agent for agent in agents if agent not in self.agents]:
            raise ValueError(f"{unknown[0]} is not one of the possible_agents")

    def render(self) -> Any:
        """The frame of the game."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _seen(self, obs: Mapping[str, Any], infos: Mapping[str, Any], which: Sequence[bool]
              ) -> dict[int, Any]:
        """The observations of the agents `which` [n], by row, in the common space."""
        return {k: self._observation(k, entry("observation", obs, agent), infos.get(agent, {}))
                for k, agent in enumerate(self.agents) if which[k]}

    def _observation(self, k: int, obs: Any, info: Mapping[str, Any]) -> Any:
        obs = padded(obs, self.obs[self.agents[k]], self.obs_space)
        if self.number_axis is not None:
            obs = self._numbered(k, obs)
        if not (self.beside or self.masked):
            return obs
        parts = dict(obs) if isinstance(self.obs_space, Dict) else {OBS_KEY: obs}
        if AGENT in self.beside:
            parts[AGENT] = k
        if STATE in self.beside:
            parts[STATE] = self.env.state()
        if self.masked:
            mask, own = np.zeros(self.observation_space[MASK].shape, np.int8), info.get(MASK, 1)
            act = self.acts[self.agents[k]]
            mask[:len(own) if np.ndim(own) else act.n if isinstance(act, Discrete) else None] = own
            parts[MASK] = mask
        return parts

    def _numbered(self, k: int, image: Any) -> np.ndarray:
        """An image of agent k with one more channel or frame: from 0 for the first agent to 255."""
        image = fitting_array(image, "observation", self.obs_space.shape, self.obs_space.dtype)
        number = 255 * k // (len(self.agents) - 1)
        return np.insert(image, image.shape[self.number_axis], number, self.number_axis)

    def _action(self, agent: str, action: Any) -> Any:
        """An action of the common space as one of the agent's own."""
        own = self.acts[agent]
        if own is self.action_space or not isinstance(own, Box):
            return action
        return action[tuple(map(slice, own.shape))].clip(own.low, own.high)


class TurnGame(Game):
    """An AEC: one agent acts in a step of the game, and only that one is alive.

    An agent is given, when its next turn comes or its end, what it was rewarded with since its last
    one.
    """

    def _begin(self) -> dict[int, Any]:
        return self._next()[0]

    def step(self, actions: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Turn]]:
        """Plays the action of the agent whose turn it is, of actions [n]; see Game.step."""
        k = self.alive.index(True)
        self.env.step(self._action(self.agents[k], actions[k]))
        self.counts[k] += 1
        self.steps += 1
        return self._next()

    def _next(self) -> tuple[dict[int, Any], dict[int, Turn]]:
        """Goes on to the next turn: what the agents until then, and the one of that turn, get."""
        env, obs, turns, alive = self.env, {}, {}, [False] * len(self.agents)
        cut = self.steps >= self.limit
        for agent in [*env.agents] if cut else self._selected():
            seen, rew, term, trunc, info = env.observe(agent), env._cumulative_rewards[agent], \
                env.terminations[agent], env.truncations[agent] or cut, env.infos[agent]
            k = self.agents.index(agent)
            obs[k], over = self._observation(k, seen, info), term or trunc
            self.totals[k] += float(rew)
            if self.counts[k]:
                turns[k] = Turn(rew, term, trunc)
            if not over:
                alive[k] = True
                break
            self.ended.add(agent)
            if not cut:
                env.step(None)
        for agent, count in zip(self.agents, self.counts):
            if count and agent not in self.ended and agent not in env.agents:
                raise ValueError(LEFT.format(agent))
        self.alive = alive
        return obs, turns

    def _selected(self) -> Iterator[str]:
        while self.env.agents:
            agent = self.env.agent_selection
            self._check_known(agent, *self.env.agents, *self.env._cumulative_rewards)
            if agent in self.ended:
                raise ValueError(RETURNED.format(agent))
            yield agent


class Seat(gym.Env):
    """A row of a game: agent `number`. `reset` and `step` are those of the whole game."""

    def __init__(self, game: Game, number: int):
        self.game, self.number, self.metadata = game, number, game.metadata
        self.observation_space, self.action_space = game.observation_space, game.action_space
        self.render_mode = game.render_mode
        self.reset, self.render = game.reset, game.render

    def step(self, actions: Sequence[Any]):
        """(observations by row, mean reward, whether the game is over, False, {}) of a step."""
        given = sum(self.game.totals) if self.game.steps else 0.0  # also with the reset
        obs, _ = self.game.step(actions)
        rew = (sum(self.game.totals) - given) / len(self.game.agents)
        return obs, rew, not any(self.game.alive), False, {}

    @property
    def spec(self) -> Any:
        """That of the game, which Gymnasium gives it later."""
        return self.game.spec

    def close(self) -> None:
        """Closes the game, with its first seat."""
        if not self.number:
            self.game.close()


class Alone(gym.Wrapper):
    """A game of one agent, as any environment."""

    def reset(self, **given: Any):
        """See gymnasium.Env.reset."""
        obs, info = self.env.reset(**given)
        return obs[0], info

    def step(self, action: Any):
        """See gymnasium.Env.step."""
        obs, turns = self.env.step([action])
        return obs[0], *turns[0], {}


def image_axis(space: Space) -> int | None:
    """The axis of the channels or frames of an image of uint8 to 255; None for another space."""
    if not (isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)
            and space.high.max() == 255):
        return None
    return 2 if channels_are_last(space.shape) else 0


def common_space(what: str, spaces: Mapping[str, Space]) -> Space:
    """One space for the `spaces` of all agents, by name: Boxes of one rank and type padded with
    zeros at the end, and the largest of several Discretes.

    Dicts are so by key. Raises SpaceError, which names two agents, for others that differ.
    """
    (one, first), *others = spaces.items()
    for two, other in others:
        if other == first:
            continue
        alike = type(other) is type(first) and (
            isinstance(first, Box) and (first.dtype, len(first.shape)) == (
                other.dtype, len(other.shape))
            or isinstance(first, Discrete) and first.start == other.start
            or isinstance(first, Dict) and first.keys() == other.keys())
        if not alike:
            raise SpaceError(f"the {what} of {one} are of the space {brief_text(first)}, those of"
                             f" {two} of {brief_text(other)}, and one network plays for all agents",
                             "give all Boxes or Discretes, which differ in their sizes alone")
    if all(other == first for _, other in others):
        return first
    if isinstance(first, Dict):
        return Dict({key: common_space(f"{what}[{key!r}]", {
            agent: space[key] for agent, space in spaces.items()}) for key in first})
    if isinstance(first, Discrete):
        return Discrete(max(space.n for space in spaces.values()), start=first.start)
    shape = tuple(np.max([space.shape for space in spaces.values()], 0).tolist())
    empty = Box(0, 0, shape, first.dtype)
    return Box(np.min([padded(space.low, space, empty) for space in spaces.values()], 0),
               np.max([padded(space.high, space, empty) for space in spaces.values()], 0),
               dtype=first.dtype)


def padded(value: Any, own: Space, space: Space) -> Any:
    """A value of one agent's `own` space as one of the common `space`; ValueError if it is none."""
    if isinstance(space, Dict):
        return {key: padded(value[key], own[key], part) for key, part in space.items()}
    if own.shape == space.shape:
        return value  # which is checked where it is stored
    whole, part = np.zeros(space.shape, space.dtype), tuple(map(slice, own.shape))
    whole[part] = fitting_array(value, "observation", own.shape, space.dtype)
    return whole


class AgentView(gym.Env):
    """What one agent of a game sees, for wrappers: what is given to `reset` and `step`."""

    def __init__(self, space: Space):
        self.observation_space, self.action_space = space, space

    def reset(self, *, seed: int | None = None, options: Any = None):
        """(options, {})."""
        return options, {}

    def step(self, action: Any):
        """The action, and nothing else."""
        return action, 0.0, False, False, {}


class GameOfViews:
    """A ParallelEnv with each action repeated, and an AgentView in wrappers for each agent.

    An action is repeated for `skip` steps, fewer if an agent ends or appears; its rewards are added
    up, and the last step is seen, of Atari the maximum of the last two screens, because its games
    flicker. `make_view` of a space makes the AgentView. An agent that begins resets its own.
    """

    def __init__(self, env: Any, skip: int, make_view: Callable[[Space], gym.Env]):
        self.env, self.skip = env, skip
        self.flickers = hasattr(env, "ale") and env.obs_type != "ram"
        self.views = {agent: make_view(env.observation_space(agent))
                      for agent in env.possible_agents}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> Space:
        """That of the agent's view."""
        return self.views[agent].observation_space

    def reset(self, **given: Any):
        """See ParallelEnv.reset."""
        self.obs, infos = self.env.reset(**given)
        return self._seen(self.obs, ()), infos

    def step(self, actions: Mapping[str, Any]):
        """See ParallelEnv.step."""
        totals, before = {}, {}
        for _ in range(self.skip):
            before = self.obs
            self.obs, rews, terms, truncs, infos = self.env.step(actions)
            totals |= {agent: totals.get(agent, 0) + rew for agent, rew in rews.items()}
            if {*self.env.agents} != {*actions} or any((*terms.values(), *truncs.values())):
                break
        obs = {agent: np.maximum(before[agent], screen) for agent, screen in self.obs.items()
               } if self.flickers else self.obs
        return self._seen(obs, actions), totals, terms, truncs, infos

    def _seen(self, obs: Mapping[str, Any], acting: Container[str]) -> dict[str, Any]:
        """The views of observations; those of agents that are not `acting` begin."""
        return {agent: (view.step(obs[agent]) if agent in acting else
                        view.reset(options=obs[agent]))[0]
                for agent, view in self.views.items() if agent in obs}


def as_game(env: Any) -> Game:
    """The Game of a ParallelEnv or an AEC; ConfigError for an AEC whose agents act at once."""
    if not hasattr(env, "agent_iter"):
        return Game(env)
    if (about := env.metadata or {}).get("is_parallelizable"):
        name = about.get("name", type(env).__name__)
        raise ConfigError(f"{name} is the AEC of a game whose agents act at once", (
            f"give its ParallelEnv: {name}.parallel_env", "pettingzoo.utils.aec_to_parallel(env)"))
    return TurnGame(env)


def make_game(entry_point: str, **kwargs: Any) -> Game:
    """The game that `module:function` makes; the entry point of its id.

    Those of Atari are the games that ale-py has, in grey unless `kwargs` say otherwise.
    """
    if atari := "pettingzoo.atari" in entry_point:
        kwargs = {"auto_rom_install_path": pkgutil.resolve_name("ale_py").__path__[0],
                  "obs_type": "grayscale_image", **kwargs}
    env = pkgutil.resolve_name(entry_point)(**kwargs)
    # PettingZoo's wrappers check what we check, too, and take half of the time of a turn.
    if hasattr(env, "aec_env"):  # a ParallelEnv made of an AEC
        env.aec_env = env.aec_env.unwrapped
    return as_game(env.unwrapped if atari or hasattr(env, "agent_iter") else env)


def register_pettingzoo() -> None:
    """Registers the games of PettingZoo and mpe2, such as sisl/multiwalker-v9."""
    import mpe2
    from pettingzoo import aec_registry, parallel_registry
    games = {name: spec.entry_point for name, spec in {
        **aec_registry, **parallel_registry}.items()} | {
        f"mpe2/{part.name}": f"mpe2.{part.name}:parallel_env"
        for part in pkgutil.iter_modules(mpe2.__path__) if "_v" in part.name}
    for name, entry_point in games.items():
        gym.register(name.replace("_v", "-v"), "fastppo.envs.games:make_game", order_enforce=False,
                     disable_env_checker=True, kwargs={"entry_point": entry_point})
