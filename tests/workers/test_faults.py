"""What breaks its contract, raises, hangs or dies is one clear error, and leaves nothing behind."""

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time
import types

import gymnasium as gym
import numpy as np
import pytest
import torch
from fault_envs import (
    Beyond,
    Calm,
    Faulty,
    TwoPart,
    Unpicklable,
    endless,
    hanging,
    hanging_with_the_gil,
    holds,
    killed_by,
    leaving,
    nothing_left,
    observing,
    paying,
    raising,
    running_workers,
)
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO, Error
from fastppo.errors import ClosedError, ConfigError, EnvError, Omit, Set, WorkerError, fix_text
from fastppo.workers import team
from fastppo.workers.protocol import FAILED, WARMUP

pytestmark = NEEDS_EXTENSION
NAN, INF = float("nan"), float("inf")
SETTINGS = dict(seed=7, num_steps=16, num_minibatches=2, epochs=1, norm_obs=False,
                hidden_sizes=(4,))
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def trainer(envs, workers, **settings):
    return PPO(envs, num_workers=workers, **SETTINGS, **settings)


def failure(fault, workers, at=2, episode=1, **settings):
    """The error of a run whose third environment of four has `fault`; then nothing is left."""
    with nothing_left():
        ppo = trainer([Calm, Calm, lambda: Faulty(fault, at, episode), Calm], workers, **settings)
        with pytest.raises(Error) as caught:
            ppo.collect()
        ppo.close()
        ppo.close()
    return caught.value


def assert_named(error, workers, step, episode=1):
    """The text says where it happened, once, and what to do."""
    place = rf"\({'worker 1, ' * (workers > 0)}seed \d+, episode {episode}, step {step}\)"
    assert str(error).count("environment 2") == str(error).count("\n  fix: ") == 1
    assert re.search(f"environment 2 {place}", str(error))
    assert isinstance(error, EnvError)


BAD_ANSWERS = {
    "shape (2,2)": (observing(np.zeros((2, 2), np.float32)), r"observation has shape \(2, 2\)"),
    "shape (1,)": (observing(np.zeros(1, np.float32)), r"observation has shape \(1,\)"),
    "shape (5,)": (observing(np.zeros(5, np.float32)), r"observation has shape \(5,\)"),
    "shape ()": (observing(np.float32(0)), r"observation has shape \(\)"),
    "text": (observing(np.array(["a", "b"])), "observation is <U1"),
    "objects": (observing(np.array([None, 1.0])), "observation is object"),
    "complex": (observing(np.zeros(2, complex)), "observation is complex128"),
    "ragged": (observing([1.0, [2.0]]), "inhomogeneous shape"),
    "nothing": (observing(None), "observation is NoneType"),
    "a NaN": (observing(np.array([0, NAN], np.float32)), r"observation\[1\] is nan"),
    "an infinity": (observing(np.array([-INF, 0], np.float32)), r"observation\[0\] is -inf"),
    "too large": (observing(np.array([0, 1e39])), r"observation\[1\] is inf"),
    "reward None": (paying(None), "reward is None"),
    "reward NaN": (paying(NAN), "reward is nan"),
    "reward -inf": (paying(np.float32(-INF)), "reward is -inf"),
    "reward 1e39": (paying(1e39), r"reward is 1e\+39"),
    "reward [1]": (paying(np.ones(1)), r"reward is array\(\[1"),
    "reward [1, 2]": (paying(np.ones(2)), r"reward is array\(\[1"),
    "reward text": (paying("1.0"), "reward is '1.0'"),
    "reward 1j": (paying(1j), "reward is 1j"),
    "reward object": (paying(object()), "reward"),
    "four parts": (lambda env: (np.zeros(2, np.float32), 0.0, False, {}),
                   r"(?s)expected 5, got 4.*step\(\) must take .*return \(obs, reward, termin"),
    "six parts": (lambda env: (np.zeros(2, np.float32), 0.0, False, False, {}, 1),
                  r"(?s)too many values.*step\(\) must take"),
    "no parts": (lambda env: None, r"(?s)NoneType.*step\(\) must take"),
    "term None": (lambda env: (np.zeros(2, np.float32), 0.0, None, None, {}), "terminated is None"),
    "trunc dict": (lambda env: (np.zeros(2, np.float32), 0.0, False, {}, {}), "truncated is {}"),
    "term text": (lambda env: (np.zeros(2, np.float32), 0.0, "", False, {}), "terminated is ''"),
    "term array": (lambda env: (np.zeros(2, np.float32), 0.0, np.zeros(2, bool), False, {}),
                   "not True or False"),
    "trunc array": (lambda env: (np.zeros(2, np.float32), 0.0, True, np.zeros(2, bool), {}),
                    "not True or False"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_wrong_answer_to_step_is_one_error_that_names_its_place(name):
    fault, text = BAD_ANSWERS[name]
    error = failure(fault, 0)
    assert_named(error, 0, 2)
    assert re.search(text, str(error))


@pytest.mark.parametrize("name", ["a NaN", "reward None"])
def test_a_wrong_answer_in_a_worker_is_the_same_error_with_the_workers_number(name):
    fault, text = BAD_ANSWERS[name]
    error = failure(fault, 2)
    assert_named(error, 2, 2)
    assert re.search(text, str(error))


@pytest.mark.parametrize("reply, text", [
    ((np.zeros(3, np.float32), {}), r"observation has shape \(3,\)"),
    ((np.array([NAN, 0], np.float32), {}), r"observation\[0\] is nan"),
    (np.zeros(3, np.float32), r"(?s)unpack.*reset\(\) must take .*return \(obs, info\)"),
    (None, r"(?s)NoneType.*reset\(\) must take"),
])
def test_a_wrong_answer_to_reset_names_the_episode_that_did_not_begin(reply, text):
    error = failure(lambda env: reply, 0, at=-1)
    assert_named(error, 0, 0)
    assert re.search(text, str(error)) and "reset" in str(error)
    assert "nan_policy" not in str(error)  # it is for steps


@pytest.mark.parametrize("name, fix", [
    ("reward [1]", "return (obs, reward,"),
    ("an infinity", "--nan_policy=reset_env"), ("text", "as its spaces declare")])
def test_the_fix_of_a_wrong_answer_says_what_to_return(name, fix):
    assert fix in fix_text(failure(BAD_ANSWERS[name][0], 0).fix, shell=True)


def test_the_fix_of_a_wrong_result_is_to_correct_it_and_no_line_of_ours_is_shown():
    for workers in (0, 2):
        error = failure(BAD_ANSWERS["a NaN"][0], workers)
        assert fix_text(error.fix, shell=True).endswith("or --nan_policy=reset_env")
        assert "Traceback" not in error.what and re.search(r"seed \d+", error.what)


def test_without_workers_the_fix_is_to_play_the_episode_alone_and_not_to_do_without():
    def failing(env):
        raise KeyError("of its own")
    assert "with num_workers=0 a breakpoint() in it works" in str(failure(failing, 2))
    assert fix_text(failure(failing, 0).fix, shell=True) == "correct it; a breakpoint() in it works"


@WORKERS
def test_a_fault_before_the_first_episode_is_one_of_the_warm_up(workers):
    settings = SETTINGS | dict(norm_obs=True)
    with PPO([lambda: Faulty(paying(None), 2, 0)] * 2, num_workers=workers, **settings) as ppo:
        with pytest.raises(EnvError, match=r"seed \d+, warm-up episode 1, step 2\) failed in step"):
            ppo.collect()


def test_a_final_observation_is_checked_like_any_other():
    final = (np.array([0, NAN], np.float32), 0.0, False, True, {})
    error = failure(lambda env: final, 0, at=4)
    assert_named(error, 0, 4)
    assert "observation[1] is nan" in str(error)


@pytest.mark.parametrize("at", [-1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_too_large_for_float32_is_the_error_alone(dtype, at, recwarn):
    class Wide(Faulty):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), dtype)

        def observed(self):
            return super().observed().astype(np.float64)
    big = np.array([0, 1e39])
    answer = (big, {}) if at < 0 else (big, 0.0, at == 4, False, {})
    with trainer(lambda: Wide(lambda env: answer, at), 0, num_envs=2) as ppo:
        with pytest.raises(EnvError, match=r"observation\[1\] is inf in float32"):
            ppo.collect()
    assert not recwarn.list


class Fickle(Calm):
    """Answers in one dtype after the other, whatever its space says; int64 alone has no halves."""

    def __init__(self, dtypes):
        super().__init__(3)
        self.dtypes, self.calls = dtypes, 0

    def observed(self):
        self.calls += 1
        dtype = self.dtypes[self.calls % len(self.dtypes)]
        return np.array([self.calls, 0.5], dtype)


F8, F4, I8, F2 = np.float64, np.float32, np.int64, np.float16


@pytest.mark.parametrize("dtypes", [(F8, F4, I8, F2), (F8,), (I8,), (F8, I8)])
def test_observations_may_change_their_dtype_as_they_like(dtypes):
    with trainer(lambda: Fickle(dtypes), 0, num_envs=1) as ppo:
        for _ in range(3):
            for calls, half in ppo.collect().obs[:, 0].tolist():
                assert half == 0.5 * (dtypes[int(calls) % len(dtypes)] != I8)


FINE = {
    "a list": [0.25, 0.5],
    "a tuple": (0.25, 0.5),
    "float64": np.array([0.25, 0.5]),
    "int64": np.array([0, 1]),
    "float16": np.array([0.25, 0.5], np.float16),
    "not contiguous": np.arange(8, dtype=np.float32)[::4] / 8,
    "read-only": np.frombuffer(np.array([0.25, 0.5], np.float32).tobytes(), np.float32),
    "a tensor": torch.tensor([0.25, 0.5]),
    "a subclass": np.ma.array([0.25, 0.5], np.float32),
}


@pytest.mark.parametrize("name", FINE)
def test_an_observation_that_casts_without_surprise_is_taken_as_it_is(name):
    with trainer(lambda: Faulty(observing(FINE[name]), 2, 0), 0, num_envs=1) as ppo:
        obs = ppo.collect().obs
    assert np.array_equal(obs[3, 0].numpy(), np.asarray(FINE[name], np.float32))


def test_an_observation_without_axes_is_a_number():
    class Scalar(Calm):
        observation_space = gym.spaces.Box(-1e6, 1e6, (), np.float64)

        def observed(self):
            return float(self.steps) if self.steps % 2 else np.float64(self.steps)
    with trainer(Scalar, 0, num_envs=2) as ppo:
        assert ppo.collect().obs[:6, 0].tolist() == [0, 1, 2, 3, 4, 0]


def test_an_environment_may_reuse_the_array_it_answers_with():
    class Reusing(Calm):
        def __init__(self):
            super().__init__()
            self.array = np.zeros(2, np.float32)

        def observed(self):
            self.array[:] = self.steps, self.episodes
            return self.array
    with trainer(Reusing, 0, num_envs=1) as ppo:
        obs = ppo.collect().obs[:, 0].tolist()
        final = ppo.arena["fin"][0].tolist()
    assert obs[:8] == [[0, 1], [1, 1], [2, 1], [3, 1], [4, 1], [0, 2], [1, 2], [2, 2]]
    assert final[0] == 5


HUGE = "x" * 10_000_000
RAISED = {
    "plain": (lambda: ValueError("boom"), "ValueError: boom"),
    "percent": (lambda: ValueError("100 %s %d %"), "ValueError: 100 %s %d %"),
    "two parts": (lambda: TwoPart(1, 2), "TwoPart: 1 and 2"),
    "unpicklable": (Unpicklable, "Unpicklable"),
    "huge": (lambda: ValueError(HUGE), "ValueError: xxxx"),
    "huge and wide": (lambda: ValueError("\U0001f600" * 100_000), "ValueError: \U0001f600"),
    "surrogates": (lambda: ValueError(b"\xff".decode(errors="surrogateescape")), "ValueError: "),
    "NUL": (lambda: ValueError("a\0b"), "ValueError: a"),
    "sys.exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "BaseException": (lambda: Beyond("far"), "Beyond: far"),
    "lines": (lambda: ValueError("one\ntwo"), "ValueError: one\ntwo"),
}


def assert_told(error, text):
    assert text in str(error)
    assert 'fault_envs.py"' in str(error) and "raise error()" in str(error)
    assert len(str(error)) < 70_000
    str(error).encode()


@pytest.mark.parametrize("name", RAISED)
def test_what_step_raises_arrives_as_text_with_its_traceback(name):
    make, text = RAISED[name]
    error = failure(raising(make), 0)
    assert_named(error, 0, 2)
    assert_told(error, text)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["unpicklable", "huge and wide", "surrogates", "sys.exit",
                                  "BaseException"])
def test_what_step_raises_in_a_worker_arrives_as_text_with_its_traceback(name):
    make, text = RAISED[name]
    error = failure(raising(make), 2)
    assert_named(error, 2, 2)
    assert_told(error, text)


LEVELS = {"env_kwargs": {"level": "x" * 300_000}}


@pytest.mark.parametrize("fix, shell, python", [
    ((Set(env_name="Pendulum-v1"), Omit("std")), "--env_name=Pendulum-v1; or leave --std out",
     'env="Pendulum-v1"; or leave std out'),
    ("a sentence", "a sentence", "a sentence"), (Set(**LEVELS), "x" * 1000, "x" * 1000)],
    ids=["data", "text", "long data"])
def test_a_workers_error_arrives_with_its_fix(fix, shell, python):
    def refuse():
        raise ConfigError("no such level", fix)
    with nothing_left(), running_workers([refuse], 1, reset_timeout=5) as vec:
        with pytest.raises(WorkerError, match="no such level") as caught:
            vec.warmup(1)
    assert shell in caught.value.shell and python in str(caught.value)


@WORKERS
def test_endless_recursion_is_an_error_like_any_other(workers):
    error = failure(endless, workers)
    assert_named(error, workers, 2)
    assert "RecursionError" in str(error) and len(str(error)) < 70_000


@WORKERS
def test_what_reset_raises_names_the_episode_that_did_not_begin(workers):
    error = failure(raising(lambda: ValueError("boom")), workers, at=-1)
    assert_named(error, workers, 0)
    assert "reset()" in str(error) and "ValueError: boom" in str(error)


def test_the_seed_in_an_error_begins_the_episode_that_failed():
    error = failure(raising(lambda: ValueError("boom")), 0, at=-1)
    with trainer([Calm] * 4, 0) as ppo:
        seed = int(re.search(r"seed (\d+)", str(error))[1])
        first = gym.utils.seeding.np_random(seed)[0].random(dtype=np.float64)
        assert ppo.collect().obs[5, 2, 1].item() == np.float32(first)


@WORKERS
def test_what_a_constructor_raises_names_its_environment(workers):
    made = []

    def broken():
        if made:  # not where its spaces are looked at
            raise ValueError("no such level")
        made.append(True)
        return Calm()
    with nothing_left():
        with pytest.raises(Error) as caught, trainer([Calm, Calm, broken, Calm], workers) as ppo:
            ppo.collect()
    text = str(caught.value)
    assert "environment 2" in text and "ValueError: no such level" in text and "fix: " in text
    assert "in broken" in text and ("worker 1" in text) == bool(workers)


def test_a_constructor_that_fails_at_once_is_an_error_of_ours():
    def broken():
        raise ValueError("no such level")
    with nothing_left(), pytest.raises(Error, match="environment 0.*\n(.*\n)*.*in broken"):
        trainer(broken, 2)


def test_what_close_raises_stops_nobody(capfd, caplog):
    class Clingy(Calm):
        def close(self):
            raise ValueError("not yet")
    with nothing_left():
        for workers in (0, 2):
            with trainer([Clingy, Clingy], workers) as ppo:
                ppo.collect()
            said = capfd.readouterr().err if workers else caplog.text
            # Of the spaces and of the run, or of two workers.
            assert said.count("ValueError: not yet") == 2


def test_an_environment_that_leaves_in_close_stops_nobody(caplog):
    class Leaver(Calm):
        def close(self):
            raise SystemExit(3)
    with trainer([Leaver, Leaver], 0) as ppo:
        ppo.collect()
    assert "close() of 2 environments has failed" in caplog.text and "SystemExit" in caplog.text


def test_a_close_that_hangs_in_the_main_process_is_left_behind(monkeypatch, caplog):
    from fastppo.envs import faults
    monkeypatch.setattr(faults, "CLOSE_SECONDS", 0.2)
    free = threading.Event()

    class Clinging(Calm):
        def close(self):
            free.wait()
    with trainer(Clinging, 0, num_envs=3) as ppo:
        ppo.collect()
        assert "close() of 1 environments has not returned after 0.2 s" in caplog.text
    assert "close() of 3 environments has not returned" in caplog.text
    free.set()


@pytest.mark.some(1)
@pytest.mark.parametrize("fault, text, at", [
    (killed_by(signal.SIGKILL), "killed by SIGKILL", 2), (leaving, "exited with code 3", -1),
    (killed_by(signal.SIGBUS), "killed by SIGBUS", 2)])
def test_a_worker_that_dies_is_named_with_its_signal_and_its_environment(fault, text, at):
    error = failure(fault, 2, at)
    assert isinstance(error, WorkerError)
    doing = "step 2 of its episode" if at >= 0 else "reset"
    seed = re.search(r"seed (\d+), episode 1,", str(failure(raising(KeyError), 2)))[1]
    assert f"worker 1 (environment 2, seed {seed}, episode 1, {doing}) " in str(error)
    assert text in str(error) and "\n  fix: " in str(error)


def test_a_crash_in_native_code_shows_the_workers_python_stack(capfd):
    text = str(failure(killed_by(signal.SIGSEGV), 2))
    assert "killed by SIGSEGV" in text and "in _step" in text
    assert "Fatal Python error" not in capfd.readouterr().err  # the error alone shows it


def test_a_worker_that_dies_while_the_main_process_is_busy_is_reported_at_the_next_wait():
    with nothing_left():
        ppo = trainer(Calm, 2, num_envs=4)
        ppo.collect()
        victim = ppo.collector.vec.team.workers[1].process
        victim.kill()
        victim.wait()
        with pytest.raises(WorkerError, match="worker 1 .*was killed by SIGKILL"):
            ppo.collect()
        with pytest.raises(ClosedError):
            ppo.collect()
        ppo.close()


def test_a_worker_that_dies_in_central_acting_is_reported_too():
    error = failure(killed_by(signal.SIGKILL), 2, acting="central")
    assert re.search(r"worker 1 \(environment 2, seed \d+, episode 1, step 2 of its episode\) was"
                     " killed by SIGKILL", str(error))


def test_an_exception_in_central_acting_is_reported_too():
    error = failure(raising(lambda: ValueError("boom")), 2, acting="central")
    assert_named(error, 2, 2)


def test_two_workers_that_fail_at_once_are_both_named():
    def broken():
        return Faulty(raising(lambda: ValueError("boom")), 2, 0)
    with nothing_left(), running_workers([broken, Calm, Calm, broken], 2) as vec:
        vec.team.post(WARMUP, 8)
        assert holds(lambda: all(cell.state == FAILED for cell in vec.team.cells.done))
        with pytest.raises(WorkerError) as caught:
            vec.warmup(8)
    assert "environment 0 (worker 0" in str(caught.value)
    assert "\nenvironment 3 (worker 1" in str(caught.value)


def test_two_workers_that_die_at_once_are_both_named():
    with nothing_left():
        ppo = trainer(Calm, 2, num_envs=4)
        ppo.collect()
        for worker in ppo.collector.vec.team.workers:
            worker.process.kill()
            worker.process.wait()
        with pytest.raises(WorkerError) as caught:
            ppo.collect()
        ppo.close()
    for w in (0, 1):
        assert f"worker {w} (while it had nothing to do) was killed by SIGKILL" in str(caught.value)


@pytest.mark.parametrize("fault", [hanging, hanging_with_the_gil])
def test_a_hang_is_reported_with_the_workers_stack_and_ends_by_force(fault, capfd):
    error = failure(fault, 2, step_timeout=0.6)
    assert isinstance(error, WorkerError)
    assert str(error).count(f"in {fault.__name__}") == 1
    assert fault.__name__ not in capfd.readouterr().err  # the stack is in the error alone
    assert re.search(r"worker 1 \(environment 2, seed \d+, episode 1, step 2 of its episode\) has"
                     " not answered", str(error))
    assert f"in {fault.__name__}" in str(error) and "in _step" in str(error)
    assert "--step_timeout=6" in fix_text(error.fix, shell=True)


def asleep(env):
    """Sleeps in native code, until a signal ends that; then its steps go on."""
    ctypes.CDLL(None).sleep(1000)
    return Calm.step(env, 0)


def test_the_place_of_a_hang_that_a_signal_ends_is_that_of_the_hang():
    error = failure(asleep, 2, step_timeout=0.6)
    assert [tuple(place)[::2] for place in error.places] == [(2, 2)]


def test_a_hang_in_reset_has_a_timeout_of_its_own():
    with nothing_left():
        ppo = trainer([Calm, Calm, lambda: Faulty(hanging, -1, 4), Calm], 2, step_timeout=0)
        ppo.collect()
        ppo.collector.vec.team.reset_timeout = 0.6  # now that the workers have started
        with pytest.raises(Error) as caught:
            ppo.collect()
        ppo.close()
    assert re.search(r"\(environment 2, seed \d+, episode 4, reset\)", str(caught.value))
    assert "in hanging" in str(caught.value)
    assert "--reset_timeout=6" in fix_text(caught.value.fix, shell=True)


def test_closing_does_not_wait_for_an_environment_that_hangs():
    with nothing_left():
        with running_workers([lambda: Faulty(hanging_with_the_gil, 1, 0), Calm], 2) as vec:
            vec.team.post(WARMUP, 8)  # a warm-up that never ends, and nobody waits for it
            while vec.team.cells.done[0].where[0] != 1:
                time.sleep(0.01)


def test_a_worker_whose_steps_end_is_never_taken_for_hung():
    from fastppo import _cells
    memory = np.zeros(256, np.uint8)
    at = -memory.ctypes.data % 128
    cell = _cells.Cell(memory[at:at + 128])
    cell.at(0, 0)
    before = cell.where
    cell.at(0, 0)
    assert cell.where != before


def test_what_an_environment_puts_into_its_infos_is_its_own_business():
    class Talkative(Calm):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], None

        def step(self, action):
            *reply, _ = super().step(action)
            infos = [{"lock": lambda: 0, "final_obs": 7}, {"text": "x" * 100_000}, None, [1]]
            return *reply, infos[self.steps % 4]
    with trainer(Talkative, 1, num_envs=2) as ppo:
        assert ppo.collect().obs[:6, 0, 0].tolist() == [0, 1, 2, 3, 4, 0]


@WORKERS
def test_episodes_of_one_step_end_at_every_step(workers):
    with trainer(lambda: Calm(1), workers, num_envs=2) as ppo:
        rollout = ppo.collect()
    assert (rollout.term ^ rollout.trunc).all() and (rollout.obs[:, :, 0] == 0).all()
    assert torch.equal(rollout.nxt.isnan(), rollout.term)


def test_a_module_that_only_the_main_process_has_is_named():
    module = types.ModuleType("only_here")
    module.Here = type("Here", (Calm,), {"__module__": "only_here"})
    sys.modules["only_here"] = module
    try:
        with nothing_left(), trainer(module.Here, 2, num_envs=2) as ppo:
            with pytest.raises(WorkerError, match="failed in its start: ModuleNotFound"):
                ppo.collect()
    finally:
        del sys.modules["only_here"]


def test_a_keyboard_interrupt_that_an_environment_raises_in_a_worker_is_a_fault():
    error = failure(raising(KeyboardInterrupt), 2)
    assert "KeyboardInterrupt" in str(error) and "SIGINT" not in str(error)
    assert "environment 2 (worker 1, seed " in str(error) and "\n  fix: " in str(error)


@pytest.mark.full
def test_a_fork_of_the_host_leaves_the_workers_to_their_own():
    code = """
import os, sys
from fastppo import PPO
with PPO("CartPole-v1", preset="none", num_envs=2, num_steps=4, num_minibatches=1, epochs=1,
         num_workers=1, seed=1) as ppo:
    ppo.collect()
    for end in (ppo.close, ppo.collect, sys.exit):
        if not os.fork():
            try:
                end()
            except Exception as error:
                print(type(error).__name__, flush=True)
            sys.exit(0)
        os.wait()
        ppo.update(ppo.collect())
        print("went on after", end.__name__, flush=True)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, timeout=120)
    assert done.stdout.split("\n")[:-1] == [
        "went on after close", "ClosedError", "went on after collect", "went on after exit",
    ], done.stderr


def test_of_several_failures_the_first_is_told_whole_and_the_others_in_a_line():
    first, second = (f"environment {e} (worker {e}) failed in step(): ValueError: odd\nTraceback"
                     for e in (0, 1))
    other = "environment 2 (worker 2) failed in reset(): KeyError: 3"
    assert team.joined_texts([first, second, other]) == "\n".join([
        first, "environment 1 (worker 1) failed in step(): ValueError: odd", other])
    assert team.joined_texts([first]) == first


def test_faults_without_a_place_are_told_once():
    text = "the environment's factory returned the same object twice"
    assert team.joined_texts([text, text]) == text


class Sly(float):
    """A number that is one only until it is stored."""

    def __float__(self):
        raise ValueError("sly")


def test_a_reward_that_fails_when_it_is_stored_has_a_place():
    env = [Calm, lambda: Faulty(lambda env: (np.zeros(2, np.float32), Sly(1), False, False, {}),
                                3, 0)]
    with trainer(env, 0) as ppo, pytest.raises(EnvError, match="environment 1 .*step 3") as caught:
        ppo.collect()
    assert [place.env for place in caught.value.places] == [1]


def test_a_group_that_was_stopped_is_not_taken_for_one_that_hangs():
    with trainer([Calm, Calm], 1, step_timeout=1) as ppo:
        ppo.collect()
        workers, now = ppo.collector.vec.team, time.monotonic()
        where = workers.cells.done[0].where, workers.cells.stepped[0].value()
        workers._progress[0] = where, now - 60, now - 60
        workers._check_timeout(0)  # nobody has looked for a minute
        workers._progress[0] = where, now - 60, now
        with pytest.raises(WorkerError, match="has not answered for 60"):
            workers._check_timeout(0)
