"""Images in grey and of another size, and actions for several frames: equal to Gymnasium's."""

import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.wrappers import (
    FrameStackObservation,
    GrayscaleObservation,
    ResizeObservation,
    TimeLimit,
)
from optional_packages import NEEDS_ALE, NEEDS_BOX2D

from fastppo import load
from fastppo.config import Config
from fastppo.envs.atari import NOOP
from fastppo.envs.images import ImageOptions, ImageView
from fastppo.envs.make import FASTER, make_factory, wrapping
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, EnvError, SpaceError
from fastppo.machine import kernels
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.spaces.leaves import leaves
from fastppo.trainer.given_settings import config_for
from fastppo.trainer.rollout_arrays import check_rollout

RGB = Box(0, 255, (21, 14, 3), np.uint8)
SHAPES = [(21, 14, 3), (3, 21, 14)]


class Picture(gym.Env):
    """Random images, of 9 steps; the reward of step n is n / 10."""

    late = "has no meaning here"

    def __init__(self, space=RGB):
        self.observation_space, self.action_space = space, Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.actions = 0, []
        return self._image(), {"steps": 0}

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        return self._image(), self.steps / 10, self.steps == 9, False, {"steps": self.steps}

    def _image(self):
        space = self.observation_space
        if space.dtype == np.uint8:
            return self.np_random.integers(0, 256, space.shape, np.uint8)
        return self.np_random.uniform(space.low, space.high).astype(space.dtype)


def made(env, **settings):
    """The environment that a trainer steps with these settings."""
    return EnvSource(env, Config(num_envs=1, env_name="Picture", **settings)).factories[0]()


def grey_by_definition(image, axis):
    """Gymnasium's formula, in float64."""
    return np.sum(np.moveaxis(image, axis, -1) * np.array([0.2125, 0.7154, 0.0721]), axis=-1)


def means_by_definition(image, size, axes):
    """The exact means over the area of each new pixel, of two axes of an image."""
    image = image.astype(float)
    for axis, new in zip(axes, size):
        parts = np.repeat(image, new, axis).swapaxes(0, axis)  # of which each new pixel has n
        image = parts.reshape(new, -1, *parts.shape[1:]).mean(1).swapaxes(0, axis)
    return image


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, high", [(np.uint8, 255), (np.float32, 1), (np.float64, 7)])
def test_an_image_is_grey_by_gymnasiums_formula(shape, dtype, high):
    space, axis = Box(0, high, shape, dtype), shape.index(3)
    view, image = ImageView(space, ImageOptions(grayscale=True)), Picture(space).reset(seed=1)[0]
    exact = grey_by_definition(image, axis)
    if dtype is np.uint8:
        assert view.space == Box(0, 255, (21, 14), np.uint8)
        assert np.array_equal(view(image), exact.astype(np.uint8))
    else:  # with a channel, because floats with two axes are no image to a network
        assert view.space == Box(0, high, (21, 14, 1) if axis == 2 else (1, 21, 14), np.float32)
        assert np.allclose(view(image), np.expand_dims(exact, axis), atol=1e-6)
    assert view.space.contains(view(image))


@pytest.mark.parametrize("shape, axes, dtype", [
    ((21, 14), (0, 1), np.uint8), *((shape, axes, dtype) for dtype in (np.uint8, np.float32)
                                    for shape, axes in ((SHAPES[0], (0, 1)), (SHAPES[1], (1, 2)),
                                                        ((1, 21, 14), (1, 2))))])
@pytest.mark.parametrize("size", [8, "10x6", "42x14"])
def test_an_image_is_resized_to_the_means_over_its_areas(shape, axes, dtype, size):
    space = Box(0, 255, shape, dtype)
    view, image = ImageView(space, ImageOptions(resize=size)), Picture(space).reset(seed=2)[0]
    height, width = (8, 8) if size == 8 else map(int, size.split("x"))
    exact = means_by_definition(image, (height, width), axes)
    assert view.space.shape == exact.shape and view.space.dtype == dtype
    assert np.abs(view(image) - exact).max() <= (0.5001 if dtype is np.uint8 else 1e-4)


def test_an_observation_that_is_not_of_the_space_is_said_to_be_none():
    view = ImageView(RGB, ImageOptions(resize=8))
    with pytest.raises(ValueError, match=r"observation has shape \(14, 21, 3\), its space"):
        view(np.zeros((14, 21, 3), np.uint8))
    with pytest.raises(ValueError, match="int64, which uint8 does not keep"):
        view(np.zeros((21, 14, 3), np.int64))


def test_an_action_is_repeated_its_rewards_are_added_up_and_the_last_frame_is_seen():
    env, plain = made(Picture, frame_skip=4), Picture()
    env.reset(seed=5)
    plain.reset(seed=5)
    for action, frames in ((1, 4), (0, 4), (1, 1)):  # the episode ends in the first frame of four
        answers = [plain.step(action) for _ in range(frames)]
        obs, rew, term, trunc, info = env.step(action)
        assert np.array_equal(obs, answers[-1][0])
        assert (rew, term, trunc, info) == (sum(one[1] for one in answers), *answers[-1][2:])
    assert term and env.unwrapped.actions == [1] * 4 + [0] * 4 + [1]


def test_a_limit_of_the_settings_counts_actions_and_that_of_the_environment_frames():
    gym.register("Picture-v0", Picture, max_episode_steps=7)
    try:
        for env, limit, lengths in (("Picture-v0", None, 2), ("Picture-v0", 2, 2),
                                    ("Picture-v0", 5, 3), (Picture, 1, 1), (Picture, None, 3)):
            env = made(env, frame_skip=4, max_episode_steps=limit)
            env.reset(seed=1)
            ends = [any(env.step(0)[2:4]) for _ in range(lengths)]
            assert ends == [False] * (lengths - 1) + [True]
    finally:
        del gym.registry["Picture-v0"]


def test_without_a_setting_nothing_is_wrapped():
    assert type(made(Picture)) is Picture


def chain(env, skip, limit=None):
    """The same by Gymnasium's wrappers: grey, 64 x 64, two frames."""
    class Skip(gym.Wrapper):
        def step(self, action):
            total = 0.0
            for _ in range(skip):
                obs, rew, term, trunc, info = self.env.step(action)
                total += float(rew)
                if term or trunc:
                    break
            return obs, total, term, trunc, info
    env = ResizeObservation(GrayscaleObservation(Skip(env)), (64, 64))
    return FrameStackObservation(TimeLimit(env, limit) if limit else env, 2)


def car(**kwargs):
    return gym.make("CarRacing-v3", disable_env_checker=True, **kwargs)


@pytest.mark.some(1)
@NEEDS_BOX2D
@pytest.mark.parametrize("skip, frames", [(1, 60), (4, 30)])  # 30 frames end in the second of four
def test_car_racing_is_what_gymnasiums_wrappers_give(skip, frames):
    pytest.importorskip("cv2")
    factory = make_factory("CarRacing-v3", kwargs={"max_episode_steps": frames},
                           stack=2, images=ImageOptions(skip, True, 64))
    ours, theirs = factory(), chain(car(max_episode_steps=frames), skip)
    assert ours.observation_space == theirs.observation_space
    assert f"{type(ours.unwrapped).__module__}:CarRacing" in FASTER.values()
    rng = np.random.default_rng(0)
    for seed in (1, 2):
        obs, wanted = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        over = False
        while not over:
            assert np.abs(obs.astype(int) - wanted).max() <= 1  # 0 was measured
            action = rng.uniform((-1, 0.2, 0), (1, 1, 0.3)).astype(np.float32)
            obs, *rest = ours.step(action)
            wanted, *others = theirs.step(action)
            assert rest == others
            over = rest[1] or rest[2]
    assert rest[1:3] == [False, True]


@pytest.mark.some(1)
@NEEDS_BOX2D
@pytest.mark.parametrize("skip", [1, 3])
def test_every_colour_of_car_racing_is_drawn_as_gymnasium_does_to_the_end_of_the_field(skip):
    ours = make_factory("CarRacing-v3", images=ImageOptions(frame_skip=skip))()
    theirs = car()
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    action = np.array([0.1, 1, 0], np.float32)
    for step in range(70):
        if step == 69:  # it leaves the field in the first of the frames
            for env in (ours, theirs):
                env.unwrapped.car.hull.position = 340.0, 0.0
        obs, rew, *rest = ours.step(action)
        answers = [theirs.step(action) for _ in range(1 if step == 69 else skip)]
        assert np.array_equal(obs, answers[-1][0]) and rest == [*answers[-1][2:]]
        assert rew == sum(one[1] for one in answers)
    assert rest == [True, False, {"lap_finished": False}] and rew == -100


@NEEDS_BOX2D
def test_a_frame_of_car_racing_that_is_not_seen_is_not_drawn(monkeypatch):
    env = make_factory("CarRacing-v3", images=ImageOptions(frame_skip=4))()
    drawn, render = [], env.unwrapped._render_road
    monkeypatch.setattr(env.unwrapped, "_render_road", lambda *args: drawn.append(render(*args)))
    env.reset(seed=1)
    env.step(np.zeros(3, np.float32))
    assert len(drawn) == 2 and env.unwrapped.state.shape == (96, 96, 3)


@NEEDS_BOX2D
def test_car_racing_can_also_be_rendered_for_a_video():
    env = make_factory("CarRacing-v3", kwargs={"render_mode": "rgb_array"},
                       images=ImageOptions(frame_skip=2))()
    other = car(render_mode="rgb_array")
    for one in (env, other):
        one.reset(seed=1)
    env.step(np.zeros(3, np.float32))
    for _ in range(2):
        other.step(np.zeros(3, np.float32))
    assert np.array_equal(env.render(), other.render()) and env.render().shape == (400, 600, 3)


@NEEDS_BOX2D
def test_car_racing_has_a_preset_and_is_trained_with_convolutions(trainer):
    assert {"frame_skip": 2, "grayscale": True, "resize": 64, "frame_stack": 2}.items() \
        <= vars(config_for("CarRacing-v3", {})).items()
    for kwargs in ({}, {"continuous": False}):
        ppo = trainer("CarRacing-v3", preset="auto", num_envs=2, num_steps=4, epochs=1,
                      num_minibatches=1, max_episode_steps=3, env_kwargs=kwargs)
        ppo.learn(16)
        assert (ppo.config.model, ppo.config.learner) == (
            "cnn", "kernel" if kernels.COMPILED else "torch")
        assert ppo.source.obs_space == Box(0, 255, (2, 64, 64), np.uint8)
        assert ppo.evaluate(2).lengths.tolist() == [3, 3]


def test_the_same_bits_come_of_any_number_of_workers(trainer):
    found = []
    for workers in (0, 2):
        ppo = trainer(lambda: Picture(Box(0, 255, (50, 60, 3), np.uint8)), num_workers=workers,
                      frame_skip=2, grayscale=True, resize="36x40", frame_stack=3)
        found.append([array.numpy().tobytes() for array in ppo.collect()])
        assert ppo.source.obs_space.shape == (3, 36, 40)
    assert found[0] == found[1]


def test_a_process_that_preprocesses_images_imports_neither_torch_nor_opencv():
    code = ("import sys; from fastppo.envs.make import make_factory, wrapping;"
            "env = make_factory('scripted_game:Quick',"
            " **wrapping({'resize': 8, 'frame_skip': 2, 'frame_stack': 2}))();"
            "env.reset(seed=1); assert env.step(0)[0].shape == (2, 8, 8);"
            "print([m for m in ('torch', 'numba', 'cv2') if m in sys.modules])")
    ran = subprocess.run([sys.executable, "-c", code], cwd="tests", capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr


PARTS = Dict([("screen", Box(0, 255, (50, 40, 3), np.uint8)), ("numbers", Box(-9, 9, (2,))),
              ("depth", Box(0, 255, (50, 40), np.uint8)),
              ("extra", Tuple([Box(0, 1, (3, 50, 40)), Discrete(4, start=1)]))])


class Parts(Picture):
    """A game's screen, its depths and its variables, and a Tuple of more, drawn at random."""

    def __init__(self, space=PARTS):
        super().__init__(space)

    def _image(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class OneOf(gym.ObservationWrapper):
    """One part of the observations."""

    def __init__(self, env, *path):
        super().__init__(env)
        self.leaf = next(leaf for leaf in leaves(env.observation_space) if leaf.path == path)
        self.observation_space = self.leaf.space

    def observation(self, obs):
        return self.leaf.of(obs)


@pytest.mark.parametrize("path, grey", [(("screen",), True), (("depth",), False)])
def test_an_image_inside_a_dict_is_what_gymnasiums_wrappers_make_of_it_alone(path, grey):
    pytest.importorskip("cv2")
    ours = OneOf(made(Parts, grayscale=True, resize=20, frame_stack=2), *path)
    alone = OneOf(Parts(), *path)
    alone = ResizeObservation(GrayscaleObservation(alone) if grey else alone, (20, 20))
    theirs = FrameStackObservation(alone, 2)
    assert ours.observation_space == theirs.observation_space
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for _ in range(4):
        assert np.array_equal(ours.step(0)[0], theirs.step(0)[0])


def test_parts_that_are_no_images_stay_as_they_are_and_are_stacked_as_gymnasium_stacks_them():
    env, plain = made(Parts, grayscale=True, resize="20x10"), Parts()
    stacked, theirs = made(Parts, frame_stack=3), FrameStackObservation(Parts(), 3)
    obs, before = env.reset(seed=1)[0], plain.reset(seed=1)[0]
    assert [*obs] == [*env.observation_space] == [*PARTS] and env.observation_space.contains(obs)
    assert obs["numbers"].tobytes() == before["numbers"].tobytes()
    assert obs["extra"][1] == before["extra"][1] and obs["extra"][0].shape == (1, 20, 10)
    assert env.observation_space["numbers"] == PARTS["numbers"]
    assert env.observation_space["extra"][1] == PARTS["extra"][1]
    grey = made(Parts, grayscale=True)
    assert grey.observation_space["depth"] == PARTS["depth"]
    assert np.array_equal(grey.reset(seed=1)[0]["depth"], before["depth"])
    assert stacked.observation_space == theirs.observation_space
    assert same_structure(stacked.reset(seed=1)[0], theirs.reset(seed=1)[0])
    assert same_structure(stacked.step(1)[0], theirs.step(1)[0])


def same_structure(ours, theirs):
    """True for the same arrays in the same structure of dicts and tuples."""
    if isinstance(ours, dict):
        return [*ours] == [*theirs] and all(same_structure(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, tuple):
        return all(map(same_structure, ours, theirs))
    return np.array_equal(ours, theirs)


def test_images_inside_a_dict_are_trained_on_saved_and_evaluated_in_the_same_space(
        trainer, tmp_path):
    found, settings = [], dict(frame_skip=2, grayscale=True, resize=36, frame_stack=2, seed=1)
    for workers in (0, 1, 3):
        ppo = trainer(Parts, num_envs=3, num_workers=workers, **settings)
        found.append([part.tobytes() for _ in range(2)
                      for part in as_arrays(ppo.collect(), ppo.policy.observer.layout)])
        assert ppo.config.model == "cnn"
    assert found[0] == found[1] == found[2]
    ppo.learn(64)
    policy = load(ppo.save(tmp_path / "model.safetensors"))
    env = make_factory(Parts, **wrapping(vars(policy.config)))()
    assert policy.obs_space == env.observation_space == ppo.source.obs_space
    assert env.action_space.contains(int(policy.predict(env.reset(seed=1)[0])))
    assert ppo.evaluate(2).lengths.tolist() == [5, 5]  # nine frames


def as_arrays(rollout, layout):
    """The arrays of a rollout."""
    return [*layout.split(rollout.obs), *(x.numpy() for x in rollout[1:])]


@pytest.mark.parametrize("space, settings, said", [
    (Box(0, 255, (128,), np.uint8), {"resize": 84}, r"resize needs an image .*\(128,\).*resize"),
    (Box(-np.inf, np.inf, (9, 9, 3)), {"resize": 84}, "resize needs"),
    (Box(0, 255, (0, 40, 40), np.uint8), {"resize": 84}, "are empty"),
    (Dict(image=Box(0, 255, (21, 14), np.uint8), own=Box(0, 1, (3,))), {"grayscale": True},
     "grayscale needs.*leave grayscale out"),
    (Dict(own=Box(0, 1, (3,)), some=Discrete(3)), {"resize": 84}, "resize needs.*Discrete"),
    (Box(0, 255, (21, 14), np.uint8), {"grayscale": True}, "red, green and blue"),
    (Box(0, 255, (21, 14, 4), np.uint8), {"grayscale": True, "resize": 9}, "red, green and blue"),
    (RGB, {"resize": "84*84"}, "resize is '84.84', but must be pixels"),
    (RGB, {"resize": "0x84"}, "resize is"), (RGB, {"resize": 10_000}, "from 1 to 9,999"),
    (RGB, {"frame_skip": 0}, "frame_skip is 0"), (RGB, {"grayscale": 2}, "grayscale is 2"),
    (RGB, {"resize": 84, "preprocessing": "atari"}, "preprocessing=atari is for games of the"),
    (RGB, {"fire_on_reset": False}, "is for preprocessing=atari\n  fix: fire_on_reset=True$"),
    (RGB, {"noop_max": -1}, "noop_max is -1, but must be a whole number from 0 to 1000"),
    (RGB, {"grayscale": True, "resize": 9, "vec": "native"}, r"not from .*fix: vec=.workers.$"),
    (RGB, {"end_on_life_loss": True}, "fix: end_on_life_loss=False$")])
def test_what_cannot_be_preprocessed_is_refused_with_a_fix(trainer, space, settings, said):
    with pytest.raises((ConfigError, SpaceError), match=f"(?s){said}") as caught:
        trainer(lambda: Picture(space), **settings)
    assert "\n  fix: " in str(caught.value)


def test_images_that_are_too_small_for_a_network_can_be_made_larger(trainer):
    with pytest.raises(ConfigError, match=r"36x36 or larger, and the largest here is 21x14\n"
                       "  fix: model=\"impala\""):
        trainer(Picture, model="cnn")
    assert trainer(Picture, model="cnn", resize=36).config.model == "cnn"


def test_an_mlp_for_images_that_are_too_small_for_a_cnn_is_a_warning(trainer, caplog):
    assert trainer(Picture).config.model == "mlp"
    assert caplog.text.rstrip().endswith("images of 36x36 or larger, and the largest here is 21x14"
                                         "\n  fix: model=impala")


def test_two_axes_of_floats_are_an_image_only_if_they_are_stacked(trainer, caplog):
    plane = lambda: Picture(Box(0, 1.0, (36, 36), np.float32))  # noqa: E731
    assert trainer(plane).config.model == "mlp"
    assert trainer(plane, frame_stack=4).config.model == "cnn" and not caplog.text


def test_an_mlp_that_was_asked_for_on_images_is_no_warning(trainer, caplog):
    space = Box(0, 255, (40, 40, 3), np.uint8)
    assert trainer(lambda: Picture(space), model="mlp", hidden_sizes=(64, 64)).config.model == "mlp"
    assert trainer(lambda: Picture(space)).config.model == "cnn"
    trainer(Picture, model="mlp")  # too small for another network
    assert not caplog.text


@NEEDS_ALE
@pytest.mark.parametrize("settings, fix", [
    ({"frame_skip": 4, "preset": "none"}, "leave --frame_skip out"),
    ({"preset": "none", "end_on_life_loss": True}, "--end_on_life_loss=False"),
    ({"preprocessing": "none"}, "--end_on_life_loss=False"),
    ({"preset": "none", "noop_max": 3}, "--noop_max=30")])
def test_a_game_that_skips_frames_already_is_refused(trainer, settings, fix):
    with pytest.raises(ConfigError) as caught:
        trainer("ALE/Pong-v5", **{"preset": "auto", **settings})
    assert caught.value.shell.endswith(f"fix: {fix}")


@NEEDS_ALE
@pytest.mark.parametrize("kwargs, what", [
    ({"repeat_action_probability": 2}, "repeat_action_probability is 2, not from 0 to 1"),
    ({"repeat_action_probability": "x"}, "'x'}"),
    ({"mode": 99}, "mode"), ({"frameskip": 0}, "Invalid frameskip of 0")])
def test_arguments_that_a_game_refuses_are_an_error_of_the_setting(trainer, kwargs, what):
    preset = "none" if "frameskip" in kwargs else "auto"
    with pytest.raises(ConfigError, match=rf"ALE/Pong-v5 cannot be made with .*{what}") as caught:
        trainer("ALE/Pong-v5", env_kwargs=kwargs, preset=preset)
    assert caught.value.shell.endswith("leave --env_kwargs out")


def wrapped_pong():
    """A game with Gymnasium's preprocessing."""
    import ale_py  # noqa: F401  registers its ids
    return gym.wrappers.AtariPreprocessing(gym.make("PongNoFrameskip-v4"))


@pytest.mark.some(1)
@NEEDS_ALE
@pytest.mark.parametrize("settings, what", [
    ({"frame_skip": 4}, "but wrapped_pong skips 4 frames itself\n"
     "  fix: leave --frame_skip out"),
    ({"preset": "atari"}, "but wrapped_pong skips 4 frames itself\n"
     "  fix: make it with a frameskip of 1")])
def test_a_game_with_preprocessing_of_its_own_is_not_preprocessed_again(trainer, settings, what):
    pytest.importorskip("cv2")
    with pytest.raises(ConfigError) as caught:
        trainer(wrapped_pong, **settings)
    assert caught.value.shell.endswith(what)
    trainer(wrapped_pong, preset="atari", preprocessing="none", end_on_life_loss=False)


@NEEDS_ALE
def test_a_native_game_is_not_sent_to_workers_where_its_frame_skip_is_refused(trainer):
    with pytest.raises(ConfigError) as caught:
        trainer("ALE/Pong-v5", vec="native", frame_skip=4)
    assert caught.value.shell.endswith("fix: leave --frame_skip out")
    assert trainer("ALE/Pong-v5", vec="native").config.model == "cnn"


@NEEDS_ALE
def test_a_native_game_is_evaluated_with_the_observations_of_training(trainer):
    ppo = trainer("ALE/Pong-v5", vec="native", preset="none",
                  env_kwargs={"max_num_frames_per_episode": 20})
    assert ppo.source.obs_space.shape == (4, 84, 84)  # Gymnasium's has (210, 160, 3)
    assert ppo.evaluate(1).lengths[0] > 0


@pytest.mark.full
@NEEDS_ALE
def test_the_fix_for_observations_of_the_emulators_memory_trains(trainer):
    ram = {"obs_type": "ram"}
    with pytest.raises(ConfigError) as caught:
        trainer("ALE/Pong-v5", env_kwargs=ram, preset="auto")
    assert caught.value.shell.endswith("fix: give such a game; or --preprocessing=none")
    assert trainer("ALE/Pong-v5", env_kwargs=ram, preset="none").collect().obs.shape[2:] == (128,)


class Fractions(Picture):
    """Returns other numbers than its space declares."""

    def reset(self, **kwargs):
        """An image of float64."""
        obs, info = super().reset(**kwargs)
        return obs / 255.0, info


def test_stacked_observations_of_another_dtype_are_refused_without_a_traceback(trainer):
    with pytest.raises(EnvError, match="Cannot cast array data") as caught:
        trainer(Fractions, frame_stack=4).collect()
    assert "Traceback" not in str(caught.value)
    assert str(caught.value).endswith("as its spaces declare")


@NEEDS_ALE
def test_a_random_number_of_frames_may_be_a_list_as_a_command_gives_it(trainer):
    ppo = trainer("ALE/Pong-v5", env_kwargs={"frameskip": [2, 5]}, preset="none", resize=40)
    assert ppo.collect().obs.shape[2:] == (40, 40, 3)


@NEEDS_ALE
def test_an_engine_that_preprocesses_games_has_the_numbers_that_are_set(trainer):
    ppo = trainer("ALE/Breakout-v5", preset="auto", vec="native", resize="64x96", frame_skip=2,
                  noop_max=0, fire_on_reset=False, num_envs=2, max_episode_steps=9)
    assert ppo.policy.obs_space.shape == (4, 64, 96)
    vector = ppo.source.vector
    assert vector.reset(seed=1)[0].shape == (2, 4, 64, 96) and vector.first == NOOP
    truncated = [vector.step(np.zeros(2, int))[3].all() for _ in range(9)]
    assert truncated == [False] * 8 + [True]  # after 18 frames


@NEEDS_ALE
def test_a_game_without_its_own_preprocessing_can_have_ours():
    env = make_factory("ALE/Pong-v5", kwargs={"frameskip": 1},
                       images=ImageOptions(4, True, 84))()
    obs, _ = env.reset(seed=1)
    assert obs.shape == (84, 84) and env.step(0)[4]["episode_frame_number"] == 4


@pytest.mark.parametrize("stack", [1, 3])
def test_images_are_not_looked_through_for_bounds(trainer, monkeypatch, stack):
    ppo = trainer(partial(Chance, Box(0, 255, (36, 36), np.uint8), Discrete(3)), model="cnn",
                  frame_stack=stack)
    rollout, images = ppo.collect(), []
    for kind in (torch.Tensor, FrameStacks):
        monkeypatch.setattr(kind, "cpu", images.append, raising=False)
    check_rollout(ppo, rollout)
    assert images == []
