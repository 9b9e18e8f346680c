"""Simulators with tensors on a device: what is recorded, valued, counted, refused."""

import importlib.util
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from on_a_gpu import no_wait_for_the_gpu

from fastppo import reference
from fastppo.errors import ConfigError, EnvError, NonFiniteError, SpaceError
from fastppo.networks.normaliser import RunningMoments
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.tensor_actions import tensor_to_env

ENVS, STEPS = 3, 12
@pytest.fixture
def trainer(trainer):
    """The trainer of tiny size; the number of environments is the simulator's, unless given."""
    return lambda env, **settings: trainer(env, **{"num_envs": "auto", **settings})


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
DEVICES = pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_GPU])])
NUMBERS = Box(-np.inf, np.inf, (2,), np.float32)

spec = importlib.util.spec_from_file_location(
    "simulator_example", Path(__file__).parents[2] / "examples" / "simulator.py")
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


class Counter:
    """Counts the steps of each environment; environment e ends every e + 2 steps.

    Environment 0 is terminated, the others are truncated. It keeps the actions it got.
    """

    def __init__(self, obs_space=NUMBERS, act_space=None, device="cpu", finals=True):
        self.num_envs, self.device, self.finals = ENVS, device, finals
        self.single_observation_space = obs_space
        self.single_action_space = act_space or Discrete(2)
        self.length = torch.arange(ENVS, device=device) + 2
        self.taken, self.seeds = [], []

    def seen(self):
        return torch.stack([self.age.float(), self.total.float()], 1)

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.age, self.total = torch.zeros(2, ENVS, dtype=torch.int64, device=self.device)
        return self.seen(), {}

    def step(self, act):
        self.taken.append(act.clone())
        self.age, self.total = self.age + 1, self.total + 1
        final, ended = self.seen(), self.age == self.length
        rew = self.age * 0.5
        self.age = self.age * ~ended
        first = torch.arange(ENVS, device=self.device) == 0
        info = {"final_obs": final} if self.finals is True or self.finals and ended.any() else {}
        return self.seen(), rew, ended & first, ended & ~first, info


class Changed(Counter):
    """A Counter of which `change` alters what a step returns."""

    def __init__(self, change, **how):
        super().__init__(**how)
        self.change = change

    def step(self, act):
        return self.change(*super().step(act))


@DEVICES
@pytest.mark.parametrize("finals", [True, "of ends", False])
def test_a_rollout_has_what_the_simulator_did(trainer, finals, device):
    env = Counter(finals=finals, device=device)
    ppo = trainer(env, num_steps=STEPS, norm_obs=False, reward_scale=2.0)
    for iteration in range(2):
        before = len(env.taken)
        rollout = ppo.collect()
        taken = torch.stack(env.taken[before:]).cpu()
        steps = np.arange(STEPS) + iteration * STEPS + 1
        length = np.arange(ENVS) + 2
        age = steps[:, None] % length
        ended = age == 0
        np.testing.assert_array_equal(rollout.act.cpu(), taken)
        np.testing.assert_array_equal(rollout.obs[1:, :, 0].cpu(), age)
        np.testing.assert_array_equal(rollout.obs[1:, :, 1].cpu(), np.tile(steps[:, None], ENVS))
        np.testing.assert_array_equal(rollout.raw, np.where(ended, length, age) * 0.5)
        np.testing.assert_array_equal(rollout.rew, rollout.raw * 2)
        np.testing.assert_array_equal(rollout.term, ended & (np.arange(ENVS) == 0))
        np.testing.assert_array_equal(rollout.trunc, ended & (np.arange(ENVS) != 0))
        assert rollout.valid.all() and rollout.obs.device.type == device
        np.testing.assert_array_equal(ppo.arena["length"], ended * length)
        lasted = np.where(ended, length, age)
        np.testing.assert_array_equal(ppo.arena["total"], lasted * (lasted + 1) / 4)
        obs = rollout.obs.clone()
        for e in range(ENVS):  # the final observations, which obs does not have
            for t in np.flatnonzero(ended[:, e]):
                obs[t + 1, e, 0] = length[e]
        with torch.no_grad():
            val, after = (ppo.policy(x.flatten(0, 1))[1].reshape(STEPS, ENVS).cpu()
                          for x in (rollout.obs[:-1], obs[1:]))
        torch.testing.assert_close(rollout.val, val)
        truncated = torch.from_numpy(ended & (np.arange(ENVS) != 0))
        nxt = torch.where(truncated & (not finals), val, after).masked_fill(rollout.term, torch.nan)
        torch.testing.assert_close(rollout.nxt, nxt, equal_nan=True)
        adv = reference.gae(*(getattr(rollout, name).numpy() for name in (
            "rew", "val", "nxt", "term", "trunc")), True, ppo.config.gamma, ppo.config.gae_lambda)
        np.testing.assert_allclose(rollout.adv, adv, rtol=1e-5, atol=1e-6)
        ppo.update(rollout)
    assert len(env.seeds) == 1


@DEVICES
@pytest.mark.parametrize("make", [example.CartPole, example.Pendulum])
def test_a_run_is_a_function_of_its_seed(trainer, make, device):
    def weights(**settings):
        ppo = trainer(make(8, device), num_minibatches=2, norm_rewards=None, **settings)
        ppo.learn(3 * 8 * ppo.config.num_steps)
        return [x.cpu() for x in ppo.policy.state_dict().values()]
    one, two, other = weights(), weights(), weights(seed=2)
    assert all(map(torch.equal, one, two))
    assert not any(map(torch.equal, one[1:3], other[1:3]))


@pytest.mark.parametrize("make", [example.CartPole, example.Pendulum])
def test_the_example_moves_as_gymnasium_does(make):
    ours, theirs = make(1), gym.make(make.env_id)
    first, _ = theirs.reset(seed=3)
    ours.reset(seed=3)
    ours.state = torch.tensor(theirs.unwrapped.state, dtype=torch.float32)[None]
    np.testing.assert_allclose(ours.observe(ours.state)[0], first, rtol=1e-6)
    theirs.action_space.seed(3)
    for _ in range(make.limit):
        action = theirs.action_space.sample()
        obs, rew, term, trunc, _ = theirs.step(action)
        found = ours.step(torch.as_tensor(action)[None])
        np.testing.assert_allclose(found[4]["final_obs"][0], obs, rtol=2e-3, atol=2e-3)
        assert float(found[1]) == pytest.approx(float(rew), rel=2e-3, abs=2e-3)
        assert (bool(found[2]), bool(found[3])) == (term, trunc)
        if term or trunc:
            break
    assert term or trunc


@pytest.mark.full
def test_it_learns_and_is_evaluated_in_gymnasiums_environment(trainer):
    ppo = trainer(example.CartPole(64), num_steps=64, num_minibatches=8, epochs=4, lr=1e-3,
                  reward_scale=0.1, hidden_sizes=(64, 64))
    assert (ppo.config.learner, ppo.config.acting) == ("kernel", "central")
    ppo.learn(120_000)
    assert ppo.evaluate(10, env="CartPole-v1").mean > 400


@DEVICES
def test_moments_of_a_tensor_are_those_of_the_kernel(device):
    rows = np.random.default_rng(0).normal(3, 2, (500, 4)).astype(np.float32)
    by_kernel, by_torch = RunningMoments(4), RunningMoments(4).to(device)
    for part in (rows[:200], rows[200:]):
        by_kernel.merge(part)
        by_torch.merge_tensor(torch.from_numpy(part).to(device))
    for ours, theirs in zip(by_torch.state, by_kernel.state):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=0)


@pytest.mark.cuda
@NO_GPU
def test_moments_on_a_gpu_are_those_on_the_cpu(trainer):
    found = [trainer(example.Pendulum(8, "cpu")), trainer(example.Pendulum(8, "cuda"))]
    rollout = found[0].collect()
    for ppo in found:
        observer = ppo.policy.observer
        observer.restore([torch.zeros_like(x) for x in observer.state])
        observer.learn_from(rollout.obs.flatten(0, 1).to(observer.count.device))
    for ours, theirs in zip(*(ppo.policy.observer.state for ppo in found)):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("space, form", [
    (Discrete(3, start=-1), "clip"), (MultiDiscrete([2, 4]), "clip"),
    (Box(-2, 1, (2,), np.float32), "clip"), (Box(-2, 1, (2, 2), np.float32), "scale"),
    (Box(-2, 1, (2,), np.float64), "tanh"), (Box(0, 9, (3,), np.int64), "unit")])
def test_actions_are_those_of_workers(space, form):
    actions, random = ActionMapping(space, form), np.random.default_rng(1)
    count = (50, *actions.store.shape)
    stored = random.integers(0, 2, count) if actions.store.dtype == "<i8" else \
        random.normal(0, 1, count).astype(actions.store.dtype)
    ours = tensor_to_env(space, form)(torch.from_numpy(stored))
    wanted = np.stack(actions.to_env()(stored))
    assert ours.numpy().dtype == wanted.dtype and ours.shape == wanted.shape
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(KeyError, match="unknown"):
        tensor_to_env(space, "unknown")


@pytest.mark.cuda
@NO_GPU
def test_nothing_waits_for_the_device_within_a_rollout(trainer):
    ppo = trainer(example.Pendulum(8, "cuda"))
    ppo.collect()
    with torch.no_grad():
        with no_wait_for_the_gpu():
            ppo.collector.vec._step(0)


def test_a_step_of_the_example_copies_no_number_of_the_scripts_to_its_device(monkeypatch):
    env, act = example.CartPole(4), torch.tensor([0, 1, 0, 1])
    env.reset(seed=1)
    monkeypatch.setattr(torch, "tensor", None)  # on a GPU each would be waited for
    env.step(act)


def test_observations_may_be_a_dict_with_choices_and_a_mask(trainer):
    space = Dict({"numbers": NUMBERS, "phase": Discrete(5, start=1), "action_mask": Box(
        0, 1, (2,), np.int8)})

    class Structured(Counter):
        def seen(self):
            numbers = super().seen()
            return {"numbers": numbers, "phase": numbers[:, 0].long() % 5 + 1,
                    "action_mask": torch.tensor([[0, 1]] * ENVS, dtype=torch.int8)}
    env = Structured(obs_space=space)
    ppo = trainer(env, num_steps=STEPS)
    rollout = ppo.collect()
    assert (rollout.act == 1).all()
    np.testing.assert_array_equal(rollout.obs["phase"], rollout.obs["numbers"][..., 0] % 5)
    ppo.update(rollout)


def test_what_a_differentiable_simulator_returns_is_trained_on_without_its_gradients(trainer):
    class Differentiable(Counter):
        def seen(self):
            return super().seen().requires_grad_()
    ppo = trainer(Differentiable(), norm_obs=True)  # with a warm-up
    assert not ppo.collect().obs.requires_grad and ppo.learn(2 * STEPS * ENVS)


def test_arrays_of_other_libraries_come_by_dlpack(trainer):
    env = Changed(lambda *found: (*(x.numpy() for x in found[:4]), {"final_obs": found[4][
        "final_obs"].numpy()}))
    ours, plain = (trainer(one, num_steps=STEPS).collect() for one in (env, Counter()))
    torch.testing.assert_close(ours.obs, plain.obs)
    torch.testing.assert_close(ours.adv, plain.adv)


@pytest.mark.parametrize("row, refused", [(1, True), (0, False)])  # a truncated one and another
def test_a_final_observation_that_is_used_must_be_finite(trainer, row, refused):
    def change(obs, rew, term, trunc, info):
        info["final_obs"][row] = torch.nan
        return obs, rew, term, trunc, info
    ppo = trainer(Changed(change), num_steps=STEPS, norm_obs=False)
    if not refused:
        assert ppo.learn(STEPS * ENVS)
        return
    with pytest.raises(EnvError, match=r"Changed failed in info\['final_obs'\] of environment 1, "
                       "step 2 of a rollout: .*is not finite"):
        ppo.collect()


def test_lists_are_no_tensors(trainer):
    env = Changed(lambda obs, rew, *more: (obs, rew.tolist(), *more))
    with pytest.raises(EnvError, match="the rewards: list, not a tensor or an array"):
        trainer(env, num_steps=STEPS).collect()


def test_a_simulator_in_wrappers_of_gymnasium_is_to_be_given_without_them(trainer):
    class Plain(gym.Env):
        device, num_envs, action_space, observation_space = "cpu", 2, Discrete(2), NUMBERS
    with pytest.raises(ConfigError, match="or a simulator without wrappers"):
        trainer(gym.wrappers.OrderEnforcing(Plain()))


def test_an_interrupted_rollout_begins_again_with_new_episodes(trainer):
    def change(*found):
        if len(env.taken) == 5:
            raise KeyboardInterrupt
        return found
    env = Changed(change)
    ppo = trainer(env, num_steps=STEPS, norm_obs=False)
    with pytest.raises(KeyboardInterrupt):
        ppo.collect()
    rollout = ppo.collect()
    np.testing.assert_array_equal(rollout.act.cpu(), torch.stack(env.taken[5:]))
    assert rollout.obs[1, :, 1].tolist() == [1.0] * ENVS and len(env.seeds) == 2


def test_a_checkpoint_goes_on_with_new_episodes(trainer, tmp_path, caplog):
    ppo = trainer(Counter(), num_steps=STEPS, run_dir=tmp_path / "run")
    ppo.learn(2 * ENVS * STEPS)
    ppo.close()
    from fastppo import PPO
    with PPO.resume(tmp_path / "run", env=(env := Counter())) as again:
        assert again.step == 2 * ENVS * STEPS
        again.learn(3 * ENVS * STEPS)
        assert again.step == 3 * ENVS * STEPS and again.rollout.obs[0, 0, 1] == 0
    assert env.seeds and "not bit for bit" in caplog.text


@pytest.mark.parametrize("change, error, text", [
    (lambda obs, *rest: (obs[:, :1], *rest), EnvError, r"observation is \[3, 1\] on cpu"),
    (lambda obs, rew, *rest: (obs, rew[:, None], *rest), EnvError, r"rewards is \[3, 1\]"),
    (lambda obs, rew, term, *rest: (obs, rew, term[:1], *rest), EnvError, "terminations"),
    (lambda obs, rew, term, *rest: (obs, rew, term / 2, *rest), EnvError,
     "terminations are torch.float32, not bool"),
    (lambda obs, *rest: (obs.to("meta"), *rest), EnvError, "on meta, not"),
    (lambda obs, *rest: (obs * torch.nan, *rest), EnvError, "observation of environment 0, step 1"),
    (lambda obs, rew, *rest: (obs, rew / 0, *rest), EnvError, "rewards of environment 0, step 0"),
    (lambda *found: found[:4], EnvError, "must take the action")])
def test_a_simulators_fault_is_named(trainer, change, error, text):
    ppo = trainer(Changed(change), num_steps=STEPS)
    with pytest.raises(error, match=text):
        ppo.collect()


def test_numbers_of_the_network_that_are_not_finite_are_named(trainer):
    ppo = trainer(Counter(), num_steps=STEPS, norm_obs=False)
    with torch.no_grad():
        ppo.learner.flat.values.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="environment 0.*step 0"):
        ppo.collect()


def incomplete():
    env = Counter()
    del env.single_action_space
    return env


def in_mode(mode):
    env = Counter()
    env.metadata = {"autoreset_mode": mode}
    return env


@pytest.mark.parametrize("make, settings, error, text", [
    (incomplete, {}, ConfigError, "no single_action_space"),
    (lambda: in_mode(AutoresetMode.NEXT_STEP), {}, ConfigError, "within the step"),
    (lambda: Counter(act_space=Tuple((Discrete(2), Discrete(2)))), {}, SpaceError, "several"),
    (partial(Counter, device="meta"), {}, ConfigError, "device is 'meta'\n  fix: make it cpu"),
    (Counter, {"num_envs": 8}, ConfigError, "makes it 3\n  fix: give 8 environments; or leave num"),
    (Counter, {"device": "cuda"}, ConfigError, "device is 'cuda', but the VectorEnv makes it"),
    (Counter, {"rnn": "gru"}, ConfigError, "memory"),
    (Counter, {"num_envs": 5}, ConfigError, "num_envs is 5")])
def test_what_a_simulator_cannot_have_is_refused(trainer, make, settings, error, text):
    with pytest.raises(error, match=text):
        trainer(make(), **settings)


def test_the_log_of_episodes_keeps_nothing_that_cannot_be_replayed(trainer):
    ppo = trainer(Counter(), num_steps=STEPS)
    ppo.learn(4 * ENVS * STEPS)
    assert ppo.collector.snapshots.log.state.rollouts == ()
