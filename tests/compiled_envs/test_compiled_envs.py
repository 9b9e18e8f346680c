"""Environments that Numba compiles: equal to the same functions in Python, in all that a run does.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys

import numba
import numpy as np
import pytest
from compiled_for_tests import C_CODE, Cards, Drift, Push, in_python
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.utils.env_checker import check_env
from interruption import Interruption
from source_tree import ROOT

from fastppo import PPO, compiled_env
from fastppo.compiled_envs.rows import STREAM
from fastppo.compiled_envs.stepper import CompiledSerial
from fastppo.errors import ConfigError, EnvError, SpaceError
from fastppo.machine import kernels
from fastppo.spaces.leaves import leaf_arrays
from fastppo.stepping import replay

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="without C they run as Python")
TINY = dict(preset="none", seed=3, num_envs=6, num_steps=16, num_minibatches=2, epochs=1,
            hidden_sizes=(8,), norm_rewards=True, norm_obs=True, num_workers=0)
TESTS = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
SMALL = dict(observation_space=Box(-1, 1, (1,), np.float32), action_space=Discrete(2),
             state=[("place", "f8")])


def collected(ppo):
    """All that a rollout has, as bytes."""
    obs = [x.tobytes() for x in leaf_arrays(ppo.arena["obs"])]
    return *obs, *(ppo.arena[name].tobytes() for name in (
        "act", "logp", "val", "raw", "term", "trunc", "nxt", "adv", "length", "total"))


def iterations(ppo, count):
    """What each of `count` iterations has collected, the episodes and the weights after them."""
    found = []
    for _ in range(count):
        rollout = ppo.collect()
        found.append(collected(ppo))
        ppo.update(rollout)
        ppo.episodes.add(ppo.arena, ppo.progress.iteration)
    weights = [x.numpy().tobytes() for x in ppo.policy.state_dict().values()]
    return [*found, str(ppo.episodes.state), *weights]


def run_of(env, count=4, **changes):
    with PPO(env, **TINY | changes) as ppo:
        return iterations(ppo, count)


def small(**functions):
    """A compiled environment of one number, of which some functions are others."""
    def reset(state, rng, options):
        state.place = 0.5

    def step(state, action, rng):
        state.place *= 0.5
        return state.place, state.place < 0.1

    def observe(state, obs):
        obs[0] = state.place
    return compiled_env(type("Small", (), SMALL | dict(
        reset=reset, step=step, observe=observe, __module__=__name__) | functions))


@pytest.mark.parametrize(("kind", "acting"), [
    (Drift, "local"), (Push, "local"), (Push, "central"), (Cards, "central")])
def test_a_rollout_equals_that_of_the_python_functions(kind, acting):
    with PPO(kind, **TINY, acting=acting) as ppo:
        assert isinstance(ppo.collector.vec, CompiledSerial)
        found = iterations(ppo, 4)
    assert found == run_of(in_python(kind), acting=acting)
    assert found == run_of(kind, acting=acting, num_workers=2)
    assert found == run_of(kind, acting=acting, num_workers=5)


@pytest.mark.parametrize("changes", [
    dict(action_scaling=True), dict(max_episode_steps=5), dict(nan_policy="reset_env"),
    dict(env_kwargs={}), dict(frame_stack=2)])
def test_a_setting_changes_both_alike(changes):
    assert run_of(Push, **changes) == run_of(in_python(Push), **changes)


def test_options_are_those_of_the_resets():
    curriculum = dict(reset_options=lambda done: {"speed": 1.0 + (done > 0.3)}, total_steps=400)
    ours = run_of(lambda: Drift(speed=0.5), **curriculum)
    assert ours == run_of(in_python(Drift, speed=0.5), **curriculum)
    assert ours == run_of(lambda: Drift(speed=0.5), num_workers=2, **curriculum)
    assert ours != run_of(Drift)
    with pytest.raises(ConfigError, match="Drift has no option 'sped'\n  fix: its options"):
        run_of(Drift, reset_options={"sped": 1})
    with pytest.raises(ConfigError, match="has no option 'sped'"):
        run_of(Drift, env_kwargs={"sped": 1})


def faster(done):
    return {"speed": 1.0 + round(20 * done)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_continues_bit_for_bit_and_replays_nothing(workers, tmp_path, monkeypatch):
    settings = dict(num_steps=5, replay_limit=2, reset_options=faster, total_steps=200)
    with PPO(Drift, **TINY | settings) as ppo:
        iterations(ppo, 3)
        ppo.checkpoint(tmp_path / "c.safetensors")
        wanted = iterations(ppo, 3)
    monkeypatch.setattr(replay, "replay_episode", None)
    with PPO.resume(tmp_path / "c.safetensors", Drift, num_workers=workers,
                    reset_options=faster) as ppo:
        assert iterations(ppo, 3) == wanted


def test_a_run_of_machine_code_continues_as_python_and_the_other_way_round(tmp_path):
    kinds = Drift, in_python(Drift)
    with PPO(Drift, **TINY | dict(num_steps=5)) as ppo:
        iterations(ppo, 3)
        ppo.checkpoint(tmp_path / "0")
        wanted = iterations(ppo, 3)
    with PPO.resume(tmp_path / "0", kinds[1]) as ppo:
        ppo.checkpoint(tmp_path / "1")
        assert iterations(ppo, 3) == wanted
    with PPO.resume(tmp_path / "1", kinds[0]) as ppo:
        assert iterations(ppo, 3) == wanted


@pytest.mark.full
@pytest.mark.parametrize("at", range(1, 400, 7))
def test_an_interrupt_at_any_line_changes_nothing(at):
    with PPO(Drift, **TINY | dict(num_steps=5)) as ppo:
        wanted = iterations(ppo, 2)
    with PPO(Drift, **TINY | dict(num_steps=5)) as ppo:
        found = []
        with Interruption(at, "vecenv compiled_envs/stepper stepping/actors") as strike:
            while len(found) < 2:
                try:
                    rollout = ppo.collect()
                    found.append(collected(ppo))
                    ppo.update(rollout)
                except KeyboardInterrupt:
                    pass
        assert found == wanted[:2], strike.place


def test_a_killed_worker_starts_again_and_nothing_differs():
    wanted = run_of(Drift, 4)
    with PPO(Drift, **TINY | dict(num_workers=2, on_worker_failure="restart")) as ppo:
        first = iterations(ppo, 2)[:2]
        os.kill(ppo.collector.vec.team.workers[0].process.pid, signal.SIGKILL)
        assert first + iterations(ppo, 2) == wanted


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_function_has_its_line_and_the_place(workers):
    def step(state, action, rng):
        state.place += 1.0
        if state.place > 3:
            raise ValueError("too far")
        return 1.0, False
    with pytest.raises(EnvError, match=r"(?s)environment 0 .*, step 2\).*ValueError: too far.*"
                                       r'raise ValueError\("too far"\)'):
        run_of(small(step=step), num_workers=workers)


@pytest.mark.parametrize(("functions", "text"), [
    (dict(step=lambda state, action, rng: (math.nan, False)), "the reward is nan"),
    (dict(step=lambda state, action, rng: (1e300, False)), "the reward is 1e"),
    (dict(step=lambda state, action, rng: 1.0), "cannot unpack|not iterable"),
    (dict(observe=lambda state, obs: obs.fill(state.missing)), "missing"),
    (dict(observe=lambda state, obs: np.zeros(2)), "observe must write into obs"),
    (dict(reset=lambda self, state, rng, options: None), "missing 1 required positional"),
])
def test_what_is_wrong_with_a_function_is_said(functions, text):
    with pytest.raises((EnvError, ConfigError), match=text):
        run_of(small(**functions))


def test_an_observation_that_is_not_finite_is_an_error_with_its_place():
    def observe(state, obs):
        obs[0] = math.inf if state.place < 0.2 else 0.0
    with pytest.raises(EnvError, match=r"environment 0 \(.*, step 1\).*observation\[0\] is inf"):
        run_of(small(observe=observe), norm_obs=False)


def test_numba_says_what_it_cannot_compile_and_where():
    def step(state, action, rng):
        return float(np.random.default_rng(1).random()), False
    with pytest.raises(ConfigError) as caught:
        small(step=step)()
    text = str(caught.value)
    assert "Small.step" in text and "default_rng" in text and "test_compiled_envs.py" in text
    assert "return float(np.random" in text and len(text) < 400, text
    assert caught.value.__suppress_context__  # its chain is a page


def test_numba_may_say_no_line_and_the_function_is_named():
    def step(state, action, rng):
        state.cells = np.zeros(3)
        return 1.0, False
    with pytest.raises(ConfigError, match=r"(?s)Small.step: .*line \d+: def step\(state"):
        small(step=step, state=[("place", "f8"), ("cells", "f8", 3)])()


@pytest.mark.parametrize("space", [Discrete(2, start=1), Box(0.5, 2.0, (1,), np.float32)])
def test_an_environment_may_fail_for_actions_that_are_not_legal(space):
    def step(state, action, rng):
        return math.log(np.sum(action)), False
    assert small(step=step, action_space=space)()


def test_an_environment_may_fail_for_actions_that_its_mask_forbids():
    def step(state, action, rng):
        if action == 0:
            raise ValueError("forbidden")
        return 1.0, False

    def observe(state, obs):
        obs.action_mask[1:] = 1
    small(step=step, observe=observe, action_space=Discrete(3), observation_space=Dict(
        place=Box(0, 1, (1,)), action_mask=MultiBinary(3))).check(20)


def test_another_constant_of_a_helper_is_other_code():
    def made(speed):
        @numba.njit
        def inner():
            return speed

        @numba.njit
        def moved(place):
            return place + inner()

        def step(state, action, rng):
            return moved(0.0), False
        return small(step=step)()
    assert [env.reset(seed=1) and env.step(0)[1] for env in map(made, (0.25, 0.5))] == [0.25, 0.5]


@pytest.mark.parametrize(("changes", "error", "text"), [
    (dict(state=[("place", object)]), ConfigError, "record of numbers"),
    (dict(state="f8"), ConfigError, "record of numbers"),
    (dict(state=[("size", "f8")]), ConfigError, "'size', which NumPy's records have"),
    (dict(observation_space=Tuple([Discrete(2)])), SpaceError, "Tuple"),
    (dict(action_space=Dict(a=Discrete(2))), SpaceError, "Dict"),
    (dict(observation_space=None), SpaceError, "None")])
def test_a_definition_that_no_row_can_hold_is_refused(changes, error, text):
    with pytest.raises(error, match=text):
        small(**changes)


def test_an_attribute_that_no_function_could_see_is_refused():
    with pytest.raises(ConfigError, match="Small has 'max_steps', which no function could see"):
        small(max_steps=50)


def test_an_action_that_is_none_is_refused():
    env, vector = small()(), small().vector(2)
    env.reset(seed=1)
    vector.reset(seed=1)
    for step, action in ((env.step, 2), (vector.step, np.array([0, 7]))):
        with pytest.raises(ValueError, match="not in"):
            step(action)


def test_a_class_without_a_function_is_refused():
    with pytest.raises(ConfigError, match="Half has no function step"):
        compiled_env(type("Half", (), SMALL | dict(reset=print)))


def test_a_helper_that_numba_compiles_may_draw_numbers():
    @numba.njit
    def jump(state, rng):
        state.place += rng.uniform(-0.3, 0.3)

    def step(state, action, rng):
        jump(state, rng)
        return rng.random(), abs(state.place) > 1
    kind = small(step=step)
    kind.check(50)
    assert run_of(kind) == run_of(in_python(kind))


def test_a_script_may_compile_functions_of_its_own_before(tmp_path):
    script = """
import numba
import numpy as np
numba.njit(lambda x: x + 1)(np.zeros(2))
from compiled_for_tests import Drift
print(type(Drift().code).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=TESTS | {"XDG_CACHE_HOME": str(tmp_path)})
    assert done.stdout == "MachineCode\n", done.stderr


def test_classes_of_one_name_in_one_file_have_their_own_code():
    def rewards(table, scale):
        def step(state, action, rng):
            return scale * table[1_500], True
        env = small(step=step)()
        env.reset(seed=1)
        return env.step(0)[1]
    tables = np.zeros(2_000), np.ones(2_000)
    assert [rewards(table, scale) for table in tables for scale in (1.0, 2.0)] == [0, 0, 1, 2]


def test_an_index_out_of_range_is_found_where_bounds_are_checked():
    script = """
import numpy as np
from compiled_for_tests import Push
from fastppo import PPO, compiled_env
class Beyond(Push.definition):
    def observe(state, obs):
        obs[int(state.place[0] > 1) * 5] = 0.0
Beyond.reset = Push.definition.reset
PPO(compiled_env(Beyond), preset="none", seed=1, num_envs=2, num_steps=16, num_minibatches=1,
    num_workers=0).learn(100)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=TESTS | {"NUMBA_BOUNDSCHECK": "1"})
    assert "IndexError: index 5 is out of bounds" in done.stderr


def test_without_numba_the_functions_run_as_python():
    script = """
from compiled_for_tests import Drift
print(type(Drift().code).__name__, Drift.vector(2).reset(seed=1)[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=TESTS | {"NUMBA_DISABLE_JIT": "1"})
    assert done.stdout == "Interpreted (2, 3)\n", done.stderr


@pytest.mark.parametrize("kind", [Drift, Cards, Push])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_an_environment_passes_gymnasiums_checks_and_our_own(kind):
    check_env(kind(), skip_render_check=True)
    kind.check(300)


def test_check_names_the_first_difference():
    def step(state, action, rng):
        state.place = np.float32(0.1) * 3  # float64 in Numba, float32 in NumPy
        return 0.0, state.place > 0.30000001
    with pytest.raises(EnvError, match="episode 0, step 1: terminated is 1.0 in Python, and 0.0"):
        small(step=step).check()
    with pytest.raises(EnvError, match="reward is nan"):
        small(step=lambda state, action, rng: (math.nan, False)).check()


@pytest.mark.parametrize("kind", [Drift, Cards, Push])
def test_a_vector_is_its_environments(kind):
    vector, envs = kind.vector(3), [kind() for _ in range(3)]
    vector.action_space.seed(0)
    batch, _ = vector.reset(seed=5)
    rows = [env.reset(seed=5 + i)[0] for i, env in enumerate(envs)]

    def row(batch, i):
        return {key: x[i] for key, x in batch.items()} if isinstance(batch, dict) else batch[i]

    over = np.zeros(3, bool)
    for _ in range(30):
        for i in np.flatnonzero(~over):
            np.testing.assert_equal(row(batch, i), rows[i])
        actions = np.zeros((3, *kind.action_space.shape), kind.action_space.dtype)
        batch, rewards, terms, truncs, infos = vector.step(actions)
        for i in np.flatnonzero(~over):
            rows[i], *rest, _ = envs[i].step(actions[i])
            assert rest == [rewards[i], terms[i], truncs[i]]
            if terms[i] or truncs[i]:
                np.testing.assert_equal(row(infos["final_obs"], i), rows[i])
                assert infos["_final_obs"][i]
                over[i] = True
    assert over.all() and batch is not None


def test_training_on_a_vector_learns_from_the_final_observations():
    with PPO(Push.vector(4), **TINY | dict(num_envs=4)) as ppo:
        rollout = ppo.collect()
        assert rollout.trunc.any() and not rollout.nxt.isnan().any()


def test_random_numbers_are_a_function_of_the_seed_and_the_count():
    rng = np.zeros(1, STREAM)[0]
    rng.seed = 7
    drawn = np.array([(rng.random(), rng.normal(), rng.integers(2, 5)) for _ in range(2000)])
    assert rng.draws == 6000
    assert abs(drawn[:, 0].mean() - 0.5) < 0.03 and 0 <= drawn[:, 0].min() < drawn[:, 0].max() < 1
    assert abs(drawn[:, 1].mean()) < 0.1 and abs(drawn[:, 1].std() - 1) < 0.06
    assert {*drawn[:, 2]} == {2, 3, 4}
    rng.draws = 0
    assert rng.random() == drawn[0, 0]


def test_functions_of_a_shared_library_are_taken_as_they_are(tmp_path):
    (tmp_path / "small.c").write_text(C_CODE + "int32_t fails(void) { return -1; }\n")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", tmp_path / "small.so",
                    tmp_path / "small.c"], check=True)
    library = ctypes.CDLL(str(tmp_path / "small.so"))
    native = small(reset=library.reset, step=library.step, observe=library.observe)
    assert run_of(native) == run_of(small())
    with pytest.raises(EnvError, match="step of the shared library has returned -1"):
        run_of(small(reset=library.reset, step=library.fails, observe=library.observe))


def test_machine_code_is_kept_in_a_private_folder(tmp_path):
    script = "from compiled_for_tests import Push; Push()"

    def files():
        subprocess.run([sys.executable, "-c", script], check=True,
                       env=TESTS | {"XDG_CACHE_HOME": str(tmp_path)}, cwd=ROOT)
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert (first := files()) and files() == first
    assert (tmp_path / "fastppo").stat().st_mode & 0o777 == 0o700
    script = script.replace("compiled_for_tests import", "tests.compiled_for_tests import")
    assert len(files()) == 2 * len(first)  # another module, whose name is in the code
    (tmp_path / "fastppo").chmod(0o777)
    for path in tmp_path.rglob("*.nbc"):
        path.unlink()
    assert files() == {}


def test_a_trained_policy_is_evaluated_and_drawn():
    with PPO(Drift, **TINY) as ppo:
        ppo.learn(200)
        assert len(ppo.evaluate(5).returns) == 5
    env = Drift(render_mode="rgb_array")
    env.reset(seed=1)
    assert env.render().shape == (64, 64, 3)
