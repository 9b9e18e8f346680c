"""Writes docs/config.md from Config and the presets: python docs/make_config.py"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fastppo.cli.command_line import Train  # noqa: E402
from fastppo.errors import format_value  # noqa: E402
from fastppo.settings.presets import FAMILIES, PRESETS  # noqa: E402
from fastppo.trainer.setting_texts import Setting, settings  # noqa: E402

PAGE = Path(__file__).with_name("config.md")
INTRO = """\
# Settings

<!-- Written by docs/make_config.py; a test compares it with the code. -->

The fields of `fastppo.Config`: keyword arguments of `PPO(...)`, and flags of the command with two
hyphens in front (`num_envs=32`, `--num_envs=32`). The `none` of `INT|none` is Python's `None`. The
values of `none` and `auto` are resolved when the trainer is built; `ppo.config` and the run's
`config.json` hold the result (but `log_std_init=auto`, a number for each action).

On the command line names may have hyphens or underscores. A switch (BOOL) is `--flag`, `--no-flag`
or `--flag=True`. A whole number (INT) may be written `16`, `1_000`, `1e6`, `10M` or `500k`; `1.5`
is an error. If a flag is given twice the last one counts. A SCHEDULE is a number, `linear:3e-4` or
`cosine:3e-4` (falls to 0), `linear:3e-4:1e-5` (to 1e-5) or `constant:3e-4` (which `anneal_lr` does
not change); in Python also a function of the remaining share of the steps, 1 to 0.
`python main.py --env_name=CartPole-v1 --help-all` shows the same list with the defaults of that
environment's preset.

These names are understood too: `--env` (`env_name`), `--lam` (`gae_lambda`), `--epsilon`
(`clip_range`), `--ppo_epochs` (`epochs`), `--num_batches` (`num_minibatches`), `--value_loss_coef`
(`value_coef`). One is computed: `--num_iterations=n` is `total_steps` in rollouts, n x num_envs x
num_steps. A setting that is given under two names is an error. So
are the names of CleanRL and Stable-Baselines3; the error text has ours.
"""
HEAD = """
## {}

| setting | type | default | meaning | source of the default |
|---|---|---|---|---|
"""
VERBS_TEXT = """
`--debug`, with any verb, shows the traceback of an error. The options of each verb are in its
`--help`, such as `python main.py eval --help`.
"""
FAMILY = """
## Presets

A preset is a set of defaults for a family of environments, looked up by the environment's id
(`--preset=auto`) or named (`--preset=cartpole`). All other environments, such as your own, have
`general`; `--preset=none` is none, so the defaults above. Settings that you give always win over
the preset.

| preset | for | what it changes |
|---|---|---|
"""


def page() -> str:
    """The text of docs/config.md."""
    parts, section = [INTRO], ""
    for setting in settings().values():
        if setting.section != section:
            section = setting.section
            parts.append(HEAD.format(section.capitalize()))
        parts.append(row(setting))
    parts.append(HEAD.format("Of the command that trains"))
    parts += map(row, settings(Train).values())
    parts.append(VERBS_TEXT)
    parts.append(FAMILY)
    for name, values in PRESETS.items():
        ids = ", ".join(env for env, preset in FAMILIES.items() if preset == name) or "all others"
        changes = " ".join(f"`{key}={format_value(value)}`" for key, value in values.items()
                           if value != settings()[key].default)
        parts.append(f"| `{name}` | {ids} | {changes} |\n")
    return "".join(parts)


def row(setting: Setting) -> str:
    """The line of the table for one setting."""
    cells = (f"`{setting.name}`", setting.type, f"`{format_value(setting.default)}`", setting.text,
             setting.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
