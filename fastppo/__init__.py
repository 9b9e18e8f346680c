"""fastppo: PPO on Gymnasium environments, as fast as the machine allows.

The public names are loaded on first use, so importing the package is light, which workers need,
and changes nothing global.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastppo.collect import Rollout
    from fastppo.compiled_envs.definition import compiled_env
    from fastppo.config import Config
    from fastppo.errors import Error
    from fastppo.evaluation.evaluate import Evaluation
    from fastppo.policy import Policy
    from fastppo.ppo import PPO
    from fastppo.runs.export import export
    from fastppo.runs.policy_file import load
    from fastppo.vector.make_vec import make_vec

__version__ = "0.1.0"
__all__ = ["PPO", "Config", "load", "export", "make_vec", "compiled_env", "Error", "Rollout",
           "Evaluation", "Policy", "__version__"]

_MODULES = {"PPO": "ppo", "Config": "config", "load": "runs.policy_file",
            "export": "runs.export", "make_vec": "vector.make_vec",
            "compiled_env": "compiled_envs.definition", "Error": "errors", "Rollout": "collect",
            "Evaluation": "evaluation.evaluate", "Policy": "policy"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fastppo' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fastppo.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
