"""Makes a small animated GIF of a video, for programs that show images alone."""

import io
import subprocess
from pathlib import Path

from PIL import Image

GIF_HEIGHT, GIF_FRAMES = 240, 150  # at most


def as_gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """(GIF of the .mp4 or .webp video at `path`, its width and height).

    It lasts as long; of a long video frames are left out. Raises an exception if that fails.
    """
    data = _gif_of_webp(path) if path.suffix.lower() == ".webp" else _gif_of_mp4(path)
    with Image.open(io.BytesIO(data)) as image:
        return data, image.size


def _gif_of_mp4(path: Path) -> bytes:
    import imageio_ffmpeg
    count, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    rate = min(count, GIF_FRAMES) / seconds
    picture = (f"fps={rate},scale=-1:min(ih\\,{GIF_HEIGHT}),"
               "split[all][some];[some]palettegen[colours];[all][colours]paletteuse")
    return subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-vf", picture, "-f", "gif",
         "-"], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout


def _gif_of_webp(path: Path) -> bytes:
    frames, times = [], []
    with Image.open(path) as video:
        count = getattr(video, "n_frames", 1)
        for i in range(count):
            video.seek(i)
            video.load()
            if i % -(-count // GIF_FRAMES) == 0:
                frames.append(_shrunk(video))
                times.append(0.0)
            times[-1] += video.info["duration"]  # a frame that does not change is stored once
    data = io.BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)
    return data.getvalue()


def _shrunk(frame: Image.Image) -> Image.Image:
    scale = min(1.0, GIF_HEIGHT / frame.height)
    return frame.convert("RGB").resize((round(frame.width * scale), round(frame.height * scale)))
