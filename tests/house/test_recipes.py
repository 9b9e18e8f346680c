"""The recipes of CONTRIBUTING.md: each adds something, in the files that it names alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from source_tree import ROOT
from test_build import built

# Every file that a recipe changes; NAME stands for what is added.
CONFIG, LEARNER = "fastppo/config.py", "fastppo/learner.py"
SINK, LOGGERS = "fastppo/loggers/NAME.py", "fastppo/settings/values.py"
NETWORKS, HEADS = "fastppo/networks/encoders.py", "fastppo/networks/action_heads.py"
FAMILIES = "fastppo/envs/families.py"
CHARTS, LOSSES = "fastppo/trainer/metrics.py", "fastppo/update/statistics.py"
ENUM, LOSS = "csrc/update/update.h", "csrc/update/loss.c"

Edits = tuple[tuple[str, str], ...]  # texts that are once in a file, and what replaces each


class Recipe(NamedTuple):
    """Something that is added by a recipe, and a script that needs it."""

    name: str
    edits: dict[str, Edits | str]  # by file; the text of a new one
    script: str


BEGIN = """
import gymnasium, numpy, torch
from fastppo import PPO

def trained(env, **settings):
    "The metrics of one iteration, and the trainer."
    rows = []
    with PPO(env, **dict(preset="none", seed=1, num_envs=2, num_steps=64, num_minibatches=1,
             epochs=1, hidden_sizes=(8,), num_workers=0) | settings) as ppo:
        ppo.learn(128, callbacks=lambda ppo, stats: rows.append(stats))
    return rows[0], ppo
"""

RECIPES = {
    "a setting": Recipe("fake_scale", {
        CONFIG: (("    num_microbatches: int = 1\n", '''\
    fake_scale: float = setting(1.0, needs_torch="learner")
    """Factor on the loss [this test]"""
    num_microbatches: int = 1
'''),),
        LEARNER: (("        return total_loss(output, batch, coefs)\n", '''\
        loss, parts = total_loss(output, batch, coefs)
        return self.config.fake_scale * loss, parts
'''),)}, """
norms = [trained("CartPole-v1", fake_scale=x)[0]["losses/grad_norm"] for x in (1.0, 2.0)]
numpy.testing.assert_allclose(2 * norms[0], norms[1], rtol=1e-5)
import runpy, sys
sys.argv = ["fastppo", "--help-all"]
runpy.run_module("fastppo", run_name="__main__", alter_sys=True)  # the last line: it may exit
"""),

    "a logger": Recipe("nulltrack", {
        SINK: '''
"""The sink of a test."""

import nulltrack


class NulltrackSink:
    """Keeps all metrics."""

    def __init__(self, config, folder, step=None):
        nulltrack.rows = []

    def __call__(self, ppo, stats):
        """Keeps those of an iteration."""
        nulltrack.rows.append(stats)

    def close(self):
        """Ends the list."""
        nulltrack.rows.append(None)
''',
        LOGGERS: (("LOGGERS = {", 'LOGGERS = {"nulltrack": "NulltrackSink",\n    '),)
    }, """
trained("CartPole-v1", logger="nulltrack")
import nulltrack
first, end = nulltrack.rows
assert first["charts/SPS"] > 0 and end is None
"""),

    "a network": Recipe("fakenet", {
        NETWORKS: (("IMAGE_NETWORKS = {", '''\
def fakenet(channels: int, generator: torch.Generator | None) -> nn.Sequential:
    """One convolution."""
    return nn.Sequential(conv(channels, 4, 4, 4, generator), nn.ReLU())


IMAGE_NETWORKS = {"fakenet": ConvNetwork(fakenet, 16),
    '''),),
        CONFIG: (("IMAGE_MODELS = {", 'IMAGE_MODELS = {"fakenet": 4, '),
                 ("mlp, cnn [Mnih 2015],", "mlp, fakenet (a convolution), cnn [Mnih 2015],"))}, """
class Picture(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (6, 6, 3), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros((6, 6, 3), numpy.uint8), {}
    def step(self, action):
        return numpy.full((6, 6, 3), 9, numpy.uint8), float(action), bool(action), False, {}

policy = trained(Picture, model="fakenet")[1].policy
shapes = [tuple(x.shape) for x in policy.parameters()]
assert (4, 3, 4, 4) in shapes and (16, 4) in shapes, shapes
"""),

    "an action distribution": Recipe("fakelaw", {
        HEADS: (("class GSDE(Normal):", '''\
class Laplace(Head):
    """Independent Laplace distributions of scale 1 around their means [b a]."""

    def __init__(self, size: int, bounds_map: str):
        super().__init__(size, "u" * size, size)
        self.bounds_map = bounds_map

    def draw(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b a] from uniform noise [b a]."""
        away = noise - 0.5
        return mean - away.sign() * (-2 * away.abs()).log1p()

    def evaluate(self, mean: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = -(act - mean).abs() - math.log(2)
        return logp.sum(-1), torch.full_like(logp, 1 + math.log(2)).sum(-1)

    def mode(self, mean: Tensor) -> Tensor:
        """The mean [b a]."""
        return mean


class GSDE(Normal):'''),
                ('    if config.distribution == "beta":\n', '''\
    if config.distribution == "fakelaw":
        return Laplace(count, bounds_map)
    if config.distribution == "beta":
''')),
        CONFIG: (('distribution: Literal["gaussian", ',
                  'distribution: Literal["fakelaw", "gaussian", '),
                 ('excludes={\n            "state_gaussian": "std',
                  'excludes={"fakelaw": "std rpo_alpha",\n            "state_gaussian": "std'),
                 ("Distribution of Box actions: ", "Distribution of Box actions: fakelaw, "))}, """
stats, ppo = trained("Pendulum-v1", distribution="fakelaw")
assert type(ppo.policy.head).__name__ == "Laplace"
numpy.testing.assert_allclose(stats["losses/entropy"], 1 + numpy.log(2), rtol=1e-6)
from fastppo import Error
for setting in ({"std": 0.1}, {"sde": True}):
    try:
        trained("Pendulum-v1", distribution="fakelaw", **setting)
    except Error as error:
        assert "distribution" in str(error)
    else:
        raise AssertionError(setting)
"""),

    "an environment family": Recipe("fakegames", {
        FAMILIES: (("FAMILIES_KNOWN = (\n", '''\
FAMILIES_KNOWN = (
    Family("Fake games", "vectors", "fakegames", "fakegames", "pip install fakegames",
           ("Fake/*",)),
'''),)}, """
assert trained("Fake/Walk-v0")[1].step == 128
import io, runpy, sys
sys.argv, sys.stdout = ["fastppo", "envs", "fake games"], io.StringIO()
try:
    runpy.run_module("fastppo", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
assert "Fake/Walk-v0" in sys.stdout.getvalue(), sys.stdout.getvalue()
"""),

    "a metric of charts": Recipe("longest", {
        CHARTS: (("        if len(total) > 1:\n", '''\
        means["charts/longest"] = float(max(length))
        if len(total) > 1:
'''),)}, """
stats = trained("CartPole-v1", learner="torch")[0]
assert stats["charts/longest"] > stats["charts/episodic_length"] > 0
"""),

    "a metric of losses": Recipe("ratio", {
        LOSSES: (('"clipfrac",\n', '"clipfrac", "ratio",\n'),
                 ("    rows = fresh.ent, change + fall, fall,"
                  " (change.abs() > coefs.clip_range).to(fall.dtype)\n", '''\
    rows = (fresh.ent, change + fall, fall, (change.abs() > coefs.clip_range).to(fall.dtype),
            change + 1)
''')),
        ENUM: ((" CLIPPED, SUMS,", " CLIPPED, RATIO, SUMS,"),),
        LOSS: (("        sums[OLD_KL] -= log_ratio[r];\n", '''\
        sums[OLD_KL] -= log_ratio[r];
        sums[RATIO] += ratio[r];
'''),)}, """
found = [{name: value for name, value in trained(
    "CartPole-v1", learner=learner, num_minibatches=4, epochs=4)[0].items()
    if name.startswith("losses/")} for learner in LEARNERS]
assert 0 < abs(found[0]["losses/ratio"] - 1) < 0.1
numpy.testing.assert_allclose(*map(list, map(dict.values, found)), rtol=1e-4, atol=1e-6)
"""),
}

# Packages beside fastppo that the fakes need.
BESIDE = {"nulltrack": "", "fakegames": """
import gymnasium, numpy

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        return numpy.ones(2, numpy.float32), float(action), bool(action), False, {}

gymnasium.register("Fake/Walk-v0", "fakegames:Walk", max_episode_steps=9)
"""}


def named_files(kind: str, name: str) -> set[str]:
    """The files of the package that the steps of a recipe name."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## Adding {kind}\n")[2]
    steps = re.findall(r"^\d\. .*", section.partition("\n## ")[0], re.MULTILINE)
    assert 2 <= len(steps) <= 4
    return set(re.findall(r"`((?:fastppo|csrc)/[\w./]+)`", "\n".join(steps).replace("NAME", name)))


def changed_copy(folder: Path, recipe: Recipe) -> Path:
    """A copy of the sources in which a recipe was followed, beside what its fake needs."""
    for name in ("fastppo", "csrc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in recipe.edits.items():
        path = folder / name.replace("NAME", recipe.name)
        text = edits if isinstance(edits, str) else path.read_text()
        for old, new in () if isinstance(edits, str) else edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    for name, text in BESIDE.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def run(folder: Path, script: str) -> str:
    """The stdout of a script with the packages of a folder."""
    ran = subprocess.run([sys.executable, "-P", "-c", BEGIN + script], capture_output=True,
                         text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_works_and_names_every_file_that_it_changes(kind, tmp_path):
    recipe = RECIPES[kind]
    touched = {name.replace("NAME", recipe.name) for name in recipe.edits}
    assert named_files(kind, recipe.name) == touched
    learners = 'LEARNERS = "torch", "torch"\n'  # the compiled one: see below
    said = run(changed_copy(tmp_path, recipe), learners + recipe.script)
    assert kind != "a setting" or f"--{recipe.name}" in said


def test_the_compiled_learner_has_as_many_statistics_as_the_list_has_names():
    from fastppo.machine import kernels
    from fastppo.update import statistics
    assert kernels.SUMS in (0, len(statistics.LOSSES) - 1)  # 0: there is no extension


@pytest.mark.full
def test_a_metric_of_losses_is_the_same_in_the_compiled_learner(tmp_path):
    recipe = RECIPES["a metric of losses"]
    folder = changed_copy(tmp_path / "changed", recipe)
    shutil.copy(ROOT / "setup.py", folder)
    for path in built(tmp_path, folder).glob("fastppo/_*"):
        shutil.copy(path, folder / "fastppo")
    run(folder, 'LEARNERS = "torch", "kernel"\n' + recipe.script)
