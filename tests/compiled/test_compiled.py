"""The compiled update equals torch's, whatever the network, and its bits depend on nothing else."""

import functools

import numpy as np
import pytest
import torch
from asked_of_runs import plan_array
from envs_for_tests import interrupted
from gymnasium.spaces import Box, Discrete

from fastppo import Config
from fastppo.collect import Rollout
from fastppo.compiled.learner import CompiledLearner, policy_plan, update_coefficients
from fastppo.errors import Error, KernelError
from fastppo.learner import Learner, total_loss
from fastppo.machine import kernels
from fastppo.networks.action_heads import make_head
from fastppo.networks.encoders import ActorCritic, DenseEncoder
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.update.batches import Batch, flatten_rollout, normalise_advantages
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.schedules import coefficients_at
from fastppo.update.statistics import LOSSES, ratio_stats

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")


def first_terms(learner):
    """The coefficients of a learner's first update, as the kernel takes them."""
    return update_coefficients(learner.config, coefficients_at(learner.config, 1.0))


HIDDEN = [(1,), (8,), (16, 16), (64, 64), (20, 33), (7, 18, 40), (9, 9, 9, 9), (100,), (257, 5), (),
          (6,) * 16]
WIDE = 6500, 3  # a row of its layers does not fit where acting keeps those of others
CASES = range(46)


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's definition on one thread: more only wait for each other at these sizes."""
    with torch_threads(1):
        yield


@functools.cache
def drawn(seed):
    """The choices of one case: a dict of everything that a run may choose."""
    rng = np.random.default_rng([7, seed])
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    return {
        "hidden": HIDDEN[seed % len(HIDDEN)] if seed < 44 else WIDE,
        "activation": pick("tanh", "relu", "elu"),
        "shared": pick(False, True),
        "space": pick(Discrete(pick(1, 2, 4, 18)), Box(-1, 1, (pick(1, 3, 17),), np.float32)),
        "inputs": pick(1, 3, 8, 17, 40),
        "norm_obs": pick(False, True),
        "valid": pick(1.0, 0.8),
        "shift": pick(0.0, 0.3),
        "steps": pick(6, 25, 70),
        "settings": {
            "epochs": 2,
            "num_minibatches": pick(1, 3, 4),
            "norm_advantages": pick("minibatch", "rollout", "none"),
            "clip_range": pick(0.1, 0.2),
            "clip_range_vf": pick(None, 0.2),
            "entropy_coef": pick(0.0, 0.02),
            "value_coef": pick(0.5, 1.0),
            "max_grad_norm": pick(0.01, 0.5, 1e3),
            "dual_clip": pick(None, 1.1),
        },
        "obs_limit": pick(10.0, 1.5),
    }


def policy_of(case, seed=0):
    """The policy of a case, its weights far from their gentle initialisation."""
    space = Box(-np.inf, np.inf, (case["inputs"],), np.float32)
    generator = torch.Generator().manual_seed(seed)
    outputs = make_head(case["space"]).size
    bodies = [DenseEncoder(case["inputs"], case["hidden"], case["activation"], generator)
              for _ in range(2 - case["shared"])]
    net = ActorCritic(bodies[0], bodies[-1], outputs, generator)
    policy = Policy(space, case["space"], net, case["norm_obs"],
                    make_head(case["space"], Config(log_std_init=-0.3)),
                    obs_limit=case["obs_limit"])
    for param in policy.parameters():
        param.data += 0.1 * torch.randn(param.shape, generator=generator)
    size = len(policy.observer.shift)
    policy.observer.restore(
        [torch.full((n,), 4.0, dtype=torch.float64) for n in (1, size, size)])
    return policy


def rollout_of(policy, case, seed=0, envs=4):
    """A rollout whose recorded policy differs from `policy` by `shift`, poison where not valid."""
    rng, shape = np.random.default_rng([1, seed]), (case["steps"], envs)
    normal = lambda *size: torch.from_numpy(rng.normal(size=size).astype("f4"))  # noqa: E731
    obs = 4 + 3 * normal(shape[0] + 1, envs, case["inputs"])
    with torch.no_grad():
        params, val = policy(obs[:-1].flatten(0, 1))
        if isinstance(case["space"], Discrete):
            act = torch.from_numpy(rng.integers(0, case["space"].n, len(params)))
        else:
            act = params + 0.7 * normal(*params.shape)
        logp = policy.head.evaluate(params, act)[0]
    act = act.reshape(*shape, *act.shape[1:])
    logp = logp.reshape(shape) + case["shift"] * normal(*shape)
    val, adv = val.reshape(shape) + case["shift"] * normal(*shape), 0.3 + 2 * normal(*shape)
    valid = torch.from_numpy(rng.random(shape) < case["valid"])
    for array, poison in ((obs, np.nan), (logp, np.nan), (val, np.nan), (adv, np.nan), (act, -1)):
        array[: shape[0]][~valid] = poison
    unused = dict.fromkeys(("raw", "rew", "term", "trunc", "nxt"), torch.full(shape, np.nan))
    return Rollout(obs=obs, act=act, logp=logp, val=val, adv=adv, ret=adv + val, valid=valid,
                   acting=torch.ones(*obs.shape[:2], dtype=torch.bool),
                   state=torch.empty(*obs.shape[:2], 0), **unused)


def learner_of(kind, case):
    """A learner of its own policy, always the same one; the kernel's scratch is poison."""
    config = Config(seed=3, num_envs=4, num_steps=case["steps"], **case["settings"])
    policy = policy_of(case)
    learner = kind(policy, config, FlatParameters(policy))
    if kind is CompiledLearner:
        for array in learner.buffers[3:]:
            array.fill(np.nan)
    return learner


def at_rate(learner, lr=1e-3):
    """The coefficients of a learner's Config, at this learning rate."""
    return coefficients_at(learner.config, 1.0)._replace(lr=lr, critic_lr=lr)


def trained(kind, case, iterations=2):
    """The learner and its losses after some updates, each on a rollout of its own."""
    learner = learner_of(kind, case)
    rollouts = [rollout_of(policy_of(case), case, i) for i in range(iterations)]
    return learner, [learner.update(rollout, at_rate(learner), i)
                     for i, rollout in enumerate(rollouts)]


def state(learner):
    """The bits of everything that training changes."""
    steps, mean, square = learner.optimizer.state
    arrays = (learner.flat.values, mean, square, *learner.policy.observer.state)
    return steps, [array.numpy().tobytes() for array in arrays]


def test_the_drawn_cases_vary_in_everything():
    assert {drawn(i)["hidden"] for i in CASES} == {*HIDDEN, WIDE}
    for name in ("activation", "shared", "inputs", "norm_obs", "valid", "shift", "steps",
                 "obs_limit"):
        assert len({drawn(i)[name] for i in CASES}) >= 2, name
    for name in drawn(0)["settings"]:
        assert name == "epochs" or len({drawn(i)["settings"][name] for i in CASES}) >= 2, name
    assert {type(drawn(i)["space"]) for i in CASES} == {Discrete, Box}


@pytest.mark.parametrize("seed", CASES)
def test_weights_moments_and_losses_after_updates_equal_torchs(seed):
    case = drawn(seed)
    (torchs, want), (compiled, got) = trained(Learner, case), trained(CompiledLearner, case)
    assert not torch.equal(torchs.flat.values, learner_of(Learner, case).flat.values)
    error = (compiled.flat.values - torchs.flat.values).abs()
    # Adam makes a step of a gradient that is 0 but for rounding: a few weights differ by more.
    assert error.max() <= 1e-4 and (error > 1e-5).double().mean() <= 0.001
    ours, theirs = compiled.optimizer, torchs.optimizer
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.square, theirs.square, rtol=1e-4, atol=1e-6)
    assert ours.steps == theirs.steps
    for ours, theirs in zip(got, want, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


def test_the_cases_have_clipped_and_unclipped_samples_and_gradients():
    stats = [(drawn(i), trained(CompiledLearner, drawn(i), 1)[1][0]) for i in CASES]
    assert {0 < x["losses/clipfrac"] < 1 for _, x in stats} == {False, True}
    limits = {x["losses/grad_norm"] > case["settings"]["max_grad_norm"] for case, x in stats}
    assert limits == {False, True}


def samples_of(learner, rollout):
    """The valid rows as the kernel reads them, and the order of one epoch."""
    batch = flatten_rollout(rollout, torch.device("cpu"))
    order = np.empty(len(batch.adv), np.int64)
    kernels.permutation(5, 0, 0, order)
    return learner._samples(batch), order


def update_of(learner, samples, order):
    """A kernel's update in the learner's memory."""
    return kernels.MinibatchUpdate(*learner.plan, learner.buffers, samples, order,
                                   first_terms(learner))


def gradient(case, rows, shards=None):
    """(gradient, statistics) of the first `rows` samples, shards computed in the order given."""
    learner = learner_of(CompiledLearner, case)
    samples, order = samples_of(learner, rollout_of(learner.policy, case))
    update, stats = update_of(learner, samples, order), np.full(7, np.nan, np.float32)
    for shard in shards(update.begin(0, rows)) if shards else range(update.begin(0, rows)):
        update.shard(shard)
    update.finish(1, 1e-3, stats)
    return learner.buffers.grads[0, : len(learner.flat.values)].copy(), stats


@pytest.mark.some(83)
@pytest.mark.parametrize("seed", CASES)
@pytest.mark.parametrize("rows", [1, 2, 19])
def test_gradients_equal_autograds(seed, rows):
    case = drawn(seed) | {"steps": 25}
    learner = learner_of(Learner, case)
    rollout, config = rollout_of(learner.policy, case), learner.config
    _, order = samples_of(learner_of(CompiledLearner, case), rollout)
    batch = Batch(*(x[order[:rows]] for x in flatten_rollout(rollout, torch.device("cpu"))[:6]))
    if config.norm_advantages == "minibatch":
        batch = batch._replace(adv=normalise_advantages(batch.adv))
    fresh = learner.evaluate_actions(batch)
    loss, parts = total_loss(fresh, batch, coefficients_at(learner.config, 1.0))
    stats = [x.item() for x in (parts | ratio_stats(
        fresh, batch, coefficients_at(learner.config, 1.0))).values()]
    loss.backward()
    got, means = gradient(case, rows)
    want = learner.flat.grad.numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(1, np.abs(want).max()))
    np.testing.assert_allclose(means[:-1], stats, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(means[-1], np.linalg.norm(want), rtol=1e-5, atol=1e-6)


BIG = drawn(3) | {"steps": 90, "space": Discrete(4), "valid": 1.0, "inputs": 17, "shift": 0.3}
BIG = BIG | {"settings": BIG["settings"] | {"norm_advantages": "minibatch", "clip_range_vf": 0.2}}


@pytest.mark.parametrize("space", [Discrete(4), Box(-1, 1, (3,), np.float32)], ids=["cat", "box"])
def test_the_order_of_shards_does_not_change_a_bit(space):
    case = BIG | {"space": space}
    want = gradient(case, 300)
    drawn_order = np.random.default_rng(0).permutation
    for order in (lambda n: range(n)[::-1], drawn_order, lambda n: [*range(n)] * 2):
        for got, wanted in zip(gradient(case, 300, order), want, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_who_computes_which_shard_does_not_change_a_bit():
    learner = learner_of(CompiledLearner, BIG)
    samples, order = samples_of(learner, rollout_of(learner.policy, BIG))
    other = learner.buffers._replace(work=np.full_like(learner.buffers.work, np.nan))
    updates = [kernels.MinibatchUpdate(*learner.plan, memory, samples, order,
                                       first_terms(learner))
               for memory in (learner.buffers, other)]
    assert [update.begin(0, 300) for update in updates] == [8, 8]
    for shard in range(8):
        updates[shard % 3 == 0].shard(shard)
    stats = np.empty(7, np.float32)
    updates[0].finish(1, 1e-3, stats)
    want = gradient(BIG, 300)
    np.testing.assert_array_equal(learner.buffers.grads[0, : len(want[0])], want[0])
    np.testing.assert_array_equal(stats, want[1])


SHARDS = [(1, 1), (63, 1), (64, 2), (100, 3), (255, 7), (300, 8)]


@pytest.mark.parametrize(("rows", "shards"), SHARDS)
def test_the_number_of_shards_depends_on_the_size_alone(rows, shards):
    learner = learner_of(CompiledLearner, BIG)
    update = update_of(learner, *samples_of(learner, rollout_of(learner.policy, BIG)))
    assert update.begin(0, rows) == update.begin(20, 20 + rows) == shards


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_the_same_update_twice_gives_the_same_bits(seed):
    one, other = (state(trained(CompiledLearner, drawn(seed))[0]) for _ in range(2))
    assert one == other


def test_samples_outside_the_minibatch_are_not_read():
    case = BIG
    learner = learner_of(CompiledLearner, case)
    samples, order = samples_of(learner, rollout_of(learner.policy, case))
    for name in ("obs", "logp", "val", "adv", "ret"):
        getattr(samples, name)[order[50:]] = np.nan
    samples.act[order[50:]] = 2**40
    stats = np.empty(7, np.float32)
    update_of(learner, samples, order).minibatch(0, 50, 1, 1e-3, stats)
    assert np.isfinite(stats).all() and torch.isfinite(learner.flat.values).all()
    np.testing.assert_array_equal(stats, gradient(case, 50)[1])


def recorded(policy, flat, obs, space):
    """(act, logp, val) of the compiled policy that acts."""
    recipe, rows = policy_plan(policy, flat), len(obs)
    packed = np.empty(kernels.packed_size(recipe.plan), np.float32)
    kernels.pack(recipe.plan, flat.values.numpy(), packed)
    out, logp = np.empty((rows, policy.head.size + 1), np.float32), np.empty(rows, np.float32)
    moments = policy.observer.shift, policy.observer.scale
    norm = [x.numpy() for x in moments] if policy.observer.norm else (None, None)
    kernels.forward(recipe.plan, packed, *norm, obs, out, recipe.limit)
    noise = np.empty((rows, policy.head.size), np.float32)
    if recipe.log_std is None:
        act = np.empty(rows, np.int64)
        kernels.uniform(1, kernels.Purpose.ACT, 0, 0, noise)
        kernels.sample_categorical(out[:, :-1], noise[:, 0].copy(), act, logp)
    else:
        act = np.empty_like(noise)
        kernels.normal(1, kernels.Purpose.ACT, 0, 0, noise)
        log_std = policy.head.log_std.detach().numpy()
        kernels.sample_gaussian(out[:, :-1], log_std, noise, act, logp)
    return act, logp, out[:, -1].copy()


@pytest.mark.parametrize("seed", CASES)
def test_the_ratio_is_exactly_one_where_the_kernel_acted(seed):
    case, rows = drawn(seed), 101
    learner = learner_of(CompiledLearner, case)
    obs = (4 + 3 * np.random.default_rng(seed).normal(size=(rows, case["inputs"]))).astype("f4")
    act, logp, val = recorded(learner.policy, learner.flat, obs, case["space"])
    adv = np.random.default_rng(1).normal(size=rows).astype("f4")
    norm = learner._samples(
        flatten_rollout(rollout_of(learner.policy, case), torch.device("cpu")))[6:]
    samples = kernels.UpdateSamples(obs, act, logp, val, adv, val, *norm)
    out = np.empty(7, np.float32)
    update_of(learner, samples, np.arange(rows)).minibatch(0, rows, 1, 1e-3, out)
    stats = dict(zip(LOSSES, out, strict=True))
    assert stats["approx_kl"] == stats["old_approx_kl"] == stats["clipfrac"] == 0
    assert stats["value_loss"] == 0  # ret was the recorded value


def test_constant_advantages_are_zero_and_one_row_keeps_its_own():
    learner = learner_of(CompiledLearner, BIG)
    samples, order = samples_of(learner, rollout_of(learner.policy, BIG))
    samples.adv[:] = np.float32(0.1)
    stats = np.empty((2, 7), np.float32)
    update = update_of(learner, samples, order)
    update.minibatch(0, 50, 1, 1e-9, stats[0])
    update.minibatch(0, 1, 2, 1e-9, stats[1])
    assert stats[0, 0] == 0
    assert abs(stats[1, 0]) > 0.05


def test_an_action_that_cannot_be_is_a_nan_and_no_crash():
    for act in (-1, 4, 2**62):
        learner = learner_of(CompiledLearner, BIG)
        rollout = rollout_of(learner.policy, BIG)
        rollout.act[7, 1] = act
        before = state(learner)
        with pytest.raises(Error, match="not finite; the weights are as they were"):
            learner.update(rollout, at_rate(learner), 0)
        assert state(learner) == before


@pytest.mark.parametrize("name", ["obs", "logp", "val", "adv", "ret"])
@pytest.mark.parametrize("space", [Discrete(4), Box(-1, 1, (3,), np.float32)], ids=["cat", "box"])
def test_a_nan_in_any_sample_is_an_error_and_nothing_has_changed(name, space):
    case = BIG | {"space": space}
    learner = learner_of(CompiledLearner, case)
    rollout, before = rollout_of(learner.policy, case), state(learner)
    getattr(rollout, name)[7, 1] = np.nan
    with pytest.raises(Error, match="not finite; the weights are as they were"):
        learner.update(rollout, at_rate(learner), 0)
    assert state(learner) == before and learner.last_iteration == -1


@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_interrupted_update_leaves_no_trace(at, monkeypatch):
    case = drawn(5)
    learner = learner_of(CompiledLearner, case)
    rollout, before = rollout_of(learner.policy, case), state(learner)
    struck = interrupted(kernels.MinibatchUpdate.minibatch, at + 1)
    monkeypatch.setattr(kernels.MinibatchUpdate, "minibatch", struck)
    with pytest.raises(KeyboardInterrupt):
        learner.update(rollout, at_rate(learner), 0)
    assert state(learner) == before
    monkeypatch.undo()
    learner.update(rollout, at_rate(learner), 0)
    whole = learner_of(CompiledLearner, case)
    whole.update(rollout, at_rate(whole), 0)
    assert state(learner) == state(whole)


def test_the_kl_target_skips_the_same_epochs_as_torchs():
    epochs = []
    for target in (1e-6, 1e-2, 1e3):
        settings = BIG["settings"] | {"epochs": 5, "num_minibatches": 4, "target_kl": target}
        case = BIG | {"shift": 0.0, "settings": settings}
        got, want = (trained(kind, case, 1)[1][0] for kind in (CompiledLearner, Learner))
        assert got["losses/epochs"] == want["losses/epochs"]
        epochs.append(got["losses/epochs"])
    assert epochs[0] == 1 and epochs[-1] == 5


def test_adam_goes_on_from_either_learners_state():
    case = drawn(3)
    one, other = trained(Learner, case, 1)[0], learner_of(CompiledLearner, case)
    other.flat.values.copy_(one.flat.values)
    other.optimizer.restore(one.optimizer.state)
    rollout = rollout_of(policy_of(case), case, 9)
    for learner in (one, other):
        learner.policy.observer.restore(one.policy.observer.state)
        learner.update(rollout, at_rate(learner), 1)
    torch.testing.assert_close(other.flat.values, one.flat.values, rtol=0, atol=1e-5)


def misfits(array):
    """The same array with one thing wrong at a time."""
    yield array.astype("f2")
    yield array[None]
    yield array[:-1]
    yield array.tolist()
    if array.shape[-1] > 1:
        yield np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize("space", [Discrete(4), Box(-1, 1, (3,), np.float32)], ids=["cat", "box"])
def test_an_array_that_does_not_fit_is_named_with_what_was_wanted(space):
    learner = learner_of(CompiledLearner, BIG | {"space": space, "norm_obs": True})
    samples, order = samples_of(learner, rollout_of(learner.policy, BIG | {"space": space}))
    given = {"memory": learner.buffers, "samples": samples}
    for which, arrays in given.items():
        for name, array in arrays._asdict().items():
            for bad in () if array is None else misfits(array):
                wrong = given | {which: arrays._replace(**{name: bad})}
                with pytest.raises(KernelError, match="update: "):
                    kernels.MinibatchUpdate(*learner.plan, **wrong, order=order,
                                            terms=first_terms(learner))
    with pytest.raises(KernelError, match=r"val is float16 \(360,\), wanted a C-contiguous fl"):
        update_of(learner, samples._replace(val=samples.val.astype("f2")), order)


def test_memory_that_may_not_be_written_is_refused():
    learner = learner_of(CompiledLearner, BIG)
    samples, order = samples_of(learner, rollout_of(learner.policy, BIG))
    for name, array in learner.buffers._asdict().items():
        locked = array.copy()
        locked.flags.writeable = False
        memory = learner.buffers._replace(**{name: locked})
        with pytest.raises(KernelError, match=f"{name} is read-only"):
            kernels.MinibatchUpdate(*learner.plan, memory, samples, order,
                                    first_terms(learner))


def test_places_outside_the_samples_and_calls_out_of_turn_are_refused():
    learner = learner_of(CompiledLearner, BIG)
    samples, order = samples_of(learner, rollout_of(learner.policy, BIG))
    stats = np.empty(7, np.float32)
    for place in (-1, len(order)):
        wrong = order.copy()
        wrong[3] = place
        with pytest.raises(KernelError, match=rf"order\[3\] is {place}, of 360 samples"):
            update_of(learner, samples, wrong)
    update = update_of(learner, samples, order)
    for call in (lambda: update.shard(0), lambda: update.finish(1, 1e-3, stats),
                 lambda: update.begin(5, 5), lambda: update.begin(0, 361),
                 lambda: update.minibatch(0, 50, 0, 1e-3, stats),
                 lambda: update.minibatch(0, 50, 1, 1e-3, stats[:-1]),
                 lambda: update.shard(1)):
        with pytest.raises(KernelError, match="^update: "):
            call()


WRONG_PLANS = {
    "leaves parameters out": [(0, 1, 5, 4, 3, 23, 1), (1, -1, 4, 3, 27, 39, 0)],
    "share parameters": [(0, 1, 5, 4, 0, 20, 1), (1, -1, 4, 3, 20, 32, 0)],
    "read by none": [(0, 1, 5, 4, 0, 20, 1), (0, 2, 5, 4, 24, 44, 1), (1, -1, 4, 3, 48, 60, 0)],
    "overwritten": [(0, 1, 5, 4, 0, 20, 1), (0, 1, 5, 4, 24, 44, 1), (1, -1, 4, 3, 48, 60, 0)],
    "no action parameters": [(0, -1, 5, 1, 0, 5, 0)],
    "not written yet": [(2, -1, 5, 4, 0, 20, 1)],
    "no multiple of 16 channels": [(0, 1, 48, 144, 0, 192, 2, 1, 3, 4, 2, 1),
                                   (1, 2, 144, 160, 208, 720, 2, 1, 8, 6, 2, 1),
                                   (2, -1, 160, 2, 736, 1056)],
}


@pytest.mark.parametrize("words", WRONG_PLANS)
def test_a_plan_that_cannot_be_trained_is_refused_with_the_reason(words):
    with pytest.raises(KernelError, match=words):
        kernels.update_memory(plan_array(WRONG_PLANS[words]), None, *np.zeros((3, 1), "f4"))


def test_a_log_std_that_is_not_there_is_refused():
    plan = plan_array([(0, -1, 5, 4, 0, 20, 0)])
    arrays = np.zeros((3, 27), np.float32)
    assert kernels.update_memory(plan, 24, *arrays).grads.shape == (8, 32)
    for log_std, words in [(-2, "outside"), (99, "outside"), (23, "share")]:
        with pytest.raises(KernelError, match=words):
            kernels.update_memory(plan, log_std, *arrays)
