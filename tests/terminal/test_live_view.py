"""The live view: its numbers, its lines, its snapshot, and the terminal it leaves."""

import io
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from envs_for_tests import Constant
from rich.console import Console

from fastppo.config import Config
from fastppo.games.past import PastSelves
from fastppo.machine import limits
from fastppo.terminal import hints, live_view
from fastppo.terminal.hints import Hints
from fastppo.terminal.live_view import LiveView
from fastppo.terminal.snapshot import (
    CurrentPart,
    Moment,
    RunHistory,
    Snapshot,
    shares_between,
    speed_limit,
    thinned,
    training_seconds,
)
from fastppo.trainer import run
from fastppo.trainer.metrics import PartTimer

STATS = {"charts/SPS": 2_000.0, "charts/episodic_return": 150.0, "charts/episodic_length": 80.0,
         "charts/episodes": 1_904.0, "losses/approx_kl": 0.009, "losses/clipfrac": 0.07,
         "losses/explained_variance": 0.83, "losses/entropy": 0.71, "losses/policy_loss": -0.004,
         "losses/value_loss": 0.31}
NOW = Snapshot(52_000, 100_000, 24.0, STATS, ((0, -180.0), (52_000, 148.0)),
               171.9, None, 200.0, 9_120.0, 8_870.0, 20_000.0,
               {"environment": 0.61, "policy": 0.12, "advantages": 0.01, "update": 0.24,
                "other": 0.02}, 600_000_000, 1e-3, 2, 2)


def text_of(now, columns=100, doing="collecting"):
    return [line.plain for line in live_view.panel(now, doing, columns)]


# ---- lines ---------------------------------------------------------------------------------------

def test_the_lines_say_how_far_how_good_how_fast_and_where_the_time_goes():
    step, mean, curve, speed, times, update, losses, now = text_of(NOW)
    assert re.fullmatch(r"step +━+─+  52%   52,000 / 100,000   left 0:24", step)
    assert mean.startswith("return    150.0   best 171.9   length 80   1,904 episodes")
    assert re.fullmatch(r" +-180.0 ▁+[▁-█]+█+ 148.0", curve)
    assert speed == ("speed     9,120 steps/s   limit 20,000 of 2 cores"
                     "   mean 8,870, 44%")
    assert times == "time      environment 61%   policy 12%   advantages 1%   update 24%   other 2%"
    assert update == "update    kl 0.0090   clipped 7%   explained variance 0.83"
    assert losses == "losses    policy -0.004   value 0.31   entropy 0.71"
    assert now == "now       2 workers   0.6 GB   lr 0.001   collecting"


def test_every_number_fits_into_80_columns(columns=80):
    lines = "\n".join(text_of(NOW, columns))
    for words in ("9,120 steps/s", "limit 20,000", "mean 8,870, 44%", "kl 0.0090", "value 0.31",
                  "entropy 0.71", "explained variance 0.83", "update 24%"):
        assert words in lines


@pytest.mark.parametrize("columns", [30, 45, 60, 80, 100, 300])
def test_no_line_is_wider_than_the_terminal_and_none_is_cut_inside_a_number(columns):
    for line in text_of(NOW, columns):
        assert len(line) <= columns
    assert text_of(NOW, columns)[1].startswith("return    150.0")
    whole, part = (next(line for line in text_of(NOW, width) if line.startswith("speed"))
                   for width in (100, columns))
    assert whole.startswith(part)


def test_the_limit_is_beside_the_speed_in_a_narrow_terminal():
    fast = NOW._replace(speed=912_000.0, limit=2_000_000.0)
    assert text_of(fast, 60)[3] == "speed     912,000 steps/s   limit 2,000,000 of 2 cores"


@pytest.mark.parametrize("mean, words", [(199.9, "199.9   best"),
                                         (200.0, "200.0   solved (from 200)")])
def test_an_environment_is_solved_from_the_threshold_of_the_registry(mean, words):
    now = NOW._replace(stats=STATS | {"charts/episodic_return": mean})
    assert text_of(now)[1].startswith(f"return    {words}")


def test_games_against_past_selves_have_their_ratings():
    stats = STATS | PastSelves({"duels": None}, 10).stats() | {"games/elo": 1_042.6}
    assert text_of(NOW._replace(stats=stats), 80)[3] == (
        "elo       1,043   past 1,000 1,000 1,000 1,000 1,000 1,000 1,000 1,000")


def test_what_is_not_known_is_left_out():
    few = {name: x for name, x in STATS.items() if not name.startswith("charts/e")}
    lines = text_of(NOW._replace(stats=few, returns=(), best_return=None, limit=None, memory=None,
                                 threshold=None, seconds_left=None, speed=None, workers=0))
    assert len(lines) == 7 and "no episode has ended yet" in lines[1]
    assert "limit" not in lines[2] and lines[-1] == "now       one process   lr 0.001   collecting"


def test_a_hopeless_critic_does_not_widen_its_column():
    for value in (-9.999, -1234.5):
        stats = STATS | {"losses/explained_variance": value}
        assert text_of(NOW._replace(stats=stats))[5].endswith("explained variance < -10")


def test_a_sparkline_goes_from_the_lowest_to_the_highest_block_over_the_steps():
    assert live_view.sparkline([(0, 0.0), (70, 7.0)], 8) == "▁▂▃▄▅▆▇█"
    assert live_view.sparkline([(0, 0.0), (10, 7.0), (70, 7.0)], 8) == "▁████████"[:8]
    assert live_view.sparkline([(0, 3.0), (5, 3.0)], 4) == "▁▁▁▁"


@pytest.mark.parametrize("value, text", [(0.0, "0"), (-0.00412, "-0.00412"), (0.0001, "1.0e-04"),
                                         (123456.0, "1.2e+05"), (0.5, "0.5")])
def test_a_number_has_three_digits_that_count(value, text):
    assert live_view.number(value) == text


# ---- numbers -------------------------------------------------------------------------------------

def test_the_shares_of_the_last_seconds_add_up_to_one_without_the_evaluation():
    before = Moment(100.0, 0, {"update": 5.0, "evaluate": 1.0, "environment": 2.0})
    now = Moment(111.0, 9, {"update": 7.0, "evaluate": 3.0, "environment": 6.0, "policy": 1.0,
                            "video": 1.0})
    assert shares_between(before, now) == pytest.approx(
        {"environment": 0.5, "policy": 0.125, "advantages": 0.0, "update": 0.25, "other": 0.125})
    assert shares_between(now, now) == {} and training_seconds(before, now) == 8


def test_an_evaluation_is_shown_until_the_next_one(trainer):
    ppo, history = trainer("CartPole-v1"), RunHistory()
    ppo.learn(64)
    for stats, shown in ((STATS, None), ({**STATS, "eval/return_mean": 7.0}, 7.0), (STATS, 7.0)):
        history.add(ppo.step, stats)
        assert history.snapshot(ppo, stats).evaluation == shown
    assert "best 171.9   evaluation 7.00   length" in text_of(NOW._replace(evaluation=7.0))[1]


def test_a_long_run_keeps_a_bounded_curve_with_its_newest_point():
    points = []
    for step in range(5_000):
        points = thinned([*points, (step, float(step))])
        assert len(points) <= 400 and points[-1] == (step, float(step)) and points[0] == (0, 0.0)
    assert sorted(points) == points


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("acting", ["local", "central"])
def test_a_snapshot_is_taken_of_a_real_run(trainer, workers, acting):
    ppo, history = trainer("CartPole-v1", num_workers=workers, acting=acting, num_envs=4,
                           num_steps=64), RunHistory()
    history.begin(ppo)

    def take(ppo, stats):
        history.add(ppo.step, stats)
        history.snapshot(ppo, stats)

    ppo.learn(1_024, callbacks=take)
    now = history.snapshot(ppo, STATS)
    assert (now.step, now.workers, now.threshold) == (1_024, workers, 475)
    assert sum(now.shares.values()) == pytest.approx(1) and now.shares["environment"] > 0
    assert now.limit > now.speed > 0 and now.memory > 1e7 and now.seconds_left > 0
    assert now.best_return == max(mean for _, mean in now.returns) > 5


def test_the_mean_speed_counts_all_seconds_of_learn_but_those_of_evaluations_and_videos(
        monkeypatch):
    now, history, clock = [100.0], RunHistory(), SimpleNamespace(not_training=3.0)
    ppo = SimpleNamespace(step=1_000, complete_steps=1_000, clock=clock)
    monkeypatch.setattr("fastppo.terminal.snapshot.time.monotonic", lambda: now[0])
    history.begin(ppo)  # such as one that is resumed
    now[0], clock.not_training, ppo.complete_steps = 112.0, 5.0, 1_500
    assert history.mean_speed(ppo) == 500 / (12 - 2)


def test_the_last_view_has_the_mean_speed_of_the_commands_last_line(trainer, monkeypatch):
    view, _ = view_on()
    monkeypatch.setattr(RunHistory, "mean_speed", lambda history, ppo: 7.0 * ppo.complete_steps)
    trainer(Constant).learn(64, callbacks=view)
    assert view.now.mean_speed == 7.0 * 64


def test_the_limit_is_all_cores_over_the_time_of_the_environments_and_the_flops(
        trainer, monkeypatch):
    ppo = trainer(Constant, num_envs=4, num_steps=8)
    monkeypatch.setattr("fastppo.terminal.snapshot.measured_peak", lambda: 1e9)
    times = ppo.arena["times"]
    times[:] = np.nan
    times[0], times[2] = (1.0, 10.0, 14.0), (0.5, 10.0, 12.5)  # 3 and 2 seconds of environments
    per_step = 5.0 / (4 * 8) + 2e6 / 1e9
    assert speed_limit(ppo, 2e6, 3) == pytest.approx(3 / per_step)
    times[:] = np.nan
    assert speed_limit(ppo, 2e6, 3) is None


def test_the_limit_of_a_run_never_falls(trainer, monkeypatch):
    ppo, history = trainer("CartPole-v1"), RunHistory()
    found = iter([None, 200.0, 100.0, 300.0, 250.0])
    monkeypatch.setattr("fastppo.terminal.snapshot.speed_limit", lambda *_: next(found))
    ppo.learn(64)
    assert [history.snapshot(ppo, STATS).limit for _ in range(5)] == [None, 200, 200, 300, 300]


# ---- hints ---------------------------------------------------------------------------------------

def looks(now, count):
    found = Hints()
    return [text.removeprefix("hint      ").replace("\n          ", " ")
            for _ in range(count) for text in found.new(found.of_speed(now))]


def test_environments_as_bottleneck_are_said_once_with_what_helps():
    assert looks(NOW, 60) == ["61% of the time is environment stepping on 2 cores: more workers"
                              " cannot help, a faster environment can"]
    assert looks(NOW._replace(workers=0), 60)[0].endswith("on 1 of 2 cores: --num_workers=2")
    assert looks(NOW, hints.SETTLED - 1) == []
    assert looks(NOW._replace(shares={"environment": 0.59}), 60) == []


def test_episodes_that_never_end_are_said():
    endless = NOW._replace(step=200_000, shares={},
                           stats={n: x for n, x in STATS.items() if n != "charts/episodes"})
    assert looks(endless, 3) == ["no episode has ended in 200,000 steps: --max_episode_steps=1000"
                                 " truncates them"]
    assert looks(endless._replace(step=199_999), 3) == looks(NOW._replace(shares={}), 3) == []


def test_progress_as_lines_says_a_hint_once(trainer, monkeypatch, capsys):
    for name in ("FIRST_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(f"fastppo.terminal.progress_lines.{name}", 0.0)
    monkeypatch.setattr("fastppo.terminal.hints.ALIKE_STEPS", 100)
    trainer(Constant, progress="lines").learn(400)
    said = re.findall("hint .*", capsys.readouterr().out)
    assert len(said) == 1 and said[0].startswith("hint      each reward of 128 steps was ")


# ---- the terminal --------------------------------------------------------------------------------

def view_on(columns=90, **options):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=columns, height=30, **options)
    return LiveView(console), out


def test_the_view_shows_a_run_and_leaves_its_last_lines(trainer):
    view, out = view_on()
    ppo = trainer("CartPole-v1", num_envs=4, num_steps=64)
    ppo.learn(512, callbacks=view)
    last = out.getvalue().rpartition("step ")[2]
    assert "512 / 512" in last and "steps/s" in last and "kl " in last
    assert "\x1b[2J" not in out.getvalue()  # the screen is not cleared
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")  # cursor shown
    assert view.live is None and view.close() is None


def test_a_hint_that_is_folded_stands_below_its_beginning(trainer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    view, out = view_on(60)
    monkeypatch.setattr(view.hints, "of_speed",
                        lambda now: [("", "more workers cannot help here " * 2)])
    view(trainer("CartPole-v1"), STATS)
    assert out.getvalue().splitlines()[1].strip("\x1b[0m3;") == " " * 10 + "help here"


def test_a_run_that_fails_ends_the_view(trainer):
    view, _ = view_on()
    with pytest.raises(ZeroDivisionError):
        trainer(Constant).learn(callbacks=[view, lambda *_: 1 / 0])
    assert view.live is None


def test_the_view_changes_no_bit(trainer):
    plain, watched = trainer(Constant, seed=3), trainer(Constant, seed=3)
    plain.learn(256)
    view, _ = view_on()
    watched.learn(256, callbacks=view)
    for ours, theirs in zip(plain.policy.parameters(), watched.policy.parameters()):
        assert ours.equal(theirs)


def in_part(trainer, part, seconds, **settings):
    """What a run does that is in a part for so many seconds."""
    ppo = trainer(Constant, **settings)
    ppo.clock = SimpleNamespace(part=part, since=time.monotonic() - seconds)
    return ppo, CurrentPart(ppo)


def test_a_part_that_takes_long_is_shown_with_its_seconds_and_a_message_in_its_place(trainer):
    view, out = view_on()
    (_, view.part), view.now = in_part(trainer, "update", 0), NOW
    assert "   updating\n" in rendered(view) + "\n"
    view.part.clock.since -= 12
    assert "updating 12 s" in rendered(view)
    view.say("stopping after this iteration")
    assert "stopping after this iteration" in rendered(view) and "updating" not in rendered(view)


def test_what_a_run_does_is_shown_in_a_narrow_terminal_too(columns=80):
    doing = "collecting 1,812 of 2,048 steps, 41 steps/s, 30 s left"
    assert text_of(NOW, 100, doing)[-1] == f"now       2 workers   0.6 GB   lr 0.001   {doing}"
    assert text_of(NOW, 80, doing)[-1] == f"now       2 workers   {doing}"
    assert text_of(NOW, 66, doing)[-1] == f"now       {doing}"


@pytest.mark.parametrize("acts", [Constant, "Pendulum-v1"])
def test_a_rollout_that_takes_long_is_shown_with_its_steps_their_speed_and_the_time_left(
        trainer, monkeypatch, acts):
    now = [1_000.0]
    monkeypatch.setattr("fastppo.terminal.snapshot.time.monotonic", lambda: now[0])
    ppo = trainer(acts, num_envs=4, num_steps=256, num_minibatches=4)
    ppo.clock = SimpleNamespace(part="collect", since=now[0])
    part = CurrentPart(ppo)
    assert part.text() == "collecting"
    now[0] += 5
    assert part.text() == "collecting 5 s" and part.hint() == []
    ppo.arena["act"][:3] = 1  # three steps of the warm-up
    now[0] += 6
    assert part.text() == "warming up 12 of 512 steps, 2.0 steps/s, 250 s left"
    assert part.hint() == ["the first rollout of 1,024 steps takes 512 s; --num_steps=16: 32 s"]
    ppo.arena["act"][:128] = 1
    now[0] += 1
    assert part.text() == "warming up 512 of 512 steps, 73 steps/s, 0 s left" and not part.hint()
    ppo.collector.prepared = 0  # the rollout begins
    assert part.text() == "collecting 12 s"
    ppo.arena["logp"][:200, :2] = -0.5
    now[0] += 10
    assert part.text() == "collecting 400 of 1,024 steps, 40 steps/s, 16 s left"
    ppo.clock.since = now[0] - 3  # another one
    assert part.text() == "collecting 3 s"


@pytest.mark.parametrize("envs, steps, minibatches, speed, shorter", [
    (8, 256, 32, 26, [128]), (8, 256, 32, 40, []), (8, 250, 32, 26, [128]), (8, 256, 32, 0.1, [16]),
    (1, 256, 32, 0.1, [64]), (64, 16, 32, 1.0, [])])
def test_a_first_rollout_of_over_a_minute_is_shortened_by_certain_arithmetic(
        trainer, monkeypatch, envs, steps, minibatches, speed, shorter):
    ppo, part = in_part(trainer, "collect", 60, num_envs=envs, num_steps=steps,
                        num_minibatches=minibatches)
    part.speed = speed
    texts = part.hint()
    assert [int(re.search(r"num_steps=(\d+)", text)[1]) for text in texts] == shorter
    for text in texts:
        assert text == (f"the first rollout of {envs * steps:,} steps takes"
                        f" {envs * steps / speed:,.0f} s; --num_steps={shorter[0]}:"
                        f" {envs * shorter[0] / speed:,.0f} s")
    ppo.collector.progress = ppo.progress._replace(iteration=1)
    assert part.hint() == []


def test_the_seconds_are_those_of_the_iteration_that_runs():
    clock, begins = PartTimer(), []
    for _ in range(2):
        with clock("collect"):
            begins.append(clock.since)
    assert begins[0] < begins[1] < time.monotonic()


def rendered(view):
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_before_the_first_iteration_the_view_says_what_is_being_done(trainer):
    view, _ = view_on()
    assert rendered(view).split() == ["now", "starting"]
    _, view.part = in_part(trainer, "collect", 0)
    assert rendered(view).split() == ["now", "collecting"]
    view.part.hint = lambda: ["the first rollout takes 80 s"]
    assert rendered(view).splitlines()[1].rstrip() == "hint      the first rollout takes 80 s"


def test_no_color_is_honoured(trainer, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    view, out = view_on(color_system="standard")
    trainer(Constant).learn(64, callbacks=view)
    assert "steps/s" in out.getvalue()
    assert not re.search(r"\x1b\[(3[1-7]|9[1-7])m", out.getvalue())


@pytest.mark.parametrize("progress, terminal, wanted", [
    ("live", True, "LiveView"), ("live", False, "ProgressLines"), ("lines", True, "ProgressLines"),
    ("none", True, None), ("auto", True, None)])
def test_the_view_is_for_terminals_and_lines_for_everything_else(
        monkeypatch, progress, terminal, wanted):
    monkeypatch.setattr(limits, "is_terminal", lambda stream: terminal)
    found = [type(sink).__name__ for sink in run.make_sinks(Config(progress=progress), None)]
    assert found == [wanted] * bool(wanted)
