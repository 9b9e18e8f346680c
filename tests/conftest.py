"""What every test file has: trainers that are closed for it, on tiny and quiet settings."""

import collections
import os
import signal

import pytest
from pretend_machine import pretend
from tiny_settings import TINY

pretend(MACHINE := os.environ.get("PRETEND_MACHINE", ""))
os.environ["OMP_WAIT_POLICY"] = "passive"  # torch's idle threads sleep: many processes share cores
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:  # in a shell's background job, and after nohup
        signal.signal(number, usual)

if os.environ.get("PRETEND_GPU") == "1":  # `make test-gpu`
    import pretend_gpu
    pretend_gpu.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked `some(n)`, n cases, spread evenly, are fast; the others are `full`."""
    cases = collections.defaultdict(list)
    for item in items:
        if MACHINE and item.get_closest_marker("this_machine"):
            item.add_marker(pytest.mark.skip(f"another machine is pretended: {MACHINE}"))
        if item.get_closest_marker("some"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test in cases.values():
        count = test[0].get_closest_marker("some").args[0]
        fast = {round(number * (len(test) - 1) / max(count - 1, 1)) for number in range(count)}
        for number, item in enumerate(test):
            if number not in fast:
                item.add_marker("full")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A test that asks for what only the extension has is skipped where that is pretended away."""
    from fastppo.errors import ConfigError
    try:
        return (yield)
    except ConfigError as error:
        if "no-compiler" in MACHINE and "compiled extension" in error.what:
            pytest.skip(f"needs the compiled extension: {error.what}")
        raise


@pytest.fixture
def trainer(request):
    """A function that makes a PPO of tiny size, over which settings go; closed after the test.

    A test file that looks into torch's learner says so by `LEARNER = "torch"`.
    """
    from fastppo import PPO  # here: the process that hands out the tests does without torch
    from fastppo.config import MODELS
    made, learner = [], getattr(request.module, "LEARNER", "auto")

    def make(env, **settings) -> PPO:
        built_in = {"hidden_sizes": (8,)} if settings.get("model", "mlp") in MODELS else {}
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
def command_read_by():
    """A function from capsys or capfd to what the fixture `command` is."""
    from fastppo.cli import main

    def read_by(capture):
        def run(*argv):
            code = 0
            try:
                main.main(argv)
            except SystemExit as end:
                code = end.code
            return code, *capture.readouterr()
        return run
    return read_by


@pytest.fixture
def command(command_read_by, capsys):
    """A function from argv to (exit code, stdout, stderr) of the command in this process."""
    return command_read_by(capsys)
