"""Atari: what stands around a game; a scripted one, and where ale-py is installed real ones."""

import importlib.util
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import MaxAndSkipObservation, TimeLimit
from interruption import assert_interrupts_change_nothing
from scripted_game import Game, Quick
from source_tree import ROOT

from fastppo import load
from fastppo.cli import export
from fastppo.config import Config
from fastppo.envs.atari import (
    FIRE,
    NOOP,
    AtariOptions,
    AtariVector,
    EpisodicLives,
    FireOnReset,
    WholeGame,
    needs_fire,
    preprocess_atari,
)
from fastppo.envs.make import make_factory
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.settings.presets import PRESETS
from fastppo.stepping.rollout_recorder import continues_game
from fastppo.trainer.given_settings import config_for
from fastppo.vector.source import VectorEnvSource

ATARI = dict(preprocessing="atari", end_on_life_loss=True, frame_stack=4)
SMALL = {**ATARI, "frame_stack": 1, "model": "mlp", "num_steps": 30}


@pytest.fixture
def opencv():
    """Where a frame is resized."""
    return pytest.importorskip("cv2")


def played(env, seed=None, action=NOOP):
    """(observations, rewards, last info) of one episode."""
    obs, rewards, over = [env.reset(seed=seed)[0]], [], False
    while not over:
        x, rew, term, trunc, info = env.step(action)
        obs, rewards, over = [*obs, x], [*rewards, rew], term or trunc
    return obs, rewards, info


def fired(game):
    """`game`, each life of which is an episode that begins with FIRE."""
    return EpisodicLives(FireOnReset(game), (NOOP, FIRE))


def test_the_end_of_a_life_ends_an_episode_and_the_game_goes_on_with_a_no_op():
    env, game = EpisodicLives(Game()), Game()
    game.reset(seed=1)
    played(env, seed=1, action=3)
    assert (env.unwrapped.frame, env.unwrapped.left) == (game.ends[0] + 1, 2)
    _, rewards, _ = played(env, seed=2, action=3)  # a seed does not begin another game
    assert (env.unwrapped.frame, env.unwrapped.left) == (game.ends[1] + 1, 1)
    assert len(rewards) == game.ends[1] - game.ends[0] - 1
    assert env.unwrapped.done[game.ends[0]:][:3] == [3, NOOP, 3]


def test_a_game_without_a_life_left_ends_when_it_is_over():
    env = EpisodicLives(Game())
    for seed in (1, 2, 3):
        played(env, seed)
    assert (env.unwrapped.left, env.unwrapped.frame) == (0, env.unwrapped.ends[2] + 2)
    env.reset(seed=4)
    assert (env.unwrapped.left, env.unwrapped.done) == (3, [("reset", 4)])


@pytest.fixture
def first_life():
    """Frames of the first life of the game of seed 1."""
    game = Game()
    game.reset(seed=1)
    return int(game.ends[0])


def test_a_truncation_and_a_reset_within_a_life_begin_a_game(first_life):
    for limit in (5, first_life):
        env = EpisodicLives(TimeLimit(Game(), limit))
        env.reset(seed=1)
        assert [env.step(1)[2:4] for _ in range(limit)][-1] == (False, True)
        env.reset(seed=2)
        assert env.unwrapped.done == [("reset", 2)]
    env.step(1)
    env.reset(seed=3)
    assert env.unwrapped.done == [("reset", 3)]


@pytest.mark.parametrize("first", [(NOOP,), (NOOP, FIRE)])
def test_a_game_that_ends_where_a_life_begins_is_told_with_the_lost_life(first_life, first):
    env = EpisodicLives(TimeLimit(Game(), first_life + len(first)), first)
    _, rewards, info = played(env, seed=1, action=3)
    assert len(rewards) == first_life and info["game_length"] == first_life + len(first)
    assert info["game_return"] == sum(rewards) + sum(first) and not continues_game(info)
    env.reset(seed=2)
    assert env.unwrapped.done == [("reset", 2)]


def test_a_games_return_and_length_are_told_where_it_ends():
    env = EpisodicLives(Game())
    infos = [played(env, seed, action=2)[2] for seed in (1, 2, 3)]
    assert ["game_return" in info for info in infos] == [False, False, True]
    assert [continues_game(info) for info in infos] == [True, True, False]
    length = env.unwrapped.ends[2] + 2
    assert infos[2]["game_length"] == length
    assert infos[2]["game_return"] == 2.0 * (length - 2)  # all but two no-ops
    assert infos[2]["told"] == 1.0


def test_the_seed_of_a_game_begins_it_again_also_after_a_lost_life():
    env = fired(Game())
    for lives in (1, 2, 3):
        first = [played(env, seed, action=2) for seed in range(lives)]
        again = [played(env, seed, action=2) for seed in range(lives)]
        for one, two in zip(first, again):
            assert np.array_equal(one[0], two[0]) and one[1:] == two[1:]
        env.reset(seed=0)


def test_a_reset_that_goes_on_with_a_game_says_so():
    env = fired(Game())
    said = []
    for seed in range(4):
        said.append(continues_game(env.reset(seed=seed)[1]))
        while not any(env.step(2)[2:4]):
            pass
    assert said == [False, True, True, False]


@pytest.mark.parametrize("lives", [False, True])
def test_fire_is_pressed_at_every_reset(lives):
    env = fired(Game()) if lives else FireOnReset(Game())
    obs, info = env.reset(seed=1)
    assert env.unwrapped.done == [("reset", 1), FIRE] and info == {"told": 1.0}
    assert np.array_equal(obs, env.unwrapped.screen())
    played(env, seed=1)
    env.reset(seed=2)
    assert env.unwrapped.done[-2:] == [NOOP if lives else ("reset", 2), FIRE]


@pytest.mark.parametrize("meanings, wanted", [
    (["NOOP", "FIRE", "UP"], True), (["NOOP", "FIRE"], False), (["NOOP", "UP", "FIRE"], False)])
def test_fire_is_for_games_in_which_it_is_the_second_of_three_actions(meanings, wanted):
    assert needs_fire(Game(meanings=meanings)) == wanted


def test_a_fire_that_ends_the_game_is_followed_by_a_reset():
    env = FireOnReset(TimeLimit(Game(), 1))
    env.reset(seed=1)
    assert env.unwrapped.done == [("reset", None)]


def test_whole_games_have_all_lives_and_all_rewards_in_one_episode():
    env = WholeGame(fired(Game()))
    for seed in (1, 2):
        _, rewards, info = played(env, seed, action=3)
        moves = env.unwrapped.done[1:]
        assert env.unwrapped.left == 0 and sum(rewards) == info["game_return"]
        assert sum(moves) == FIRE + sum(rewards)  # the first FIRE is a part of the game's reset
        assert moves.count(FIRE) == 3 and moves.count(NOOP) == 2
        assert len(rewards) == len(moves) - 5 == info["game_length"] - 4


def test_a_whole_game_ends_where_its_time_limit_falls_between_two_lives(first_life):
    env = WholeGame(EpisodicLives(TimeLimit(Game(), first_life + 1)))
    _, rewards, info = played(env, seed=1, action=3)
    assert len(rewards) == first_life and sum(rewards) == info["game_return"]


def made(**settings):
    """The environment that a trainer steps with these settings."""
    return EnvSource(Quick, Config(num_envs=1, env_name="Quick", **settings)).factories[0]()


def test_a_game_begins_with_up_to_30_no_ops_drawn_by_its_seed(opencv):
    env, counts = made(preprocessing="atari"), []
    for seed in [*range(200), 7]:
        env.reset(seed=seed)
        moves = env.unwrapped.done
        assert moves[0] == ("reset", seed) and {*moves[1:-4]} == {NOOP} and moves[-4:] == [FIRE] * 4
        counts.append(len(moves) - 5)
    assert (min(counts), max(counts)) == (1, 30) and counts[-1] == counts[7]


def test_a_game_without_a_no_op_begins_at_its_first_frame(opencv):
    env = preprocess_atari(Game(1, meanings=("LEFT", "UP", "RIGHT")), None,
                           AtariOptions(lives=False))
    env.reset(seed=3)
    assert env.unwrapped.done == [("reset", 3)]


def test_an_action_is_held_for_4_frames_and_the_maximum_of_the_last_two_is_seen(opencv):
    env = made(preprocessing="atari")
    env.reset(seed=1)
    before, game = env.unwrapped.frame, env.unwrapped
    obs, rew, _, _, _ = env.step(3)
    assert game.frame == before + 4 and rew == 4 * 3.0
    last = game.screen()
    game.frame -= 1
    wanted = opencv.resize(np.maximum(last, game.screen()), (84, 84),
                           interpolation=opencv.INTER_AREA)
    assert np.array_equal(obs, wanted) and len(np.unique(obs)) > 1


def test_frames_are_seen_in_grey_at_84_by_84_and_stacked_as_channels_of_the_network(
        trainer, opencv):
    assert made(preprocessing="atari").observation_space == Box(0, 255, (84, 84), np.uint8)
    ppo = trainer(Quick, **ATARI)
    assert ppo.source.obs_space == Box(0, 255, (4, 84, 84), np.uint8)
    assert ppo.config.model == "cnn" and ppo.config.shared_critic
    assert next(ppo.policy.parameters()).shape == (32, 4, 8, 8)


def test_a_time_limit_counts_actions_over_all_lives_of_a_game(opencv):
    for name in (Quick, "Scripted-v0"):
        env = make_factory(name, 15, games=AtariOptions(lives=True))()
        infos = []
        while not infos or "game_length" not in infos[-1]:
            infos.append(played(env, len(infos), action=2)[2])
        assert infos[-1]["game_length"] == 15 - 1  # FIRE at the reset


@pytest.fixture(autouse=True)
def scripted():
    """The game as an id."""
    gym.register("Scripted-v0", Game, kwargs={"frameskip": 4, "obs_type": "rgb"})
    yield
    del gym.registry["Scripted-v0"]


def test_an_id_is_made_with_every_frame_a_step_in_grey(opencv):
    game = make_factory("Scripted-v0", games=AtariOptions(lives=True))().unwrapped
    assert (game._frameskip, game._obs_type) == (1, "grayscale")
    assert make_factory("Scripted-v0")().unwrapped._frameskip == 4


def test_training_sees_lives_and_evaluation_whole_games(trainer, opencv):
    ppo, seen = trainer(Quick, **SMALL), []
    ppo.learn(4 * 30 * 4, lambda ppo, stats: seen.append(stats))
    ends = (ppo.arena["length"] > 0).sum() * 4  # about so many episodes, most of them lives
    assert 0 < seen[-1]["charts/episodes"] < ends / 1.5
    assert "env/game_return" not in seen[-1] and "env/same_game" not in seen[-1]
    for place in (None, Quick, "Scripted-v0"):
        assert ppo.evaluate(20, env=place).lengths.max() > 40 / 4  # more than any life has
    assert np.array_equal(ppo.evaluate(5).returns, ppo.evaluate(5).returns)


@pytest.mark.some(1)
@pytest.mark.parametrize("env", [Quick, "Scripted-v0"])
def test_the_same_bits_come_of_any_number_of_workers(trainer, opencv, env):
    found = []
    for workers in (0, 2):
        ppo, seen = trainer(env, num_workers=workers, **SMALL), []
        ppo.learn(2 * 120, lambda ppo, stats, seen=seen: seen.append(
            {name: x for name, x in stats.items() if "SPS" not in name and "time" not in name}))
        found.append((seen, {name: x.numpy().tobytes()
                             for name, x in ppo.policy.state_dict().items()}))
    assert found[0] == found[1] and found[0][0][-1]["charts/episodes"] > 0


class Shown(gym.ObservationWrapper):
    """The frame and the lives of a game as three numbers."""

    def __init__(self):
        super().__init__(fired(Quick()))
        self.observation_space = Box(-1, 1, (3,), np.float32)

    def observation(self, obs):
        """[3] of an observation."""
        game = self.unwrapped
        return np.float32([game.frame / 200, game.left / 3, game.action / 3])


def test_an_interrupt_anywhere_between_two_lives_changes_no_bit():
    assert_interrupts_change_nothing(Shown, 0, "local", "atari vecenv", 40)


@pytest.mark.parametrize("preset, env", [
    ("atari", "ALE/Pong-v5"), ("atari", "ale_py:ALE/MsPacman-v5"), ("atari", "PongNoFrameskip-v4"),
    ("atari", "Pong-v5"), ("none", "Pong-v4"), ("none", "Pong"), ("none", "Blackjack-v1"),
    ("none", "MALE/Pong-v5")])
def test_ids_of_the_arcade_learning_environment_have_a_preset(preset, env):
    config = config_for(env, {})
    assert (config.preprocessing, config.end_on_life_loss) == (preset, preset == "atari")
    assert preset == "none" or config.lr == PRESETS["atari"]["lr"]


class NoGame(gym.Env):
    """No game of ALE's."""

    observation_space, action_space = Box(0, 255, (210, 160), np.uint8), Discrete(3)


class Spaceless(gym.Env):
    """No environment yet."""


def game(**other):
    """A Game of which attributes are others."""
    def make():
        env = Quick()
        for name, value in other.items():
            setattr(env, name, value)
        return env
    return make


@pytest.mark.parametrize("env, settings, what", [
    (Quick, {"end_on_life_loss": True}, "is for preprocessing=atari"),
    (NoGame, ATARI, "games of the Arcade Learning Environment, .* but NoGame"),
    (Spaceless, ATARI, "but Spaceless has the spaces None and None"),
    (game(observation_space=Box(np.zeros(9), np.arange(9.0), dtype=np.float64)), ATARI,
     r"spaces Box\(9,\) float64 from 0.0 to 8.0 and Discrete\(4\)"),
    (Game, ATARI, "Game skips 4 frames itself"),
    (Game, {"frame_skip": 2}, "Game skips 4 frames itself"),
    (game(_frameskip=(2, 5)), {"frame_skip": 2}, r"skips \(2, 5\) frames itself"),
    (lambda: MaxAndSkipObservation(Quick(), 3), {"frame_skip": 2}, "skips 3 frames itself"),
    ("Scripted-v0", {**ATARI, "env_kwargs": {"frameskip": 3}}, "skips 3 frames itself"),
    (game(observation_space=Box(0, 255, (128,), np.uint8)), ATARI, r"spaces Box.*\(128,\)"),
    (game(observation_space=Dict(image=Box(0, 1))), ATARI, "spaces Dict"),
    (game(action_space=Box(0, 1)), ATARI, "of frames and Discrete actions"),
    ("Scripted-v0", {**ATARI, "vec": "native"}, "is for the ids of ale-py"),
    (Quick, {"preprocessing": "ataru"}, "one of none, atari"),
    (Quick, {"end_on_life_loss": 2}, "end_on_life_loss is 2")])
def test_what_cannot_be_preprocessed_is_refused(trainer, env, settings, what):
    with pytest.raises(ConfigError, match=f"(?s){what}.*\n  fix: "):
        trainer(env, **settings)


def test_a_policy_for_games_is_not_told_to_leave_out_what_it_was_trained_with(trainer, opencv,
                                                                              tmp_path):
    trainer(Quick, **SMALL).save(tmp_path / "model.safetensors")
    for env in (NoGame, Spaceless):
        with pytest.raises(ConfigError, match=r"\n  fix: give such a game"):
            load(tmp_path / "model.safetensors").evaluate(env, episodes=1)


def test_a_vector_environment_that_is_made_already_is_not_preprocessed(trainer):
    env = gym.make_vec("CartPole-v1", 2)
    try:
        with pytest.raises(ConfigError, match="preprocessing is 'atari'.*\n  fix: leave prepr"):
            trainer(env, num_envs=2, preprocessing="atari")
    finally:
        env.close()


def test_opencv_that_is_missing_is_named(trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match="cannot be made: opencv-python package not installed"):
        trainer(Quick, **ATARI)


@pytest.mark.full
def test_a_real_game_is_trained_on_saved_and_played_whole(trainer, opencv, tmp_path):
    pytest.importorskip("ale_py")
    ppo = trainer("ALE/Breakout-v5", preset="auto", num_envs=2, num_steps=4, num_minibatches=1,
                  max_episode_steps=40)
    seen = []
    ppo.learn(16, lambda ppo, stats: seen.append(stats))
    assert ppo.config.model == "cnn" and len(seen) == 2
    found = ppo.evaluate(2)
    assert found.lengths.max() <= 40
    ppo.save(tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    policy, env = load(path), ppo.source.factories[0]()
    _, what = export.steps_to_check(policy, None)
    assert what == "steps of ALE/Breakout-v5"
    obs, _ = env.reset(seed=1)
    assert obs.shape == (4, 84, 84) and policy.predict(obs) in env.action_space
    assert isinstance(ppo.rollout.obs, FrameStacks) and ppo.rollout.obs.dtype == torch.uint8
    env.close()


@pytest.mark.parametrize("env, games", [
    ("'ALE/Breakout-v5'", None), ("'ALE/Breakout-v5'", AtariOptions(lives=True)),
    ("lambda: gymnasium.make('BreakoutNoFrameskip-v4')", None)])
def test_ale_py_prints_nothing_when_a_process_makes_its_first_game(opencv, env, games):
    pytest.importorskip("ale_py")
    code = ("import gymnasium; from fastppo.envs.atari import AtariOptions\n"
            "from fastppo.envs.make import make_factory\n" + "import ale_py\n" * ("lambda" in env)
            + f"make_factory({env}, games={games})().close()")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=ROOT)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_a_real_game_is_a_function_of_its_seed_through_all_its_lives(opencv, name):
    pytest.importorskip("ale_py")
    make, games = make_factory(name, games=AtariOptions(lives=True)), []
    for _ in range(2):
        env = make()
        env.action_space.seed(1)
        games.append([played(env, seed, action=2) for seed in range(6)])
        assert env.unwrapped.ale.lives() in (4, 5)
        env.close()
    assert all(np.array_equal(one[0], two[0]) and one[1:] == two[1:] for one, two in zip(*games))
    assert ["game_return" in info for _, _, info in games[0][:5]] == [False] * 4 + [True]


# ---- vector environments of games --------------------------------------------------------------

class Lives(VectorEnv):
    """Two games whose lives and ends are listed; a reward is 2, and actions are kept."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs = 2
    single_observation_space, single_action_space = Box(0, 255, (4, 8, 8), np.uint8), Discrete(3)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)
    # Of step t: the lives of both games, and whether they end; the next step is then a reset.
    lives = [(3, 0)] + [(3, 0), (2, 0), (2, 0), (1, 0), (0, 0), (0, 0), (3, 0), (3, 0)]
    ends = [(0, 0)] + [(0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 0)]

    def __init__(self):
        self.t, self.taken = 0, []

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 4, 8, 8), np.uint8), {"lives": np.array(self.lives[0])}

    def step(self, actions):
        self.t += 1
        self.taken.append(list(actions))
        over = np.array(self.ends[self.t], bool)
        reset = np.array(self.ends[self.t - 1], bool)
        return (np.zeros((2, 4, 8, 8), np.uint8), np.where(reset, 0.0, 2.0), over,
                np.zeros(2, bool), {"lives": np.array(self.lives[self.t])})


def stepped(lives):
    games = Lives()
    vec = AtariVector(games, lives, FIRE)
    vec.reset()
    return games, [vec.step(np.array([2, 2])) for _ in range(8)]


def test_the_lives_of_a_vector_environment_end_episodes_that_go_on_with_fire():
    games, steps = stepped(True)
    # A life is lost in step 2 and, by the scripted lives, in step 4; 0 lives before the end is not.
    assert [step[2].tolist() for step in steps] == [
        [False, False], [True, True], [False, False], [True, False], [False, False],
        [True, False], [False, False], [False, False]]
    assert [row[0] for row in games.taken] == [2, 2, FIRE, 2, FIRE, 2, 2, 2]
    assert [row[1] for row in games.taken] == [2] * 8
    assert [step[1].tolist() for step in steps] == [
        [2, 2], [2, 2], [0, 0], [2, 2], [0, 2], [2, 2], [0, 2], [2, 2]]


@pytest.mark.parametrize("lives", [True, False])
def test_the_returns_of_whole_games_are_told_where_they_end(lives):
    _, steps = stepped(lives)
    told = {(t, e): (info["game_return"][e], info["game_length"][e]) for t, (*_, info)
            in enumerate(steps, 1) for e in range(2) if info["_game_return"][e]}
    assert told == {(2, 1): (4.0, 2), (6, 0): (12.0, 6)}
    if not lives:
        assert [step[2].tolist() for step in steps][1] == [False, True]


@pytest.mark.some(2)
@pytest.mark.parametrize("vec", ["native", pytest.param("envpool", marks=pytest.mark.skipif(
    not importlib.util.find_spec("envpool"), reason="no EnvPool"))])
@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_a_single_frame_is_trained_on_in_an_engine_and_evaluated(trainer, vec, name):
    pytest.importorskip("ale_py")
    ppo = trainer(name, vec=vec, model="cnn", preprocessing="atari", frame_stack=1, num_envs=2,
                  num_steps=8, num_minibatches=2, max_episode_steps=5)
    assert ppo.collect().obs.shape == (9, 2, 84, 84)
    assert ppo.source.factories[0]().observation_space == ppo.source.obs_space
    assert 0 < ppo.evaluate(episodes=1).lengths[0] <= 5  # FIRE is a step


@pytest.mark.some(1)
@pytest.mark.parametrize("vec", ["native", pytest.param("envpool", marks=pytest.mark.skipif(
    not importlib.util.find_spec("envpool"), reason="no EnvPool"))])
@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_a_game_is_trained_on_in_an_engine_by_the_same_settings(trainer, vec, name):
    pytest.importorskip("ale_py")
    ppo = trainer(name, vec=vec, model="cnn", preprocessing="atari", end_on_life_loss=True,
                  frame_stack=3, clip_rewards=True, num_envs=3, num_steps=120,
                  max_episode_steps=110, num_minibatches=4)
    rollout = ppo.collect()
    assert rollout.obs.shape == (121, 3, 3, 84, 84) and torch.is_tensor(rollout.obs)
    assert rollout.term.any() and rollout.trunc.any()  # lives, and the limit
    ended = (rollout.term | rollout.trunc)[:-1]
    invalid = ~rollout.valid  # a game can be over in the row that begins its next life
    assert invalid[1:][ended].all() and (ended | invalid[:-1])[invalid[1:]].all()
    ppo.update(rollout)
    found = ppo.evaluate(2)  # by the same engine, and a lost life does not end an episode
    assert found.lengths.tolist() == [110, 110]


def test_the_arguments_of_a_games_engine_follow_the_settings():
    pytest.importorskip("ale_py")
    for name, sticky in (("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0.0)):
        source = VectorEnvSource(name, Config(
            env_name=name, vec="native", num_envs=2, preprocessing="atari", frame_stack=2,
            max_episode_steps=50))
        kwargs = source.vector.env.spec.kwargs
        assert kwargs["repeat_action_probability"] == sticky and kwargs["stack_num"] == 2
        assert kwargs["max_num_frames_per_episode"] == 200 and not kwargs["reward_clipping"]
        source.close()
    with pytest.raises(ConfigError, match="is for the ids of ale-py, and not for CartPole-v1"):
        VectorEnvSource("CartPole-v1", Config(env_name="CartPole-v1", vec="native",
                                              preprocessing="atari"))
