"""The first lines of a run: what is trained, and what was chosen for it."""

import importlib.util
import shutil
import textwrap
from pathlib import Path
from typing import Any

from fastppo import __version__
from fastppo.config import MODELS
from fastppo.errors import format_value
from fastppo.machine.child_process import without_secrets

INDENT, WIDEST_LINE = 10, 120
NO_EXTENSION = ("kernels   numba: no compiled extension, so one process only and slower; to get it:"
                " install a C compiler and Python's headers, then pip install -e .")


def banner(ppo, request: Any, folder: Path, resumed: bool) -> list[str]:
    """What is trained, the folder of the run, and its resolved choices, a line each."""
    from fastppo.compiled.support import unsupported_in_learner
    from fastppo.machine import kernels
    config, policy = ppo.config, ppo.policy
    reason = unsupported_in_learner(config, policy.observer.layout)
    size = sum(param.numel() for param in policy.parameters())
    in_update = f", {config.update_threads} in the update" * (
        config.update_threads != config.torch_threads)
    place = {"native": "one vector environment", "envpool": "EnvPool"}.get(config.vec) or (
        counted(config.num_workers, "worker") if config.num_workers else "the main process")
    start, games = f"   resumed at step {ppo.step:,}" * resumed, config.agents > 1
    return folded([
        *([NO_EXTENSION] if importlib.util.find_spec("fastppo._kernels") is None else []),
        f"fastppo {__version__}   {config.env_name}{start}   {ppo.total:,} steps"
        f"   seed {config.seed}",
        f"run       {folder}",
        *([preset_line(request, config)] if request.changes and not resumed else []),
        f"env       observations {space_text(policy.obs_space)},"
        f" actions {space_text(policy.act_space)}",
        f"model     {network_text(policy, config)}, {size:,} parameters"
        + ", observations normalised" * policy.observer.norm,
        f"acting    {config.acting}; {counted(config.num_envs, 'game' if games else 'environment')}"
        + f" of {config.agents} agents" * games + " x"
        f" {counted(config.num_steps, 'step')} in {place}"
        + f" of each of {ppo.ranks.size} processes" * (ppo.ranks.size > 1),
        f"device    {config.device}, torch_threads={config.torch_threads}{in_update}"
        + f", {config.precision}" * (config.precision != "fp32"),
        f"kernels   {kernels.backend()}; learner {config.learner}"
        + (", because the compiled one, which is 5 to 15 times as fast for small networks, does not"
           f" support {reason}") * bool(reason),
    ])


def preset_line(request: Any, config: Any) -> str:
    """The preset and what it changes, as it is resolved."""
    changed = " ".join(f"{name}={format_value(without_secrets(getattr(config, name)))}"
                       for name in request.changes)
    return f"preset    {request.preset}: {changed}"


def counted(count: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{count} {noun}{'s' * (count != 1)}"


def network_text(policy, config: Any) -> str:
    """The layers of a network: mlp 8-64-64-{4,1} tanh."""
    outputs = f"-{{{policy.head.size},1}}"
    if config.model not in MODELS:
        return f"{format_value(config.model)}{outputs}"
    hidden = next(part for part in policy.modules() if hasattr(part, "actor_body")
                  ).actor_body.widths
    rnn = f"-{config.rnn}{config.rnn_size}" * (config.rnn != "none")
    layers = f" {config.activation}{', layer norm' * config.layer_norm}" * (len(hidden) > 1)
    return f"{config.model} {'-'.join(map(str, hidden))}{rnn}{outputs}{layers}"


def space_text(space: Any) -> str:
    """A space in a few words: Box(8,) float32; of a Dict also its parts."""
    name = type(space).__name__
    if name == "Dict":
        parts = (f"{key!r}: {space_text(part)}" for key, part in space.items())
        return f"Dict({', '.join(parts)})"
    return f"{name}{space.shape} {space.dtype}" if name == "Box" else str(space)


def folded(lines: list[str]) -> list[str]:
    """`lines`, with those broken that are wider than the terminal."""
    width = max(40, min(shutil.get_terminal_size().columns, WIDEST_LINE))
    return [textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False,
                          replace_whitespace=False, subsequent_indent=" " * INDENT)
            for text in lines]
