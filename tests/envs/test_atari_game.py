"""AtariGame equals Gymnasium's AtariPreprocessing around ale-py's environment, frame by frame."""

import collections
import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing
from optional_packages import NEEDS_ALE

from fastppo.envs.atari import NOOP, SKIP, AtariOptions, game_spec, has_noop
from fastppo.envs.make import make_factory, wrapping

pytestmark = NEEDS_ALE
if importlib.util.find_spec("ale_py"):
    import ale_py
    from ale_py import roms

    from fastppo.envs.atari_game import AtariGame
    gym.register_envs(ale_py)

GAMES = [name for name in gym.registry if name.startswith("ALE/")]
FEW = ["ALE/Pong-v5", "ALE/Qbert-v5", "ALE/Backgammon-v5", "ALE/LaserGates-v5", "ALE/AirRaid-v5",
       "ALE/Atlantis2-v5"]
RARELY = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in GAMES]


@pytest.fixture(autouse=True)
def opencv():
    """Where Gymnasium's wrapper resizes a frame."""
    return pytest.importorskip("cv2")


def own(name="ALE/Pong-v5", **kwargs):
    """An AtariGame as a trainer makes it, without the wrappers around it."""
    env = make_factory(name, kwargs=kwargs, games=AtariOptions(lives=False))().unwrapped
    assert type(env) is AtariGame
    return env


def pair(name, **kwargs):
    """(ours, Gymnasium's), without sticky actions unless `kwargs` have them."""
    kwargs = {"repeat_action_probability": 0.0, **kwargs}
    env = gym.make(name, frameskip=1, obs_type="grayscale", disable_env_checker=True, **kwargs)
    return own(name, **kwargs), AtariPreprocessing(env, 30 if has_noop(env) else 0)


def assert_equal(one, two):
    """Asserts that two answers of an environment are equal: (observation, ...)."""
    assert np.array_equal(one[0], two[0]) and one[1:] == two[1:]


def assert_same_games(ours, theirs, steps, longest=150):
    """Asserts that both give the same answers for the same seeds and actions; returns the ends."""
    rng, seed, length, ends = np.random.default_rng(0), 0, 0, []
    assert_equal(ours.reset(seed=0), theirs.reset(seed=0))
    for t in range(steps):
        if t % 3 == 0:
            action = rng.integers(theirs.action_space.n)
        answer = ours.step(action)
        assert_equal(answer, theirs.step(action))
        length += 1
        if any(answer[2:4]) or length == longest:
            ends.append((answer[2:4], answer[4]["episode_frame_number"] % SKIP))
            seed, length = seed + 1, 0
            assert_equal(ours.reset(seed=seed), theirs.reset(seed=seed))
    return ends


@pytest.mark.some(2)
@pytest.mark.parametrize("name", FEW)
def test_a_game_is_seen_as_gymnasium_shows_it(name):
    ours, theirs = pair(name)
    assert (ours.observation_space, ours.action_space) == (
        theirs.observation_space, theirs.action_space)
    assert_same_games(ours, theirs, 200, longest=90)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_every_game_is_seen_as_gymnasium_shows_it_for_1000_steps(name):
    assert_same_games(*pair(name), 1000)


def test_an_id_without_frame_skip_and_other_arguments_give_the_same_game():
    assert_same_games(*pair("BreakoutNoFrameskip-v4", mode=4, full_action_space=True), 100)


@pytest.mark.some(1)
@pytest.mark.parametrize("frames", [41, 42, 43, 44])
def test_a_truncation_in_any_of_the_four_frames_is_gymnasiums(frames):
    ours, theirs = pair("ALE/Breakout-v5", max_num_frames_per_episode=frames)
    ends = assert_same_games(ours, theirs, 60)
    assert {end for end, _ in ends} == {(False, True)} and len(ends) > 4


@pytest.mark.full
def test_a_game_that_is_over_in_any_of_the_four_frames_ends_as_gymnasiums():
    ours, theirs = pair("ALE/Breakout-v5")
    ends = assert_same_games(ours, theirs, 2000, longest=10_000)
    assert {end for end, _ in ends} == {(True, False)} and len({rest for _, rest in ends}) > 1


def trace(env, seed, steps=40):
    """The answers of an episode, and the emulator's memory after each step."""
    answers = [(env.reset(seed=seed)[0].tobytes(), env.ale.getRAM().tobytes())]
    for action in np.random.default_rng(seed).integers(env.action_space.n, size=steps):
        obs, *rest = env.step(action)
        answers.append((obs.tobytes(), rest, env.ale.getRAM().tobytes()))
    return answers


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "ALE/Qbert-v5", "ALE/Tetris-v5"])
def test_an_episode_is_a_function_of_its_seed_with_sticky_actions_too(name):
    used, fresh = own(name), own(name)
    first = [trace(used, seed) for seed in range(4)]
    assert [trace(used, seed) for seed in reversed(range(4))] == first[::-1]
    assert trace(fresh, 2) == first[2]
    assert first[1][1:] != first[2][1:]


def test_a_reset_does_not_load_the_game_again(monkeypatch):
    env, loads = own(), []
    monkeypatch.setattr(roms, "get_rom_path", loads.append)
    for seed in (1, None, 2):
        env.reset(seed=seed)
    assert loads == []


class Recorded:
    """The emulator, and the actions that it got."""

    def __init__(self, ale):
        self.ale, self.actions = ale, []

    def __getattr__(self, name):
        return getattr(self.ale, name)

    def act(self, action):
        """One frame."""
        self.actions.append(action)
        return self.ale.act(action)


@pytest.mark.parametrize("chance", [0.0, 0.25])
def test_the_last_action_is_repeated_in_each_frame_with_the_chance_of_the_id(chance):
    env = own("ALE/Pong-v5", repeat_action_probability=chance)
    assert env.ale.getFloat("repeat_action_probability") == 0.0
    env.reset(seed=1)
    env.ale = Recorded(env.ale)
    chosen = [2 + step % 2 for step in range(500)]  # never the last one again
    for action in chosen:
        env.step(action)
    done = np.array([str(action) for action in env.ale.actions]).reshape(-1, SKIP)
    wanted = np.array([str(env._action_set[action]) for action in chosen])[:, None]
    # Frame k shows the action of the step before if all draws so far have repeated it.
    found, expected = (done != wanted).mean(0), chance ** np.arange(1, SKIP + 1)
    assert found == pytest.approx(expected, abs=4 * 0.5 * 500**-0.5 * (chance > 0))


def test_no_ops_are_drawn_by_the_seed_and_a_game_without_them_begins_at_once():
    env, counts = own(), collections.Counter()
    for seed in range(400):
        counts[env.reset(seed=seed)[1]["episode_frame_number"]] += 1
    assert set(counts) == set(range(1, 31))
    env = own("ALE/Backgammon-v5")
    assert len({env.reset(seed=seed)[1]["episode_frame_number"] for seed in range(9)}) == 1


def test_the_picture_after_a_reset_is_that_of_the_new_game():
    env = own("ALE/Freeway-v5", render_mode="rgb_array")  # which is reset without FIRE
    first = [(env.reset(seed=seed), env.render())[1] for seed in range(3)]
    for _ in range(30):
        env.step(1)
    moved = env.render()
    assert moved.shape == (210, 160, 3) and not np.array_equal(moved, first[1])
    env.reset(seed=1)
    assert np.array_equal(env.render(), first[1])


@pytest.mark.parametrize("kwargs", [
    {"render_mode": "human"}, {"obs_type": "rgb"}, {"frameskip": 1}, {"sound_obs": True}])
def test_other_arguments_are_left_to_gymnasiums_wrapper(kwargs):
    spec = gym.spec("ALE/Pong-v5")
    games, own = AtariOptions(lives=False), {"mode": 0, "render_mode": "rgb_array"}
    assert game_spec(spec, kwargs, games).entry_point == spec.entry_point
    assert game_spec(spec, own, games).entry_point != spec.entry_point
    assert game_spec(gym.spec("CartPole-v1"), {}, games).entry_point.endswith("CartPoleEnv")


@pytest.mark.some(1)
@pytest.mark.parametrize("skip, size, noops", [
    (1, (84, 84), 0), (2, (64, 96), 3), (5, (50, 40), 7)])
def test_other_numbers_of_frames_pixels_and_no_ops_are_gymnasiums(skip, size, noops):
    env = gym.make("ALE/Breakout-v5", frameskip=1, obs_type="grayscale",
                   repeat_action_probability=0.0)
    options = wrapping({"env_name": "ALE/Breakout-v5", "preprocessing": "atari", "noop_max": noops,
                        "frame_skip": skip, "resize": f"{size[0]}x{size[1]}"})["games"]
    ours = make_factory("ALE/Breakout-v5", kwargs={"repeat_action_probability": 0.0},
                        games=options)().unwrapped
    assert type(ours) is AtariGame
    assert_same_games(ours, AtariPreprocessing(env, noops, skip, size[::-1]), 300)
    spec = gym.spec("ALE/Breakout-v5")
    wrapped = make_factory(lambda: gym.make(spec, frameskip=1), games=options)()
    assert wrapped.observation_space.shape == size


@pytest.mark.parametrize("fire", [True, False])
def test_fire_is_pressed_after_a_reset_unless_that_is_off(fire):
    env = make_factory("ALE/Breakout-v5", games=AtariOptions(False, noops=0, fire=fire))()
    assert env.reset(seed=1)[1]["episode_frame_number"] == 4 * fire


def test_a_callable_keeps_gymnasiums_wrapper_and_plays_the_same_game():
    kwargs = {"repeat_action_probability": 0.0}

    def make():
        return gym.make("ALE/Breakout-v5", frameskip=1, obs_type="grayscale", **kwargs)

    games = AtariOptions(lives=True)
    wrapped = make_factory(make, games=games)()
    fused = make_factory("ALE/Breakout-v5", kwargs=kwargs, games=games)()
    for seed in range(7):  # seven lives, so more than a game
        one, two = wrapped.reset(seed=seed), fused.reset(seed=seed)
        over = False
        while not over:
            assert np.array_equal(one[0], two[0])
            one, two = wrapped.step(2), fused.step(2)
            over = one[2] or one[3]
            assert one[1:4] == two[1:4] and one[4]["lives"] == two[4]["lives"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_a_game_is_learnt_with_the_same_bits_for_any_number_of_workers(trainer, name):
    found = []
    for workers in (0, 1, 2):
        ppo = trainer(name, preset="auto", model="cnn", num_envs=2, num_steps=6,
                      num_minibatches=1, epochs=1, num_workers=workers)
        ppo.learn(2 * 12)
        found.append({name: x.numpy().tobytes() for name, x in ppo.policy.state_dict().items()})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", RARELY)
def test_the_emulator_is_deterministic_but_for_its_sticky_actions(name):
    """Resets may restore one state for all seeds because ale-py's seed changes nothing else."""
    env = gym.make(name, frameskip=1, obs_type="ram", repeat_action_probability=0.0)
    noop = NOOP if has_noop(env) else 1
    memories = [[env.reset(seed=seed)[0].tobytes()] +
                [env.step(noop)[0].tobytes() for _ in range(60)] for seed in (1, 2)]
    assert memories[0] == memories[1]
    env.close()
