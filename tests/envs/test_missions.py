"""MiniGrid: its ids, and the sentence in its observations, with a stand-in and where installed."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from fastppo import PPO, load
from fastppo.envs.families import family_of_id, is_registered
from fastppo.envs.make import make_envs, make_factory
from fastppo.envs.wrappers import (
    BABYAI_LONGEST,
    BABYAI_WORDS,
    mission_words,
    read_mission,
    words_of,
)
from fastppo.errors import ConfigError, EnvError, SpaceError

QUICK = dict(seed=1, num_envs=2, num_steps=16, num_minibatches=2, epochs=1, hidden_sizes=(4,))


class MissionSpace(gym.spaces.Space):
    """As MiniGrid's: a function makes sentences of words, and the words that there are for each."""

    __module__ = "minigrid.core.mission"

    def __init__(self, mission_func, ordered_placeholders=None):
        super().__init__(dtype=str)
        self.mission_func, self.ordered_placeholders = mission_func, ordered_placeholders


class BabyAIMissionSpace(MissionSpace):
    """As MiniGrid's: it does not tell its sentences."""

    def __init__(self):
        super().__init__(lambda: "go")


COLOURS = MissionSpace(lambda verb, colour: f"{verb} the {colour} box",
                       [["get", "go and fetch"], ["red", "blue"]])
FIXED = MissionSpace(lambda: "open the door, then go")


class Rooms(gym.Env):
    """The action that the mission's last colour names is right: 0 for red, 1 for blue."""

    action_space = Discrete(2)

    def __init__(self, mission=COLOURS, sentences=("get the red box", "go and fetch the blue box")):
        self.sentences = sentences
        self.observation_space = Dict(image=Box(0, 255, (2, 2, 3), np.uint8), mission=mission)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sentence = self.sentences[int(self.np_random.integers(len(self.sentences)))]
        return self.observation(), {}

    def step(self, action):
        return self.observation(), float(action == ("blue" in self.sentence)), True, False, {}

    def observation(self):
        return {"image": np.full((2, 2, 3), 3, np.uint8), "mission": self.sentence}


def test_a_mission_is_the_numbers_of_its_words_in_their_order():
    env = read_mission(Rooms())
    assert mission_words(COLOURS) == (
        ["and", "blue", "box", "fetch", "get", "go", "red", "the"], 6, False)
    assert env.observation_space["mission"] == MultiDiscrete([9] * 6)
    assert env.observation_space["image"] == Box(0, 255, (2, 2, 3), np.uint8)
    seen = {tuple(env.reset(seed=seed)[0]["mission"]) for seed in range(20)}
    assert seen == {(5, 8, 7, 3, 0, 0), (6, 1, 4, 8, 2, 3)}
    assert env.observation_space.contains(env.step(0)[0])


def test_a_mission_that_is_always_the_same_is_left_out():
    env = read_mission(Rooms(FIXED, ["open the door, then go"]))
    assert [*env.observation_space] == [*env.reset(seed=1)[0]] == ["image"]


def test_other_environments_stay_as_they_are():
    other = Rooms()
    other.observation_space = Dict(mission=Discrete(3), image=Box(0, 1, (2,)))
    for env in (other, gym.make("CartPole-v1")):
        assert read_mission(env) is env
    other.observation_space = Dict(mission=gym.spaces.Text(3))
    with pytest.raises(SpaceError, match="Text.* are not supported"):
        PPO(lambda: other, **QUICK)


def test_babyai_has_the_words_of_its_grammar():
    assert mission_words(BabyAIMissionSpace()) == (BABYAI_WORDS, BABYAI_LONGEST, False)
    thing = "the yellow object in front of you"
    pair = " and ".join([f"put {thing} next to {thing}"] * 2)
    for sentence in (f"{pair} after you {pair}", f"{pair}, then {pair}"):
        assert len(words_of(sentence)) == BABYAI_LONGEST and {*words_of(sentence)} < {*BABYAI_WORDS}
        obs, _ = read_mission(Rooms(BabyAIMissionSpace(), [sentence])).reset()
        assert [BABYAI_WORDS[i - 1] for i in obs["mission"]] == words_of(sentence)


@pytest.mark.parametrize("sentence", ["get the green box", "get the the the the the the box"])
def test_a_mission_of_other_words_or_more_of_them_is_an_error_of_the_environment(sentence):
    with pytest.raises(EnvError, match=f"the mission '{sentence}' is not one of its space's"), \
            PPO(lambda: Rooms(sentences=[sentence]), num_workers=0, **QUICK) as ppo:
        ppo.learn(32)


def test_the_mission_is_learnt_from_and_the_policy_evaluates_itself(tmp_path):
    with PPO(Rooms, num_workers=0, seed=1, num_envs=8, num_steps=32, lr=1e-2, norm_rewards=False,
             total_steps=4_096) as ppo:
        assert ppo.learn().evaluate(20).mean == 1.0
        ppo.save(tmp_path / "rooms.safetensors")
    policy = load(tmp_path / "rooms.safetensors")
    assert policy.obs_space["mission"] == MultiDiscrete([9] * 6)
    assert policy.evaluate(Rooms, episodes=20).mean == 1.0


def test_a_policy_ignores_a_mission_that_it_was_not_trained_on():
    raw = Rooms(FIXED, ["open the door, then go"])
    with PPO(lambda: raw, num_workers=0, **{**QUICK, "num_envs": 1}) as ppo:
        assert ppo.policy.predict(raw.reset(seed=1)[0]) in (0, 1)


def test_ids_of_minigrid_are_registered_by_its_import(monkeypatch):
    for name in ("MiniGrid-Fetch-5x5-N2-v0", "BabyAI-GoToLocal-v0"):
        assert family_of_id(name).package == "minigrid" and is_registered(name)
        monkeypatch.delitem(gym.registry, name, raising=False)
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ConfigError) as error:
        make_factory("MiniGrid-Fetch-5x5-N2-v0")
    assert "cannot import 'minigrid'" in str(error.value)
    assert "fastppo[minigrid]" in str(error.value)


def test_the_missions_of_minigrid_are_those_of_their_spaces():
    pytest.importorskip("minigrid")
    names = ("MiniGrid-LockedRoom-v0", "MiniGrid-PutNear-6x6-N2-v0", "BabyAI-GoToLocal-v0",
             "MiniGrid-DoorKey-5x5-v0")
    for env in make_envs([make_factory(name) for name in names]):
        for seed in range(20):
            assert env.observation_space.contains(env.reset(seed=seed)[0])
        env.close()
