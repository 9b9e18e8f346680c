"""Videos read back as animated GIFs."""

import io

import numpy as np
import pytest
from PIL import Image

from fastppo.loggers import tensorboard
from fastppo.loggers.tensorboard import as_gif
from fastppo.video.recorder import video_file


def written(path, count, fps, size=(64, 48)):
    """A video of `count` greys, each brighter than the one before."""
    with video_file(path, fps) as append:
        for n in range(count):
            append(Image.new("RGB", size, (10 * n,) * 3))
    return path


def frames(data):
    """The brightness of each frame of a GIF, and its duration in ms."""
    with Image.open(io.BytesIO(data)) as image:
        found = []
        for i in range(image.n_frames):
            image.seek(i)
            found.append((np.asarray(image.convert("L")).mean(), image.info["duration"]))
    greys, times = zip(*found)
    return greys, sum(times)


@pytest.mark.parametrize("ending", ["mp4", "webp"])
def test_a_gif_has_the_frames_and_the_duration_of_the_video(tmp_path, ending):
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    data, size = as_gif(written(tmp_path / f"a.{ending}", 12, 10))
    greys, duration = frames(data)
    assert greys == pytest.approx([10 * n for n in range(12)], abs=3)
    assert duration == 1200 and size == (64, 48)


@pytest.mark.parametrize("ending", ["mp4", "webp"])
def test_a_long_video_is_thinned_and_lasts_as_long(tmp_path, ending, monkeypatch):
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(tensorboard, "GIF_FRAMES", 5)
    greys, duration = frames(as_gif(written(tmp_path / f"a.{ending}", 25, 10))[0])
    assert greys == pytest.approx([0, 50, 100, 150, 200], abs=21) and duration == 2500


def test_a_large_picture_is_shrunk(tmp_path):
    assert as_gif(written(tmp_path / "a.webp", 2, 10, (640, 480)))[1] == (320, 240)


def test_a_video_of_one_frame_is_a_picture(tmp_path):
    data, size = as_gif(written(tmp_path / "a.webp", 1, 10))
    assert data[:3] == b"GIF" and size == (64, 48)
