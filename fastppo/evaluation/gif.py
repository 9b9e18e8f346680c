"""Makes a small animated GIF of a video, for programs that show images alone."""

import io
import subprocess
from pathlib import Path

from PIL import Image, ImageSequence

GIF_HEIGHT, GIF_FRAMES = 240, 150  # at most


def as_gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """(GIF of the .mp4 or .webp video at `path`, its width and height).

    It lasts as long; of a long video frames are left out. Raises an exception if that fails.
    """
    frames, times = [], []
    with Image.open(path if path.suffix.lower() == ".webp" else as_webp(path)) as video:
        for frame in ImageSequence.Iterator(video):
            frames.append(frame.convert("RGB"))
            frames[-1].thumbnail((frame.width, GIF_HEIGHT))
            times.append(frame.info["duration"])
    step, data = -(-len(frames) // GIF_FRAMES), io.BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[step::step], loop=0,
                   duration=[sum(times[i:i + step]) for i in range(0, len(times), step)])
    return data.getvalue(), frames[0].size


def as_webp(path: Path) -> io.BytesIO:
    """The frames of an .mp4 as an animated WebP, which Pillow reads."""
    import imageio_ffmpeg
    return io.BytesIO(subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-vf",
         f"scale=-1:min(ih\\,{GIF_HEIGHT})", "-f", "webp", "-"],
        stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)
