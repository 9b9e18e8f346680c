"""Games: one space for agents of several, their rows, and the ids of PettingZoo."""

import importlib.util
import math

import numpy as np
import pytest
from games_for_tests import InfoMasked, Masked, Reaching, Scripted, Uneven
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from tiny_settings import TINY

from fastppo import PPO
from fastppo.envs.games import Alone, Game, common_space, padded
from fastppo.envs.make import make_factory
from fastppo.errors import SpaceError


def box(*shape, low=-1, high=1, dtype=np.float32):
    """A Box with the same bounds everywhere."""
    return Box(low, high, shape, dtype)


@pytest.mark.parametrize("spaces, want", [
    ([box(2), box(2)], box(2)),
    ([Discrete(3), Discrete(5), Discrete(2)], Discrete(5)),
    ([Discrete(3, start=1), Discrete(5, start=1)], Discrete(5, start=1)),
    ([MultiDiscrete([2, 3])] * 2, MultiDiscrete([2, 3])),
    ([MultiBinary(3)] * 2, MultiBinary(3)),
    ([Tuple([box(2), Discrete(2)])] * 2, Tuple([box(2), Discrete(2)])),
    ([box(2), box(1, low=-3, high=0.5)], Box(np.float32([-3, -1]), np.float32([1, 1]))),
    ([box(1, low=2, high=3), box(2, low=4, high=5)], Box(np.float32([2, 0]), np.float32([5, 5]))),
    ([box(2, 3), box(3, 1), box(1, 1)], Box(-1, 1, (3, 3), np.float32)),
    ([box(2, 2, 1, low=0, high=255, dtype=np.uint8), box(1, 3, 1, low=0, high=9, dtype=np.uint8)],
     None),
    ([Dict(a=box(1), b=Discrete(2)), Dict(a=box(3), b=Discrete(4))],
     Dict(a=box(3), b=Discrete(4))),
    ([Dict(a=Dict(b=box(1))), Dict(a=Dict(b=box(2)))], Dict(a=Dict(b=box(2))))])
def test_one_space_holds_the_values_of_all_agents(spaces, want):
    named = {f"agent_{k}": space for k, space in enumerate(spaces)}
    found = common_space("actions", named)
    if want is not None and not any(isinstance(one, Box) and one.shape != want.shape
                                    for one in spaces):
        assert found == want
    for space in spaces:
        space.seed(1)
        for _ in range(5):
            value = space.sample()
            whole = padded(value, space, found)
            assert found.contains(whole), (value, whole)
            assert_begins(whole, value)


def assert_begins(whole, value):
    """A padded value is the value and zeros behind it."""
    if isinstance(value, dict):
        for key in value:
            assert_begins(whole[key], value[key])
    elif isinstance(value, np.ndarray):
        part = tuple(map(slice, value.shape))
        np.testing.assert_array_equal(whole[part], value)
        rest = whole.copy()
        rest[part] = 0
        assert not rest.any() and whole.dtype == value.dtype
    else:
        assert whole == value


def test_the_bounds_of_a_common_box_are_those_of_all_with_zero_where_one_has_no_number():
    found = common_space("actions", {"ann": box(1, low=2, high=3), "bob": box(2, low=4, high=5)})
    np.testing.assert_array_equal(found.low, [2, 0])
    np.testing.assert_array_equal(found.high, [5, 5])


@pytest.mark.parametrize("one, other", [
    (box(2), box(2, 2)), (box(2), box(3, dtype=np.float64)), (box(2), Discrete(2)),
    (Discrete(2), Discrete(3, start=1)), (MultiBinary(2), MultiBinary(3)),
    (MultiDiscrete([2, 3]), MultiDiscrete([2, 4])), (Dict(a=box(1)), Dict(b=box(1))),
    (Tuple([box(1)]), Tuple([box(2)]))])
def test_other_spaces_that_differ_are_an_error_that_names_both_agents(one, other):
    with pytest.raises(SpaceError, match="the observations of ann are .* those of cy of"):
        common_space("observations", {"ann": one, "bob": one, "cy": other})
    with pytest.raises(SpaceError, match=r"the observations\['x'\] of ann are .* those of cy of"):
        common_space("observations", {"ann": Dict(x=one), "bob": Dict(x=one), "cy": Dict(x=other)})


@pytest.mark.parametrize("value, said", [
    (np.zeros(3, np.float32), r"has shape \(3,\), its space \(2,\)"),
    (np.zeros(1, np.float32), r"shape \(1,\), its space \(2,\)"), (np.float32(1), r"shape \(\)"),
    ([0.0, 1.0, 2.0], r"shape \(3,\)"), ("ab", "is str, not an array of numbers")])
def test_an_observation_of_another_shape_is_not_padded(value, said):
    with pytest.raises(ValueError, match=said):
        padded(value, box(2), box(4))


def test_an_agent_has_its_number_unless_that_is_off():
    game, plain = Game(Scripted()), Game(Scripted(), agent_index=False)
    assert game.observation_space == Dict(obs=box(4, low=-99, high=99), agent=Discrete(4))
    assert plain.observation_space == box(4, low=-99, high=99)
    for k, one in game.reset(seed=1)[0].items():
        assert one["agent"] == k == one["obs"][0] and game.observation_space.contains(one)
    assert all(one[0] == k for k, one in plain.reset(seed=1)[0].items())


@pytest.mark.parametrize("shape, wanted, last", [
    ((6, 5, 3), (6, 5, 4), True), ((3, 6, 5), (4, 6, 5), False),
    ((2, 6, 5, 3), (3, 6, 5, 3), False)])
@pytest.mark.parametrize("shows_state", [False, True])
def test_an_image_has_the_number_of_its_agent_as_a_channel_or_frame(shape, wanted, last,
                                                                    shows_state):
    highest = 255

    class Seeing(Scripted):
        state_space = box(1)

        def state(self):
            return np.ones(1, np.float32)

        def observation_space(self, agent):
            return box(*shape, low=0, high=highest, dtype=np.uint8)

        def _seen(self, agents):
            return {agent: np.full(shape, 7, np.uint8) for agent in agents}
    game = Game(Seeing(), shows_state=shows_state)
    image = box(*wanted, low=0, high=255, dtype=np.uint8)
    assert game.observation_space == (Dict(obs=image, state=box(1)) if shows_state else image)
    begun, found = game.reset(seed=1)[0], set()
    for k, one in begun.items():
        assert game.observation_space.contains(one)
        seen = one["obs"] if shows_state else one
        screen, number = (seen[..., :-1], seen[..., -1]) if last else (seen[:-1], seen[-1])
        assert (screen == 7).all() and (number == 85 * k).all()
        found.add(k)
    assert len(found) > 1
    with pytest.raises(ValueError, match=f"the observation has shape .*, its space .{shape[0]}, "):
        game._numbered(0, np.zeros(shape[1:], np.uint8))
    highest = 1  # a board
    assert Game(Seeing()).observation_space == Dict(obs=box(*shape, low=0, high=1, dtype=np.uint8),
                                                    agent=Discrete(4))


def test_a_part_called_agent_is_not_replaced():
    class Own(Scripted):
        def observation_space(self, agent):
            return Dict(agent=box(2), rest=box(1))
    with pytest.raises(SpaceError, match="(?s)have a part 'agent'.*fix: agent_index=False"):
        Game(Own())
    assert Game(Own(), agent_index=False).observation_space == Dict(agent=box(2), rest=box(1))


@pytest.mark.parametrize("make, key", [(Uneven, "obs"), (Masked, "observation"),
                                       (InfoMasked, "obs")])
def test_the_mask_forbids_the_choices_that_an_agent_does_not_have(make, key):
    game, env = Game(make()), make()
    seen, alone = game.reset(seed=5)[0], env.reset(seed=5)
    assert game.action_space == Discrete(5) and len(seen) > 1
    for k, one in seen.items():
        agent, mask = game.agents[k], np.asarray(one["action_mask"])
        obs = alone[0][agent]
        own = obs["action_mask"] if make is Masked else alone[1][agent]["action_mask"] \
            if make is InfoMasked else np.ones(env.sizes[agent])
        np.testing.assert_array_equal(mask, [*own, *[0] * (5 - len(own))])
        obs = obs["observation"] if make is Masked else obs
        np.testing.assert_array_equal(one[key], [*obs, *[0] * (6 - len(obs))])


def test_masks_may_be_in_some_infos_alone():
    class Sometimes(Scripted):
        def action_space(self, agent):
            return MultiDiscrete([3, 2])

        def reset(self, seed=None, options=None):
            obs, _ = super().reset(seed)
            return obs, {agent: {"action_mask": np.array([0, 1, 1, 1, 0])} for agent in obs}

        def step(self, actions):
            return super().step({agent: action[0] for agent, action in actions.items()})
    game = Game(Sometimes())
    assert all(one["action_mask"].tolist() == [0, 1, 1, 1, 0]
               for one in game.reset(seed=1)[0].values())
    seen = game.step(np.ones((4, 2), int))[0]
    assert seen and all(one["action_mask"].tolist() == [1] * 5 for one in seen.values())


def test_an_agent_gets_the_part_of_an_action_that_it_has():
    given = []

    class Listening(Reaching):
        def step(self, actions):
            given.append(actions)
            return super().step(actions)
    game = Game(Listening())
    assert game.action_space == box(3)
    game.reset(seed=2)
    actions = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
    there = game.alive
    game.step(actions)
    assert [*given[0]] == [agent for agent, alive in zip(game.agents, there) if alive]
    for agent, action in given[0].items():
        np.testing.assert_array_equal(
            action, actions[game.agents.index(agent)][:Reaching.sizes[agent]])


def test_an_agent_gets_actions_within_its_own_bounds():
    given = []

    class Bounded(Scripted):
        def action_space(self, agent):
            return Box(-1, 1 + (agent == "ann"), (2,), np.float32)

        def step(self, actions):
            given.append(actions)
            return super().step(dict.fromkeys(actions, 0))
    game = Game(Bounded())
    game.reset(seed=2)
    game.step(np.full((4, 2), 1.5, np.float32))
    assert {agent: action.max() for agent, action in given[0].items()} == {
        agent: 1.5 if agent == "ann" else 1.0 for agent in given[0]}
    assert len(given[0]) > 1


def test_a_game_is_played_by_rows_until_nobody_is_alive():
    game, env = Game(Scripted(), limit=4), Scripted()
    lengths = set()
    for seed in range(80):
        seen, alone = game.reset(seed=seed)[0], env.reset(seed=seed)[0]
        assert [game.agents[k] for k in seen] == [*alone]
        while any(game.alive):
            assert [a for a, alive in zip(game.agents, game.alive) if alive] == env.agents
            acting = env.agents
            seen, turns = game.step([0] * 4)
            obs, rews, terms, truncs, _ = env.step(dict.fromkeys(acting, 0))
            cut = game.steps == 4
            assert [game.agents[k] for k in turns] == acting
            assert [tuple(turn) for turn in turns.values()] == [
                (rews[agent], terms[agent], truncs[agent] or cut) for agent in acting]
            assert {game.agents[k] for k in seen} == (set(acting) if cut else set(obs))
            if cut:
                assert not any(game.alive)
        lengths.add(game.steps)
        assert game.ended
    assert lengths == {1, 2, 3, 4}


def test_the_factory_of_a_game_makes_seats_which_close_it_once():
    closed = []

    class Closing(Scripted):
        def close(self):
            closed.append(self)
    game = make_factory(Closing, limit=7)()
    assert (len(game.seats), game.limit) == (4, 7)
    assert make_factory(Closing)().limit == math.inf
    for seat in game.seats:
        assert seat.observation_space is game.observation_space
        seat.close()
    assert closed == [game.env]


def test_the_game_of_one_agent_has_no_seats_and_no_number():
    env = make_factory(type("Solo", (Scripted,), {"possible_agents": ["ann"]}))()
    assert isinstance(env, Alone) and env.observation_space == box(4, low=-99, high=99)
    obs, info = env.reset(seed=1)
    assert obs[1] == 0 and info == {}
    obs, rew, term, trunc, info = env.step(2)
    assert obs[1] == 1 and rew >= 0.5 and type(term) is bool and info == {}


PETTINGZOO = {  # ids, and what each needs beside pettingzoo and mpe2
    "mpe2/simple_spread-v3": "pygame", "mpe2/simple_tag-v3": "pygame",
    "mpe2/simple_crypto-v3": "pygame", "mpe2/simple_speaker_listener-v4": "pygame",
    "sisl/multiwalker-v9": "Box2D", "sisl/pursuit-v5": "scipy",
    "butterfly/knights_archers_zombies-v11": "pygame"}


@pytest.mark.packages
@pytest.mark.parametrize("name", PETTINGZOO)
def test_the_games_of_pettingzoo_train_by_their_ids(name):
    for package in ("pettingzoo", "mpe2", PETTINGZOO[name]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    found = []
    for workers in (0, 2):
        settings = dict(num_workers=workers, num_envs=2, num_steps=40, max_episode_steps=25)
        with PPO(name, **TINY | settings) as ppo:
            for _ in range(2):
                rollout = ppo.collect()
                assert rollout.valid[0].any() and rollout.adv[rollout.valid].isfinite().all()
                ppo.update(rollout)
            assert ppo.config.agents > 1 and ppo.config.rows == 2 * ppo.config.agents
            found.append(ppo.learner.flat.values.numpy().tobytes())
    assert found[0] == found[1]
