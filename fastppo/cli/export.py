"""The verb: fastppo export MODEL [--to=onnx|torchscript] [--output=FILE]."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.errors import ConfigError, Error, Omit
from fastppo.machine.file_access import check_output
from fastppo.machine.installation import FORMATS, format_of
from fastppo.machine.stderr import status_while
from fastppo.runs.folder import check_file, policy_at


@dataclass(frozen=True)
class Export:
    """Write a trained policy as one graph: raw observation in, the environment's action out.

      {0} export runs/latest --to=onnx

    The graph is checked before it is written: on steps of the environment that the policy was
    trained on, if that is an id of Gymnasium's, else on samples of its observation space.
    """

    OPERANDS = "MODEL"

    to: Literal["onnx", "torchscript"] | None = None
    """Format; none: as the name of the output ends, else onnx, for which there is an extra:
    pip install "fastppo[export]" """
    output: str | None = None
    """File to write; none: the policy's own name with another ending, .onnx or .pt"""
    env_name: str | None = None
    """Environment whose steps it is checked on, an id or `module:callable`; none: the one in the
    file if that is an id of Gymnasium's, because code that a file names is never imported"""
    model: str | None = None
    """Class of the network in the file, as `module:Class`, if it is a network of your own"""


def export_verb(argv: Sequence[str], interrupts) -> None:
    """Exports the policy that `argv` names; prints the check, and what goes in and comes out."""
    (place,), options = words_and_options(argv, Export)
    model = policy_at(Path(place))
    check_file(model, "policy")
    path = Path(options.output or model.with_suffix(FORMATS[options.to or "onnx"]))
    check_output(path)
    if path.absolute() == model.absolute():
        raise ConfigError(f"{path} is the policy itself", Omit("output"))
    to = format_of(path, options.to)
    with status_while(f"exporting {model}"):
        from fastppo.runs.export import inputs_of, outputs_of, write_graph
        from fastppo.runs.policy_file import load
        policy = load(model, model=options.model)
        steps, what = steps_to_check(policy, options.env_name)
        write_graph(policy, path, to, steps, options.env_name or policy.config.env_name)
    print(f"exported  {path}   acts as the policy does on {len(steps.first)} {what}")
    for name, ports in (("inputs", inputs_of(policy)), ("outputs", outputs_of(policy))):
        print(f"{name:9}", ", ".join(map(str, ports)))


def steps_to_check(policy, env_name: str | None):
    """(recorded steps to check a graph on, a description of them); see Export.

    `env_name` is the environment that the user names, if any.
    """
    from fastppo.runs.export import play_episodes, sample_episodes
    from fastppo.runs.policy_file import factories_for
    # Without one of the user's: the file's may be not installed here, another version, or code.
    with contextlib.suppress(*() if env_name else (Error,)):
        factory = factories_for(policy, env_name)[0]
        return play_episodes(policy, factory), f"steps of {factory.name}"
    return sample_episodes(policy), "samples of its observation space"
