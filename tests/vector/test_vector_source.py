"""Vector environments made from an id: by vector_entry_point, by EnvPool, or a fake of it."""

import sys
import types
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from envs_for_tests import Chance
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from PIL import Image

from fastppo import PPO, Config, load
from fastppo.cli import main
from fastppo.errors import ConfigError, Error, fix_text
from fastppo.machine import kernels, limits
from fastppo.runs.policy_file import factories_for
from fastppo.vector.source import EnvPoolVector, SingleEnv

MODES = pytest.mark.parametrize("mode", AutoresetMode)
ID = "Made/Chance-v0"
MADE = []  # the vector environments that the id's entry point has made


def sync(num_envs, mode="NextStep", ends=0.3):
    """A vector environment of Gymnasium's, for a vector_entry_point."""
    MADE.append(SyncVectorEnv([partial(Chance, ends=ends)] * num_envs,
                              autoreset_mode=AutoresetMode(mode)))
    return MADE[-1]


@pytest.fixture(autouse=True)
def registered():
    """The id is there for the length of a test."""
    gym.register(ID, entry_point=Chance, vector_entry_point=sync)
    MADE.clear()
    yield
    del gym.registry[ID]


def learnt(ppo):
    """The weights after some iterations, closed."""
    while ppo.step < 150:
        ppo.update(ppo.collect())
    ppo.close()
    return ppo.learner.flat.values.clone()


# ---- the id's own ------------------------------------------------------------------------------

@MODES
@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("name", ["kernel", "torch"])
def test_the_same_seed_gives_the_same_bits_in_every_mode(trainer, mode, acting, name):
    made = [trainer(ID, vec="native", env_kwargs={"mode": mode.value}, seed=seed, acting=acting,
                    learner=name) for seed in (5, 5, 6)]
    assert [vec.metadata["autoreset_mode"] for vec in MADE] == [mode] * 3
    first, same, other = map(learnt, made)
    assert first.equal(same) and not first.equal(other)


def test_what_we_made_is_closed_with_the_trainer(trainer):
    ppo = trainer(ID, vec="native", num_workers=0)
    assert (ppo.config.vec, ppo.config.num_workers) == ("native", 0)
    ppo.collect()
    assert not MADE[0].closed
    ppo.close()
    ppo.close()
    assert len(MADE) == 1 and MADE[0].closed


@pytest.mark.parametrize("wrong", [{"run_dir": "/dev/null/run"},
                                   {"learner": "kernel", "hidden_sizes": (8,) * 17}])
def test_what_we_made_is_closed_where_no_trainer_comes_of_it(wrong):
    with pytest.raises(Error):
        PPO(ID, **{"vec": "native", "num_envs": 2, "num_steps": 8, "num_minibatches": 4, **wrong})
    assert [vec.closed for vec in MADE] == [True]


@pytest.mark.parametrize("steps, envs", [(1, 1), (2, 1), (1, 3)])
def test_rollouts_of_hardly_more_than_resets_are_trained_on(trainer, steps, envs):
    ppo = trainer(ID, vec="native", num_steps=steps, num_envs=envs, num_minibatches=steps * envs,
                  env_kwargs={"ends": 0.6}, total_steps=30)
    ppo.learn()
    assert ppo.step >= 30 and ppo.learner.flat.values.isfinite().all()


def test_limit_and_keywords_hold_in_training_and_in_evaluation(trainer):
    ppo = trainer("CartPole-v1", vec="native", max_episode_steps=7, num_steps=32, norm_obs=False,
                  env_kwargs={"sutton_barto_reward": True})
    rollout = ppo.collect()
    assert rollout.trunc.any() and (rollout.raw[rollout.valid] <= 0).all()
    assert int(ppo.arena["length"].max()) == 7
    found = ppo.evaluate(4)
    assert found.lengths.max() <= 7 and found.mean <= 0


def test_by_default_an_id_is_stepped_by_workers(trainer):
    ppo = trainer(ID)
    assert ppo.config.vec == "workers" and not MADE


@pytest.mark.parametrize("env, settings, text, fix", [
    ("Acrobot-v1", {}, "Acrobot-v1.*doesn't have a vector entry point", "--vec=workers"),
    (Chance, {}, "by their id, not from .*Chance", "--vec=workers"),
    ([Chance], {"num_envs": 1}, "by their id", "--vec=workers"),
    ("envs_for_tests:Chance", {}, "Chance.*cannot be made", "--vec=workers"),
    (ID, {"frame_stack": 2, "resize": 9}, "makes complete environments",
     "leave --frame_stack out"),
    (ID, {"num_workers": 2}, "num_workers is 2, but vec=native", "leave --num_workers out"),
    (ID, {"env_kwargs": {"bogus": 1}}, "cannot be made with .*bogus", "--vec=workers"),
    (ID.replace("v0", "v7"), {}, "no environment 'Made/Chance-v7'", "envs lists them"),
    (ID, {"vec": "fast"}, "vec is 'fast'", "--vec=auto")])
def test_what_cannot_be_made_is_said_with_a_fix(trainer, env, settings, text, fix):
    with pytest.raises(ConfigError, match=text) as raised:
        trainer(env, **{"vec": "native", **settings})
    assert fix in fix_text(raised.value.fix, shell=True)


def test_an_unknown_mode_of_an_entry_point_is_refused(trainer):
    def silent(num_envs):
        vec = sync(num_envs)
        vec.metadata = {}
        return vec
    gym.registry[ID].vector_entry_point = silent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own word on it
        with pytest.raises(ConfigError, match="autoreset mode"):
            trainer(ID, vec="native")


def test_the_command_takes_it_and_its_banner_says_so(capsys, tmp_path):
    main.main(["--env_name=CartPole-v1", "--vec=native", "--preset=none", "--num_envs=4",
              "--num_steps=8", "--epochs=1", "--hidden_sizes=8", "--total_steps=64",
              "--eval_episodes=2", f"--run_dir={tmp_path / 'run'}"])
    said = capsys.readouterr().out
    acting = "local" if kernels.COMPILED else "central"
    assert f"acting    {acting}; 4 environments x 8 steps in one vector environment\n" in said
    assert "evaluation return" in said


# ---- EnvPool, or what looks like it ------------------------------------------------------------

class Drawn:
    """The class, of one of EnvPool's modules, from which a spec is derived."""

    __module__ = "envpool.classic_control.classic_control_envpool"


class FakeSpec(Drawn):
    """What EnvPool's make_spec returns."""

    def __init__(self, name, num_envs=1, seed=42, num_threads=0, ends=0.2, render_mode=None):
        env = Chance(ends=ends)
        self.seed, self.num_threads = seed, num_threads
        self.gymnasium_action_space, self.space = env.action_space, env.observation_space
        self.state_array_spec = {"obs": None, "info:env_id": None}

    @property
    def gymnasium_observation_space(self):
        """It warns, as EnvPool's does."""
        warnings.warn("Box low's precision lowered", UserWarning, stacklevel=2)
        return self.space


class FakePool:
    """EnvPool's Gymnasium interface: single spaces, seeded when made, NEXT_STEP, int32 seeds."""

    made: list["FakePool"] = []

    def __init__(self, name, num_envs=1, seed=42, num_threads=0, ends=0.2, render_mode=None):
        assert 0 <= seed and seed + num_envs <= 2**31
        self.render_mode, self.spec, self.num_envs, self.closed = render_mode, FakeSpec(
            name, num_envs, seed, num_threads), num_envs, False
        self.vec, self.interrupts = SyncVectorEnv([partial(Chance, ends=ends)] * num_envs), []
        self.fresh, self.lost = [seed + e for e in range(num_envs)], False
        FakePool.made.append(self)

    @property
    def observation_space(self):
        """Of a single environment."""
        return self.spec.gymnasium_observation_space

    def reset(self):
        """(obs, info); never after a step that was not waited for."""
        assert not self.lost, "EnvPool would answer with what is left of the step"
        assert self.observation_space.shape == (1,)
        obs, _ = self.vec.reset(seed=self.fresh)
        self.fresh = None
        return obs, {"env_id": np.arange(self.num_envs)}

    def step(self, actions):
        """Gymnasium's five, rewards in float32; the pool is lost where an interrupt strikes."""
        assert isinstance(actions, np.ndarray) and actions.shape == (self.num_envs,)
        if self.interrupts and self.interrupts.pop(0):
            self.lost = True
            raise KeyboardInterrupt
        obs, rew, term, trunc, _ = self.vec.step(actions)
        return obs, rew.astype(np.float32), term & ~trunc, trunc, {}

    def render(self):
        """A frame of the first environment."""
        assert self.render_mode == "rgb_array"
        return np.full((1, 40, 60, 3), 90, np.uint8)

    def close(self):
        """Remembered."""
        self.closed = True


IDS = ["CartPole-v1", "Chance-v0", "Own-v2", "NoQt-v0"]


def make(kind, name, **kwargs):
    """EnvPool's make_spec and make_gymnasium, which refuse what they do not know."""
    assert name in IDS, f"{name} is not supported"
    if name == "NoQt-v0":
        raise ImportError("Qt 5 is missing: apt install libqt5gui5")
    if "bogus" in kwargs:
        raise TypeError("unexpected keyword argument 'bogus'")
    return kind(name, **kwargs)


@pytest.fixture
def pools(monkeypatch):
    """The pools that a module called envpool, which is put in place of any other, has made."""
    module = types.SimpleNamespace(
        make_spec=partial(make, FakeSpec), make_gymnasium=partial(make, FakePool),
        list_all_envs=lambda: IDS)
    monkeypatch.setitem(sys.modules, "envpool", module)
    monkeypatch.setattr(FakePool, "made", [])
    gym.register("Chance-v0", entry_point=Chance)
    yield FakePool.made
    del gym.registry["Chance-v0"]


def test_a_pool_is_made_by_a_seeded_reset_alone(pools):
    vec = EnvPoolVector("some_package:Chance-v0", 3, {"ends": 0.5})
    assert not pools and vec.action_space.shape == (3,) and vec.observation_space.shape == (3, 1)
    assert vec.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    first = [vec.reset(seed=seed)[0] for seed in (2**31 - 1, 2**31 - 1, 4)]
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).all() and len(set(first[0][:, 0])) == 3
    vec.reset()
    assert len(pools) == 3 and pools[0].spec.num_threads == min(limits.usable_cores(), 3)
    vec.close()
    assert pools[-1].closed and vec.closed


def test_threads_can_be_asked_for(pools):
    EnvPoolVector("Chance-v0", 3, {"num_threads": 1}).reset(seed=1)
    assert pools[0].spec.num_threads == 1


def test_a_pool_that_was_never_reset_can_be_closed(pools):
    EnvPoolVector("Chance-v0", 3, {}).close()


def test_training_on_a_pool_is_a_function_of_the_seed(trainer, pools):
    made = [trainer("Chance-v0", vec="envpool", seed=seed, num_minibatches=2) for seed in (5, 5, 6)]
    rollout = made[0].collect()
    ended = (rollout.term | rollout.trunc)[:-1]
    assert ended.any() and (~rollout.valid)[1:].equal(ended)
    assert (made[0].config.vec, made[0].config.num_workers) == ("envpool", 0)
    trained = len(pools)
    assert made[0].evaluate(3).lengths.min() >= 1
    assert len(pools) == trained + 3 and {pool.num_envs for pool in pools[trained:]} == {1}
    made[0].update(rollout)
    first, same, other = map(learnt, made)
    assert first.equal(same) and not first.equal(other)
    assert [pool.closed for pool in pools].count(True) == 6


def test_an_id_of_envpools_alone_is_evaluated_from_its_file_as_in_the_run(trainer, pools, tmp_path):
    ppo = trainer("Own-v2", vec="envpool", eval_interval=64, run_dir=str(tmp_path),
                  env_kwargs={"ends": 0.1})
    ppo.learn(64)
    ppo.save(tmp_path / "model.safetensors")
    found = ppo.evaluate(5)
    np.testing.assert_array_equal(found.returns, ppo.evaluate(5).returns)
    assert len({*found.returns}) == 5 and found.lengths.max() > 3
    policy = load(tmp_path)
    np.testing.assert_array_equal(policy.evaluate(episodes=5).returns, found.returns)
    assert policy.evaluate(env="Chance-v0", episodes=2, env_kwargs={"ends": 1.0}).lengths.max() == 1
    assert len(ppo.evaluate(2, env=Chance).returns) == len(policy.evaluate(Chance, 2).returns) == 2
    with pytest.raises(ConfigError, match="(?s)EnvPool cannot make Gone-v0.*list_all_envs"):
        policy.evaluate("Gone-v0")
    ppo.close()
    with PPO.resume(tmp_path) as again:
        assert again.learn(128).step >= 128


class FinalInEveryStep(gym.vector.VectorWrapper):
    """Has an array of final observations also where no episode ends: rubbish."""

    def step(self, actions):
        """The step, with final_obs in its info."""
        *reply, info = self.env.step(actions)
        final = info.get("final_obs", np.full_like(reply[0], -9))
        return *reply, info | {"final_obs": np.stack([*final])}


def test_a_single_environment_of_an_engine_is_that_of_gymnasium_in_every_mode():
    for mode, kind in [*((mode, None) for mode in AutoresetMode),
                       (AutoresetMode.SAME_STEP, FinalInEveryStep)]:
        config = Config(env_name=ID, vec="native", env_kwargs={"mode": mode.value})
        one, other = SingleEnv(config, False, mode=mode.value), Chance()
        one.vector = kind(one.vector) if kind else one.vector
        for seed in (3, 4):  # the second reset is after an end
            np.testing.assert_array_equal(one.reset(seed=seed)[0], other.reset(seed=seed)[0])
            over = False
            while not over:
                ours, theirs = one.step(2), other.step(2)
                np.testing.assert_array_equal(ours[0], theirs[0])
                assert ours[1:4] == theirs[1:4]
                over = theirs[2] or theirs[3]
        one.close()
    assert all(vec.closed for vec in MADE)


def test_the_command_prints_what_works_for_an_id_of_envpools_alone(pools, capsys, tmp_path):
    folder = tmp_path / "run"
    main.main(["--env_name=Own-v2", "--vec=envpool", "--num_envs=4", "--num_steps=8", "--epochs=1",
               "--hidden_sizes=8", "--total_steps=64", "--num_minibatches=2", "--eval_episodes=2",
               "--video", f"--run_dir={folder}"])
    said = capsys.readouterr()
    assert "evaluation return" in said.out and "fix" not in said.err
    assert next(line for line in said.out.splitlines() if line.startswith("next")).endswith(
        f" play {folder}")
    mean = said.out.partition("evaluation return ")[2].partition("\n")[0]
    main.main(["eval", str(folder), "--episodes=2"])
    assert f"return    {mean}\n" in capsys.readouterr().out
    main.main(["play", str(folder), f"--output={tmp_path / 'seen.png'}"])
    with Image.open(tmp_path / "seen.png") as picture:
        assert picture.getpixel((100, 100)) == (90, 90, 90)


def test_an_id_that_envpool_does_not_draw_is_played_as_the_networks_view(
        pools, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Drawn, "__module__", "envpool.mujoco.mujoco_dmc_envpool")
    folder = tmp_path / "run"
    main.main(["--env_name=Own-v2", "--vec=envpool", "--num_envs=4", "--num_steps=8", "--epochs=1",
               "--hidden_sizes=8", "--total_steps=64", "--num_minibatches=2", "--eval_episodes=0",
               "--video", f"--run_dir={folder}"])
    said = capsys.readouterr()
    assert said.out.endswith(f" play {folder} --view=network\n") and "video " in said.out
    assert "cannot be shown" not in said.err
    with pytest.raises(SystemExit):
        main.main(["play", str(folder), f"--output={tmp_path / 'seen.png'}"])
    assert "cannot be shown" in (err := capsys.readouterr().err)
    assert err.endswith("  fix: --view=network\n")


def test_after_an_interrupt_inside_a_step_another_pool_goes_on(trainer, pools):
    ppo = trainer("Chance-v0", vec="envpool", norm_obs=False)
    ppo.collector.vec.begin()
    ppo.collector.started = True
    pools[0].interrupts = [0, 0, 0, 1]
    with pytest.raises(KeyboardInterrupt):
        ppo.collect()
    rollout = ppo.collect()
    assert len(pools) == 2 and rollout.valid[3].all()
    assert (rollout.term | rollout.trunc)[2][rollout.valid[2]].all()  # all episodes were cut
    assert (rollout.obs[3] != rollout.obs[0]).all()  # and others began


@pytest.mark.parametrize("name, kwargs, text, fix", [
    ("Chance-v3", {}, "EnvPool cannot make Chance-v3 .*: Chance-v3 is not supp",
     "envpool.list_all_envs() has its ids"),
    ("Own-v2", {"bogus": 1}, "EnvPool cannot make Own-v2 .*bogus", ""),
    ("NoQt-v0", {}, "EnvPool cannot make NoQt-v0 .*apt install libqt5gui5", ""),
    ("Chance-v0", {"bogus": 1}, "EnvPool cannot make Chance-v0 .*bogus", "--vec=workers")])
def test_what_a_pool_cannot_be_is_said_with_a_fix(trainer, pools, name, kwargs, text, fix):
    with pytest.raises(ConfigError, match=text) as raised:
        trainer(name, vec="envpool", env_kwargs=kwargs)
    assert fix_text(raised.value.fix, shell=True) == fix


def test_without_envpool_the_error_says_how_to_get_it(trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match="vec=envpool needs EnvPool") as raised:
        trainer("CartPole-v1", vec="envpool")
    assert 'pip install "fastppo[envpool]"; or ' in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        trainer("StarpilotEasy-v0", vec="envpool")
    assert str(raised.value).endswith('\n  fix: pip install "fastppo[envpool]"')


# ---- EnvPool itself, where it is installed -----------------------------------------------------

@pytest.fixture
def envpool():
    """The module, or the test is skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("envpool")


ENVPOOLS = pytest.mark.parametrize("name", ["CartPole-v1", "LunarLander-v3", "Pendulum-v1"])


@ENVPOOLS
def test_envpool_has_gymnasiums_spaces_and_its_threads_change_nothing(envpool, name):
    with gym.make(name) as env:
        spaces = env.observation_space, env.action_space
    stories = []
    for threads in (1, 3):
        vec = EnvPoolVector(name, 5, {"num_threads": threads})
        assert vec.single_observation_space.shape == spaces[0].shape
        assert vec.single_observation_space.dtype == spaces[0].dtype
        assert (vec.single_action_space.shape, vec.single_action_space.dtype) == (
            spaces[1].shape, spaces[1].dtype)
        vec.action_space.seed(1)
        stories.append([vec.reset(seed=3)[0]] + [vec.step(vec.action_space.sample())[:4]
                                                 for _ in range(250)])
        vec.close()
    for one, other in zip(*stories):
        np.testing.assert_equal(one, other)


@ENVPOOLS
def test_envpools_reset_rows_are_not_valid(envpool, trainer, name):
    ppo = trainer(name, vec="envpool", num_steps=300, norm_obs=False, max_episode_steps=60)
    for _ in range(2):
        rollout = ppo.collect()
        ended = rollout.term | rollout.trunc
        assert ended.any() and (~rollout.valid)[1:].equal(ended[:-1])
        going = rollout.valid & ~rollout.term
        assert rollout.nxt[going].isfinite().all() and rollout.nxt[rollout.term].isnan().all()
        cut = (rollout.trunc & ~rollout.term).numpy()
        np.testing.assert_allclose(rollout.nxt.numpy()[cut],
                                   ppo.policy.value(rollout.obs[1:].numpy()[cut]), atol=1e-5)
    assert ppo.arena["length"].max() <= 60


@pytest.mark.parametrize("name", ["CartPole-v1", "CartpoleBalance-v1"])
def test_envpools_ids_are_evaluated_from_a_file_as_in_the_run(envpool, trainer, tmp_path, name):
    ppo = trainer(name, vec="envpool", max_episode_steps=60).learn(64)
    ppo.save(tmp_path / "policy")
    found = ppo.evaluate(4)
    assert found.lengths.max() <= 60 and found.std > 0
    np.testing.assert_array_equal(load(tmp_path / "policy").evaluate(episodes=4).returns,
                                  found.returns)


def test_envpools_procgen_has_the_levels_asked_for_and_a_preset(envpool, trainer, tmp_path):
    try:
        ppo = trainer("StarpilotEasy-v0", preset="auto", num_envs=2, num_steps=8, epochs=1,
                      num_minibatches=1, max_episode_steps=9,
                      env_kwargs={"num_levels": 3, "start_level": 100})
    except ConfigError as error:
        pytest.skip(error.what)  # it needs Qt
    ppo.learn(16)
    assert (ppo.config.model, ppo.config.vec) == ("impala", "envpool")
    ppo.save(tmp_path / "policy")
    other = factories_for(load(tmp_path / "policy"), env_kwargs={"num_levels": 1})
    for factory, levels in ((ppo.source.factories[0], {100, 101, 102}), (other[0], {0})):
        env = factory()
        seen = {env.reset(seed=seed) and int(env.vector.info["level_seed"][0])
                for seed in range(12)}
        env.close()
        assert seen == levels


@pytest.mark.slow
def test_envpools_cartpole_is_learnt_as_gymnasium_has_it(envpool, trainer):
    ppo = trainer("CartPole-v1", vec="envpool", preset="cartpole", epochs=10, num_envs=16,
                  num_steps=32, num_minibatches=8, hidden_sizes=(64, 64), num_workers=None)
    assert ppo.learn().evaluate(20).mean > 400
