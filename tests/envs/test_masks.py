"""Action masks: illegal actions are neither taken nor counted, wherever the mask comes from."""

import logging
import sys
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import ONE, Chance, Fenced
from envs_for_workers import Numbers
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from optional_packages import NEEDS_EXTENSION
from torch.distributions import Categorical

from fastppo import load, make_vec
from fastppo.compiled.learner import update_coefficients
from fastppo.config import Config
from fastppo.envs.masks import ActionMaskWrapper, wrap_mask
from fastppo.envs.source import EnvSource
from fastppo.envs.wrappers import unchecked_step
from fastppo.errors import ConfigError, EnvError, InputError, KernelError, SpaceError
from fastppo.machine import kernels
from fastppo.networks.action_heads import make_head
from fastppo.spaces.leaves import choice_counts
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

HOWS = "obs", "method", "info"
ACT = {"discrete": Discrete(5, start=-2), "multi": MultiDiscrete([[2, 5], [3, 1]]),
       "binary": MultiBinary(3)}
PLACE = Box(-9, 9, (2,), np.float32)
OBS = {"box": PLACE, "discrete": Discrete(7), "tuple": Tuple([Discrete(2), PLACE]),
       "dict": Dict(a=PLACE, obs=MultiBinary(2))}


def factors(space, x):
    """The columns [b choices] of each factor of a discrete space."""
    return np.split(x, np.cumsum(choice_counts(space))[:-1], axis=-1)


def legal_only(space, params, mask):
    """torch's distributions over legal choices alone: [b][factor] of (distribution, places)."""
    if isinstance(space, MultiBinary):  # log-odds as the logits of 0 and 1
        params = torch.stack([torch.zeros_like(params), params], -1).flatten(1)
    rows = []
    for x, legal in zip(params, mask):
        cut = zip(factors(space, x.detach().double().numpy()), factors(space, legal.numpy()))
        rows.append([(Categorical(logits=torch.from_numpy(logits[ok])), np.flatnonzero(ok))
                     for logits, ok in cut])
    return rows


def random_masks(space, rows, seed=0):
    """Masks bool [rows choices] with one legal choice or more of every factor."""
    rng, found = np.random.default_rng(seed), []
    for size in choice_counts(space):
        found.append(rng.random((rows, size)).argsort(1) < rng.integers(1, size + 1, (rows, 1)))
    return torch.from_numpy(np.concatenate(found, 1))


@pytest.mark.parametrize("act", ACT)
@pytest.mark.parametrize("how", HOWS)
def test_no_illegal_action_reaches_the_environment_and_the_ratio_is_one(trainer, how, act):
    ppo = trainer(partial(Fenced, how, ACT[act]))  # in which an illegal action is a fault
    stats = ppo.update(ppo.collect())
    assert abs(stats["losses/old_approx_kl"]) < 1e-5 and stats["losses/clipfrac"] == 0
    ppo.learn(256)
    assert ppo.evaluate(8).lengths.min() > 0
    assert ppo.evaluate(8, deterministic=False).lengths.min() > 0


@pytest.mark.parametrize("obs", OBS)
@pytest.mark.parametrize("how", HOWS)
def test_masks_stand_beside_observations_of_any_space(trainer, how, obs):
    ppo = trainer(partial(Fenced, how, ACT["multi"], OBS[obs]), model="mlp")
    rollout, space = ppo.collect(), ppo.policy.obs_space
    assert rollout.obs["action_mask"].shape == (9, 4, 11)
    bare = ObservationLayout(OBS[obs], ACT["multi"])
    assert (ObservationEncoding(ObservationLayout(space, ACT["multi"])).size
            == ObservationEncoding(bare).size)
    assert set(space.spaces) == {"action_mask", *(OBS[obs].spaces if obs == "dict" else ["obs"])}


@pytest.mark.some(1)
@pytest.mark.parametrize(("act", "acting", "travelling"), [
    ("discrete", "local", "info"), ("discrete", "central", "method"), ("multi", "central", "obs"),
    ("binary", "central", "info")])
def test_one_mask_gives_the_same_run_wherever_it_comes_from_and_for_any_workers(
        trainer, act, acting, travelling):
    found = []
    for how, workers in (*((how, 0) for how in HOWS), (travelling, 2)):
        ppo = trainer(partial(Fenced, how, ACT[act]), num_workers=workers, acting=acting)
        found.append(ppo.learn(96).learner.flat.values.clone())
    assert all(torch.equal(found[0], other) for other in found) and found[0].isfinite().all()


def test_the_compiled_policy_and_torch_do_the_same_under_masks(trainer):
    compiled, local, central = (
        trainer(partial(Fenced, "info"), entropy_coef=0.1, **settings).learn(96)
        for settings in ({}, dict(learner="torch"), dict(acting="central")))
    assert (compiled.config.acting, compiled.config.learner) == ("local", "kernel")
    assert (local.config.acting, local.config.learner) == ("local", "torch")
    for other in (local, compiled):
        torch.testing.assert_close(other.learner.flat.values, central.learner.flat.values)


@NEEDS_EXTENSION
def test_the_compiled_learner_refuses_masks_of_another_shape(trainer):
    ppo = trainer(partial(Fenced, "info"))
    batch = ppo.learner.flatten(ppo.collect(), torch.device("cpu"))
    samples = ppo.learner._samples(batch)
    for legal in (samples.legal[:-1], samples.legal[:, :-1].copy(), samples.legal.view("u1") + 0.0):
        with pytest.raises(KernelError, match="update: legal"):
            kernels.MinibatchUpdate(*ppo.learner.plan, ppo.learner.buffers, samples._replace(
                legal=legal), np.arange(4), update_coefficients(ppo.config, ppo.coefficients))


@pytest.mark.parametrize("obs", OBS)
def test_a_model_of_your_own_sees_the_observations_without_the_mask(trainer, obs):
    shown = []

    class Net(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            shown.append(obs_space)
            self.bias = torch.nn.Parameter(torch.zeros(11))

        def forward(self, seen):
            """The same for all; one array where the space has one."""
            first = seen
            while isinstance(first, (dict, tuple)):
                first = next(iter(first.values())) if isinstance(first, dict) else first[0]
            assert isinstance(seen, dict) == (obs == "dict")
            return self.bias.expand(len(first), 11), self.bias[:1].expand(len(first))

    trainer(partial(Fenced, "info", ACT["multi"], OBS[obs]), model=Net).learn(32)
    assert set(map(repr, shown)) == {repr(OBS[obs])}


class Shown(torch.nn.Module):
    """Stores the space that it is made for, and uses the first part of its observations."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.space, self.layer = obs_space, torch.nn.Linear(1, 4)

    def forward(self, obs):
        """(three logits, value)."""
        out = self.layer(obs["obs"] if isinstance(self.space, Dict) else obs)
        return out[:, :3], out[:, 3]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("obs_space", [ONE, Dict(obs=ONE)], ids=["bare", "dict"])
def test_a_dict_of_the_environments_own_stays_one_whatever_its_keys(
        trainer, tmp_path, how, obs_space):
    env, path = partial(Fenced, how, obs_space=obs_space), tmp_path / "policy"
    wanted = ONE if how != "obs" and obs_space is ONE else Dict(obs=ONE)
    ppo = trainer(env, model=Shown, num_workers=2 * (how == "info")).learn(32)
    ppo.save(path)
    found, obs = load(path, model=Shown), ppo.policy.obs_space.sample()
    obs["action_mask"][:] = 1
    assert ppo.policy.net.space == found.net.space == wanted
    for one in ("predict", "value"):
        assert getattr(found, one)(obs) == getattr(ppo.policy, one)(obs)
    if wanted != ONE:
        trainer(env, actor_keys=("obs",)).learn(32)
    else:
        with pytest.raises(ConfigError, match="actor_keys are parts of a Dict"):
            trainer(env, actor_keys=("obs",))


@pytest.mark.parametrize("how", HOWS)
def test_measuring_whether_workers_pay_takes_legal_steps(trainer, how):
    source = EnvSource(partial(Fenced, how), Config(num_envs=2, num_workers="auto"))
    assert 0 < source.step_seconds < 1  # of an environment that fails it is infinite


@pytest.mark.parametrize("mask", [True, False])
def test_envpools_masks_are_those_of_its_infos(trainer, monkeypatch, mask):
    class Pool:
        def __init__(self, name, num_envs, num_threads, seed=0):
            env = Fenced("info", ends=0.0)
            self.gymnasium_observation_space = self.observation_space = ONE
            self.gymnasium_action_space = env.action_space
            self.state_array_spec = {"obs": None, **({"info:action_mask": None} if mask else {})}
            self.vec = gym.vector.SyncVectorEnv([partial(Fenced, "info", ends=0.1)] * num_envs)
            self.seed, self.close = seed, self.vec.close

        def reset(self):
            """As EnvPool's, without a seed."""
            return self.vec.reset(seed=self.seed)

        def step(self, actions):
            """The mask is always there, after the end of all episodes, too."""
            *found, info = self.vec.step(actions)
            return *found, {"action_mask": np.zeros((len(actions), 3), bool)} | info

    module = SimpleNamespace(make_spec=Pool, make_gymnasium=Pool)
    monkeypatch.setitem(sys.modules, "envpool", module)
    if mask:
        ppo = trainer("Masked-v0", vec="envpool").learn(96)
        assert ppo.policy.observer.layout.mask is not None and ppo.evaluate(5).lengths.sum() > 5
    else:
        with pytest.raises(EnvError, match="is illegal"):
            trainer("Masked-v0", vec="envpool").learn(96)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
@pytest.mark.parametrize("how", HOWS)
def test_vector_environments_of_every_autoreset_mode_show_their_masks(trainer, how, mode):
    class Patient(Fenced):
        def _asked(self):  # Gymnasium asks all environments at once, those that ended too
            return self.told

    vec = gym.vector.SyncVectorEnv([partial(Patient, how, ACT["multi"])] * 4, autoreset_mode=mode)
    ppo = trainer(vec, num_envs=4)
    stats = ppo.update(ppo.collect())
    assert ppo.policy.observer.layout.mask is not None
    assert abs(stats["losses/old_approx_kl"]) < 1e-5
    ppo.learn(256)
    assert ppo.evaluate(4, env=partial(Fenced, how, ACT["multi"])).lengths.min() > 0
    vec.close()


@pytest.mark.parametrize("how", ["method", "info"])
def test_masks_of_a_vector_environment_in_processes_of_its_own(trainer, how):
    make = [partial(Fenced, how, ACT["discrete"], ends=0.0)] * 2
    with closing(gym.vector.AsyncVectorEnv(make)) as vec:
        assert trainer(vec, num_envs=2).learn(32).policy.observer.layout.mask is not None
    with closing(gym.vector.AsyncVectorEnv([Chance] * 2)) as vec:  # one that has none goes on
        assert trainer(vec, num_envs=2).learn(32).policy.observer.layout.mask is None


@pytest.mark.parametrize("act", ACT)
def test_a_million_draws_are_legal_and_as_frequent_as_they_should_be(act):
    space, head, rows = ACT[act], make_head(ACT[act]), 100
    draws = 10_000 // len(head.noise) + 1  # of each factor
    rng = np.random.default_rng(1)
    params = torch.from_numpy(rng.normal(0, 1, (rows, head.size)).astype("f4"))
    params[50:] *= 1e3  # all but certain
    params[90:] *= 1e9  # beyond any number that one would take for impossible
    mask = random_masks(space, rows)
    noise = rng.random((rows * draws, len(head.noise)), np.float32)
    noise[::1009], noise[1::1009] = 0, np.nextafter(np.float32(1), 0, dtype="f4")
    many = head.masked(params, mask).repeat(draws, 1)
    taken, logp = head.sample(many, torch.from_numpy(noise))
    taken = taken.reshape(draws, rows, -1).numpy()
    assert (logp > -1e6).all()
    for row, parts in enumerate(legal_only(space, params, mask)):
        for factor, (law, legal) in enumerate(parts):
            seen = np.bincount(taken[:, row, factor], minlength=max(choice_counts(space)))
            assert seen[legal].sum() == draws  # nothing illegal, once
            np.testing.assert_allclose(seen[legal] / draws, law.probs, atol=0.05)


@pytest.mark.parametrize("act", ACT)
def test_probabilities_and_entropies_are_those_over_legal_actions_alone(act):
    space, head = ACT[act], make_head(ACT[act])
    rng, mask = np.random.default_rng(2), random_masks(ACT[act], 200)
    params = torch.from_numpy(rng.normal(0, 2, (200, head.size)).astype("f4")).requires_grad_()
    masked = head.masked(params, mask)
    act_, _ = head.sample(masked, torch.from_numpy(rng.random((200, len(head.noise)), np.float32)))
    logp, ent = head.evaluate(masked, act_)
    wanted = legal_only(space, params, mask)
    places = act_.reshape(200, -1).tolist()
    for row, parts in enumerate(wanted):
        index = [int(np.flatnonzero(legal == place)[0]) for (_, legal), place in
                 zip(parts, places[row])]
        told = sum(law.log_prob(torch.tensor(i)) for (law, _), i in zip(parts, index))
        assert logp[row].item() == pytest.approx(told.item(), abs=1e-5)
        assert ent[row].item() == pytest.approx(sum(law.entropy() for law, _ in parts).item(),
                                                abs=1e-5)
    (logp.sum() + ent.sum()).backward()
    assert params.grad.isfinite().all()
    certain = ~mask if act != "binary" else ~mask.reshape(200, -1, 2).all(-1)
    assert (params.grad[certain] == 0).all()
    mode = head.mode(masked).reshape(200, -1)
    assert all(place in legal for row, parts in zip(mode.tolist(), wanted)
               for place, (_, legal) in zip(row, parts))


@pytest.mark.parametrize("act", ACT)
@pytest.mark.parametrize("scale", [1e3, 1e12, 1e30])
def test_extreme_logits_under_masks_leave_everything_finite(act, scale):
    head, mask = make_head(ACT[act]), random_masks(ACT[act], 500)
    params = torch.randn(500, head.size, generator=torch.Generator().manual_seed(1)) * scale
    params = params.requires_grad_()
    masked = head.masked(params, mask)
    noise = torch.rand(500, len(head.noise), generator=torch.Generator().manual_seed(2))
    act_, sampled = head.sample(masked, noise)
    logp, ent = head.evaluate(masked, act_)
    (logp.sum() + ent.sum()).backward()
    assert torch.equal(logp, sampled) and all(
        x.isfinite().all() for x in (logp, ent, params.grad)) and (ent >= 0).all()


def test_the_entropy_of_an_update_is_that_over_legal_actions(trainer):
    ppo = trainer(partial(Fenced, "info"))
    rollout = ppo.collect()
    with torch.no_grad():
        obs = {key: x[:-1].flatten(0, 1) for key, x in rollout.obs.items()}
        params, _ = ppo.policy.net(ppo.policy.observer(obs))
    rows = legal_only(Discrete(3), params, obs["action_mask"])
    wanted = np.mean([law.entropy().item() for row in rows for law, _ in row])
    assert ppo.update(rollout)["losses/entropy"] == pytest.approx(wanted, abs=1e-5)


def test_without_the_mask_these_tests_would_fail(trainer, monkeypatch):
    monkeypatch.setattr("fastppo.networks.action_heads.Categorical.masked",
                        lambda self, logits, mask: logits)
    with pytest.raises(EnvError, match="is illegal"):
        trainer(partial(Fenced, "info"), acting="central").learn(256)


@pytest.mark.parametrize("how", ["method", "info"])
def test_predict_is_given_the_mask_that_is_not_in_the_observation(trainer, tmp_path, how):
    ppo = trainer(partial(Fenced, how, ACT["discrete"]))
    ppo.learn(64).save(tmp_path / "policy.safetensors")
    policy = load(tmp_path / "policy.safetensors")
    rng = np.random.default_rng(3)
    obs = rng.normal(size=(30, 1)).astype("f4")
    masks = random_masks(ACT["discrete"], 30).numpy()
    batch = policy.predict(obs, action_mask=masks)
    np.testing.assert_array_equal(batch, ppo.policy.predict({"obs": obs, "action_mask": masks}))
    np.testing.assert_array_equal(policy.value(obs), ppo.policy.value(obs))
    for one, mask, taken in zip(obs, masks, batch):
        assert mask[taken + 2] and policy.predict(one, action_mask=mask.tolist()) == taken
        assert mask[policy.predict(one, False, action_mask=mask) + 2]


def test_an_observation_that_looks_like_a_whole_answer_is_one_where_the_space_says_so(trainer):
    space = Tuple([ONE, Dict(a=ONE)])
    ppo = trainer(partial(Fenced, "info", obs_space=space))
    obs, mask = space.sample(), np.array([0, 1, 0], bool)
    whole = {"obs": obs, "action_mask": mask}
    assert ppo.policy.predict(obs, action_mask=mask) == ppo.policy.predict(whole)
    assert ppo.policy.value(obs) == ppo.policy.value(whole)


@pytest.mark.parametrize(("mask", "said"), [
    (None, r"lacks the action mask.*\n  fix: policy.predict\(obs, action_mask=info\['action_"),
    ([1, 0], "of shape"), ([0, 0, 0], "forbids every action"), ([0, 2, 1], "not 3 flags"),
    ([0.5, 1, 1], "not 3 flags"), ([np.nan, 1, 1], "not 3 flags"), ("abc", "not 3 flags")])
def test_predict_refuses_what_is_no_mask(trainer, mask, said):
    with pytest.raises(InputError, match=said):
        trainer(partial(Fenced, "info")).policy.predict(np.zeros(1), action_mask=mask)


@pytest.mark.parametrize("space", [MultiDiscrete([3, 3]), MultiBinary(3), Discrete(6)], ids=str)
@pytest.mark.parametrize("dtype", ["?", "i8", "f8"])
def test_predict_takes_a_mask_in_every_form_that_training_takes(trainer, space, dtype):
    shape = (2, 3) if isinstance(space, MultiDiscrete) else (3, 2) if space.shape else (6,)
    ppo = trainer(partial(Fenced, "method", space,
                          bend=lambda mask: mask.reshape(shape).astype(dtype)))
    policy, obs = ppo.learn(64).policy, np.float32([[0.1], [-2], [0.7]])
    masks = random_masks(space, 3).numpy()
    wanted = policy.predict(obs, action_mask=masks)
    given = masks.reshape(3, *shape).astype(dtype)
    np.testing.assert_array_equal(policy.predict(obs, action_mask=given), wanted)
    for one, mask, act in zip(obs, given, wanted):
        np.testing.assert_array_equal(policy.predict(one, action_mask=mask), act)
        told = {"obs": one, "action_mask": mask}
        np.testing.assert_array_equal(policy.predict(told), act)
        assert told["action_mask"] is mask and policy.value(told) == policy.value(one)


@pytest.mark.parametrize("obs_space", [ONE, OBS["dict"]], ids=["box", "dict"])
def test_predict_says_what_is_wrong_with_one_mask_for_several_observations(trainer, obs_space):
    policy = trainer(partial(Fenced, "info", obs_space=obs_space)).policy
    obs = batch_space(obs_space, 5).sample()
    with pytest.raises(InputError, match=r"the action mask is of shape \(3,\), not 3 flags for each"
                       r" of 5 .*\n  fix: give an element of this space, .*or a batch of them"):
        policy.predict(obs, action_mask=[0, 1, 0])
    assert (policy.predict(obs, action_mask=np.broadcast_to([0, 1, 0], (5, 3))) == 1).all()
    with pytest.raises(InputError, match=r"mask is of shape \(5, 3\), not 3 flags, one"):
        policy.predict(obs_space.sample(), action_mask=np.ones((5, 3), bool))


def test_predict_refuses_a_mask_for_a_policy_that_has_learnt_without(trainer):
    with pytest.raises(InputError, match="learnt without one\n  fix: leave action_mask out"):
        trainer(Chance).policy.predict(np.zeros(1), action_mask=[1, 1, 1])


FAULTS = {"nothing": (np.zeros_like, "the action mask forbids every action"),
          "long": (lambda mask: np.append(mask, True), "not 3 flags|its space"),
          "numbers": (lambda mask: mask * 2 + 3, "not 3 flags|is not in"),
          "missing": (lambda mask: None, "not 3 flags|its space|is None")}


IN_WORKERS = ("nothing", "info"), ("long", "obs"), ("missing", "method")


@pytest.mark.parametrize(("fault", "how", "workers"), [
    *((fault, how, 0) for fault in FAULTS for how in HOWS),
    *(pytest.param(fault, how, 2, marks=[] if (fault, how) in IN_WORKERS else pytest.mark.slow)
      for fault in FAULTS for how in HOWS)])
def test_a_wrong_mask_is_an_error_that_names_environment_seed_and_step(
        trainer, how, fault, workers):
    bend, said = FAULTS[fault]
    with pytest.raises(EnvError, match=rf"environment \d \(.*seed \d+, .*step 1\).*({said})"):
        trainer(partial(Fenced, how, bend=bend, ends=0.0), num_workers=workers, num_envs=2,
                norm_obs=False).learn(64)


@pytest.mark.parametrize("fault", ["nothing", "missing"])
@pytest.mark.parametrize("how", HOWS)
def test_a_wrong_mask_in_a_vector_environment_is_an_error_that_names_the_environment(
        trainer, how, fault):
    bend, said = FAULTS[fault]
    if (how, fault) == ("obs", "missing"):
        pytest.skip("Gymnasium itself cannot batch it")
    vec = gym.vector.SyncVectorEnv([partial(Fenced, how, ends=0.0),
                                    partial(Fenced, how, bend=bend, ends=0.0)])
    with pytest.raises(EnvError, match=rf"step \d.*({said}|is missing of|environment 1)"):
        trainer(vec, num_envs=2, norm_obs=False).learn(64)
    vec.close()


def test_an_environment_of_a_list_without_the_masks_of_the_first_is_named(trainer):
    with pytest.raises(EnvError, match=r"environment 1 \(.*info\['action_mask'\] is None, not 3"):
        trainer([partial(Fenced, "method"), Chance], num_envs=2).learn(64)


def test_a_mask_of_the_wrong_length_in_the_space_is_refused_before_the_first_step(trainer):
    class Wrong(Chance):
        def __init__(self):
            super().__init__(Dict(action_mask=MultiBinary(4), obs=PLACE), Discrete(3))

    with pytest.raises(SpaceError, match=r"no mask.*3 choices\n  fix: .*MultiBinary\(3\)"):
        trainer(Wrong)


@pytest.mark.parametrize("how", ["obs", "info", "method"])
def test_an_action_that_a_mask_may_forbid_is_not_repeated(trainer, how):
    with pytest.raises(ConfigError, match="next frame\n  fix: leave frame_skip out$"):
        trainer(lambda: Fenced(how, Discrete(3)), frame_skip=2)


def test_an_observation_that_is_a_mask_alone_is_refused(trainer):
    with pytest.raises(SpaceError, match="an action mask and nothing else"):
        trainer(partial(Chance, Dict(action_mask=MultiBinary(3)), Discrete(3)))


def test_masks_for_actions_that_cannot_have_one_are_told_of(trainer, caplog):
    class Boxed(Chance):
        def action_masks(self):
            return [True]

    with caplog.at_level(logging.WARNING, "fastppo"):
        ppo = trainer(partial(Boxed, act_space=Box(-1, 1, (1,))))
    assert "masks are for Discrete" in caplog.text and ppo.policy.observer.layout.mask is None


class Told(gym.Wrapper):
    """Chance with a mask in every info."""

    def __init__(self, act_space, **spaces):
        super().__init__(Chance(act_space=act_space, **spaces))

    def reset(self, *, seed=None, options=None):
        """As Chance's."""
        return self.env.reset(seed=seed)[0], {"action_mask": [1, 0]}


@pytest.mark.parametrize("act_space", [Box(-1, 1, (1,)), Tuple([Discrete(2), Box(-1, 1, (1,))])])
@pytest.mark.parametrize(("where", "obs_space"), [
    ("info", ONE), ("observation", Dict(a=ONE, action_mask=MultiBinary(2)))])
@pytest.mark.parametrize("vector", [False, True])
def test_so_are_those_in_infos_and_observations_once(
        trainer, caplog, act_space, where, obs_space, vector):
    make = partial(Told, act_space, obs_space=obs_space)
    with caplog.at_level(logging.WARNING, "fastppo"):
        ppo = trainer(gym.vector.SyncVectorEnv([make] * 4)) if vector else trainer(
            make, eval_env=make)
    found = [one for one in caplog.messages if "masks are for Discrete" in one]
    assert len(found) == 1 and f"has {where}['action_mask']," in found[0]
    assert ppo.policy.observer.layout.mask is None


@pytest.mark.parametrize("how", ["method", "info"])
def test_an_environment_to_evaluate_in_has_masks_where_that_of_training_has(trainer, how):
    masked, other = partial(Fenced, how), {"method": "info", "info": "method"}[how]
    with pytest.raises(ConfigError, match="eval_env .*has no action mask.*\n  fix: give one with"):
        trainer(masked, eval_env=Chance)
    with pytest.raises(ConfigError, match="eval_env .*has an action mask, .*\n  fix: give one wit"):
        trainer(Chance, eval_env=masked)
    for one in (other, "obs"):  # from wherever: it is the same to the policy
        trainer(masked, eval_env=partial(Fenced, one)).evaluate(2)


def test_make_vec_leaves_masks_where_they_are():
    with make_vec(partial(Fenced, "info"), 2, 0) as vec:
        assert isinstance(vec.single_observation_space, Box)
        assert vec.reset(seed=1)[1]["action_mask"].shape == (2, 3)


def test_steps_go_past_wrappers_that_do_nothing_below_the_mask():
    inner = Fenced("method", Discrete(3))
    env = wrap_mask(gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(inner), 7))
    assert isinstance(env, ActionMaskWrapper)
    env.reset(seed=1)
    step, limit = unchecked_step(env)
    obs, *_ = step(int(np.flatnonzero(inner.legal)[0]))
    assert limit == 7 and set(obs) == {"obs", "action_mask"} and env.env._elapsed_steps == 0


def test_looking_for_masks_leaves_the_shared_generators_of_the_process_alone(trainer):
    class Careless(Chance):
        def reset(self, **kwargs):
            np.random.random()
            return super().reset(**kwargs)

    np.random.seed(4)
    before = np.random.get_state()[1].copy()
    trainer(Careless)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(("dtype", "workers"), [
    (np.uint8, 0), (np.int8, 2), (np.int64, 0), (np.bool_, 0)])
def test_a_mask_may_be_a_box_of_whole_numbers(trainer, dtype, workers):
    ppo = trainer(partial(Numbers, dtype), num_workers=workers).learn(96)
    assert ppo.rollout.obs["action_mask"].dtype == torch.bool
    assert ppo.evaluate(2, deterministic=False).lengths.min() > 0
