"""Of infos only the finite numbers of an episode's end travel; they change nothing else."""

import csv
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from envs_for_workers import OneInfo, Telling
from fault_envs import Calm, guard
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fastppo import PPO, make_vec
from fastppo.stepping.rollout_recorder import (
    EPISODE_WINDOW,
    INFO_BYTES,
    MAX_INFO_KEYS,
    finite_scalars,
    finite_scalars_of,
    read_infos,
    write_infos,
)
from fastppo.trainer.metrics import EpisodeMetrics

QUICK = dict(preset="none", seed=3, num_minibatches=1, epochs=1, hidden_sizes=(4,), norm_obs=False,
             num_steps=24)


def metrics(make, iterations=3, envs=4, **settings):
    """The stats of each iteration, without times, and the weights in the end."""
    seen = []
    with guard(60), PPO(make, num_envs=envs, **QUICK, **settings) as ppo:
        ppo.learn(iterations * envs * QUICK["num_steps"], [
            lambda ppo, stats: seen.append({name: value for name, value in stats.items()
                                            if name != "charts/SPS" and name[:5] != "time/"})])
        return seen, ppo.learner.flat.values.numpy().tobytes()


@pytest.mark.parametrize("value, number", [
    (3, 3.0), (-0.5, -0.5), (True, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5),
    (np.int64(7), 7.0), (np.array(2.5), 2.5)])
def test_a_finite_real_scalar_travels(value, number):
    assert finite_scalars({"x": value}) == {"x": number}


@pytest.mark.parametrize("value", [
    None, "1", b"1", 1j, np.nan, -np.inf, [1.0], np.ones(1), {"r": 1.0}, np.datetime64("nat"),
    np.array("a"), 10**400])
def test_nothing_else_does(value):
    assert finite_scalars({"x": value}) == {}


def test_names_are_printable_text_of_forty_letters_at_most_and_infos_are_dicts():
    assert finite_scalars(
        {1: 1.0, "a\0": 1.0, "\ud800": 1.0, "x" * 41: 1.0, "Länge": 2.0}) == {"Länge": 2}
    assert finite_scalars(None) == finite_scalars([("x", 1.0)]) == {}
    assert list(finite_scalars({f"n{i}": i for i in range(99)})) == [
        f"n{i}" for i in range(MAX_INFO_KEYS)]


def test_a_vector_environments_numbers_are_those_its_masks_give_to_an_environment():
    info = {"x": np.array([1.0, 2.0]), "_x": np.array([True, False]), "all": np.array([3, 4]),
            "one": 5.0, "y": np.array([None, "word"], object)}
    assert [finite_scalars_of(info, e) for e in (0, 1)] == [{"x": 1.0, "all": 3.0}, {"all": 4.0}]
    final = {"final_info": {"x": np.array([6.0, 7.0])}, **info}
    assert finite_scalars_of(final, 1) == {"x": 7.0}
    assert finite_scalars_of({"final_info": np.array([None, {"x": 8}], object)}, 1) == {"x": 8.0}


def test_a_slot_tells_what_ended_last_by_step_and_environment():
    slot = np.full((1, INFO_BYTES), 255, np.uint8)
    write_infos(slot[0], {(t, 3): {"x": t / 7, "y": -1.0} for t in range(EPISODE_WINDOW + 5)})
    assert read_infos({"infos": slot}) == {
        (t, 3): {"x": t / 7, "y": -1.0} for t in range(5, EPISODE_WINDOW + 5)}
    write_infos(slot[0], {})
    assert read_infos({"infos": slot}) == {}


def test_more_and_longer_names_than_a_slot_holds_are_not_told():
    slot = np.zeros((1, INFO_BYTES), np.uint8)
    write_infos(slot[0], {(t, 0): {
        f"{t} {i} ".ljust(40, "\U0001f600"): 0.1 for i in range(MAX_INFO_KEYS)}
        for t in range(EPISODE_WINDOW)})
    assert read_infos({"infos": slot}) == {}


def test_what_is_shown_are_means_over_the_last_episodes_that_told_it():
    episodes, length = EpisodeMetrics(), np.array([[0, 2], [3, 0], [4, 4]])
    episodes.take(length * 1.0, length, {(0, 1): {"x": 1.0}, (2, 0): {"x": 4.0, "y": 5.0}})
    shown = {name: value for name, value in episodes.stats().items() if name[:4] == "env/"}
    assert shown == {"env/x": 2.5, "env/y": 5.0}
    long = np.ones((1, 100), np.int64)
    episodes.take(long * 1.0, long)
    assert not [name for name in episodes.stats() if name.startswith("env/")]


def test_the_first_thirty_two_names_are_shown_for_all_of_a_run():
    episodes, length = EpisodeMetrics(), np.ones((2, 1), np.int64)
    for first in (0, 20):
        episodes.take(length * 1.0, length, {
            (0, 0): {f"n{first + i}": 1.0 for i in range(10)},
            (1, 0): {f"n{first + i}": 1.0 for i in range(10, 20)}})
    assert episodes.state.names == tuple(f"n{i}" for i in range(MAX_INFO_KEYS))


@pytest.mark.some(1)
@pytest.mark.parametrize("acting", ["local", "central"])
def test_the_number_of_workers_changes_nothing_shown(acting):
    alone = metrics(Telling, num_workers=0, acting=acting)
    assert alone[0][-1]["env/steps"] == pytest.approx(5.5, abs=1.5)
    assert 0 <= alone[0][-1]["env/success"] <= 1
    assert sum(name[:5] == "env/n" for name in alone[0][-1]) > 10
    assert not {"env/midway", "env/at reset", "env/words", "env/nan"} & alone[0][-1].keys()
    for workers in (1, 3):
        assert metrics(Telling, num_workers=workers, acting=acting) == alone, workers


def test_infos_change_no_bit_of_what_is_learnt():
    loud, quiet = (metrics(partial(Telling, silent), num_workers=1) for silent in (False, True))
    assert loud[1] == quiet[1]
    assert [{name: value for name, value in one.items() if name[:4] != "env/"}
            for one in loud[0]] == quiet[0]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_native_vector_environments_tell_the_same_way(mode):
    class Counted(Calm):
        def step(self, action):
            *reply, _ = super().step(action)
            return *reply, {"steps": self.steps, "late": float(self.steps == 5)}
    vec = SyncVectorEnv([Counted] * 3, autoreset_mode=mode)
    seen, _ = metrics(vec, envs=3)
    assert {(one["env/steps"], one["env/late"]) for one in seen} == {(5.0, 1.0)}


class OneInfoVector(gym.vector.VectorWrapper):
    """Shows its own counters in every info: the arrays themselves."""

    def __init__(self, env):
        super().__init__(env)
        self.steps = np.zeros(env.num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        self.steps[(options or {}).get("reset_mask", slice(None))] = 0
        return self.env.reset(seed=seed, options=options)[0], {"steps": self.steps}

    def step(self, actions):
        *reply, _ = self.env.step(actions)
        self.steps += 1
        return *reply, {"steps": self.steps}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_info_updated_in_place_shows_the_end_of_the_episode_not_the_reset(workers):
    seen, _ = metrics(OneInfo, num_workers=workers)
    assert {one["env/steps"] for one in seen} == {5.0}
    with make_vec(OneInfo, num_envs=2, num_workers=workers, autoreset_mode="SameStep") as vec:
        vec.reset(seed=1)
        infos = [vec.step(np.zeros(2, np.int64))[-1] for _ in range(5)]
    final = infos[-1]["final_info"]
    assert final["steps"].tolist() == final["deep"]["steps"][:, 0].tolist() == [5, 5]
    assert infos[-1]["steps"].tolist() == [0, 0]


def test_a_vector_environments_own_counters_show_the_end_of_the_episode_not_the_reset():
    vec = OneInfoVector(SyncVectorEnv([Calm] * 3, autoreset_mode=AutoresetMode.DISABLED))
    seen, _ = metrics(vec, envs=3)
    assert {one["env/steps"] for one in seen} == {5.0}


def test_what_environments_tell_has_columns_in_the_table(tmp_path):
    seen, _ = metrics(Telling, num_workers=0, run_dir=str(tmp_path))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [float(row["env/steps"]) for row in rows] == [one["env/steps"] for one in seen]


def test_gymnasiums_own_statistics_are_not_told_twice():
    seen, _ = metrics(lambda: gym.wrappers.RecordEpisodeStatistics(Telling()), num_workers=0)
    assert not [name for name in seen[-1] if "episode" in name and name[:4] == "env/"]


class Lives(Calm):
    """Each step loses a life; every third ends the game, whose return it tells."""

    lost = 0

    def step(self, action):
        self.lost += 1
        *reply, _ = super().step(action)
        reply[2] = True
        return *reply, ({"same_game": True} if self.lost % 3 else
                        {"game_return": 9.0, "game_length": 3, "x": 1.0})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lost_life_is_no_episode_and_a_game_has_its_own_return(workers):
    with PPO(Lives, num_envs=4, num_workers=workers, **QUICK | {"num_steps": 90}) as ppo:
        seen = []
        ppo.learn(2 * 360, lambda ppo, stats: seen.append(stats))
        assert ppo.episodes.ended == [(t, 9.0, 3) for t, *_ in ppo.episodes.ended]
    assert len(ppo.episodes.ended) == 100  # of 120, and more lives before them than have infos
    assert [stats["charts/episodes"] for stats in seen] == [120, 240]
    assert {(stats["charts/episodic_return"], stats["charts/episodic_length"], stats["env/x"])
            for stats in seen} == {(9, 3, 1)} and "env/game_return" not in seen[0]
