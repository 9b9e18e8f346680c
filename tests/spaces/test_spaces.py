"""Every pair of spaces: stored arrays, inputs of the network, actions of the environment."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from envs_for_workers import Bent
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from spaces_for_tests import ACT, OBS, PICTURE, VECTOR

from fastppo import load
from fastppo.errors import ConfigError, EnvError, InputError, SpaceError, fix_text
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import Leaf, brief_text, leaf_arrays, leaves
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout, StoredLeaf

HUGE = float(np.finfo(np.float32).max)
BOXES = dict(gaussian={}, scaled=dict(action_scaling=True), fixed=dict(std=0.3),
             share=dict(std="10%", action_scaling=True), beta=dict(distribution="beta"),
             state=dict(distribution="state_gaussian", min_std=0.05),
             squashed=dict(distribution="squashed"), sde=dict(sde=True),
             held=dict(sde=True, sde_sample_freq=3), final=dict(final_tanh=True))


def first_ratio(trainer, env, **settings):
    """(|old_approx_kl| of the first minibatch, the trainer after one iteration)."""
    ppo = trainer(env, epochs=1, num_minibatches=1, **settings)
    stats = ppo.update(ppo.collect())
    assert stats["losses/clipfrac"] == 0
    return abs(stats["losses/old_approx_kl"]), ppo


def some(obs, act):
    """No mark for a third of all pairs, in which each space meets several; else slow."""
    return pytest.mark.slow if (list(OBS).index(obs) - list(ACT).index(act)) % 3 else ()


@pytest.mark.parametrize(("obs", "act"), [
    pytest.param(obs, act, marks=some(obs, act)) for obs in OBS for act in ACT])
def test_the_ratio_is_one_for_every_pair_of_spaces(trainer, obs, act):
    off, ppo = first_ratio(trainer, partial(Chance, OBS[obs], ACT[act]), model="mlp")
    assert off < 1e-5
    rollout = ppo.rollout
    for leaf in leaves(OBS[obs]):
        assert leaf.of(rollout.obs).shape == (ppo.config.num_steps + 1, ppo.config.num_envs,
                                              *leaf.space.shape)
    assert ppo.evaluate(2).lengths.min() > 0


@pytest.mark.parametrize("head", BOXES)
def test_the_ratio_is_one_for_every_head_of_a_box(trainer, head):
    env = partial(Chance, VECTOR, Box(-2, 3, (2,)))
    off, ppo = first_ratio(trainer, env, **BOXES[head])
    assert off < 1e-5 and ppo.evaluate(2, deterministic=False).lengths.min() > 0


@pytest.mark.some(1)
@pytest.mark.parametrize(("obs", "act", "settings"), [
    ("dict", "dict", {}), ("tuple", "multi", {}), ("discrete", "binary", {}),
    ("multi", "tuple", {}), ("vector", "box", dict(sde=True)), ("binary", "discrete", {}),
    ("discrete", "box", {}), ("vector", "box", dict(distribution="beta"))])
def test_workers_change_no_bit_for_any_space(trainer, obs, act, settings):
    found = []
    for workers in (0, 2):
        ppo = trainer(partial(Chance, OBS[obs], ACT[act]), num_workers=workers, model="mlp",
                      **settings)
        ppo.learn(128)
        found.append(ppo.learner.flat.values.clone())
    assert torch.equal(*found) and found[0].isfinite().all()


@pytest.mark.parametrize("obs", OBS)
def test_the_encoding_is_what_the_observer_gives_a_flat_network(obs):
    space = OBS[obs]
    space.seed(3)
    seen = ObservationLayout(space, Discrete(2))
    rows = seen.rows([space.sample() for _ in range(7)])
    observer = ObservationNormaliser(seen, norm_obs=False, flat=True)
    ours, torchs = (ObservationEncoding(seen, norm_obs=False).encode(leaf_arrays(rows)),
                    observer(observer.tensors(rows)))
    assert ours.dtype == np.float32 and ours.shape == (7, observer.encoding.size)
    np.testing.assert_array_equal(ours, torchs.numpy())
    observer = ObservationNormaliser(seen, norm_obs=True)
    observer.learn(leaf_arrays(rows))
    for leaf, part in zip(leaves(space), leaves(space)):
        assert leaf.of(observer(observer.tensors(rows))).dtype == torch.float32, part


def test_choices_are_one_hot_from_their_start_and_bytes_are_numbers_or_an_image():
    seen = ObservationLayout(Tuple([Discrete(3, start=-1), MultiDiscrete([2, 2]), PICTURE]),
                             Discrete(2))
    rows = seen.rows([(np.int64(1), np.array([0, 1]), np.full((3, 4, 1), 51, np.uint8))])
    encoded = ObservationEncoding(seen).encode(leaf_arrays(rows))[0]
    np.testing.assert_allclose(encoded, [0, 0, 1, 1, 0, 0, 1, *[51] * 12], rtol=1e-6)
    observer = ObservationNormaliser(seen)
    picture = observer(observer.tensors(rows))[2]
    np.testing.assert_allclose(picture, np.full((1, 1, 3, 4), 0.2), rtol=1e-6)


PLANES = {  # (channels, height, width) of an image of each shape
    # The axis that differs from two equal ones.
    (8, 8, 111): (111, 8, 8), (111, 8, 8): (111, 8, 8), (19, 19, 17): (17, 19, 19),
    (9, 9, 17): (17, 9, 9), (17, 9, 9): (17, 9, 9), (3, 3, 2): (2, 3, 3), (2, 3, 3): (2, 3, 3),
    (10, 10, 4): (4, 10, 10), (10, 10, 6): (6, 10, 10), (10, 10, 7): (7, 10, 10),
    (7, 7, 3): (3, 7, 7), (11, 11, 20): (20, 11, 11), (4, 4, 16): (16, 4, 4),
    (84, 84, 4): (4, 84, 84), (4, 84, 84): (4, 84, 84), (64, 64, 3): (3, 64, 64),
    (2, 12, 12): (2, 12, 12), (40, 40, 100): (100, 40, 40), (7, 3, 3): (7, 3, 3),
    # Three equal ones: the first.
    (10, 10, 10): (10, 10, 10), (3, 3, 3): (3, 3, 3),
    # The shortest one, also where the middle one differs, because channels are first or last.
    (6, 7, 2): (2, 6, 7), (2, 6, 7): (2, 6, 7), (3, 210, 160): (3, 210, 160),
    (210, 160, 3): (3, 210, 160), (60, 80, 3): (3, 60, 80), (5, 40, 5): (5, 40, 5),
    # Without channels; frames, which are more channels, in front.
    (84, 84): (1, 84, 84), (4, 84, 84, 3): (12, 84, 84), (4, 3, 84, 84): (12, 84, 84),
    (2, 8, 8, 111): (222, 8, 8), (2, 6, 7, 2): (4, 6, 7), (3, 3, 3, 2): (6, 3, 3),
}


@pytest.mark.parametrize("shape", PLANES, ids=str)
@pytest.mark.parametrize(("dtype", "low", "high", "image", "board"), [
    (np.uint8, 0, 255, True, False), (np.float32, -1, 1, True, False),
    (np.float32, -np.inf, np.inf, False, False), (np.int8, 0, 1, True, True),
    (np.int8, -6, 6, True, True), (np.bool_, 0, 1, False, True)])
def test_channels_differ_from_two_equal_axes_else_they_are_the_shortest(
        shape, dtype, low, high, image, board):
    leaf = StoredLeaf(Leaf((), Box(low, high, shape, dtype)))
    images = dtype == np.uint8 or image and len(shape) > 2
    assert leaf.image_shape == (PLANES[shape] if images else None)
    boards = leaf.board
    assert boards == (board and len(shape) > 2)
    for smallest in (8, 36):  # of impala and of cnn, for which a board is an image like any other
        seen = images and min(PLANES[shape][1:]) >= smallest or boards and smallest == 8
        assert leaf.convolved(smallest) == (PLANES[shape] if seen else None)


def test_boards_are_boxes():
    for space in MultiBinary((3, 3, 2)), MultiDiscrete(np.full((3, 3, 2), 3)), Box(0, 1, (9,), "?"):
        leaf = StoredLeaf(Leaf((), space))
        assert not leaf.board and leaf.convolved(8) is None
    uneven = np.zeros((3, 3, 2), np.int8), np.arange(1, 19, dtype=np.int8).reshape(3, 3, 2)
    assert StoredLeaf(Leaf((), Box(*uneven, dtype=np.int8))).convolved(8) == (2, 3, 3)


def test_only_float_leaves_are_normalised():
    seen = ObservationLayout(Tuple([Discrete(2), Box(-9, 9, (2,)), MultiBinary(1)]), Discrete(2))
    rng = np.random.default_rng(1)
    rows = seen.rows([(0, rng.normal(5, 2, 2).astype("f4"), np.array([1])) for _ in range(50)])
    observer = ObservationNormaliser(seen, flat=True)
    observer.learn(leaf_arrays(rows))
    out = observer(observer.tensors(rows)).numpy()
    np.testing.assert_array_equal(out[:, [0, 1, 4]], np.tile([1.0, 0, 1], (50, 1)))
    np.testing.assert_allclose(out[:, 2:4].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out[:, 2:4].std(0), 1, rtol=1e-4)


@pytest.mark.parametrize("act", ACT)
def test_every_stored_action_becomes_an_action_of_the_space(act):
    space, rng = ACT[act], np.random.default_rng(2)
    for form in ("clip",) if act in ("unbounded",) else ("clip", "scale", "tanh", "unit"):
        acts = ActionMapping(space, form)
        u, z = rng.random((40, acts.size), np.float32), rng.normal(size=(40, acts.size))
        stored = acts.random(u, z.astype("f4"))
        assert stored.dtype == np.dtype(acts.store.dtype)
        assert stored.shape == (40, *acts.store.shape)
        actions = acts.to_env()(stored)
        assert all(map(space.contains, actions)), form
        batch = gym.vector.utils.batch_space(space, 40)
        assert batch.contains(acts.stacked(actions))


@pytest.mark.parametrize(("form", "stored", "wanted"), [
    ("clip", [-3, 0.5], [-1, 0.5]), ("scale", [-1, 1], [-1, 3]), ("scale", [0, 9], [1, 3]),
    ("tanh", [0, 50], [1, 3]), ("unit", [0.25, 1], [0, 3])])
def test_the_forms_of_a_box_are_the_documented_maps(form, stored, wanted):
    found = ActionMapping(Box(-1, 3, (2,)), form).to_env()(np.float32([stored]))
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("act", ["whole", "bytes"])
def test_actions_of_whole_numbers_are_rounded_to_the_nearest(act):
    space = ACT[act]
    found = ActionMapping(space).to_env()(np.full((1, *space.shape), 3.6, np.float32))
    assert found[0].dtype == space.dtype and (found[0] == 4).all()


@pytest.mark.parametrize("obs", OBS)
def test_a_policy_of_any_spaces_is_the_same_after_save_and_load(trainer, tmp_path, obs):
    act = list(ACT)[list(OBS).index(obs)]
    ppo = trainer(partial(Chance, OBS[obs], ACT[act]), model="mlp")
    ppo.learn(64).save(tmp_path / "policy.safetensors")
    policy = load(tmp_path / "policy.safetensors")
    assert (policy.obs_space, policy.act_space) == (OBS[obs], ACT[act])
    seen = policy.observer.layout
    OBS[obs].seed(3)
    values = [OBS[obs].sample() for _ in range(3)]
    batch = seen.structure([np.stack([leaf.of(v) for v in values]) for leaf in leaves(OBS[obs])])
    first, same = ppo.policy.predict(batch), policy.predict(batch)
    for leaf in leaves(ACT[act]):
        np.testing.assert_array_equal(leaf.of(first), leaf.of(same))
        alone = leaf.of(policy.predict(values[0]))
        np.testing.assert_allclose(alone, leaf.of(first)[0], rtol=1e-5, atol=1e-8)
    assert ACT[act].contains(policy.predict(values[0]))
    np.testing.assert_allclose(policy.value(batch)[0], policy.value(values[0]), rtol=1e-5)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
@pytest.mark.parametrize(("obs", "act"), [("dict", "dict"), ("tuple", "multi"),
                                          ("discrete", "tuple"), ("binary", "box")])
def test_vector_environments_of_any_spaces_are_trained_on(trainer, obs, act, mode):
    envs = [partial(Chance, OBS[obs], ACT[act]) for _ in range(4)]
    vec = gym.vector.SyncVectorEnv(envs, autoreset_mode=mode)
    off, _ = first_ratio(trainer, vec, num_envs=4, model="mlp")
    vec.close()
    assert off < 1e-5


@pytest.mark.parametrize(("bend", "said"), [
    (lambda obs: obs[0], "not an element of"), (lambda obs: (obs[1], obs[0]), "has shape"),
    (lambda obs: (3, obs[1]), r"observation\[0\] is 3, which is not in Discrete"),
    (lambda obs: (1.5, obs[1]), "float64"), (lambda obs: (1, obs[1] * np.nan), "is nan"),
    (lambda obs: {"a": 1}, "is dict, not an element of"),
    (lambda obs: (1, obs[1] * 1e300), "in float32")])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_observation_that_is_not_of_its_space_is_an_error_with_its_place(
        trainer, bend, said, workers):
    with pytest.raises(EnvError, match=rf"seed \d+, .*step \d+.* failed in step\(\)[\s\S]*{said}"):
        trainer(partial(Bent, bend), num_workers=workers, norm_obs=False, num_envs=2).learn(64)


@pytest.mark.parametrize("bad", [{"a": 1}, (1, 2, 3), 7, (np.zeros(2), np.zeros((2, 2)))], ids=str)
def test_a_policy_refuses_an_observation_of_another_structure(trainer, bad):
    ppo = trainer(partial(Chance, OBS["tuple"]))
    with pytest.raises(InputError, match="does not fit the space.*\n  fix: "):
        ppo.policy.predict(bad)


@pytest.mark.parametrize(("settings", "space"), [
    (dict(action_scaling=True), ACT["unbounded"]),
    (dict(distribution="squashed"), Box(-1, np.inf, (2,), np.float64)),
    (dict(distribution="beta"), Box(-HUGE, HUGE, (1,))),
    (dict(std="10%"), Box(-np.inf, -3, (2,))),
    (dict(action_scaling=True), Box(-HUGE, HUGE, (1,))),
    (dict(action_scaling=True), Box(np.float32([4, -np.inf]), np.inf))], ids=str)
def test_what_maps_to_bounds_refuses_a_box_without_them_and_its_fixes_work(
        trainer, settings, space):
    env, name = Chance(VECTOR, space), next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name} maps .*bounds.* has infinite bounds, or a range"
                       f" beyond {space.dtype}\n  fix: leave {name} out; or .*narrower") as told:
        trainer(partial(Chance, VECTOR, space), **settings)
    assert "gymnasium.wrappers.TransformAction" in str(told.value)
    narrow = Box(np.clip(space.low, -5, 5), np.clip(space.high, -4, 6), dtype=space.dtype)
    wrapped = gym.wrappers.TransformAction(env, lambda action: action, narrow)
    ppo = trainer(lambda: wrapped, num_envs=1, **settings)
    assert ppo.learn(8).step == 8 and ppo.policy.act_space.dtype == space.dtype
    assert trainer(partial(Chance, VECTOR, space)).learn(32).step == 32


def test_a_part_of_the_actions_without_bounds_is_refused_too(trainer):
    space = Dict(go=Discrete(2), how=ACT["unbounded"])
    with pytest.raises(ConfigError, match="has infinite bounds.*\n  fix: .*narrower bounds"):
        trainer(partial(Chance, VECTOR, space), action_scaling=True)


@pytest.mark.parametrize("space", [
    Box(-2**63, 2**63 - 1, (2,), np.int64), Box(0, 2**64 - 1, (2,), np.uint64),
    Box(2**61 + 1, 2**62 - 1, (2,), np.int64)], ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_whole_numbers_that_floats_cannot_hold_are_refused_as_actions(trainer, space, whole):
    space = space if whole else Tuple([Discrete(2), space])
    with pytest.raises(SpaceError, match=r"bounds beyond 2\*\*53.*\n  fix: .*TransformAction"):
        trainer(partial(Chance, VECTOR, space))


@pytest.mark.parametrize("space", [
    Box(-2**53, 2**53, (2,), np.int64), Box(0, 2**53, (2,), np.uint64),
    Box(-2**52 - 1, -2**51 - 1, (2,), np.int64), Box(2**51 + 1, 2**52 - 1, (2,), np.int64),
    Box(-HUGE, HUGE, (2,)), Box(-1e308, 1e308, (2,), np.float64)], ids=str)
def test_actions_that_are_clipped_stay_within_bounds_of_any_size(space):
    acts = ActionMapping(space)
    far = np.float32([[-HUGE, HUGE], [0, 0], [2.0**63, -2.0**63]])
    ends = acts.random(np.float32([[0, 1 - 2**-24]]), np.zeros((1, 2), np.float32))
    assert np.isfinite(ends).all() and (ends[0, 0] < ends[0, 1])
    found = acts.to_env()(np.concatenate([far, ends]))
    assert all(map(space.contains, found)) and (found[0][0] < found[0][1])


@pytest.mark.parametrize(("settings", "said"), [
    (dict(std="10%"), "std maps .* of 0"), (dict(std=1e-30), "std is 1e-30, but"),
    (dict(std=1e30), r"std is 1e\+30, but"), (dict(log_std_init=-1000), "log_std_init is -1000, "),
    (dict(log_std_init=1000, distribution="state_gaussian"), "log_std_init is 1000, but must be"),
    (dict(log_std_init=-1000.0, distribution="state_gaussian"), "log_std_init is -1000.0, but"),
    (dict(log_std_init=100, sde=True), "log_std_init is 100, but must be a number from -40 to 40")],
    ids=str)
def test_a_std_that_cannot_be_computed_with_is_refused_and_its_fix_works(trainer, settings, said):
    env = partial(Chance, VECTOR, Box(np.float32([-1, 2]), np.float32([1, 2])))
    with pytest.raises((ConfigError, SpaceError), match=f"{said}[\\s\\S]*\n  fix: ") as caught:
        trainer(env, **settings)
    name = "std" if "std" in settings else "log_std_init"
    assert name in fix_text(caught.value.fix, shell=True)
    trainer(env, **{**settings, name: {"std": None}.get(name, 0)}).learn(32)
    for end in (1e-17, 1e17) if name == "std" else (-40, 40):
        trainer(env, **{name: end}).learn(32)


@pytest.mark.parametrize(("settings", "space", "said"), [
    ({}, ACT["dict"], "for actions that are one Box, and they are Dict.*\n  fix: leave sde out"),
    (dict(model=torch.nn.Linear), ACT["box"], "is your own\n  fix: leave sde out"),
    (dict(std=0.1), ACT["box"], "a gaussian of its own\n  fix: leave std out")],
    ids=["hybrid", "own", "std"])
def test_what_excludes_gsde_is_named(trainer, settings, space, said):
    with pytest.raises(ConfigError, match=said):
        trainer(partial(Chance, VECTOR, space), sde=True, **settings)


@pytest.mark.parametrize("settings", [
    dict(sde=True), dict(std=0.1), dict(action_scaling=True), dict(distribution="beta"),
    dict(final_tanh=True)], ids=str)
def test_what_is_for_box_actions_refuses_choices(trainer, settings):
    with pytest.raises(ConfigError, match="for Box actions.*\n  fix: leave"):
        trainer(partial(Chance, VECTOR, Discrete(2)), **settings)


@pytest.mark.parametrize("settings", [
    dict(sde=True, std=0.1), dict(sde=True, distribution="beta"),
    dict(distribution="beta", std=0.2), dict(distribution="beta", action_scaling=True),
    dict(distribution="state_gaussian", std=0.2), dict(min_std=0.1), dict(sde_sample_freq=4),
    dict(distribution="squashed", action_scaling=True), dict(std_scale=2.0)],
    ids=str)
def test_heads_that_exclude_each_other_are_refused(trainer, settings):
    with pytest.raises(ConfigError, match="\n  fix: .*leave") as caught:
        trainer(partial(Chance, VECTOR, Box(-1, 1, (1,))), **settings)
    assert "--" not in str(caught.value) and "or sde\n" not in f"{caught.value}\n"


@pytest.mark.parametrize("space, text", [
    (Discrete(3), "Discrete(3)"), (Box(-1, 1, (2,)), "Box(-1.0, 1.0, (2,), float32)"),
    (Box(np.float32([-2, 0]), np.float32([1, 9])), "Box(2,) float32 from -2.0 to 9.0"),
    (Dict(a=Box(np.float32([-2, 0]), np.float32([1, 9])), b=Discrete(3)),
     "Dict('a': Box(2,) float32 from -2.0 to 9.0, 'b': Discrete(3))"),
    (Box(-1, 1, (0,)), "Box([], [], (0,), float32)"), (MultiDiscrete([2] * 99), "MultiDiscrete([")])
def test_a_space_is_shown_without_all_of_its_bounds(space, text):
    assert brief_text(space).startswith(text) and len(brief_text(space)) <= max(len(text), 120)
