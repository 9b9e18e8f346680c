"""What every test file has: trainers that are closed for it, on tiny and quiet settings."""

import os

import pytest

os.environ["OMP_WAIT_POLICY"] = "passive"  # torch's idle threads sleep: many processes share cores

TINY = {
    "preset": "none",
    "seed": 1,
    "num_workers": 0,
    "num_envs": 4,
    "num_steps": 8,
    "epochs": 1,
    "num_minibatches": 1,
    "norm_rewards": False,  # a test's rewards are those that its environment gave
}


@pytest.fixture
def trainer(request):
    """A function that makes a PPO of tiny size, over which settings go; closed after the test.

    A test file that looks into torch's learner says so by `LEARNER = "torch"`.
    """
    from fastppo import PPO  # here: the process that hands out the tests does without torch
    from fastppo.build.user_model import is_user_model
    made, learner = [], getattr(request.module, "LEARNER", "auto")

    def make(env, **settings) -> PPO:
        built_in = {} if is_user_model(settings.get("model", "mlp")) else {"hidden_sizes": (8,)}
        made.append(PPO(env, **{**TINY, "learner": learner, **built_in, **settings}))
        return made[-1]

    yield make
    for ppo in made:
        ppo.close()


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """Torch's global settings are the same after a test as before it."""
    import torch
    before = torch.get_num_threads(), torch.get_default_dtype()
    yield
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before


@pytest.fixture
def command(capsys):
    """A function from argv to (exit code, stdout, stderr) of the command in this process."""
    from fastppo.cli import main

    def run(*argv):
        code = 0
        try:
            main.main(argv)
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()
    return run
