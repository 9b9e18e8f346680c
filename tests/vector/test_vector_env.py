"""make_vec: what Gymnasium expects of a vector environment, in this process and in workers."""

import gc
import multiprocessing
import os
import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from envs_for_tests import Chance, interrupted
from envs_for_workers import Held, Locked, Sampled, Script, Slow, Talker, large, with_lock
from fault_envs import Faulty, guard, killed_by, nothing_left, observing, paying, raising
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from interruption import Interruption
from vector_answers import assert_same, assert_same_steps

import fastppo
from fastppo import make_vec
from fastppo.errors import ConfigError, EnvError, InputError, SpaceError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.workers import protocol

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
BOTH = [0, 2]
SELDOM = [0, pytest.param(2, marks=pytest.mark.slow)]  # workers, where one pair of tests is enough
F, T = False, True


SCRIPTS = [partial(Script, 2), partial(Script, 3, term=False)]


@pytest.fixture
def vec():
    """A function that makes a vector environment, closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(make_vec(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def traced(env, steps):
    """Observations, rewards, ends of `steps` steps, as lists."""
    return [tuple(x.tolist() for x in env.step(np.zeros(env.num_envs, int))[:4])
            for _ in range(steps)]


# ---- autoreset modes ---------------------------------------------------------------------------

@pytest.mark.parametrize("workers", BOTH)
def test_next_step_gives_a_row_without_a_step_after_an_end(vec, workers):
    env = vec(SCRIPTS, num_workers=workers)
    assert env.metadata["autoreset_mode"] is NEXT_STEP
    assert env.reset()[0].tolist() == [[0, 0], [0, 0]]
    assert traced(env, 5) == [
        ([[0, 1], [0, 1]], [1, 1], [F, F], [F, F]),
        ([[0, 2], [0, 2]], [2, 2], [T, F], [F, F]),
        ([[1, 0], [0, 3]], [0, 3], [F, F], [F, T]),
        ([[1, 1], [1, 0]], [1, 0], [F, F], [F, F]),
        ([[1, 2], [1, 1]], [2, 1], [T, F], [F, F])]


@pytest.mark.parametrize("workers", BOTH)
def test_same_step_resets_at_once_and_keeps_the_final_observation(vec, workers):
    env = vec(SCRIPTS, num_workers=workers, autoreset_mode=SAME_STEP)
    env.reset()
    assert traced(env, 1) == [([[0, 1], [0, 1]], [1, 1], [F, F], [F, F])]
    obs, rew, term, trunc, info = env.step([0, 0])
    assert (obs.tolist(), rew.tolist()) == ([[1, 0], [0, 2]], [2, 2])
    assert (term.tolist(), trunc.tolist()) == ([T, F], [F, F])
    assert info["final_obs"][0].tolist() == [0, 2] and info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [T, F]
    assert info["final_info"]["word"][0] == "xx" and info["final_info"]["part"]["at"][0] == 2
    assert info["began"].tolist() == [1, 0] and info["_began"].tolist() == [T, F]
    assert info["word"].tolist() == [None, "xx"] and info["_word"].tolist() == [F, T]
    assert traced(env, 2) == [
        ([[1, 1], [1, 0]], [1, 3], [F, F], [F, T]),
        ([[2, 0], [1, 1]], [2, 1], [T, F], [F, F])]


@pytest.mark.parametrize("workers", SELDOM)
def test_disabled_wants_a_reset_by_mask(vec, workers):
    env = vec(SCRIPTS, num_workers=workers, autoreset_mode="Disabled")
    env.reset()
    assert traced(env, 2)[1] == ([[0, 2], [0, 2]], [2, 2], [T, F], [F, F])
    with pytest.raises(ResetNeeded, match="environment 0"):
        env.step([0, 0])
    obs, info = env.reset(options={"reset_mask": np.array([T, F])})
    assert obs.tolist() == [[1, 0], [0, 2]] and info["_began"].tolist() == [T, F]
    assert traced(env, 1) == [([[1, 1], [0, 3]], [1, 3], [F, F], [F, T])]


def test_an_unknown_autoreset_mode_is_refused(vec):
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        vec(Script, autoreset_mode="Sometimes")


# ---- the same as Gymnasium's own ---------------------------------------------------------------

@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("workers", SELDOM)
def test_infos_are_merged_as_gymnasium_does(vec, workers, mode):
    ours = vec(SCRIPTS, num_workers=workers, autoreset_mode=mode)
    assert_same_steps(ours, SyncVectorEnv(SCRIPTS, autoreset_mode=mode), 12)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("workers", SELDOM)
def test_cartpole_answers_as_under_gymnasium(vec, workers, mode):
    ours = vec("CartPole-v1", num_envs=3, num_workers=workers, autoreset_mode=mode)
    theirs = gym.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": mode})
    assert_same_steps(ours, theirs, 120)
    theirs.close()


def test_cartpole_in_workers_answers_as_under_gymnasium(vec):
    ours = vec("CartPole-v1", num_envs=3, num_workers=2, autoreset_mode=SAME_STEP)
    theirs = gym.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": SAME_STEP})
    assert_same_steps(ours, theirs, 120)
    theirs.close()


SPACES = {
    "f32": Box(-1, 1, (2,), np.float32), "f64": Box(-9, 9, (2, 3), np.float64),
    "scalar": Box(0, 1, (), np.float32), "half": Box(0, 1, (2,), np.float16),
    "bytes": Box(0, 255, (4, 4, 3), np.uint8), "i16": Box(-5, 5, (3,), np.int16),
    "bool": Box(0, 1, (2,), np.bool_), "discrete": Discrete(5), "from 3": Discrete(5, start=3),
    "multidiscrete": MultiDiscrete([3, 4]), "grid": MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": MultiBinary(4), "board": MultiBinary((2, 2)),
    "dict": Dict(a=Box(-1, 1, (2,), np.float64), b=Dict(c=Discrete(3), d=MultiBinary(2))),
    "tuple": Tuple((Discrete(4), Box(0, 9, (), np.int64), Tuple((MultiDiscrete([2, 2]),)))),
}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", SPACES)
def test_observations_of_any_space_come_back_as_they_were(vec, name, mode):
    makes = [partial(Sampled, SPACES[name], length=n) for n in (2, 3)]
    assert_same_steps(vec(makes, num_workers=0, autoreset_mode=mode),
                      SyncVectorEnv(makes, autoreset_mode=mode), 7)


@pytest.mark.parametrize("name", ["dict", *(pytest.param(name, marks=pytest.mark.slow)
                                            for name in SPACES if name != "dict")])
def test_observations_of_any_space_come_back_from_workers(vec, name):
    makes = [partial(Sampled, SPACES[name], length=n) for n in (2, 3, 4)]
    assert_same_steps(vec(makes, num_workers=2, autoreset_mode=SAME_STEP),
                      SyncVectorEnv(makes, autoreset_mode=SAME_STEP), 7)


@pytest.mark.parametrize("workers", SELDOM)
@pytest.mark.parametrize("name", SPACES)
def test_a_sample_of_the_batched_action_space_is_what_a_step_takes(vec, name, workers):
    env = vec(partial(Sampled, SPACES["f32"], SPACES[name]), num_envs=2, num_workers=workers)
    env.reset(seed=0)
    for _ in range(3):
        assert env.step(env.action_space.sample())[1].tolist() == [1.5, 1.5]


def test_spaces_metadata_and_type_are_those_of_a_vector_env(vec):
    env = vec("CartPole-v1", num_envs=3, num_workers=0)
    single = gym.make("CartPole-v1")
    assert isinstance(env, VectorEnv) and env.num_envs == 3 and env.render_mode is None
    assert env.single_observation_space == single.observation_space
    assert env.single_action_space == single.action_space
    assert env.observation_space == batch_space(single.observation_space, 3)
    assert env.action_space == batch_space(single.action_space, 3)
    assert "autoreset_mode" not in single.metadata
    assert env.metadata["render_fps"] == single.metadata["render_fps"]
    obs, rew, term, trunc, info = (env.reset(seed=1), env.step(env.action_space.sample()))[1]
    assert env.observation_space.contains(obs)
    assert [x.dtype for x in (rew, term, trunc)] == [np.float64, bool, bool] and info == {}


def test_a_space_without_a_fixed_shape_is_refused(vec):
    with pytest.raises(SpaceError, match="Text"):
        vec(partial(Sampled, Text(5)), num_workers=0)


@pytest.mark.parametrize("workers", SELDOM)
def test_environments_of_different_spaces_are_refused(vec, workers):
    makes = [partial(Sampled, SPACES["f32"]), partial(Sampled, SPACES["f64"])]
    with pytest.raises(fastppo.Error, match="environment 1 has the space"):
        vec(makes, num_workers=workers).reset()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_gymnasiums_wrapper_counts_the_right_episodes(vec, mode):
    env = RecordEpisodeStatistics(vec(SCRIPTS, num_workers=0, autoreset_mode=mode))
    env.reset(seed=1)
    for _ in range(20):
        _, _, term, trunc, info = env.step([0, 0])
        if (over := term | trunc).any():
            wanted = np.array([2, 3])[over]
            stats = info["episode"]
            assert stats["l"][over].tolist() == wanted.tolist()
            assert stats["r"][over].tolist() == (wanted * (wanted + 1) / 2).tolist()
            if mode is DISABLED:
                env.reset(options={"reset_mask": over})
    assert len(env.length_queue) > 8


# ---- seeds -------------------------------------------------------------------------------------

@pytest.mark.parametrize("workers", BOTH)
def test_one_seed_gives_environment_i_seed_plus_i(vec, workers):
    env = vec("CartPole-v1", num_envs=3, num_workers=workers)
    first, _ = env.reset(seed=5)
    for e, row in enumerate(first):
        assert (row == gym.make("CartPole-v1").reset(seed=5 + e)[0]).all()
    assert (env.reset(seed=[7, 6, 5])[0][2] == first[0]).all()
    assert (env.reset(seed=np.int64(5))[0] == first).all()
    assert (env.reset()[0] != first).all()


def test_none_in_a_list_of_seeds_leaves_that_one_to_chance(vec):
    env = vec("CartPole-v1", num_envs=2, num_workers=0)
    first = env.reset(seed=[1, 2])[0]
    again = env.reset(seed=[1, None])[0]
    assert (again[0] == first[0]).all() and (again[1] != first[1]).any()


@pytest.mark.parametrize("bad", [-1, [1], [1, -2], [1, 2, 3]])
def test_seeds_that_do_not_fit_are_refused(vec, bad):
    with pytest.raises(ValueError, match="does not fit 2 environments"):
        vec(Script, num_envs=2, num_workers=0).reset(seed=bad)


def first_observations(env, episodes):
    """The first observation of each of some episodes of environment 0, reset by itself."""
    seen = [env.reset()[0][0]]
    while len(seen) < episodes:
        obs, _, term, trunc, _ = env.step(np.ones(env.num_envs, int))
        if term[0] or trunc[0]:
            seen.append(obs[0])
    return seen


@pytest.mark.parametrize("workers", SELDOM)
def test_with_a_seed_every_episode_is_the_one_training_plays(vec, workers):
    env = vec(Chance, num_envs=2, num_workers=workers, seed=3, autoreset_mode=SAME_STEP)
    for k, obs in enumerate(first_observations(env, 4)):
        seed = kernels.episode_seed(3, Purpose.ENV_SEED, 0, k)
        assert (obs == Chance().reset(seed=seed)[0]).all()


def test_a_seed_of_reset_goes_before_that_of_make_vec_and_counts_episodes_anew(vec):
    env = vec(Chance, num_envs=1, num_workers=0, seed=3)
    env.reset(), env.reset()
    assert (env.reset(seed=8)[0][0] == Chance().reset(seed=8)[0]).all()
    seed = kernels.episode_seed(3, Purpose.ENV_SEED, 0, 1)
    assert (env.reset()[0][0] == Chance().reset(seed=seed)[0]).all()


# ---- order of calls ----------------------------------------------------------------------------

@pytest.mark.parametrize("workers", BOTH)
def test_calls_out_of_order_are_refused_and_spoil_nothing(vec, workers):
    env = vec(SCRIPTS, num_workers=workers)
    with pytest.raises(ResetNeeded):
        env.step([0, 0])
    env.reset()
    with pytest.raises(NoAsyncCallError):
        env.step_wait()
    env.step_async([0, 0])
    for call in (lambda: env.step_async([0, 0]), lambda: env.step([0, 0]), env.reset,
                 lambda: env.call("count"), lambda: env.set_attr("length", 9)):
        with pytest.raises(AlreadyPendingCallError):
            call()
    assert env.step_wait()[0].tolist() == [[0, 1], [0, 1]]
    assert traced(env, 1)[0][0] == [[0, 2], [0, 2]]
    env.close()
    for call in (env.reset, lambda: env.step([0, 0]), env.step_wait, lambda: env.get_attr("count")):
        with pytest.raises(ClosedEnvironmentError):
            call()


CALLS = {"reset": ((), lambda env: env.reset()), "step": (([0, 0],), lambda env: env.step([0, 0])),
         "call": (("count",), lambda env: env.call("count"))}


@pytest.mark.parametrize("workers", BOTH)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_is_begun_is_waited_for_before_anything_else(vec, name, workers):
    begun, direct = vec(SCRIPTS, num_workers=workers), vec(SCRIPTS, num_workers=0)
    for env in (begun, direct):
        env.reset(seed=3)
    arguments, call = CALLS[name]
    for other in CALLS:
        with pytest.raises(NoAsyncCallError, match=f"`{other}_wait` without any prior call to"
                                                   f" `{other}_async`"):
            getattr(begun, f"{other}_wait")()
    getattr(begun, f"{name}_async")(*arguments)
    for other, (args, _) in CALLS.items():
        refusal = f"pending call to `{name}` to complete: {name}_wait"
        with pytest.raises(AlreadyPendingCallError, match=refusal) as caught:
            getattr(begun, f"{other}_async")(*args)
        assert caught.value.name == name
        if other != name:
            with pytest.raises(NoAsyncCallError):
                getattr(begun, f"{other}_wait")()
    assert_same(getattr(begun, f"{name}_wait")(timeout=60), call(direct))
    assert_same(begun.step([0, 0]), direct.step([0, 0]))


@pytest.mark.parametrize("workers", SELDOM)
def test_a_reset_that_is_begun_keeps_its_seed_and_its_mask(vec, workers):
    env = vec("CartPole-v1", num_envs=3, num_workers=workers, autoreset_mode=DISABLED)
    env.reset_async(seed=5)
    first, _ = env.reset_wait()
    assert (first == vec("CartPole-v1", num_envs=3, num_workers=0).reset(seed=5)[0]).all()
    stepped = env.step(np.zeros(3, int))[0]
    mask = np.array([F, T, F])
    env.reset_async(seed=[9, 6, 9], options={"reset_mask": mask})
    mask[:] = T, F, T
    assert (env.reset_wait()[0] == [stepped[0], first[1], stepped[2]]).all()
    env.step(np.zeros(3, int))


@pytest.mark.parametrize("name", CALLS)
def test_a_wait_that_times_out_can_be_repeated(vec, tmp_path, name):
    env, file = vec([Held, Held], num_workers=1), tmp_path / "go"
    env.reset()
    env.set_attr("file", file)
    getattr(env, f"{name}_async")(*({"call": ("name",), "step": ([0, 0],)}.get(name, ())))
    for timeout in (0, 0.02):
        with pytest.raises(multiprocessing.TimeoutError, match=rf"within {timeout:g} s"):
            getattr(env, f"{name}_wait")(timeout=timeout)
    with pytest.raises(AlreadyPendingCallError):
        env.reset()
    file.touch()
    answer = getattr(env, f"{name}_wait")(timeout=60)
    wanted = {"call": "held", "step": [0, 1], "reset": [1, 0]}[name]
    assert (answer[0] == wanted if name == "call" else answer[0][1].tolist() == wanted)
    assert env.step([0, 0])[1].tolist() == ([2, 2] if name == "step" else [1, 1])


@pytest.mark.parametrize("name", CALLS)
def test_close_after_a_timeout_does_not_wait(vec, tmp_path, name):
    with nothing_left():
        env = vec(Held, num_envs=2, num_workers=2)
        env.reset()
        env.set_attr("file", tmp_path / "never")
        getattr(env, f"{name}_async")(*({"call": ("name",), "step": ([0, 0],)}.get(name, ())))
        with pytest.raises(multiprocessing.TimeoutError):
            getattr(env, f"{name}_wait")(timeout=0)
        with pytest.warns(UserWarning, match=f"`close` while .* pending call to `{name}`"):
            env.close(timeout=1, terminate=True)
        with pytest.raises(ClosedEnvironmentError):
            getattr(env, f"{name}_wait")()


def test_an_error_in_a_call_that_was_begun_spoils_nothing(vec):
    env = vec(SCRIPTS, num_workers=1)
    env.reset()
    env.call_async("colour")
    with pytest.raises(EnvError, match="environment 0 .*'colour'"):
        env.call_wait()
    with pytest.raises(ConfigError, match="the vector environment's own step"):
        env.call_async("step", 0)
    assert traced(env, 1)[0][0] == [[0, 1], [0, 1]]


def test_an_environment_that_was_never_reset_is_noticed(vec):
    env = vec(SCRIPTS, num_workers=0)
    env.reset(options={"reset_mask": np.array([T, F])})
    with pytest.raises(ResetNeeded, match="environment 1"):
        env.step([0, 0])


BAD_ACTIONS = {"too few": [0], "too many": [0, 1, 0], "one for all": 0, "nested": [[0], [1]],
               "floats": [0.5, 0.5], "text": ["a", "b"], "nothing": None}


@pytest.mark.parametrize("actions", BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_actions_that_do_not_fit_are_refused_before_any_step(vec, actions):
    env = vec(SCRIPTS, num_workers=0)
    env.reset()
    with pytest.raises(InputError, match="(?s)MultiDiscrete.*fix: .*sample"):
        env.step(actions)
    assert traced(env, 1)[0][0] == [[0, 1], [0, 1]]


# ---- partial resets ----------------------------------------------------------------------------

BAD_MASKS = {"list": [True, False], "numbers": np.array([1, 0]),
             "too long": np.array([T, F, F]), "nobody": np.array([F, F])}


@pytest.mark.parametrize("mask", BAD_MASKS.values(), ids=BAD_MASKS)
def test_a_wrong_mask_is_refused(vec, mask):
    env = vec(SCRIPTS, num_workers=0, autoreset_mode=DISABLED)
    env.reset()
    for reset in (env.reset, env.reset_async):
        with pytest.raises(InputError, match=r"(?s)'reset_mask'\] is .*fix: give a numpy arr"):
            reset(options={"reset_mask": mask})
    assert traced(env, 1)[0][0] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("workers", BOTH)
def test_a_mask_resets_whom_it_names_and_only_the_rest_of_the_options_travels(vec, workers):
    env = vec(SCRIPTS * 2, num_workers=workers, autoreset_mode=DISABLED)
    env.reset(seed=1)
    env.step(np.zeros(4, int))
    options = {"reset_mask": np.array([F, T, F, T]), "level": 3}
    obs, info = env.reset(seed=4, options=options)
    assert obs.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert info["_began"].tolist() == [F, T, F, T]
    assert env.get_attr("options") == (None, {"level": 3}, None, {"level": 3})
    assert env.np_random_seed == (1, 5, 3, 7)
    assert "reset_mask" in options


# ---- messages: infos, calls ---------------------------------------------------------------------

@pytest.mark.parametrize("workers", BOTH)
def test_attributes_and_methods_are_reached_wherever_the_environments_are(vec, workers):
    env = vec(SCRIPTS, num_workers=workers)
    env.reset(seed=3)
    assert env.get_attr("length") == (2, 3) and env.call("count") == (0, 0)
    env.set_attr("length", [5, 6])
    assert env.get_attr("length") == (5, 6)
    env.set_attr("length", 4)
    assert env.get_attr("length") == (4, 4)
    assert env.call("has_wrapper_attr", "length") == (True, True)
    assert [rng.bit_generator.state["bit_generator"] for rng in env.np_random] == ["PCG64"] * 2
    with pytest.raises(EnvError, match=r"environment 0 .*'colour'.*AttributeError"):
        env.get_attr("colour")
    with pytest.raises(EnvError, match="unwrapped"):
        env.set_attr("unwrapped", 1)
    for wrong in (lambda: env.call("reset"), lambda: env.set_attr("length", [1])):
        with pytest.raises(ConfigError):
            wrong()
    assert traced(env, 1)[0][0] == [[0, 1], [0, 1]]


def test_what_cannot_be_pickled_is_named_and_spoils_nothing(vec):
    env = vec(Locked, num_envs=2, num_workers=1)
    env.reset()
    with pytest.raises(ConfigError, match="cannot be sent to a worker"):
        env.set_attr("length", threading.Lock())
    with pytest.raises(EnvError, match="the reply cannot be sent.*lock"):
        env.call("lock")
    assert traced(env, 1)[0][0] == [[0, 1], [0, 1]]


def test_a_large_info_travels_as_it_is(vec):
    env = vec([partial(Talker, large), partial(Script, 99), partial(Talker, large)], num_workers=2)
    env.reset()
    for step in range(1, 6):
        info = env.step([0, 0, 0])[4]
        assert info["_word"].tolist() == [F, T, F]
        if step % 2 == 0:
            wanted = large(step)["field"]
            assert (info["field"] == [wanted, wanted * 0, wanted]).all()
        else:
            assert "field" not in info
    words = ("x" * (1 << 19), "y", "z" * (1 << 18))
    env.set_attr("said", words)
    assert env.get_attr("said") == words


def test_without_infos_no_message_is_read(vec, monkeypatch):
    env = vec([partial(Script, 9, talks=False)] * 2, num_workers=1, autoreset_mode=SAME_STEP)
    env.reset()
    monkeypatch.setattr(protocol.Mailbox, "read", None)
    for _ in range(20):
        assert set(env.step([0, 0])[4]) <= {"final_obs", "_final_obs", "final_info", "_final_info"}


def test_an_info_that_cannot_be_pickled_is_a_fault_of_its_worker(vec):
    env = vec([partial(Script, 99), partial(Talker, with_lock), partial(Script, 99)], num_workers=2)
    env.reset(seed=5)
    env.step([0] * 3), env.step([0] * 3)
    with pytest.raises(EnvError, match=r"worker 1 failed in step: TypeError: .*lock"):
        env.step([0] * 3)


# ---- faults ------------------------------------------------------------------------------------

FAULTS = {"raises": (raising(lambda: RuntimeError("100% broken")), r"step\(\).*100% broken"),
          "exits": (raising(lambda: SystemExit(3)), "SystemExit"),
          "NaN": (observing(np.array([0, np.nan], np.float32)), "nan"),
          "shape": (observing(np.zeros(3, np.float32)), r"shape \(3,\)"),
          "text": (observing(np.array(["a", "b"])), "does not keep"),
          "no reward": (paying(None), "reward is None"),
          "endless reward": (paying(np.inf), "reward is inf"),
          "info": (lambda env: (np.zeros(2, np.float32), 0.0, F, F, None), "info is None"),
          "five": (lambda env: (np.zeros(2, np.float32), 0.0), "unpack")}


@pytest.mark.parametrize("workers", SELDOM)
@pytest.mark.parametrize("fault, text", FAULTS.values(), ids=FAULTS)
def test_a_fault_names_its_place_and_ends_the_environment(vec, workers, fault, text):
    with nothing_left():
        makes = [partial(Faulty, fault, episode=0 if e == 1 else 99) for e in range(3)]
        env = vec(makes, num_workers=workers)
        env.reset(seed=20)
        env.step([0] * 3), env.step([0] * 3)
        place = r"(?s)environment 1 \(.*seed 21, episode 0, step [23]\).*"
        with pytest.raises(EnvError, match=place + text) as caught:
            env.step([0] * 3)
        assert isinstance(caught.value, fastppo.Error) and env.closed
        with pytest.raises(ClosedEnvironmentError):
            env.reset()


def test_a_fault_in_a_worker_comes_with_its_number_and_traceback(vec):
    with nothing_left():
        fault = raising(lambda: ValueError("boom"))
        env = vec([partial(Faulty, fault, -1, 1 if e == 2 else 9, 2) for e in range(4)],
                  num_workers=2, seed=4)
        env.reset()
        seed = kernels.episode_seed(4, Purpose.ENV_SEED, 2, 1)
        with pytest.raises(EnvError, match=rf"(?s)environment 2 \(worker 1, seed {seed}, episode 1,"
                                           r" step 0\) failed in reset\(\): ValueError: boom.*"
                                           r"fault_envs\.py"):
            for _ in range(3):
                env.step([0] * 4)


def test_a_hanging_environment_ends_at_the_step_timeout(vec):
    with nothing_left():
        hang = partial(Faulty, lambda env: threading.Event().wait(60), 1, 0)
        env = vec(hang, num_envs=2, num_workers=1, step_timeout=1.0)
        env.reset()
        env.step([0, 0])
        with pytest.raises(EnvError, match="step_timeout"):
            env.step([0, 0])


# ---- memory and processes ----------------------------------------------------------------------

@pytest.mark.parametrize("workers", SELDOM)
def test_observations_are_copies_unless_asked_otherwise(vec, workers):
    env = vec(SCRIPTS, num_workers=workers)
    first, second = env.reset()[0], env.step([0, 0])[0]
    assert first.tolist() == [[0, 0], [0, 0]] and second.tolist() == [[0, 1], [0, 1]]
    env = vec(SCRIPTS, num_workers=workers, copy=False)
    first, (second, rew, *_) = env.reset()[0], env.step([0, 0])
    assert np.shares_memory(first, second) and first.tolist() == [[0, 1], [0, 1]]
    env.step([0, 0])
    assert rew.tolist() == [1, 1]


class Thrifty(Script):
    """Answers with one and the same array, and keeps every action it was given."""

    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, **kwargs):
        self.array, self.given = np.zeros(2), []
        return self.array, super().reset(**kwargs)[1]

    def step(self, action):
        self.given.append(action)
        self.array[:], *rest = super().step(action)
        return self.array, *rest


def test_environments_may_reuse_their_arrays_and_keep_their_actions(vec):
    env = vec([partial(Thrifty, 2), partial(Thrifty, 3)], num_workers=0, autoreset_mode=SAME_STEP)
    env.reset()
    final = [env.step(np.full((2, 2), i / 9, np.float32))[4] for i in range(2)][1]["final_obs"][0]
    env.step(np.ones((2, 2)))
    assert final.tolist() == [0, 2]
    assert [float(a[0]) for a in env.get_attr("given")[1]] == []  # reset at its own end
    assert [float(a[0]) for a in env.get_attr("given")[0]] == [1.0]


@pytest.mark.parametrize("workers", BOTH)
def test_close_leaves_nothing_and_may_come_twice(workers):
    with nothing_left():
        env = make_vec(SCRIPTS, num_workers=workers)
        env.reset()
        env.step_async([0, 0])
        with pytest.warns(UserWarning, match="`close` while waiting for a pending call to `step`"):
            env.close()
        env.close()
        assert env.closed


def test_the_end_of_a_with_block_does_not_warn_of_a_step_that_nobody_waits_for():
    with nothing_left(), make_vec(SCRIPTS, num_workers=1) as env:
        env.reset()
        env.step_async([0, 0])
    assert env.closed


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_is_dropped_closes_itself(workers):
    gc.collect()
    before = os.listdir("/proc/self/fd")
    with nothing_left():
        env = make_vec(SCRIPTS, num_workers=workers)
        env.reset()
        assert len(os.listdir("/proc/self/fd")) > len(before)
        del env
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


class Guarded(Script):
    """Notes when it is closed."""

    closings = 0

    def close(self):
        Guarded.closings += 1


def test_the_environments_of_a_dropped_one_are_closed():
    make_vec(Guarded, num_envs=3, num_workers=0).reset()
    gc.collect()
    assert Guarded.closings == 4  # and the one whose spaces were read


def test_a_killed_worker_is_reported_and_leaves_nothing(vec):
    with nothing_left():
        env = vec([partial(Faulty, killed_by(9), 1, 0 if e == 3 else 9) for e in range(4)],
                  num_workers=2)
        env.reset()
        env.step([0] * 4)
        with pytest.raises(EnvError, match=r"worker 1 \(environment 3, step 1.*SIGKILL"):
            env.step([0] * 4)


def test_a_constructor_that_raises_is_named_and_leaves_nothing(vec):
    def make():
        raise OSError("no such level")
    with nothing_left(), pytest.raises(fastppo.Error, match="no such level"):
        vec([partial(Script, 2), make], num_workers=2).reset()


@pytest.mark.parametrize("wrong, text", [
    ({"num_envs": 3}, "num_envs is 3"), ({"env_kwargs": {"colour": 1}}, "colour"),
    ({"seed": -1}, "seed"), ({"num_workers": -1}, "num_workers"), ({"num_envs": 0}, "num_envs")])
def test_impossible_settings_are_refused(vec, wrong, text):
    with pytest.raises(fastppo.Error, match=text):
        vec(SCRIPTS, **{"num_workers": 0, **wrong})


def test_arguments_of_the_environment_are_its_env_kwargs(vec):
    env = vec("CartPole-v1", num_workers=0, env_kwargs={"render_mode": "rgb_array"})
    assert env.render_mode == "rgb_array"


def test_a_fix_of_make_vecs_is_of_no_preset():
    with pytest.raises(ConfigError, match="fix: num_envs=8"):
        fastppo.make_vec("LunarLander-v3", num_envs=0)


def test_a_vector_env_is_not_wrapped_in_another(vec):
    with pytest.raises(ConfigError, match="not an id, a class or a callable"):
        vec(vec(Script, num_workers=0))


def test_time_limit_and_arguments_reach_the_environments(vec):
    env = vec(Script, num_envs=2, num_workers=0, max_episode_steps=4, env_kwargs={"length": 9})
    env.reset()
    assert [ends for *_, ends in traced(env, 4)] == [[F, F]] * 3 + [[T, T]]


# ---- interrupts --------------------------------------------------------------------------------

def test_a_step_in_workers_that_was_interrupted_can_be_waited_for_again(vec, monkeypatch):
    env = vec([partial(Talker, large)] * 2, num_workers=2)
    env.reset()
    env.step([0, 0])
    team = env.backend.team
    monkeypatch.setattr(team, "wait", interrupted(team.wait, 1, -2))
    monkeypatch.setattr(protocol.pickle, "loads", interrupted(protocol.pickle.loads, 1, -2))
    env.step_async([0, 0])
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            env.step_wait()
    obs, *_, info = env.step_wait()
    assert obs.tolist() == [[0, 2], [0, 2]] and (info["field"] == large(2)["field"]).all()
    assert traced(env, 1)[0][0] == [[0, 3], [0, 3]]


def answer_after_interrupt(env):
    """The answer of a step that was interrupted, or of the next one if it had not begun."""
    try:
        return env.step_wait()
    except NoAsyncCallError:
        return env.step([0, 0])


def test_an_interrupt_anywhere_in_a_step_in_workers_takes_no_silent_step(vec):
    env, files = vec(partial(Script, 10**6), num_envs=2, num_workers=2), (
        "vector/make_vec vector/stepper workers/team")
    taken = resets = 0
    env.reset()
    with Interruption(-1, files) as counted:
        env.step([0, 0])
    env.reset()
    for at in range(1, counted.lines + 1):
        with Interruption(at, files) as strike:
            try:
                answer = env.step([0, 0])
            except KeyboardInterrupt:
                try:
                    answer = answer_after_interrupt(env)
                except ResetNeeded:
                    env.reset()
                    taken, resets = 0, resets + 1
                    continue
        taken += 1
        assert answer[1].tolist() == [taken, taken], strike.place
    assert counted.lines > 50 and resets < 20


def test_a_reset_in_workers_that_was_interrupted_can_be_made_again(vec, monkeypatch):
    env = vec(SCRIPTS, num_workers=1)
    env.reset()
    monkeypatch.setattr(env.backend.team, "run", interrupted(env.backend.team.run, 1))
    with pytest.raises(KeyboardInterrupt):
        env.reset()
    with pytest.raises(ResetNeeded):
        env.step([0, 0])
    env.reset()
    assert traced(env, 1)[0][1] == [1, 1]


def test_a_call_that_was_interrupted_is_over_before_the_next_one_begins(vec, monkeypatch):
    env = vec([partial(Slow, 2), partial(Slow, 3)], num_workers=1)
    env.reset()
    monkeypatch.setattr(env.backend.team, "wait", interrupted(env.backend.team.wait, 2))
    with pytest.raises(KeyboardInterrupt):
        env.call("name")
    assert env.get_attr("length") == (2, 3)


def test_a_step_in_this_process_that_was_interrupted_wants_a_reset(vec):
    env = vec(partial(Script, 9), num_envs=2, num_workers=0)
    env.reset()
    inner = env.backend.envs[1]
    inner.step = interrupted(inner.step, 1)
    with pytest.raises(KeyboardInterrupt):
        env.step([0, 0])
    with pytest.raises(ResetNeeded):
        env.step([0, 0])
    assert env.reset()[0].tolist() == [[1, 0], [1, 0]]
    assert traced(env, 1)[0][1] == [1, 1]


def test_after_an_interrupt_before_the_workers_were_told_a_reset_does_not_hang():
    with make_vec("CartPole-v1", num_envs=2, num_workers=1) as env, guard():
        env.reset(seed=1)
        cells = env.backend.team.cells

        class Struck:
            """The cell of commands, in whose next post Ctrl-C is pressed."""

            def __getattr__(self, name):
                return getattr(cell, name)

            def post(self, value):
                cells.go = cell
                raise KeyboardInterrupt

        cell, cells.go = cells.go, Struck()
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros(2, int))
        obs, _ = env.reset(seed=1)
        assert obs.shape == (2, 4)
