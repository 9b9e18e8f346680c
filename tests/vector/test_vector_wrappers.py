"""make_vec inside Gymnasium's wrappers for vector environments, compared with SyncVectorEnv."""

import sys
import types
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from envs_for_workers import Sampled, Script, Shown
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import vector as wrappers
from vector_answers import assert_same, assert_same_steps

from fastppo import make_vec
from fastppo.errors import EnvError

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
BOTH = [0, 2]
SELDOM = [0, pytest.param(2, marks=pytest.mark.slow)]

SCRIPTS = [partial(Script, 2), partial(Script, 3, term=False)]
PARTS = Dict(a=Box(-1, 1, (2,), np.float32), b=Discrete(3))
SAMPLED = [partial(Sampled, PARTS, length=n) for n in (2, 3)]
BOXES = [partial(Sampled, Box(-1, 1, (2, 3), np.float32), length=n) for n in (2, 3)]
CARTPOLE = [partial(gym.make, "CartPole-v1")] * 3
CARS = [partial(gym.make, "MountainCarContinuous-v0", max_episode_steps=5)] * 2


class WithoutTime(VectorWrapper):
    """Takes the seconds out of the statistics of episodes."""

    def step(self, actions):
        *reply, infos = super().step(actions)
        infos.get("episode", {}).pop("t", None)
        return *reply, infos


def timeless(env):
    """RecordEpisodeStatistics of returns and lengths alone."""
    return WithoutTime(wrappers.RecordEpisodeStatistics(env))


WRAPPERS = {
    "statistics": (CARTPOLE, timeless),
    "normalised rewards": (CARTPOLE, wrappers.NormalizeReward),
    "clipped rewards": (SCRIPTS, partial(wrappers.ClipReward, min_reward=1.5, max_reward=2.5)),
    "list of infos": (SCRIPTS, wrappers.DictInfoToList),
    "rescaled actions": (CARS, partial(wrappers.RescaleAction, min_action=2, max_action=4)),
    "clipped actions": (CARS, wrappers.ClipAction),
}
# In Gymnasium these refuse SAME_STEP: they do not change the final observation of an episode.
OF_NEXT_STEP = {
    "normalised observations": (CARTPOLE, wrappers.NormalizeObservation),
    "flat observations": (SAMPLED, wrappers.FlattenObservation),
    "some observations": (SAMPLED, partial(wrappers.FilterObservation, filter_keys=["a"])),
    "rescaled observations": (BOXES, partial(wrappers.RescaleObservation, min_obs=0, max_obs=8)),
}
CASES = [(name, mode) for name in WRAPPERS for mode in (NEXT_STEP, SAME_STEP)] + [
    (name, NEXT_STEP) for name in OF_NEXT_STEP]


@pytest.mark.parametrize("workers", SELDOM)
@pytest.mark.parametrize("name, mode", CASES, ids=[f"{name}, {mode.value}" for name, mode in CASES])
def test_a_wrapper_answers_as_it_does_around_gymnasiums_own(name, mode, workers):
    makes, wrap = {**WRAPPERS, **OF_NEXT_STEP}[name]
    with make_vec(makes, num_workers=workers, autoreset_mode=mode) as env:
        theirs = wrap(SyncVectorEnv(makes, autoreset_mode=mode))
        ours = wrap(env)
        assert ours.observation_space == theirs.observation_space
        assert ours.single_action_space == theirs.single_action_space
        assert_same_steps(ours, theirs, 40)
        theirs.close()


# ---- frames ------------------------------------------------------------------------------------

SHOWN = [partial(Shown, 2), partial(Shown, 3), partial(Shown, 4)]


@pytest.mark.parametrize("workers", BOTH)
def test_frames_are_those_of_the_environments(workers):
    with make_vec(SHOWN, num_workers=workers) as ours:
        theirs = SyncVectorEnv(SHOWN)
        assert ours.render_mode == theirs.render_mode == "rgb_array"
        for env in (ours, theirs):
            env.reset()
            env.step([0, 0, 0])
        assert_same(ours.render(), theirs.render())
        assert ours.render()[2][:, 0, 0].tolist() == [0, 20, 80]


@pytest.mark.parametrize("workers", SELDOM)
def test_a_registered_environment_renders_as_its_render_mode_says(workers):
    with make_vec("CartPole-v1", 2, workers, env_kwargs={"render_mode": "rgb_array_list"}) as env:
        assert env.render_mode == "rgb_array_list" and env.render() == ([], [])
        env.reset(seed=3)
        env.step([0, 1])
        frames = env.render()
        single = gym.make("CartPole-v1", render_mode="rgb_array")
        single.reset(seed=4)
        assert [len(each) for each in frames] == [2, 2]
        assert (frames[1][0] == single.render()).all()
        single.close()


def test_frames_before_a_reset_are_an_error_that_names_an_environment():
    with make_vec("CartPole-v1", 2, 0, env_kwargs={"render_mode": "rgb_array"}) as env:
        with pytest.raises(EnvError, match="(?s)environment 0 .*'render'.*ResetNeeded"):
            env.render()
        assert env.reset()[0].shape == (2, 4)


def test_without_a_render_mode_there_are_no_frames():
    with make_vec(partial(Shown, render_mode=None), 2, 0) as env:
        assert env.render_mode is None
        with pytest.raises(ValueError, match="Render mode is None"):
            wrappers.RecordVideo(env, "never")


@pytest.fixture
def films(monkeypatch):
    """The films that RecordVideo saves, as arrays [frames height width 3]: moviepy is replaced."""
    saved = []

    class Clip:
        def __init__(self, frames, fps):
            saved.append(np.array(frames))

        def write_videofile(self, path, logger):
            """Nothing is written."""

    name = "moviepy.video.io.ImageSequenceClip"
    for module in ("moviepy", "moviepy.video", "moviepy.video.io", name):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    sys.modules[name].ImageSequenceClip = Clip
    return saved


def film(env, folder, steps=9):
    """Records every episode of environment 0."""
    env = wrappers.RecordVideo(env, str(folder), episode_trigger=lambda episode: True,
                               gc_trigger=None)
    env.reset(seed=1)
    for _ in range(steps):
        _, _, term, trunc, _ = env.step(np.zeros(env.num_envs, int))
        if env.metadata["autoreset_mode"] is DISABLED and (over := term | trunc).any():
            env.reset(options={"reset_mask": over})
    env.close()


@pytest.mark.parametrize("mode, workers", [(NEXT_STEP, 0), (NEXT_STEP, 2), (DISABLED, 0)])
def test_videos_have_the_same_frames_as_with_gymnasiums_own(films, tmp_path, mode, workers):
    film(make_vec(SHOWN, num_workers=workers, autoreset_mode=mode), tmp_path / "ours")
    ours = films.copy()
    films.clear()
    film(SyncVectorEnv(SHOWN, autoreset_mode=mode), tmp_path / "theirs")
    assert len(ours) > 2 and ours[0].shape == (3, 3, 12, 3)
    assert_same(ours, films)


def window(env, steps=3):
    """The last picture that HumanRendering shows."""
    import pygame
    env = wrappers.HumanRendering(env, screen_size=(80, 60))
    assert env.render_mode == "human"
    env.reset(seed=1)
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, int))
    picture = pygame.surfarray.array3d(env.window)
    env.close()
    return picture


@pytest.mark.parametrize("workers", SELDOM)
def test_a_window_shows_all_environments(monkeypatch, workers):
    pytest.importorskip("cv2")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    ours = window(make_vec(SHOWN, num_workers=workers))
    assert ours.shape == (80, 60, 3) and len(np.unique(ours)) > 3
    assert (ours == window(SyncVectorEnv(SHOWN))).all()
