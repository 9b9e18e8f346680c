"""The verb play: the window or the video that it makes, and what it refuses."""

import os
import signal
import subprocess
import sys

import pytest
from PIL import Image

from fastppo import load
from fastppo.cli import main, play
from fastppo.cli.command_line import words_and_options
from fastppo.cli.interrupts import Stop
from fastppo.machine import limits
from fastppo.settings.values import return_text
from fastppo.video import recorder
from fastppo.video.frames import FramePainter


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    """The machine of a test has no display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(limits.sys, "platform", "linux")


@pytest.fixture
def run(trainer, tmp_path):
    """The folder of a run on CartPole-v1 with episodes of 12 steps at most, below the current one.
    """
    (tmp_path / "run").mkdir()
    trainer("CartPole-v1", max_episode_steps=12).learn(32).save("run/model.safetensors")
    return tmp_path / "run"


def frames(path):
    """(number of frames, size, milliseconds of the first one) of an animated WebP."""
    with Image.open(path) as image:
        image.load()
        return image.n_frames, image.size, image.info["duration"]


def refused(capsys, *argv):
    """What the command says to a wrong command line."""
    with pytest.raises(SystemExit) as ended:
        main.main(["play", *map(str, argv)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_episodes_are_those_of_an_evaluation(run, capsys):
    main.main(["play", "run", "--episodes=2", "--output=two.webp"])
    found = load(run / "model.safetensors").evaluate(episodes=2)
    steps = found.lengths.tolist()
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["model     run/model.safetensors",
                        "env       CartPole-v1, seed 1, deterministic actions"]
    assert told[2:4] == [f"episode   {i + 1}: return {return_text(found.returns[i])},"
                         f" {steps[i]} steps" for i in range(2)]
    assert told[4] == f"video     two.webp   {sum(steps) + 2} frames"
    assert frames("two.webp") == (sum(steps) + 2, (600, 422), 20)


@pytest.mark.parametrize("ffmpeg", [True, False])
@pytest.mark.parametrize("place, folder", [("run", "run"), ("run/model.safetensors", ".")])
def test_a_video_goes_to_the_runs_folder_and_a_single_files_to_this_one(
        run, monkeypatch, ffmpeg, place, folder):
    if ffmpeg:
        pytest.importorskip("imageio_ffmpeg")
    else:
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        monkeypatch.setattr(recorder.importlib.util, "find_spec", lambda name: None)
    main.main(["play", place, "--max_episode_steps=2"])
    made = run.parent / folder / ("video.mp4" if ffmpeg else "video.webp")
    assert made.stat().st_size > 500


def test_a_video_that_is_there_is_kept_unless_it_is_named(run, capsys):
    made = [run / f"video{number}{recorder.best_format()}" for number in ("", "-2", "-3")]
    made[0].write_text("mine")
    for path in made[1:]:
        main.main(["play", "run", "--max_episode_steps=2"])
        assert f"video     run/{path.name}   3 frames" in capsys.readouterr().out
    assert made[0].read_text() == "mine" and all(path.exists() for path in made)
    main.main(["play", "run", "--max_episode_steps=2", f"--output={made[0]}"])
    assert made[0].stat().st_size > 500


def test_the_options_of_a_video_reach_it(run):
    main.main(["play", "run", "--output=a.webp", "--fps=10", "--view=network", "--no-caption",
               "--max_episode_steps=4", "--stochastic", "--seed=7"])
    assert frames("a.webp") == (5, (480, 420), 100)


def test_the_most_frames_are_told(run, monkeypatch, capsys):
    monkeypatch.setattr(recorder, "FRAME_LIMIT", 4)
    main.main(["play", "run", "--output=a.webp"])
    assert "4 frames, the most that a video has" in capsys.readouterr().out
    assert frames("a.webp")[0] == 4


def test_encoding_is_told_while_it_lasts(run, monkeypatch, capsys):
    monkeypatch.setattr(limits, "is_terminal", lambda stream: True)
    save, told = recorder.PackedFrames.save, []

    def slow(*args, **named):
        told.append(capsys.readouterr().err)
        return save(*args, **named)
    monkeypatch.setattr(recorder.PackedFrames, "save", slow)
    main.main(["play", "run", "--output=a.webp", "--max_episode_steps=3"])
    assert told[0].endswith("encoding 4 frames for a.webp")
    assert capsys.readouterr().err.endswith("\r\033[K")  # it is removed


def test_with_a_display_there_is_a_window_and_no_file(run, monkeypatch, capsys):
    monkeypatch.setenv("DISPLAY", ":99")
    main.main(["play", "run", "--max_episode_steps=3"])
    assert "return 3.00, 3 steps" in capsys.readouterr().out
    assert [path.name for path in run.parent.rglob("video.*")] == []


@pytest.mark.parametrize("word, window", [
    ("--episodes=2", True), ("--output=a.mp4", False), ("--view=both", False), ("--fps=9", False)])
def test_an_option_that_only_a_video_has_asks_for_one(monkeypatch, word, window):
    options = words_and_options(["run", word], play.Play)[1]
    assert not play.wants_window(options)
    for name, platform in (("DISPLAY", "linux"), ("WAYLAND_DISPLAY", "linux"), ("X", "darwin")):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            patch.setattr(limits.sys, "platform", platform)
            assert play.wants_window(options) is window


def test_an_interrupt_leaves_no_file_behind(run, monkeypatch):
    def stopping(moment):
        raise Stop
    monkeypatch.setattr(play, "print_end", stopping)
    with pytest.raises(SystemExit):
        main.main(["play", "run"])
    assert sorted(path.name for path in run.iterdir()) == ["model.safetensors"]


@pytest.mark.parametrize("output, count", [("cut.webp", 3), ("cut.png", 1)])
def test_a_signal_ends_the_video_with_the_frames_so_far(run, monkeypatch, capsys, output, count):
    real, seen = FramePainter.paint, []

    def paint(self, moment):
        seen.append(moment)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, moment)

    monkeypatch.setattr(FramePainter, "paint", paint)
    with pytest.raises(SystemExit) as ended:
        main.main(["play", "run", f"--output={output}", "--episodes=3"])
    out, err = capsys.readouterr()
    assert ended.value.code == 130 and "cut" in out.splitlines()[-1] and "3 frames" in out
    with Image.open(output) as image:
        assert getattr(image, "n_frames", 1) == count and len(seen) == 3


def test_wrong_words_are_refused_with_a_fix(run, capsys):
    assert "play takes MODEL|RUN beside its options, not nothing" in refused(capsys)
    assert "there is no file" in refused(capsys, "missing")
    assert "ends with" in refused(capsys, "run", "--output=a.avi")
    assert ". is a folder" in refused(capsys, "run", "--output=.")
    assert "ends with" in refused(capsys, "run", "--output=.webp")
    assert "in a folder that exists" in refused(capsys, "run", "--output=none/a.webp")
    assert "leave --fps out" in refused(capsys, "run", "--fps=0")
    assert "env, network, both" in refused(capsys, "run", "--view=bot")
    assert "did you mean --max_episode_steps?" in refused(capsys, "run", "--max_episode_step=9")
    assert "--episodes=100" in refused(capsys, "run", "--episodes=0")
    assert sorted(path.name for path in run.iterdir()) == ["model.safetensors"]


def test_without_the_extra_mp4_is_refused_with_both_ways_out(run, capsys, monkeypatch):
    monkeypatch.setattr(recorder.importlib.util, "find_spec", lambda name: None)
    told = refused(capsys, "run", "--output=a.mp4")
    assert 'pip install "fastppo[video]"; or --output=a.webp' in told


def test_a_class_that_cannot_be_rendered_is_refused(run, capsys):
    with open("blind.py", "w") as file:
        file.write("import gymnasium\nclass Blind(gymnasium.Wrapper):\n"
                   "    metadata = {}\n"
                   "    def __init__(self):\n"
                   "        super().__init__(gymnasium.make('CartPole-v1'))\n")
    assert "blind:Blind cannot be shown" in refused(capsys, "run", "--env_name=blind:Blind")


def test_help_and_wrong_words_import_no_library():
    for words in (["--help"], ["nowhere"]):
        code = ("import sys; from fastppo.cli import main\n"
                f"try: main.main(['play', *{words}])\nexcept SystemExit: pass\n"
                "print([m for m in ('torch', 'numpy', 'gymnasium', 'PIL') if m in sys.modules])")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True)
        assert out.stdout.splitlines()[-1] == "[]", words


def test_help_shows_an_example_and_every_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main(["play", "--help"])
    told = capsys.readouterr().out
    assert "play runs/latest --view=both" in told
    for name in vars(play.Play()):
        assert f"--{name} " in told
