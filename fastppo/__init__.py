"""fastppo: PPO on Gymnasium environments, as fast as the machine allows.

The public names are loaded when they are first used, so importing the package is light (workers do
it too) and changes nothing global.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {"PPO": "ppo", "Config": "config", "load": "outputs.policy_file",
          "export": "outputs.export", "make_vec": "workers.vector_env", "Error": "errors",
          "Rollout": "collect", "Evaluation": "outputs.evaluate", "Policy": "policy"}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'fastppo' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fastppo.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
