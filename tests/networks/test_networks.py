"""Networks: what they consist of, what they see, and that they train as they act."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.wrappers import FrameStackObservation
from torch import nn
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from fastppo import PPO, export, load
from fastppo.errors import ConfigError, InputError, ModelError, NonFiniteError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.networks import encoders, normaliser
from fastppo.networks.encoders import IMAGE_NETWORKS, DenseEncoder, ImageEncoder, conv
from fastppo.networks.normaliser import channels_last
from fastppo.spaces.leaves import MASKED_LOGIT, action_storage, leaf_arrays, tree_map
from fastppo.trainer.user_parts import DistributionHead, distribution_mode

IMAGE, SMALL = Box(0, 255, (36, 40, 3), np.uint8), Box(0, 255, (12, 10, 3), np.uint8)
VECTOR, TWO = Box(-9, 9, (3,)), Box(-1, 1, (2,))
MIXED = Dict(eye=IMAGE, choice=Discrete(4), vector=VECTOR)
PARTS = Dict(own=VECTOR, hidden=Box(-9, 9, (2,)))


@pytest.fixture(autouse=True)
def one_thread():
    """Torch in the tests themselves has one thread: networks here are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeing(space, act_space=None):
    """The factory of random environments with these spaces."""
    return partial(Chance, space, act_space)


# what they consist of

# Mnih 2015: 8*8*4*32 + 32, 4*4*32*64 + 64, 3*3*64*64 + 64; 7*7*64 features, 512 units.
NATURE = 8224 + 32832 + 36928 + 3136 * 512 + 512
# Espeholt 2018: sections of c -> d channels have 9cd + d, and four times 9dd + d; 11*11*32 left.
IMPALA = (592 + 4 * 2320) + (4640 + 4 * 9248) + (9248 + 4 * 9248)


@pytest.mark.parametrize(("name", "size", "count"), [
    ("cnn", 512, NATURE), ("impala", 256, IMPALA + 3872 * 256 + 256),
    ("impoola", 256, IMPALA + 32 * 256 + 256)])
def test_bodies_of_images_have_the_published_number_of_parameters(name, size, count):
    body = ImageEncoder(IMAGE_NETWORKS[name], (4, 84, 84))
    assert sum(x.numel() for x in body.parameters()) == count
    assert body(torch.rand(5, 4, 84, 84)).shape == (5, size) and body.size == size


def test_natures_body_of_84_by_84_by_4_has_1684128_parameters():
    assert NATURE == 1_684_128


@pytest.mark.parametrize(("channels", "out", "size", "gain"), [(4, 32, 8, 2), (16, 4, 3, 0.5)])
def test_convolutions_begin_orthogonal_with_their_gain(channels, out, size, gain):
    layer = conv(channels, out, size, 1, torch.Generator().manual_seed(1), gain)
    rows = layer.weight.detach().flatten(1)
    torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(out), atol=1e-5, rtol=0)
    assert not layer.bias.any()


def test_layer_norm_stands_between_each_dense_layer_and_its_nonlinearity():
    plain, normed = (DenseEncoder(3, (8, 4), "gelu", layer_norm=norm) for norm in (False, True))
    assert [type(x) for x in plain] == [nn.Linear, nn.GELU] * 2
    assert [type(x) for x in normed] == [nn.Linear, nn.LayerNorm, nn.GELU] * 2


def test_an_image_brings_natures_convolutions_shared_by_both(trainer):
    ppo = trainer(seeing(Box(0, 255, (84, 84, 4), np.uint8)), num_steps=1)
    assert (ppo.config.model, ppo.config.shared_critic) == ("cnn", True)
    heads = 512 * 3 + 3 + 512 + 1
    assert sum(x.numel() for x in ppo.policy.parameters()) == NATURE + heads
    assert trainer(seeing(SMALL)).config.model == "mlp"


def test_without_a_shared_critic_there_are_two_bodies(trainer):
    one, two = (trainer(seeing(IMAGE), shared_critic=shared) for shared in (True, False))
    count = [sum(x.numel() for x in ppo.policy.net.actor_body.parameters()) for ppo in (one, two)]
    assert one.policy.net.critic_body is one.policy.net.actor_body
    assert two.policy.net.critic_body is not two.policy.net.actor_body and count[0] == count[1]


# what they see

@pytest.mark.parametrize("shape", [(3, 40, 44), (40, 44, 3)])
def test_channels_may_come_first_or_last(trainer, shape):
    ppo, seen = trainer(seeing(Box(0, 255, shape, np.uint8))), []
    ppo.policy.net.actor_body.parts[0].convs.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0]))
    obs = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    ppo.policy.value(obs)
    wanted = obs if shape[0] == 3 else obs.transpose(2, 0, 1)
    np.testing.assert_allclose(seen[0][0], wanted / 255, rtol=1e-6)


BOARDS = {"bits": Box(0, 1, (3, 3, 2), np.bool_), "stones": Box(-1, 1, (6, 7, 2), np.int8),
          "pieces": Box(-6, 6, (2, 8, 9), np.int8), "chess": Box(0, 1, (8, 8, 111), np.bool_)}


def board_of(name):
    """A board (channels, height, width), whatever its space's order, and it as its space has it."""
    space = BOARDS[name]
    space.seed(1)
    board = space.sample()
    return board if name == "pieces" else board.transpose(2, 0, 1), board


@pytest.mark.parametrize("model", ["impala", "impoola"])
@pytest.mark.parametrize("name", BOARDS)
def test_a_small_network_of_convolutions_sees_a_board_in_its_own_numbers(trainer, model, name):
    ppo, seen = trainer(seeing(BOARDS[name]), model=model, norm_obs=True), []
    convs = ppo.policy.net.actor_body.parts[0].convs
    convs[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    wanted, board = board_of(name)
    ppo.policy.value(board)
    channels, height, width = wanted.shape
    padded = np.zeros((1, channels, max(height, 8), max(width, 8)))
    padded[0, :, :height, :width] = wanted
    np.testing.assert_array_equal(seen[0], padded)
    assert convs[0].in_channels == channels and not ppo.policy.observer.norm


@pytest.mark.parametrize("name", BOARDS)
def test_a_model_of_the_users_sees_a_board_in_its_own_numbers_and_size(trainer, name):
    class Noted(nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.out = nn.LazyLinear(4)

        def forward(self, obs):
            self.seen = obs
            out = self.out(obs.flatten(1))
            return out[:, :3], out[:, 3]
    policy = trainer(seeing(BOARDS[name]), model=Noted, norm_obs=True).policy
    wanted, board = board_of(name)
    policy.value(board)
    assert policy.net.seen.dtype == torch.float32
    np.testing.assert_array_equal(policy.net.seen[0], wanted)


@pytest.mark.parametrize("name", BOARDS)
def test_boards_are_flat_numbers_to_an_mlp_which_auto_takes(trainer, name):
    ppo = trainer(seeing(BOARDS[name]), norm_obs=False)
    assert ppo.config.model == "mlp"
    _, board = board_of(name)
    observer = ppo.policy.observer
    np.testing.assert_array_equal(
        observer(observer.tensors(observer.layout.rows([board])))[0], board.reshape(-1))


@pytest.mark.parametrize(("dtype", "side", "model"), [
    (np.bool_, 8, "mlp"), (np.int8, 8, "mlp"), (np.float32, 8, "mlp"), (np.uint8, 8, "mlp"),
    (np.bool_, 40, "mlp"), (np.int8, 40, "cnn"), (np.float32, 40, "cnn"), (np.uint8, 40, "cnn")])
def test_auto_takes_convolutions_for_large_images_and_never_for_bits(trainer, dtype, side, model):
    assert trainer(seeing(Box(0, 1, (side, side, 5), dtype))).config.model == model


def test_boards_beside_images_have_their_own_convolutions_in_a_small_network_alone(trainer):
    space = Dict(eye=IMAGE, board=BOARDS["bits"], large=Box(0, 1, (36, 36, 2), np.bool_))
    for model, images in ("impala", [0, 1, 2]), ("cnn", [0]):
        ppo = trainer(seeing(space), model=model)
        places = [leaf.leaf.path[0] for leaf in ppo.policy.observer.encoding.leaves]
        assert [places[i] for i in ppo.policy.observer.encoding.images] == [
            name for name in places if name == "eye" or images != [0]]
        ppo.update(ppo.collect())


class Marked(gym.Env):
    """One step: a board with one stone of ours, and the right action is the stone's third."""

    def __init__(self, shape, dtype):
        self.observation_space = Box(0, 1, shape, dtype)
        self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        """The board: a stone of ours in the first plane, one of theirs in the second."""
        super().reset(seed=seed)
        rows, columns, _ = self.observation_space.shape
        board = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        for plane in (1, 0):
            row, column = self.np_random.integers((rows, columns))
            board[row, column, plane], self.third = 1, column * 3 // columns
        return board, {}

    def step(self, action):
        """1 for the third of the columns in which it is, else 0."""
        return self.observation_space.sample(), float(action == self.third), True, False, {}


@pytest.mark.full
@pytest.mark.parametrize("shape", [(3, 3, 2), (6, 7, 2)], ids=str)
def test_impala_learns_from_a_small_board_and_the_same_of_bits_and_of_bytes(
        trainer, tmp_path, shape):
    found, board = [], Marked(shape, np.int8).reset(seed=3)[0]
    for dtype in np.bool_, np.int8:
        ppo = trainer(partial(Marked, shape, dtype), model="impala", **LEARNING)
        ppo.learn(2048)
        assert ppo.evaluate(episodes=100).mean >= 0.9  # by chance 1/3
        ppo.save(tmp_path / "p.safetensors")
        found.append(load(tmp_path / "p.safetensors").value(board.astype(dtype)))
        assert found[-1] == ppo.policy.value(board.astype(dtype))
    assert found[0] == found[1]


@pytest.mark.parametrize("part", ["eye", "choice", "vector"])
def test_every_part_of_a_dict_reaches_actor_and_critic(trainer, part):
    ppo = trainer(seeing(MIXED), model="cnn")
    assert changed(ppo, MIXED, part) == (True, True)


@pytest.mark.parametrize(("model", "space", "seen", "unseen"), [
    ("cnn", MIXED, "vector", "eye"), ("cnn", MIXED, "eye", "choice"),
    ("mlp", MIXED, "vector", "eye"), ("mlp", PARTS, "own", "hidden")])
def test_what_no_key_of_the_actor_names_reaches_the_critic_alone(
        trainer, model, space, seen, unseen):
    ppo = trainer(seeing(space), model=model, actor_keys=(seen,))
    ppo.update(ppo.collect())
    assert changed(ppo, space, seen) == (True, True)
    assert changed(ppo, space, unseen) == (False, True)


def changed(ppo, space, part):
    """Whether (actor, critic) answer otherwise where `part` of a Dict observation is another."""
    space.seed(3)
    before = other = space.sample()
    while np.array_equal(before[part], other[part]):
        other = space.sample()
    rows = ppo.policy.observer.layout.rows([before, before | {part: other[part]}])
    with torch.no_grad():
        params, val = ppo.policy(ppo.policy.observer.tensors(rows))
    return not params[0].equal(params[1]), not val[0].equal(val[1])


def test_an_asymmetric_actor_has_no_gradient_to_what_the_critic_alone_sees(trainer):
    ppo = trainer(seeing(PARTS), actor_keys=("own",), hidden_sizes=(32,))
    rows = ppo.policy.observer.layout.rows([PARTS.sample() for _ in range(4)])
    seen = ppo.policy.observer(ppo.policy.observer.tensors(rows)).requires_grad_()
    params, val = ppo.policy.net(seen)
    acting, = torch.autograd.grad(params.square().sum(), seen, retain_graph=True)
    valuing, = torch.autograd.grad(val.sum(), seen)
    assert acting[:, :3].all() and not acting[:, 3:].any() and valuing.all()


@pytest.mark.parametrize("space", [VECTOR, Box(0, 255, (40, 44), np.uint8), MIXED],
                         ids=["vector", "image", "dict"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_stacked_frames_are_those_that_gymnasium_stacks(trainer, space, workers):
    ppo = trainer(seeing(space, Discrete(1)), frame_stack=3, num_workers=workers, num_envs=2)
    seen, rollout = ppo.policy.observer.layout, ppo.collect()
    for e in range(2):
        rows = np.concatenate(list(stacked(space, seen, len(rollout.act), e)))
        for stored, wanted in zip(seen.leaves, leaf_arrays(rows), strict=True):
            found = stored.leaf.of(rollout.obs)
            assert wanted.shape[1] == 3 and np.array_equal(found[:, e], wanted)


def stacked(space, seen, steps, e):
    """What environment `e` of a run of seed 1 shows before each step and after the last, stored."""
    env, over, episode = FrameStackObservation(Chance(space, Discrete(1)), 3), True, 0
    for _ in range(steps + 1):
        if over:
            obs, _ = env.reset(seed=kernels.episode_seed(1, Purpose.ENV_SEED, e, episode))
            episode += 1
        yield seen.rows([obs])
        obs, _, term, trunc, _ = env.step(0)
        over = term or trunc


# that they train as they act

NETS = {
    "cnn": (IMAGE, {}), "impala": (SMALL, {"model": "impala", "layer_norm": True}),
    "impoola": (SMALL, {"model": "impoola"}), "beside": (MIXED, {"layer_norm": True}),
    "apart": (IMAGE, {"shared_critic": False}), "stacked": (VECTOR, {"frame_stack": 3}),
    "normed": (VECTOR, {"layer_norm": True, "activation": "silu", "hidden_sizes": (8, 8, 8)}),
    "keys": (PARTS, {"actor_keys": ("own",)}), "eye": (MIXED, {"actor_keys": ("eye", "vector")}),
    "board": (BOARDS["bits"], {"model": "impala"}),
    "boards": (BOARDS["stones"], {"model": "impoola", "frame_stack": 2}),
    "sde": (SMALL, {"model": "impoola", "sde": True}), "values": (SMALL, {
        "model": "impala", "norm_values": True, "learner": "torch"}),
}


def some(*names):
    """All of NETS, of which only `names` are in the fast set."""
    return pytest.mark.parametrize("name", [
        pytest.param(name, marks=[] if name in names else pytest.mark.slow) for name in NETS])


@pytest.mark.some(1)
@some("cnn", "impoola", "eye", "normed", "boards")
def test_a_rollout_is_judged_as_it_was_acted_and_trains_the_same_for_any_workers(trainer, name):
    space, settings = NETS[name]
    found = []
    for workers in (0, 2):
        ppo = trainer(seeing(space, TWO), num_workers=workers, num_minibatches=2, **settings)
        for _ in range(2):
            rollout = ppo.collect()
            obs = tree_map(lambda x: x[:-1].flatten(0, 1), rollout.obs)
            with torch.no_grad():
                logp, _, val = ppo.policy.evaluate_actions(obs, rollout.act.flatten(0, 1))
            torch.testing.assert_close(logp, rollout.logp.flatten(), rtol=0, atol=1e-5)
            torch.testing.assert_close(val, rollout.val.flatten(), rtol=0, atol=1e-5)
            ppo.update(rollout)
        found.append(ppo.learner.flat.values.clone())
    assert found[0].equal(found[1])


@some("cnn", "impala", "impoola", "eye", "keys", "sde", "values", "board")
def test_a_policy_leaves_and_comes_back_as_it_was(trainer, tmp_path, name):
    space, settings = NETS[name]
    ppo = trainer(seeing(space, TWO), **settings)
    ppo.update(ppo.collect())
    ppo.save(tmp_path / "p.safetensors")
    back, obs = load(tmp_path / "p.safetensors"), ppo.policy.obs_space.sample()
    assert len(back.state_dict()) == len(ppo.policy.state_dict())
    for key, x in back.state_dict().items():
        assert torch.equal(x, ppo.policy.state_dict()[key]), key
    np.testing.assert_allclose(back.predict(obs), ppo.policy.predict(obs), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@some("cnn", "stacked")
def test_every_network_of_one_box_is_exported(trainer, tmp_path, name):
    space, settings = NETS[name]
    if not isinstance(space, Box):
        pytest.skip("no graph is made of a Dict")
    ppo = trainer(seeing(space, TWO), precision="fp32", **settings)
    export(ppo.policy, tmp_path / "p.pt")
    graph, env = torch.jit.load(tmp_path / "p.pt"), ppo.policy.obs_space
    for size in (1, 5):
        obs = np.stack([env.sample() for _ in range(size)])
        np.testing.assert_allclose(graph(torch.from_numpy(obs)).numpy(), ppo.policy.predict(obs),
                                   rtol=0, atol=1e-5)


class OwnPixels(nn.Module):
    """A convolution of the user's, then `flatten`; notes the memory of the images that it gets."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 8, 4), nn.Linear(8 * 8 * 9, 4)

    def forward(self, obs):
        """(action parameters [b 3], value [b])."""
        self.seen = obs
        out = self.out(self.rows(self.conv(obs).relu()))
        return out[:, :3], out[:, 3]

    def rows(self, x):
        """Rows of the features."""
        return x.flatten(1)


class ViewedPixels(OwnPixels):
    """The same by `view`, which raises for features with the channels last in memory."""

    def rows(self, x):
        """Rows of the features."""
        return x.view(len(x), -1)


def channels_are_last(x):
    """Whether images [b c h w] have the channels last in memory, and not first."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


CHANNELS_FIRST = Box(0, 255, (3, 36, 40), np.uint8)


@pytest.mark.parametrize("model", ["cnn", "impala", "impoola", OwnPixels])
def test_channels_last_in_memory_change_no_result_by_more_than_rounding(
        trainer, monkeypatch, model):
    found = []
    for memory in (channels_last, lambda x: x.contiguous()):
        monkeypatch.setattr(encoders, "channels_last", memory)
        monkeypatch.setattr(normaliser, "channels_last", memory)
        ppo, seen = trainer(seeing(CHANNELS_FIRST), model=model, acting="central",
                            learner="torch", precision="fp32"), []
        first = next(part for part in ppo.policy.modules() if isinstance(part, nn.Conv2d))
        first.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        rollout = ppo.collect()
        assert {channels_are_last(x) for x in seen} == {memory is channels_last}
        stats = ppo.update(rollout)
        found.append((rollout.logp.clone(), rollout.val.clone(), ppo.learner.flat.grad.clone(),
                      stats["losses/grad_norm"]))
        assert all(x.is_contiguous() for x in ppo.policy.parameters())  # so files stay as they are
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "last"), [(OwnPixels, True), (ViewedPixels, False)])
def test_a_model_gets_channels_last_in_memory_unless_its_forward_refuses_them(
        trainer, tmp_path, model, last):
    ppo = trainer(seeing(CHANNELS_FIRST), model=model)
    ppo.update(ppo.collect())
    assert channels_are_last(ppo.policy.net.seen) == last
    ppo.save(tmp_path / "p.safetensors")
    back, obs = load(tmp_path / "p.safetensors", model=model), CHANNELS_FIRST.sample()
    assert np.array_equal(back.predict(obs), ppo.policy.predict(obs))
    assert channels_are_last(back.net.seen) == last


@pytest.mark.parametrize("shape", [(36, 40, 3), (3, 36, 40)])
@pytest.mark.parametrize("stack", [1, 2])
def test_a_model_gets_the_channels_before_height_and_width_also_of_stacks(trainer, shape, stack):
    class Seen(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.out = torch.nn.Linear(1, 3)

        def forward(self, obs):
            self.shape = tuple(obs.shape[1:])
            out = self.out(obs.flatten(1).mean(1, keepdim=True))
            return out[:, :2], out[:, 2]
    ppo = trainer(lambda: Bright(shape), model=Seen, frame_stack=stack)
    ppo.update(ppo.collect())
    assert ppo.policy.net.shape == (2, 3, 36, 40)[2 - stack:] if stack == 2 else (3, 36, 40)


def test_stacked_observations_cannot_be_written_to_but_their_frames_can(trainer):
    ppo = trainer(Bright, model="cnn", frame_stack=4, num_steps=30)
    obs = ppo.collect().obs
    for write in (lambda: obs.zero_(), lambda: obs.__setitem__(0, 0)):
        with pytest.raises(InputError, match="\n  fix: change rollout.obs.frames"):
            write()
    assert torch.equal(obs.to(torch.float32)[3], obs.tensor()[3].float())
    obs.frames.zero_()
    assert not obs[0].any()


class Bright(gym.Env):
    """One step: a picture whose left or right half is bright; the reward is to say which one."""

    def __init__(self, shape=(36, 36)):
        self.observation_space, self.action_space = Box(0, 255, shape, np.uint8), Discrete(2)

    def reset(self, *, seed=None, options=None):
        """A picture with some noise in it."""
        super().reset(seed=seed)
        self.side, shape = int(self.np_random.integers(2)), self.observation_space.shape
        obs, half = self.np_random.integers(0, 60, shape, np.uint8), shape[1] // 2
        obs[:, half * self.side:half * (self.side + 1)] += 150
        self.obs = obs
        return obs, {}

    def step(self, action):
        """Whether it was that half."""
        return self.obs, float(action == self.side), True, False, {}


LEARNING = {"num_envs": 8, "num_steps": 16, "epochs": 4, "num_minibatches": 2, "lr": 1e-3,
            "torch_threads": 1}


def test_a_convolutional_network_learns_from_a_picture(trainer):
    ppo = trainer(Bright, **LEARNING)
    ppo.learn(1024)
    assert ppo.config.model == "cnn" and ppo.evaluate(episodes=50).mean == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("settings", [
    {}, {"layer_norm": True}, {"shared_critic": False}, {"frame_stack": 4}, {"model": "impala"}],
    ids=str)
def test_every_network_of_images_learns_from_a_picture(trainer, settings, seed):
    ppo = trainer(Bright, **LEARNING, seed=seed, **settings)
    ppo.learn(2560)
    assert ppo.evaluate(episodes=100).mean >= 0.98


# your own

class Own(nn.Module):
    """A layer, whose outputs `kind` makes a distribution."""

    kind = None

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = nn.LazyLinear(5)

    def forward(self, obs):
        """(distribution, value [b])."""
        out = self.layer(obs)
        return type(self).kind(out[:, :4]), out[:, 4]


def own(kind):
    """The class of networks that return kind(parameters [b 4])."""
    return type("Given", (Own,), {"kind": staticmethod(kind)})


def pairs(x, count):
    """Two independent choices of so many."""
    logits = torch.cat([x, x], 1)[:, :2 * count].reshape(len(x), 2, count)
    return Independent(Categorical(logits=logits), 1)


def normal(x):
    """Two independent normal distributions."""
    return Independent(Normal(x[:, :2], x[:, 2:].exp()), 1)


GIVEN = {
    "categorical": (Discrete(4), lambda x: Categorical(logits=x)),
    "normal": (TWO, normal), "not independent": (TWO, lambda x: Normal(x[:, :2], x[:, 2:].exp())),
    "tanh": (TWO, lambda x: TransformedDistribution(normal(x), [TanhTransform(cache_size=1)])),
    "beta": (Box(0, 1, (2,)), lambda x: Independent(Beta(x[:, :2].exp(), x[:, 2:].exp()), 1)),
    "bits": (MultiBinary((2, 2)), lambda x: Independent(Bernoulli(logits=x), 1)),
    "multi": (MultiDiscrete([[2, 2]], start=[[1, -1]]), lambda x: pairs(x, 2)),
    "choices": (MultiDiscrete([2, 2]), lambda x: Categorical(logits=x.reshape(len(x), 2, 2))),
    "unequal": (MultiDiscrete([2, 1]),
                lambda x: pairs(x + torch.tensor([0, 0, 0, MASKED_LOGIT]), 2)),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", GIVEN)
def test_a_distribution_samples_and_judges_the_same_in_a_worker(trainer, tmp_path, name):
    (space, kind), found = GIVEN[name], []
    for workers in (0, 1):
        ppo = trainer(seeing(VECTOR, space), model=own(kind), num_workers=workers)
        rollout = ppo.collect()
        obs, act = rollout.obs[:-1].flatten(0, 1), rollout.act.flatten(0, 1)
        dist = ppo.policy(obs)[0]
        logp = dist.log_prob(act.float()).reshape(len(act), -1).sum(-1)
        torch.testing.assert_close(logp, rollout.logp.flatten(), rtol=0, atol=1e-5)
        assert len(act.reshape(len(act), -1).unique(dim=0)) > (1 if name == "unequal" else 3)
        ppo.update(rollout)
        found.append(ppo.learner.flat.values.clone())
    assert found[0].equal(found[1])
    ppo.save(tmp_path / "p.safetensors")
    back, obs = load(tmp_path / "p.safetensors", model=own(kind)), VECTOR.sample()
    assert np.array_equal(back.predict(obs), ppo.policy.predict(obs))


def test_a_file_keeps_the_order_of_a_dict(trainer, tmp_path):
    ppo = trainer(seeing(Dict(b=VECTOR, a=VECTOR)))
    ppo.save(tmp_path / "p.safetensors")
    obs, back = ppo.policy.obs_space.sample(), load(tmp_path / "p.safetensors")
    assert list(back.obs_space) == ["b", "a"] and back.value(obs) == ppo.policy.value(obs)


def test_the_likeliest_action_is_the_mode_or_else_the_mean_also_beyond_transforms():
    assert distribution_mode(Categorical(logits=torch.tensor([[0.0, 2.0, 1.0]]))).tolist() == [1]
    x = torch.tensor([[0.5, -1.0, 0.0, 0.0]])
    assert torch.equal(distribution_mode(GIVEN["tanh"][1](x)), x[:, :2].tanh())
    assert distribution_mode(Bernoulli(logits=x)).tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize("dist", [
    TransformedDistribution(Independent(Normal(torch.full((3, 2), 20.0), 1.0), 1),
                            [TanhTransform(cache_size=1)]),
    Independent(Beta(torch.full((3, 2), 1e-4), 1e-4), 1)], ids=["tanh", "beta"])
def test_what_is_drawn_lies_within_an_open_interval(dist):
    head = DistributionHead(action_storage(TWO))
    act, logp = head.sample(dist, torch.full((3, 2), 0.3))
    assert logp.isfinite().all() and head.evaluate(dist, act)[0].equal(logp)
    assert dist.support.check(act).all() and dist.support.check(head.mode(dist)).all()


def test_an_action_that_cannot_have_been_drawn_is_an_error():
    head, dist = DistributionHead(action_storage(TWO)), GIVEN["tanh"][1](torch.zeros(3, 4))
    with pytest.raises(ModelError, match="TransformedDistribution gives .*(nan|-inf)\n  fix"):
        head.evaluate(dist, torch.ones(3, 2))


def test_sampling_a_distribution_leaves_the_hosts_generator_alone(trainer):
    ppo, before = trainer(seeing(VECTOR, TWO), model=own(normal)), torch.get_rng_state()
    ppo.collect()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("space", "kind", "said"), [
    (Discrete(3), lambda x: Categorical(logits=x),
     r"gave 3, but the actions are Discrete\(3\).*fix"),
    (Discrete(5), lambda x: Categorical(logits=x[:, :3]), r"has 3 choices, .* Discrete\(5\).*fix"),
    (TWO, lambda x: Normal(x, 1.0), r"Normal \[2, 4\], .*\[2, 2\].*size 8"),
    (Discrete(4), normal, r"Independent \[2, 2\], .*\[2\].*size 4"),
    (TWO, lambda x: TransformedDistribution(normal(x), []).expand([3]), "failed"),
    (MultiDiscrete([2, 3]), lambda x: pairs(x, 3),
     r"gave \[2 .*MultiDiscrete\(\[2 3\]\).*fix: return"),
    (MultiDiscrete([2, 3]), normal, "gave .*MultiDiscrete.*fix: return"),
    (MultiBinary(2), normal, r"gave .*MultiBinary\(2\).*fix: return"),
    (Tuple([Discrete(2), Box(-1, 1)]), normal, r"gave .*Tuple.*fix: return"),
], ids=["choices", "few", "width", "kind", "failing", "factor", "real", "bits", "hybrid"])
def test_a_distribution_over_other_actions_is_refused(trainer, space, kind, said):
    with pytest.raises(ModelError, match=f"(?s){said}"):
        trainer(seeing(VECTOR, space), model=own(kind))


def test_a_distribution_without_entropy_is_refused_where_the_loss_wants_one(trainer):
    model = own(GIVEN["tanh"][1])
    with pytest.raises(ModelError, match="has no entropy.*\n  fix: entropy_coef=0"):
        trainer(seeing(VECTOR, TWO), model=model, entropy_coef=0.01)


def test_a_value_of_nan_is_refused_before_a_weight_changes(trainer):
    class Broken(nn.Linear):
        def __init__(self, *spaces):
            super().__init__(3, 3)

        def forward(self, obs):
            return super().forward(obs)[:, :2], obs.sum(-1).log() * 0 / 0

    ppo = trainer(seeing(VECTOR, Discrete(2)), model=Broken)
    before = ppo.learner.flat.values.clone()
    with pytest.raises(NonFiniteError):
        ppo.update(ppo.collect())
    assert ppo.learner.flat.values.equal(before)


def test_a_model_is_named_as_module_and_class_also_on_the_command_line(monkeypatch, tmp_path):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, obs, act):\n"
        "        super().__init__()\n        self.layer = nn.LazyLinear(3)\n"
        "    def forward(self, obs):\n        out = self.layer(obs)\n"
        "        return out[:, :2], out[:, 2]\nno = 3\nclass NetEnv:\n    step = reset = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with PPO("CartPole-v1", model="my_nets:Net", num_workers=0, num_envs=2, num_steps=4,
             num_minibatches=1) as ppo:
        ppo.update(ppo.collect())
        assert type(ppo.policy.net).__name__ == "Net"
    for name in ("my_nets:Nett", "my_nets:no", "nowhere:Net"):
        with pytest.raises(ConfigError, match="\n  fix: "):
            PPO("CartPole-v1", model=name, num_workers=0)
    for setting in ("model", "env_name"):
        with pytest.raises(ConfigError, match="my_nets") as error:
            PPO(**{"env_name": "CartPole-v1", setting: "my_nets:Nett"}, num_workers=0)
        assert "or give the name of another one" in str(error.value)


# bad input

@pytest.mark.parametrize(("space", "settings", "said"), [
    (VECTOR, {"model": "cnn"}, 'for images.*fix: model="mlp"'),
    (SMALL, {"model": "cnn"}, '36x36 or larger.*12x10.*fix: model="impala"'),
    (Box(0, 255, (4, 4, 3), np.uint8), {"model": "impala"},
     '8x8 or larger.*fix: model="mlp"'),
    (Box(0, 1, (40, 40, 3), np.bool_), {"model": "cnn"}, 'there are none.*fix: model="mlp"'),
    (VECTOR, {"model": Own, "layer_norm": True}, "is your own.*leave"),
    (VECTOR, {"actor_keys": ("own",)}, "parts of a Dict.*leave"),
    (PARTS, {"actor_keys": ("own", "else")},
     r'must be some of own, hidden.*\n  fix: actor_keys=\(.own., .hidden.\)$'),
    (PARTS, {"actor_keys": ()}, "must be some of"),
    (PARTS, {"critic_keys": "own"}, "must be names"),
    (PARTS, {"actor_keys": ("own",), "shared_critic": True},
     "cannot share.*\n  fix: shared_critic=False$"),
    (VECTOR, {"frame_stack": 0}, "frame_stack is 0"), (VECTOR, {"shared_critic": 3}, "critic is 3"),
    (Dict(obs=VECTOR, action_mask=Box(0, 1, (3,), np.int8)), {"frame_stack": 2}, "action_mask"),
])
def test_networks_that_cannot_be_are_refused_with_a_fix(trainer, space, settings, said):
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        trainer(seeing(space), **settings)


def test_frames_of_vector_environments_that_are_made_already_are_not_stacked(trainer):
    env = gym.make_vec("CartPole-v1", 2)
    try:
        with pytest.raises(ConfigError, match="frame_stack is 2.*\n  fix: leave frame_stack out"):
            trainer(env, frame_stack=2, num_envs=2)
    finally:
        env.close()
    with pytest.raises(ConfigError, match="(?s)frame_stack=2, but vec=native.*leave frame_s"):
        trainer("CartPole-v1", frame_stack=2, vec="native")
