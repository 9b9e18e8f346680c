"""Videos of a policy: their frames are read back; and nothing is left of those that fail."""

import random
import re
import subprocess

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Counting, Fenced
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from optional_packages import NEEDS_BOX2D
from PIL import Image

from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError, EnvError
from fastppo.video import frames, recorder
from fastppo.video.frames import with_render_mode
from fastppo.video.recorder import record_video

MIXED = Dict(a=Box(-np.inf, np.inf, (3,), np.float32), b=Discrete(4),
             camera=Box(0, 255, (16, 16, 3), np.uint8))
GREYS = 7  # the frame of step n is of the grey 7 n


class Shown(gym.Wrapper):
    """An environment that renders its step as a grey; `bend` changes the frames of step 2."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    closed = 0

    def __init__(self, env=None, render_mode=None, size=(90, 121), bend=lambda frame: frame):
        super().__init__(Counting() if env is None else env)
        self.mode, self.size, self.bend = render_mode, size, bend
        type(self).closed = 0

    @property
    def render_mode(self):
        """The mode that its maker asked for."""
        return self.mode

    def reset(self, **kwargs):
        """From step 0."""
        self.now = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        """One more."""
        self.now += 1
        return self.env.step(action)

    def render(self):
        """A grey frame."""
        frame = np.full((*self.size, 3), GREYS * self.now, np.uint8)
        return self.bend(frame) if self.now == 2 else frame

    def close(self):
        """Counted."""
        type(self).closed += 1
        super().close()


def shown(env=lambda: None, **settings):
    """The factory of a Shown environment."""
    def make(render_mode=None):
        return Shown(env(), render_mode, **settings)
    return make_factory(make)


def greys(path):
    """The mean brightness of each frame of a video, without its lowest fifth; and its size."""
    if path.suffix == ".mp4":
        told, data = decoded(path)
        size = tuple(map(int, re.search(r", (\d+)x(\d+)", told).groups()))
        arrays = np.frombuffer(data, np.uint8).reshape(-1, size[1], size[0], 3)
        pictures = [Image.fromarray(one) for one in arrays]
    else:
        with Image.open(path) as image:
            pictures, size = [], image.size
            for i in range(image.n_frames):
                image.seek(i)
                pictures.append(image.convert("RGB"))
    return [np.asarray(one)[:one.height * 4 // 5, :80].mean() for one in pictures], size


def decoded(path):
    """What ffmpeg says of a file, and its frames as bytes."""
    program = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    ran = subprocess.run([program, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                         capture_output=True, check=True)
    return ran.stderr.decode(), ran.stdout


@pytest.fixture
def policy(trainer):
    """A policy for Counting, whose episodes have five steps."""
    return trainer(Counting).learn(32).policy


# the file

@pytest.mark.parametrize("ending", ["mp4", "webp"])
def test_a_video_has_a_frame_for_every_observation(policy, tmp_path, ending):
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    path, seen = tmp_path / f"a.{ending}", []
    assert record_video(policy, shown(), path, episodes=2, report=seen.append) == path
    found, size = greys(path)
    assert found == pytest.approx([GREYS * n for n in [*range(6), *range(6)]], abs=2.5)
    assert size == (484, 382)  # four times as large, and a caption; even
    assert [moment.step for moment in seen] == [*range(6), *range(6)]
    assert [moment.total for moment in seen] == [float(n) for n in [*range(6), *range(6)]]
    assert [moment.over for moment in seen] == ([False] * 5 + [True]) * 2
    assert [path.name for path in tmp_path.iterdir()] == [path.name] and Shown.closed == 1


def test_a_png_is_the_last_frame(policy, tmp_path):
    record_video(policy, shown(), tmp_path / "a.png", episodes=2)
    with Image.open(tmp_path / "a.png") as image:
        assert (image.format, image.size) == ("PNG", (484, 382))
        assert image.getpixel((200, 100)) == (5 * GREYS,) * 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_mp4_has_the_environments_rate_or_the_one_that_is_asked_for(policy, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    for fps, wanted in ((None, "20 fps"), (7.5, "7.50 fps")):
        record_video(policy, shown(), tmp_path / "a.mp4", fps=fps)
        told = decoded(tmp_path / "a.mp4")[0].partition("Output")[0]
        assert f" {wanted}" in told and "h264" in told
        assert "yuv420p(" in told  # which every player shows


def test_without_a_rate_it_is_30_frames_a_second(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(Shown, "metadata", {"render_modes": ["rgb_array"]})
    record_video(policy, shown(), tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as image:
        image.load()
        assert image.info["duration"] == pytest.approx(1000 / 30, abs=1)


def test_a_video_ends_after_the_most_frames(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FRAME_LIMIT", 8)
    record_video(policy, shown(), tmp_path / "a.webp", episodes=100)
    assert len(greys(tmp_path / "a.webp")[0]) == 8


def test_the_same_video_is_made_again_and_no_shared_generator_is_used(policy, tmp_path):
    def states():
        return (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2],
                torch.get_rng_state().tolist())
    factory, before = make_factory("CartPole-v1", 20), states()
    for name in "ab":
        record_video(policy_for_cartpole(), factory, tmp_path / f"{name}.webp", 3,
                     deterministic=False)
    assert (tmp_path / "a.webp").read_bytes() == (tmp_path / "b.webp").read_bytes()
    assert states() == before


def policy_for_cartpole():
    """A policy without training."""
    from fastppo import PPO
    with PPO("CartPole-v1", num_envs=1, num_steps=8, num_workers=0, num_minibatches=1,
             preset="none", seed=1) as ppo:
        return ppo.policy


# environments of all kinds

@pytest.mark.parametrize("env, settings, size", [
    (lambda: Chance(MIXED, Dict(go=Discrete(3), aim=Box(-1, 1, (2,)))), {}, None),
    (lambda: Chance(MIXED), dict(frame_stack=2, model="impala"), None),
    (lambda: Fenced("info", MultiDiscrete([3, 4])), {}, None),
    (lambda: Fenced("method"), dict(rnn="lstm"), None),
    (lambda: Chance(act_space=Box(-1, 1, (2,))), dict(distribution="beta", rnn="gru"), None)],
    ids=["Dict", "stacked images", "mask in the info", "mask and memory", "Beta and memory"])
def test_any_policy_can_be_shown_with_what_its_network_sees(trainer, tmp_path, env, settings,
                                                           size):
    make = shown(env).constructor
    ppo = trainer(make, **settings).learn(32)
    factory = ppo.source.evaluation_factories()[0]
    found, count = ppo.evaluate(2), []
    record_video(ppo.policy, factory, tmp_path / "a.webp", 1, 2, view="both",
                 report=lambda moment: count.append(moment) if moment.over else None)
    assert [moment.total for moment in count] == pytest.approx(found.returns.tolist())
    assert [moment.step for moment in count] == found.lengths.tolist()
    brightness, size = greys(tmp_path / "a.webp")
    assert len(brightness) == found.lengths.sum() + 2 and size == (484 + 300, 382)


def test_atari_shows_its_colours_beside_the_stacked_frames(trainer, tmp_path):
    pytest.importorskip("ale_py")
    ppo = trainer("PongNoFrameskip-v4", preprocessing="atari", frame_stack=4, model="cnn",
                  num_envs=1, max_episode_steps=4, norm_obs=False)
    factory = ppo.source.evaluation_factories()[0]
    record_video(ppo.policy, factory, tmp_path / "a.webp", 1, view="both", caption=False)
    with Image.open(tmp_path / "a.webp") as image:
        assert image.n_frames > 1 and image.size == (480 + 472, 630)  # equal frames are joined
        field = np.asarray(image.convert("RGB"))[300, 200].astype(int)
    assert field == pytest.approx([144, 72, 17], abs=12)  # brown, as the game


@pytest.mark.parametrize("view, caption, size", [
    ("env", True, (484, 382)), ("env", False, (484, 360)), ("network", True, (480, 442)),
    ("both", False, (784, 360))])
def test_the_picture_is_composed_as_it_is_asked_for(policy, tmp_path, view, caption, size):
    record_video(policy, shown(), tmp_path / "a.webp", view=view, caption=caption)
    assert greys(tmp_path / "a.webp")[1] == size


@pytest.mark.parametrize("size, wanted", [
    ((600, 400), (600, 400)), ((160, 210), (480, 630)), ((8, 8), (344, 344)),
    ((3, 600), (6, 1200)), ((2560, 1440), (1280, 720)), ((5000, 2), (1280, 1))])
def test_small_frames_are_shown_larger_and_large_ones_smaller(size, wanted):
    assert frames.shown_size(*size) == wanted


def test_a_frame_of_another_size_is_fitted_to_the_first(policy, tmp_path):
    record_video(policy, shown(bend=lambda frame: frame[:40, :50]), tmp_path / "a.webp")
    assert greys(tmp_path / "a.webp")[0] == pytest.approx([GREYS * n for n in range(6)], abs=2.5)


def test_the_caption_fits_however_long_a_name_is():
    moment = recorder.WatchedMoment(11, 99_999, -123456.7, True)
    for name in ("CartPole-v1", "a_long_module.of_a_package:" + "Environment" * 9):
        image = Image.new("RGB", (344, 60))
        frames.draw_caption(image, name, moment)
        strip = np.asarray(image)[-frames.STRIP:].max((0, 2))
        empty = "".join("x" if lit else " " for lit in strip > 60).strip()
        assert strip[:frames.MARGIN].max() < 60 and strip[-4:].max() < 60
        assert " " * frames.MARGIN in empty  # between the name and the numbers
        assert np.asarray(image)[:-frames.STRIP].max() == 0


# faults

@pytest.mark.parametrize("bend, match", [
    (lambda frame: None, "the frame is object \\[\\], not uint8"),
    (lambda frame: frame[:, :, 0], r"the frame is uint8 \[90, 121\]"),
    (lambda frame: frame / 255, "the frame is float64"),
    (lambda frame: 1 / 0, "ZeroDivisionError")])
@pytest.mark.parametrize("ending", ["mp4", "webp"])
def test_an_environment_that_fails_to_render_is_named_and_closed(policy, tmp_path, bend, match,
                                                                ending):
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    (tmp_path / f"a.{ending}").write_text("of before")
    with pytest.raises(EnvError, match=rf"step 1\) failed in render\(\)(.|\n)*{match}"):
        record_video(policy, shown(bend=bend), tmp_path / f"a.{ending}")
    assert Shown.closed == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (f"a.{ending}", "of before")]


@pytest.mark.parametrize("ending", ["mp4", "webp"])
def test_an_interrupt_closes_the_environment_and_leaves_no_file(policy, tmp_path, ending):
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")

    def report(moment):
        if moment.step == 3:
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        record_video(policy, shown(), tmp_path / f"a.{ending}", report=report)
    assert Shown.closed == 1 and list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_an_error_with_the_file(policy, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ConfigError, match="cannot write .*a.webp: No space left on device"):
        record_video(policy, shown(), tmp_path / "a.webp")
    assert list(tmp_path.iterdir()) == [] and Shown.closed == 1


def test_an_mp4_with_fewer_frames_than_were_sent_is_no_video(policy, tmp_path, monkeypatch):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(imageio_ffmpeg, "count_frames_and_secs", lambda path: (3, 0.1))
    with pytest.raises(ConfigError, match="has not written all frames"):
        record_video(policy, shown(), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


class Blind(Counting):
    """It has no render mode."""


class Bare(Counting):
    """It has no metadata at all."""

    metadata = None


class Silent(Counting):
    """It says that it renders, and takes no render_mode."""

    metadata = {"render_modes": ["rgb_array"]}


@pytest.mark.parametrize("make, match", [
    (Blind, "render modes in its metadata: none"), (lambda: Blind(), "metadata: none"),
    (Bare, "metadata: none"),
    (Silent, "not made with the render mode rgb_array.*metadata: rgb_array"),
    (lambda render_mode: Blind(), "not made with the render mode rgb_array")],
    ids=["none", "a function", "no metadata", "no argument", "an argument that is ignored"])
def test_an_environment_without_frames_is_refused_and_told_what_it_needs(policy, tmp_path, make,
                                                                        match):
    with pytest.raises(ConfigError, match=match) as error:
        record_video(policy, make_factory(make), tmp_path / "a.webp")
    assert 'metadata = {"render_modes": ["rgb_array"]}' in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_networks_view_needs_no_frames(policy, tmp_path):
    record_video(policy, make_factory(Blind), tmp_path / "a.webp", view="network")
    assert greys(tmp_path / "a.webp")[1] == (480, 442)


def test_a_function_may_have_chosen_the_render_mode_itself(policy, tmp_path):
    record_video(policy, make_factory(lambda: Shown(render_mode="rgb_array")),
                 tmp_path / "a.webp")
    assert len(greys(tmp_path / "a.webp")[0]) == 6


@NEEDS_BOX2D
def test_a_factory_keeps_its_other_arguments():
    factory = make_factory("LunarLander-v3", kwargs={"gravity": -9.0, "render_mode": "human"})
    assert with_render_mode(factory, "rgb_array").kwargs == {
        "gravity": -9.0, "render_mode": "rgb_array"}
    assert factory.kwargs["render_mode"] == "human"


@pytest.mark.parametrize("kwargs, camera", [
    ({}, {"camera_name": "track"}), ({"camera_id": 0}, {"camera_id": 0}),
    ({"default_camera_config": {}}, {"default_camera_config": {}})])
def test_the_camera_follows_a_model_of_mujoco_unless_another_is_chosen(kwargs, camera):
    pytest.importorskip("mujoco")
    factory = make_factory("HalfCheetah-v5", kwargs=kwargs)
    assert with_render_mode(factory, "rgb_array").kwargs == {"render_mode": "rgb_array", **camera}


@pytest.mark.parametrize("name, match", [
    ("a.avi", "ends with .mp4 or .webp or .png"), ("a", "ends with"), (".", "is a folder"),
    ("missing/a.webp", "there is no folder")])
def test_a_file_that_is_no_video_is_refused_before_anything_is_played(policy, tmp_path, name,
                                                                      match):
    seen = []
    with pytest.raises(ConfigError, match=match):
        record_video(policy, shown(), tmp_path / name, report=seen.append)
    assert seen == []
    with pytest.raises(ConfigError, match="episodes is 0"):
        record_video(policy, shown(), tmp_path / "a.webp", episodes=0)
