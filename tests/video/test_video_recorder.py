"""Videos while training: when, where, what fails, and that training is untouched."""

import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import table, weights
from envs_for_tests import Counting
from PIL import Image

from fastppo import PPO
from fastppo.errors import ConfigError
from fastppo.loggers.background import BackgroundSink
from fastppo.video import recorder
from fastppo.video.frames import DISPLAY_DRIVER, NETWORK_ALONE, STRIP


class Painted(Counting):
    """Counting, whose frames are grey, or raise what `fault` is."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    fault, drivers = None, []

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        """A grey frame, of the step."""
        Painted.drivers.append(os.environ.get(DISPLAY_DRIVER))
        if Painted.fault:
            raise Painted.fault
        return np.full((40, 60, 3), 7 * self.steps, np.uint8)


@pytest.fixture(autouse=True)
def webp(monkeypatch):
    """Videos are WebP, which needs no other program, and frames do not fail."""
    monkeypatch.setattr(recorder, "best_format", lambda: ".webp")
    monkeypatch.setattr(Painted, "fault", None)


class Told:
    """A callback that writes down the videos it is told of."""

    def __init__(self):
        self.videos = []

    def on_video(self, ppo, path):
        self.videos.append((ppo.step, path))


def videos(folder):
    return sorted(path.name for path in (folder / "videos").iterdir())


# when and where

def test_a_video_is_recorded_where_a_multiple_of_the_interval_is_crossed(trainer, tmp_path):
    told, ppo = Told(), trainer(Painted, run_dir=str(tmp_path), video_interval=50)
    ppo.learn(128, callbacks=told)  # iterations end at 32, 64, 96 and 128
    assert videos(tmp_path) == ["step-000000064.webp", "step-000000128.webp"]
    assert told.videos == [(step, tmp_path / "videos" / f"step-{step:09d}.webp")
                           for step in (64, 128)]
    with Image.open(told.videos[0][1]) as image:
        assert image.n_frames == 6  # Counting's five steps, and the reset


def test_long_episodes_are_cut(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "VIDEO_FRAMES", 3)
    trainer(Painted, run_dir=str(tmp_path), video_interval=32).learn(32)
    with Image.open(tmp_path / "videos" / "step-000000032.webp") as image:
        assert image.n_frames == 3


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(trainer, tmp_path):
    whole = dict(run_dir=str(tmp_path / "whole"), video_interval=50)
    trainer(Painted, **whole).learn(192)
    parts = tmp_path / "parts"
    first = trainer(Painted, run_dir=str(parts), video_interval=50, total_steps=192)
    first.learn(96)
    first.close()
    told = Told()
    with PPO.resume(parts, Painted) as ppo:
        ppo.learn(callbacks=told)
    assert [step for step, _ in told.videos] == [128, 160]
    for name in videos(tmp_path / "whole"):
        assert (parts / "videos" / name).read_bytes() == \
            (tmp_path / "whole" / "videos" / name).read_bytes()
    assert videos(parts) == videos(tmp_path / "whole")


def test_the_interval_of_a_resumed_run_may_be_another(trainer, tmp_path):
    first = trainer(Painted, run_dir=str(tmp_path), total_steps=128)
    first.learn(64)
    first.close()
    with PPO.resume(tmp_path, Painted, video_interval=32) as ppo:
        ppo.learn()
    assert videos(tmp_path) == ["step-000000096.webp", "step-000000128.webp"]


def test_the_time_of_a_video_is_a_metric_of_its_own_and_in_no_other(trainer, tmp_path):
    seen, ppo = [], trainer(Painted, run_dir=str(tmp_path), video_interval=64)
    ppo.learn(64, callbacks=lambda ppo, stats: seen.append(stats))
    seconds, stats = ppo.clock.seconds, seen[-1]
    training = seconds["collect"] + seconds["update"]
    assert "time/video" not in seen[0]
    assert stats["time/video"] == pytest.approx(seconds["video"] / training)
    assert stats["charts/SPS"] == pytest.approx(64 / training)
    assert ppo.clock.not_training == seconds["video"] > 0
    assert float(table(tmp_path / "metrics.csv")[-1]["time/video"]) == stats["time/video"]


@pytest.mark.parametrize("words, why", [
    (dict(video_interval=32), "run_dir is None\n  fix: run_dir="),
    (dict(video_interval=0), "video_interval is 0"), (dict(video_interval=1.5), "a whole number")])
def test_an_interval_that_cannot_be_kept_is_refused(words, why):
    with pytest.raises(ConfigError, match=why):
        PPO(Painted, num_workers=0, **words)


def test_a_vector_environment_needs_an_environment_to_record(tmp_path):
    envs = gym.make_vec("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="a VectorEnv cannot be copied"):
        PPO(envs, video_interval=16, run_dir=str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
    envs.close()


# what it must not touch

@pytest.mark.some(1)
@pytest.mark.parametrize("name, workers", [("CartPole-v1", 2), ("Pendulum-v1", 0)])
def test_training_is_the_same_bit_for_bit_with_and_without_videos(trainer, tmp_path, name, workers):
    settings = dict(num_workers=workers, max_episode_steps=20, norm_rewards=True)
    alone = trainer(name, **settings).learn(192)
    watched = trainer(name, run_dir=str(tmp_path), video_interval=128, **settings).learn(192)
    assert videos(tmp_path) == ["step-000000128.webp"]
    assert torch.equal(weights(watched), weights(alone))


@pytest.mark.parametrize("driver", [None, "x11"])
def test_the_variable_for_the_display_is_set_for_the_video_alone(trainer, tmp_path, monkeypatch,
                                                                 driver):
    monkeypatch.delenv(DISPLAY_DRIVER, raising=False)
    if driver:
        monkeypatch.setenv(DISPLAY_DRIVER, driver)
    Painted.drivers.clear()
    trainer(Painted, run_dir=str(tmp_path), video_interval=32).learn(32)
    assert {*Painted.drivers} == {driver or "dummy"} and os.environ.get(DISPLAY_DRIVER) == driver


# what fails

def test_of_an_environment_without_frames_the_networks_view_is_recorded(trainer, tmp_path, capsys):
    alone = trainer(Counting).learn(96)
    ppo = trainer(Counting, run_dir=str(tmp_path), video_interval=64).learn(96)
    assert capsys.readouterr().err == "" and videos(tmp_path) == ["step-000000064.webp"]
    with Image.open(tmp_path / "videos" / "step-000000064.webp") as picture:
        assert picture.size == (NETWORK_ALONE[0], NETWORK_ALONE[1] + STRIP)
    assert torch.equal(weights(ppo), weights(alone))
    assert len(table(tmp_path / "metrics.csv")) == 3


@pytest.mark.parametrize("fault", [RuntimeError("no display"), SystemExit(1)])
def test_a_renderer_that_fails_is_one_note_until_it_works_again(trainer, tmp_path, capsys, fault):
    def now(ppo, stats):
        Painted.fault = None if ppo.step == 96 else fault
    Painted.fault, told = fault, Told()
    trainer(Painted, run_dir=str(tmp_path), video_interval=32).learn(160, [now, told])
    err = capsys.readouterr().err
    assert [line.partition(" failed")[0] for line in err.splitlines()] == [
        "note: the video at step 32", "note: the video at step 160"]
    assert "failed in render()" in err and "Traceback" not in err
    assert [step for step, _ in told.videos] == [128] and videos(tmp_path) == [
        "step-000000128.webp"]


def test_without_the_program_ffmpeg_a_note_says_so(trainer, tmp_path, capsys, monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("No ffmpeg exe could be found.")
    monkeypatch.setattr(recorder, "_write_webp", missing)
    assert trainer(Painted, run_dir=str(tmp_path), video_interval=32).learn(32).step == 32
    assert capsys.readouterr().err.endswith(": RuntimeError: No ffmpeg exe could be found.\n")


def test_ctrl_c_in_a_video_leaves_no_half_of_it(trainer, tmp_path):
    Painted.fault = KeyboardInterrupt()
    ppo = trainer(Painted, run_dir=str(tmp_path), video_interval=32)
    with pytest.raises(KeyboardInterrupt):
        ppo.learn(96)
    assert ppo.clock.part == "" and videos(tmp_path) == []
    Painted.fault = None
    ppo.learn(96)
    assert videos(tmp_path) == ["step-000000064.webp", "step-000000096.webp"]


# loggers

class Kept(BackgroundSink):
    """A logger that keeps its rows."""

    name = "kept"

    def __init__(self):
        super().__init__()
        self.found = []

    def start(self):
        return self

    def log(self, row, step):
        self.found += [(step, value) for value in row.values() if isinstance(value, Path)]

    def finish(self):
        pass


def test_a_logger_gets_the_videos_that_it_can_show_and_says_so_of_others(trainer, tmp_path, capsys):
    sinks = Kept(), Kept()
    sinks[1].videos = (".mp4", ".webp")
    trainer(Painted, run_dir=str(tmp_path), video_interval=32).learn(64, callbacks=sinks)
    for sink in sinks:
        sink.close()
    assert sinks[0].found == []
    assert sinks[1].found == [(step, tmp_path / "videos" / f"step-{step:09d}.webp")
                              for step in (32, 64)]
    assert capsys.readouterr().err == (
        'note: kept cannot show .webp videos; for mp4: pip install "fastppo[video]"\n')


def test_tensorboard_shows_a_video_as_an_image_that_moves(trainer, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with trainer(Painted, run_dir=str(tmp_path), video_interval=32, logger="tensorboard") as ppo:
        ppo.learn(32)
    image, = accumulator.EventAccumulator(str(tmp_path)).Reload().Images("eval/video")
    assert image.step == 32 and image.encoded_image_string[:3] == b"GIF"
    assert (image.width, image.height) == (339, 240)


def test_a_video_that_a_logger_cannot_read_costs_no_metrics(trainer, tmp_path, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Spoils:
        def on_video(self, ppo, path):
            sink = next(sink for sink in ppo.sinks if isinstance(sink, BackgroundSink))
            sink.on_video(ppo, path.with_name("gone.webp"))
    with trainer(Painted, run_dir=str(tmp_path), video_interval=32, logger="tensorboard") as ppo:
        ppo.learn(64, callbacks=Spoils())
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [point.step for point in found.Scalars("losses/entropy")] == [32, 64]
    err = capsys.readouterr().err
    assert err.count("note: tensorboard: FileNotFoundError") == err.count("\n") == 2
    assert "going on without the video of step 32" in err


def test_wandb_gets_the_file_of_a_video(trainer, tmp_path, monkeypatch):
    rows = []
    fake = type(sys)("wandb")
    fake.Settings = fake.setup = fake.Histogram = dict
    fake.setup, fake.login = (lambda *_: None), (lambda **_: False)
    fake.Video = lambda path: ("video", path)
    fake.init = lambda **_: type("Run", (), dict(log=lambda run, row, step: rows.append(
        (step, row)), finish=lambda run: None))()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(BackgroundSink, "videos", (".webp",))
    with trainer(Painted, run_dir=str(tmp_path), video_interval=32, logger="wandb") as ppo:
        ppo.learn(32)
    (first, video), (step, metrics) = rows
    assert video == {"eval/video": ("video", str(tmp_path / "videos" / "step-000000032.webp"))}
    assert first == step == 32 and metrics["actions/histogram_0"]["np_histogram"].counts.sum() == 32
