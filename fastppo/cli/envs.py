"""The verb: fastppo envs [PATTERN] [--all]."""

import contextlib
import fnmatch
import textwrap
from dataclasses import dataclass
from typing import Any, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.errors import ConfigError, Error, Set, fix_text, program
from fastppo.settings.presets import preset_name

FEW = 8  # environments that are made, to show their spaces
MANY = 40  # ids of a family that the list of all families still names
NAME_COLUMN, PRESET_COLUMN, LIST_WIDTH = 18, 26, 80


@dataclass(frozen=True)
class Envs:
    """List the environments that can be trained on here, and what an extra adds.

      {0} envs
      {0} envs CartPole
      {0} envs Atari
      {0} envs 'ALE/*' --all

    PATTERN is the name of a family in the list, a part of an id, a pattern in
    quotes, or an environment of your own such as my_module:MyEnv. Of 8 ids or
    fewer the environments are made, and their spaces and limits are shown.
    """

    OPERANDS = "[PATTERN]"

    all: bool = False
    """List every version of each environment, not only the newest"""


def envs_verb(argv: Sequence[str], interrupts) -> None:
    """Prints the environments that `argv` asks for."""
    words, options = words_and_options(argv, Envs)
    pattern = "".join(words)
    if ":" in pattern:
        print("\n".join(description(pattern)), flush=True)
        return
    from fastppo.envs.families import missing_family, newest, registered_families
    every = registered_families()
    named = {family: specs for family, specs in every.items()
             if specs and family.name.lower() == pattern.lower()}
    every, pattern = (named, "") if named else (every, pattern)
    found = matching({family: newest(specs) for family, specs in every.items()}, pattern)
    if options.all or not any(found.values()):  # it may name an old version
        found = matching(every, pattern)
    ids = [spec.id for specs in found.values() for spec in specs]
    if not ids:
        family = missing_family(pattern)
        raise ConfigError(
            f'no environment matches "{pattern}"'
            + (f": {family.name} is not installed" if family else ""), family.fix if family else
            (f"{program()} envs lists all", Set(env_name="my_module:MyEnv")))
    if pattern and len(ids) <= FEW:
        print("\n\n".join("\n".join(description(name)) for name in ids), flush=True)
    else:
        print("\n".join(overview(found, missing=not words)), flush=True)


def matching(found: dict, pattern: str) -> dict:
    """The specs by family whose id matches a pattern, in either case."""
    form = pattern.lower() if set("*?[") & set(pattern) else f"*{pattern.lower()}*"
    return {family: [spec for spec in specs if fnmatch.fnmatchcase(spec.id.lower(), form)]
            for family, specs in found.items()}


def overview(found: dict, missing: bool) -> list[str]:
    """The ids of each family by preset; `missing`: also the families that are not installed."""
    import gymnasium

    from fastppo.envs.families import is_installed
    lines = [f"Gymnasium {gymnasium.__version__}; on the left the preset of fastppo"]
    for family, specs in found.items():
        here = is_installed(family)
        if specs or missing and family.fix and not here:
            about = family.about if here else f"missing: {fix_text(family.fix, shell=True)}"
            if missing and here and len(specs) > MANY:
                about += f"; {len(specs):,} ids: {program()} envs {family.name!r}"
                specs = []
            groups: dict[str, str] = {}
            for spec in specs:
                preset = f"  {preset_name(spec.id)}"
                groups[preset] = f"{groups.get(preset, '')} {spec.id}".strip()
            lines += ["", *filled_rows(NAME_COLUMN, {family.name: about}),
                      *filled_rows(PRESET_COLUMN, groups)]
    return [*lines, "",
            "your own          --env_name=my_module:MyEnv   a class or function in my_module",
            "of a package      --env_name=package:Id-v0     an id that its import registers"]


def description(name: str) -> list[str]:
    """The spaces and limits of an environment, which is made for that; or why it cannot be.

    In one of the user's own a step is taken, too, unless it has masks or several agents; EnvError
    if it fails.
    """
    from fastppo.envs.families import envpool_ids
    from fastppo.envs.make import make_envs, make_factory, spaces_of
    from fastppo.spaces.leaves import MASK
    from fastppo.terminal.banner import space_text
    from fastppo.vector.make_vec import make_vec
    from fastppo.vector.source import EnvPoolVector
    pool = name in envpool_ids()
    try:
        env = EnvPoolVector(name, 1, {}) if pool else make_envs([make_factory(name)])[0]
    except Error as error:
        fix = fix_text(error.fix, shell=True)
        if ":" in name:  # the fix is for verbs that have settings
            error.fix = fix.replace("--env_name=", f"{program()} envs ")
            raise
        return [name, *filled_rows(NAME_COLUMN, {
            "  not here": error.what.partition("\n")[0], "  fix": fix})]
    obs_space, act_space = map(space_text, spaces_of(env, "single_" * pool))
    env.close()
    game = getattr(env, "game", None)
    agents = {"  agents": str(len(game.agents))} if game else {}
    if ":" in name and not agents:
        with contextlib.closing(make_vec(name, 1, num_workers=0, seed=0)) as vec:
            obs, info = vec.reset()
            if MASK not in info and not (isinstance(obs, dict) and MASK in obs):
                vec.step(vec.action_space.sample())
    return [name, *filled_rows(NAME_COLUMN, {
        **agents, "  observations": obs_space, "  actions": act_space,
        "  episodes": limits_text(env.spec or env),
        "  preset": preset_name(name), "  train":
        f"{program()} --env_name={name}{' --vec=envpool' * pool}"})]


def limits_text(spec: Any) -> str:
    """The steps of an episode, and the return at which an environment counts as solved."""
    limit, threshold, kwargs = (getattr(spec, name, None)
                                for name in ("max_episode_steps", "reward_threshold", "kwargs"))
    frames = (kwargs or {}).get("max_num_frames_per_episode")  # of a game of ale-py
    steps = f"at most {limit:,} steps" if limit else \
        f"at most {frames:,} frames" if frames else "no limit of steps"
    return steps if threshold is None else f"{steps}; solved at a mean return of {threshold:,g}"


def filled_rows(column: int, rows: dict[str, str]) -> list[str]:
    """Texts by name in lines of LIST_WIDTH, from a column on; not broken at a hard space."""
    return [line.replace("\N{NO-BREAK SPACE}", " ") for name, text in rows.items()
            for line in textwrap.wrap(text, LIST_WIDTH, initial_indent=f"{name:{column - 1}} ",
                                      subsequent_indent=" " * column, break_on_hyphens=False)]
