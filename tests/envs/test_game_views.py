"""What agents see of games: images, stacks, repeated actions; and Atari of several players."""

import importlib.util

import numpy as np
import pytest
from games_for_tests import Masked, Pictured, Scripted
from gymnasium.spaces import Box, Discrete
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.envs.games import GameOfViews
from fastppo.envs.make import make_factory, wrapping
from fastppo.errors import ConfigError
from fastppo.settings.presets import preset_of
from fastppo.trainer.callbacks import rollout_collected


def small(picture):
    """A picture of Pictured in grey, each pixel the mean of three by three."""
    grey = (picture @ [0.2125, 0.7154, 0.0721]).astype(np.uint8)
    return np.rint(grey.reshape(4, 3, 3, 3).mean((1, 3)))


@pytest.mark.parametrize("skip, stack", [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_an_agent_sees_its_last_pictures_since_it_began(skip, stack):
    settings = dict(frame_skip=skip, grayscale=True, resize="4x3", frame_stack=stack)
    game, env = make_factory(Pictured, **wrapping(settings))(), Pictured()
    names, lead, kinds = game.agents, (stack,) if stack > 1 else (), set()
    shape = (stack + 1, 4, 3) if stack > 1 else (4, 3)  # the number of the agent is a frame
    assert (game.observation_space if stack > 1 else game.observation_space["obs"]) == Box(
        0, 255, shape, np.uint8)
    rng = np.random.default_rng(1)
    for seed in range(40):
        seen, obs = game.reset(seed=seed)[0], env.reset(seed=seed)[0]
        stacks = {agent: [small(obs[agent])] * stack for agent in env.agents}
        while True:
            assert {names[k] for k in seen} == {*stacks}
            for k, one in seen.items():
                want = np.reshape(stacks[names[k]], (*lead, 4, 3))
                image = one[:-1] if stack > 1 else one["obs"]
                np.testing.assert_array_equal(image, want)
                assert np.all(one[-1] == 85 * k if stack > 1 else one["agent"] == k)
            if not env.agents:
                break
            actions, acting, rews = rng.integers(3, size=4), [*env.agents], []
            while len(rews) < skip and env.agents == acting:
                obs, rew, terms, truncs, _ = env.step(
                    {agent: actions[names.index(agent)] for agent in acting})
                rews.append(rew)
            stacks = {agent: [*stacks[agent][1:], small(obs[agent])] if agent in acting else
                      [small(obs[agent])] * stack for agent in obs}
            seen, turns = game.step(actions)
            assert {names[k]: tuple(turn) for k, turn in turns.items()} == {
                agent: (sum(rew[agent] for rew in rews), terms[agent], truncs[agent])
                for agent in acting}
            kinds |= {len(rews), "born"} if {*env.agents} - {*acting} else {len(rews)}
    assert kinds == {*range(1, skip + 1), "born"}


def test_a_game_is_as_it_is_without_settings_of_what_is_seen():
    assert isinstance(make_factory(Scripted)().env, Scripted)
    assert isinstance(make_factory(Scripted, stack=2)().env, GameOfViews)


def test_a_limit_counts_actions():
    game = make_factory(lambda: Scripted(99), limit=3, **wrapping({"frame_skip": 2}))()
    counts = set()
    for seed in range(30):
        game.reset(seed=seed)
        while any(game.alive):
            game.step([0] * 4)
        counts.add((game.steps, game.env.now))
    assert max(counts) == (3, 6)


@pytest.mark.parametrize("make, settings, said", [
    (Scripted, {"resize": 84}, "(?s)resize needs an image in the observations.*fix: leave"),
    (Scripted, {"grayscale": True}, "grayscale needs an image of red, green and blue"),
    (Masked, {"frame_stack": 2}, "frame_stack=2 would stack the observation's 'action_mask', too"),
    (Pictured, {"preprocessing": "atari"}, "of one player, of frames and Discrete actions; but Ga"),
])
def test_what_agents_cannot_see_so_is_refused(make, settings, said):
    with pytest.raises(ConfigError, match=said):
        make_factory(make, **wrapping(settings))()


# Games, and how many play.
ATARI = {"pong-v3": 2, "surround-v2": 2, "tennis-v3": 2, "warlords-v3": 4, "mario_bros-v3": 2}


def with_packages(test):
    """`test`, marked as one that needs Atari of several players."""
    for name in ("pettingzoo", "multi_agent_ale_py", "ale_py", "cv2"):
        missing = importlib.util.find_spec(name) is None
        test = pytest.mark.skipif(missing, reason=f"needs {name}")(test)
    return pytest.mark.packages(test)


class Emulator:
    """A game of the emulator alone: `screen` in grey, the last one, and the number of frames."""

    def __init__(self, rom, players, seed):
        from multi_agent_ale_py import ALEInterface
        ALEInterface.setLoggerMode("error")
        self.ale, self.players, self.frames = ALEInterface(), players, 0
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(rom)

    def begin(self, mode):
        """Begins a game in a mode; its screen."""
        self.ale.setMode(mode)
        self.ale.reset_game()
        self.actions, self.screen = self.ale.getMinimalActionSet(), self._screen()
        return self.screen

    def play(self, actions, longest):
        """(maximum of the last two screens, rewards, game over, agents that have ended) of an
        action, which is repeated for four frames."""
        total = np.zeros(self.players, int)
        for _ in range(4):
            before = self.screen
            total += self.ale.act(self.actions[actions])
            self.screen, self.frames = self._screen(), self.frames + 1
            out = self.ale.allLives() < 0
            if self.ale.game_over() or out.any() or self.frames == longest:
                break
        return np.maximum(before, self.screen), total, self.ale.game_over(), out

    def _screen(self):
        return self.ale.getScreenGrayscale()[..., 0]


@with_packages
@pytest.mark.parametrize("name", ATARI)
def test_agents_of_atari_see_four_frames_of_84_x_84_of_the_emulator(name):
    import cv2
    players, longest = ATARI[name], 2001 if name == "pong-v3" else 402
    game = make_factory(f"atari/{name}", kwargs={"max_cycles": longest},
                        **wrapping(preset_of(f"atari/{name}")))()
    assert len(game.agents) == players and game.action_space == Discrete(game.action_space.n)
    rng, scored, steps = np.random.default_rng(4), 0, 0
    for seed in (1, 2):
        env = Emulator(game.env.rom_path, players, seed)
        stack = [cv2.resize(env.begin(game.env.mode), (84, 84), interpolation=cv2.INTER_AREA)] * 4
        seen, over = game.reset(seed=seed)[0], False
        while not over:
            assert [*seen] == [*range(players)]
            for k, one in seen.items():
                number = np.full((1, 84, 84), 255 * k // (players - 1))
                np.testing.assert_array_equal(one[..., 0], [*stack, *number])
            actions = rng.integers(game.action_space.n, size=players)
            screen, rews, done, out = env.play(actions, longest)
            stack = [*stack[1:], cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)]
            seen, turns = game.step(actions)
            over = done or env.frames == longest or out.any()
            assert {k: tuple(turn) for k, turn in turns.items()} == {
                k: (rews[k], done or out[k], env.frames == longest) for k in range(players)}
            scored, steps = scored + abs(rews).sum(), steps + 1
        assert any(game.alive) == (out.any() and not out.all() and not done)
    assert steps > 100 and (name != "pong-v3" or scored > 4)


@with_packages
def test_the_memory_of_atari_can_be_seen_in_place_of_screens():
    game = make_factory("atari/pong-v3", kwargs={"obs_type": "ram"},
                        **wrapping({"frame_stack": 2, "frame_skip": 4}))()
    first, memory = game.reset(seed=1)[0], game.env.ale.getRAM()
    seen = game.step([2, 3])[0]
    assert first[0]["obs"].shape == (2, 128) and (first[1]["obs"] == memory).all()
    np.testing.assert_array_equal(seen[1]["obs"], [memory, game.env.ale.getRAM()])


@with_packages
@NEEDS_EXTENSION
def test_atari_of_two_players_trains_by_its_preset_with_the_same_bits_for_any_workers(tmp_path):
    found = []

    def learnt(ppo):
        rollout = ppo.collect()
        rollout_collected(ppo, rollout)
        ppo.update(rollout)
        return ppo.learner.flat.values.numpy().tobytes()
    for workers in (0, 2):
        with PPO("atari/pong-v3", num_envs=2, num_steps=16, total_steps=256, seed=5, device="cpu",
                 num_workers=workers, env_kwargs={"max_cycles": 42}) as ppo:
            config = ppo.config
            assert (config.model, config.frame_stack, config.clip_rewards, config.agents,
                    config.norm_rewards) == ("cnn", 4, True, 2, False)
            learnt(ppo)
            ppo.checkpoint(tmp_path / "c.safetensors")  # in the middle of games
            found.append(learnt(ppo))
            assert ppo.episodes.stats()["charts/episodic_length"] == 11  # 42 frames
    with PPO.resume(tmp_path / "c.safetensors") as ppo:
        found.append(learnt(ppo))
    assert found[1:] == found[:1] * 2
