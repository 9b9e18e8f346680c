"""What a video shows of a network: the numbers are those of the policy, and each has its place."""

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Fenced
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import distributions as td
from torch import nn

from fastppo.networks.torch_state import torch_threads
from fastppo.video.frames import action_names
from fastppo.video.network_view import (
    BACKGROUND,
    GROUND,
    POSITIVE,
    Choices,
    NetworkView,
    Normals,
    Panel,
    image_frames,
    network_view,
)

VECTOR, CAMERA = Box(-np.inf, np.inf, (3,), np.float32), Box(0, 255, (12, 16, 3), np.uint8)


def seen(policy, obs):
    """The view of one observation at the start of an episode."""
    with torch_threads(1):
        return network_view(policy, policy.observer.layout.rows([obs]),
                            np.zeros((1, policy.memory), np.float32))


def test_numbers_are_normalised_and_choices_one_hot(trainer):
    policy = trainer(lambda: Chance(Tuple([VECTOR, Discrete(4)])), norm_obs=True).learn(64).policy
    obs = np.array([1.0, 2.0, 99.0], np.float32), 2
    view = seen(policy, obs)
    count, mean, m2 = (x.numpy() for x in policy.observer.state)
    wanted = np.clip((obs[0] - mean) / np.sqrt(m2 / count + 1e-8), -10, 10)
    assert view.numbers == pytest.approx([*wanted, 0, 0, 1, 0], rel=1e-4)
    assert view.images == [] and view.limits.tolist() == [3.0] * 7
    assert view.value == pytest.approx(policy.value(obs))


def test_images_are_shown_and_the_mask_is_not(trainer):
    space = Dict(camera=CAMERA, speed=VECTOR)
    policy = trainer(lambda: Fenced("info", Discrete(3), space), norm_obs=False).policy
    image = np.random.default_rng(1).integers(0, 256, CAMERA.shape, np.uint8)
    view = seen(policy, {"camera": image, "speed": np.array([1, -6, 3], np.float32),
                         "action_mask": np.array([1, 0, 1], np.int8)})
    assert len(view.images) == 1 and np.array_equal(view.images[0], image)
    assert view.numbers.tolist() == [1, -6, 3] and view.parts == [("speed", 3)]
    assert view.limits.tolist() == [1, 6, 3]
    assert view.actions[0].probs[1] == 0 and view.actions[0].probs.sum() == pytest.approx(1)


@pytest.mark.parametrize("low, high, dtype", [(0, 1, np.float32), (-3, 5, np.float32),
                                              (0, 65535, np.uint16)], ids=str)
@pytest.mark.parametrize("shape", [(36, 40, 3), (2, 36, 40, 3)], ids=str)
def test_images_of_other_numbers_are_shown_from_their_lowest_to_their_highest(
        trainer, low, high, dtype, shape):
    image, speed = Box(low, high, shape, dtype), np.ones(3, np.float32)
    levels = np.random.default_rng(1).integers(0, 256, shape)
    obs = (low + levels / 255 * (high - low)).astype(dtype)
    for space, given in (image, obs), (Dict(a=image, speed=VECTOR), {"a": obs, "speed": speed}):
        policy = trainer(lambda space=space: Chance(space), model="cnn", norm_obs=False).policy
        view = seen(policy, given)
        assert np.array_equal(np.reshape(view.images, shape), levels)
        assert view.numbers.tolist() == [1, 1, 1] * isinstance(space, Dict)
    policy = trainer(lambda: Chance(image), model="mlp", norm_obs=False).policy
    assert seen(policy, obs).images == []  # numbers like any others to an MLP


@pytest.mark.parametrize("dtype, low, shades", [(np.bool_, 0, [0, 255]),
                                                (np.int8, -1, [0, 128, 255])], ids=str)
def test_a_board_is_shown_plane_by_plane_to_convolutions_and_as_numbers_to_an_mlp(
        trainer, dtype, low, shades):
    space = Box(low, 1, (6, 7, 2), dtype)
    space.seed(1)
    board = space.sample()
    policy = trainer(lambda: Chance(space), model="impala").policy
    view = seen(policy, board)
    assert not len(view.numbers)
    assert np.array_equal(view.images, np.array(shades)[board.astype(int) - low].transpose(2, 0, 1))
    view = seen(trainer(lambda: Chance(space), model="mlp", norm_obs=False).policy, board)
    assert view.images == [] and np.array_equal(view.numbers, board.reshape(-1))


@pytest.mark.parametrize("space, settings, kinds", [
    (Discrete(3), {}, [(Choices, 3)]),
    (MultiDiscrete([3, 1, 4]), {}, [(Choices, 3), (Choices, 1), (Choices, 4)]),
    (MultiBinary(5), {}, [(Choices, 5)]),
    (Box(-1, 1, (2,)), {}, [(Normals, 2)]),
    (Box(-1, 1, (2,)), dict(distribution="squashed"), [(Normals, 2)]),
    (Box(-1, 1, (2,)), dict(distribution="beta"), [(Normals, 2)]),
    (Box(-1, 1, (2,)), dict(distribution="state_gaussian"), [(Normals, 2)]),
    (Box(-1, 1, (2,)), dict(sde=True), [(Normals, 2)]),
    (Dict(a=Box(-1, 1, (2,)), b=MultiDiscrete([2, 3])), {},
     [(Normals, 2), (Choices, 2), (Choices, 3)])], ids=str)
def test_every_action_head_is_shown(trainer, space, settings, kinds):
    policy = trainer(lambda: Chance(VECTOR, space), **settings).learn(32).policy
    found = seen(policy, np.ones(3, np.float32)).actions
    assert [(type(group), len(group[0])) for group in found] == kinds
    for group in found:
        if isinstance(group, Choices) and not isinstance(space, MultiBinary):
            assert group.probs.sum() == pytest.approx(1)
        assert all(np.isfinite(x).all() for x in group)
        assert isinstance(group, Choices) or (group.std > 0).all()


def test_the_numbers_are_those_of_the_samples(trainer):
    """Of many samples of a head, mean, deviation and shares are as they are shown."""
    for space, settings in ((Discrete(3), {}), (Box(-9, 9, (2,)), {}),
                            (Box(-9, 9, (2,)), dict(distribution="beta"))):
        policy = trainer(lambda space=space: Chance(VECTOR, space), **settings).learn(64).policy
        rows = policy.observer.layout.rows([np.ones(3, np.float32)] * 4000)
        noise = np.random.default_rng(2)
        drawn = np.stack([noise.random(4000) if letter == "u" else noise.normal(size=4000)
                          for letter in policy.head.noise], 1).astype(np.float32)
        act = policy.act(rows, drawn, np.zeros((4000, 0), np.float32))[0]
        group, = seen(policy, np.ones(3, np.float32)).actions
        if isinstance(group, Choices):
            assert np.bincount(act, minlength=3) / 4000 == pytest.approx(group.probs, abs=0.03)
        else:
            assert act.mean(0) == pytest.approx(group.mean, abs=0.06)
            assert act.std(0) == pytest.approx(group.std, rel=0.06)


class Own(nn.Module):
    """A network that returns a distribution of its own."""

    make = staticmethod(lambda x: td.Categorical(logits=x))

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, obs):
        """(distribution, value)."""
        x = self.layer(obs)
        return self.make(x[:, :2]), x[:, 2]


class OwnNormal(Own):
    make = staticmethod(lambda x: td.Independent(td.Normal(x, x.exp()), 1))


class OwnUnknown(Own):
    make = staticmethod(lambda x: td.TransformedDistribution(
        td.Independent(td.Normal(x, x.exp()), 1), [td.TanhTransform()]))


@pytest.mark.parametrize("model, space, kinds", [
    (Own, Discrete(2), [Choices]), (OwnNormal, Box(-1, 1, (2,)), [Normals]),
    (OwnUnknown, Box(-1, 1, (2,)), [])])
def test_a_distribution_of_ones_own_is_shown_as_far_as_it_is_known(trainer, model, space, kinds):
    policy = trainer(lambda: Chance(VECTOR, space), model=model).policy
    view = seen(policy, np.ones(3, np.float32))
    assert [type(group) for group in view.actions] == kinds
    assert Panel((300, 400)).draw(view).size == (300, 400)


@pytest.mark.parametrize("shape, wanted", [
    ((8, 9), [(8, 9)]), ((4, 8, 9), [(8, 9)] * 4), ((8, 9, 3), [(8, 9, 3)]),
    ((8, 9, 1), [(8, 9)]), ((2, 8, 9, 3), [(8, 9, 3)] * 2), ((2, 3, 8, 9), [(8, 9)] * 6)])
def test_channels_and_stacked_frames_are_pictures(shape, wanted):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert [one.shape for one in image_frames(array)] == wanted


# the picture

def colours(view, size=(300, 300)):
    """The number of pixels of each colour in a picture."""
    pixels = np.asarray(Panel(size).draw(view)).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {tuple(map(int, colour)): int(count) for colour, count in zip(found, counts)}


def view_of(numbers=(), probs=(), images=()):
    """A NetworkView with these parts."""
    actions = [Choices(np.array(probs, np.float32))] if len(probs) else []
    numbers = np.array(numbers, np.float32)
    return NetworkView([*images], numbers, np.ones_like(numbers), actions, 0.5)


def test_inputs_of_a_dict_have_their_keys(trainer, monkeypatch):
    space = Dict(goal=Dict(x=Box(-1, 1, (1,)), y=Box(-1, 1, (2,))), kind=Discrete(3))
    view = seen(trainer(lambda: Chance(space)).policy, space.sample())
    assert view.parts == [("goal.x", 1), ("goal.y", 2), ("kind", 3)]
    written = []
    monkeypatch.setattr(Panel, "_write", lambda panel, x, y, text, *_: written.append(text))
    Panel((480, 420)).draw(view)
    assert written[-6:] == ["goal.x", "goal.y 0", "goal.y 1", "kind 0", "kind 1", "kind 2"]
    Panel((300, 100)).draw(view._replace(actions=[]))
    assert "goal.x 0, goal.y 1-2, kind 3-5, normalised" in written  # too many for a line each


@pytest.mark.parametrize("norm", [True, False])
def test_inputs_that_are_normalised_say_so(trainer, monkeypatch, norm):
    view = seen(trainer("CartPole-v1", norm_obs=norm).policy, np.zeros(4, np.float32))
    written = []
    monkeypatch.setattr(Panel, "_write", lambda panel, x, y, text, *_: written.append(text))
    Panel((480, 420)).draw(view)
    assert ("inputs, normalised" in written) is norm


@pytest.mark.parametrize("keys", [1, 7, 40, 300])
def test_long_keys_stay_within_their_picture(keys):
    view = view_of(np.linspace(-2, 2, 2 * keys), [0.5])
    view = view._replace(parts=[("a long key " * 9, 2)] * keys)
    picture = np.asarray(Panel((300, 320)).draw(view))
    assert (picture[:, -6:] == BACKGROUND).all() and (picture[:, :6] == BACKGROUND).all()


def test_a_bar_is_as_long_as_its_number():
    half, whole = (colours(view_of(probs=[p, 0.0]))[POSITIVE] for p in (0.5, 1.0))
    assert half == pytest.approx(whole / 2, rel=0.05)
    half, whole = (colours(view_of(numbers=[x, 0.0]))[POSITIVE] for x in (0.5, 1.0))
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert colours(view_of(numbers=[-1.0])) != colours(view_of(numbers=[1.0]))
    assert colours(view_of(numbers=[7.0])) == colours(view_of(numbers=[1.0]))  # cut


@pytest.mark.some(8)
@pytest.mark.parametrize("inputs", [0, 1, 17, 128, 129, 5000])
@pytest.mark.parametrize("actions", [0, 1, 17, 400])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_any_numbers_of_parts_stay_within_their_picture(inputs, actions, images):
    view = view_of(np.linspace(-1, 1, inputs), np.full(actions, 0.3),
                   [np.full((84, 84), 255, np.uint8)] * images)
    picture = np.asarray(Panel((300, 320)).draw(view))
    edge = np.concatenate([picture[:6].reshape(-1, 3), picture[-6:].reshape(-1, 3),
                           picture[:, :6].reshape(-1, 3), picture[:, -6:].reshape(-1, 3)])
    assert (edge == BACKGROUND).all()
    assert (colours(view, (300, 320)).get((255, 255, 255), 0) > 900 * images) or not images
    assert GROUND in colours(view) or not inputs + actions


@pytest.mark.parametrize("space", [Discrete(2), Box(-1, 1, (2,))])
def test_a_network_that_returns_nan_is_drawn(trainer, space):
    policy = trainer(lambda: Chance(VECTOR, space)).policy
    with torch.no_grad():
        policy.net.actor.weight.fill_(np.nan)
    view = seen(policy, np.ones(3, np.float32))
    assert (view.actions[0][0] == 0).all() and Panel((300, 320)).draw(view)


@pytest.mark.parametrize("names, written", [
    (("NOOP", "FIRE", "LEFT"), ["NOOP", "FIRE", "LEFT"]), ((), ["0", "1", "2"]),
    (("NOOP", "FIRE"), ["0", "1", "2"])])  # of other actions
def test_choices_have_the_names_that_the_environment_gives_them(monkeypatch, names, written):
    drawn, own = [], Panel._write
    monkeypatch.setattr(Panel, "_write", lambda panel, x, y, text, *more: (
        drawn.append(text), own(panel, x, y, text, *more)))
    actions = [Choices(np.array([0.2, 0.3, 0.5]))]
    view = NetworkView([], np.zeros(2), np.ones(2), actions, 0.0, names=names)
    Panel((300, 320)).draw(view)
    assert drawn[2:8:2] == written


def test_names_of_actions_are_asked_for_and_need_not_be_there():
    class Named(Chance):
        def get_action_meanings(self):
            return ["LEFT", "RIGHT"]
    assert action_names(Named()) == ("LEFT", "RIGHT") and action_names(Chance()) == ()
