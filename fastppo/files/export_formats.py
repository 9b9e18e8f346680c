"""The formats of exported policies, and the packages that they need; without torch."""

import importlib.util
from pathlib import Path

from fastppo.errors import ConfigError
from fastppo.settings.fixes import Install, Set

FORMATS = {"onnx": ".onnx", "torchscript": ".pt"}  # and their usual endings
ONNX_PACKAGES = "onnx", "onnxscript", "onnxruntime"


def format_of(path: Path, to: str | None) -> str:
    """`to`, or else the format of the ending of `path`; ConfigError if it cannot be written."""
    endings = {ending: name for name, ending in FORMATS.items()}
    to = endings.get(path.suffix) if to is None else to
    if to not in FORMATS:
        raise ConfigError(f"there is no format {to or path.suffix!r}, only {' and '.join(FORMATS)}",
                          Set(to="onnx"))
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError("ONNX needs packages that are not installed: " + ", ".join(missing),
                          (Install("export"), Set(to="torchscript")))
    return to
