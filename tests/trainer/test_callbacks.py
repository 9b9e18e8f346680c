"""Callbacks: functions and objects that learn calls."""

from threading import Thread

import numpy as np
import pytest
from envs_for_tests import Constant

from fastppo.errors import ConfigError, Error


class Watcher:
    """Writes down every call, with the step at which it came."""

    def __init__(self, answer=None):
        self.calls, self.answer = [], answer

    def on_start(self, ppo):
        self.calls.append(("start", ppo.step, ppo.total))

    def on_collect(self, ppo, rollout):
        self.calls.append(("collect", ppo.step, ppo.pending, len(rollout.rew)))

    def on_iteration(self, ppo, stats):
        self.calls.append(("iteration", ppo.step, "losses/value_loss" in stats))
        return self.answer

    def on_end(self, ppo):
        self.calls.append(("end", ppo.step))


def test_an_object_is_told_of_start_rollouts_iterations_and_end(trainer):
    watcher, ppo = Watcher(), trainer(Constant)
    rows, steps = ppo.config.num_envs * ppo.config.num_steps, ppo.config.num_steps
    ppo.learn(2 * rows, callbacks=watcher)
    assert watcher.calls == [
        ("start", 0, 2 * rows),
        ("collect", rows, True, steps), ("iteration", rows, True),
        ("collect", 2 * rows, True, steps), ("iteration", 2 * rows, True), ("end", 2 * rows)]


def test_an_object_with_one_of_the_methods_is_a_callback_and_a_class_is_none(trainer):
    class End:
        ended = 0

        def on_end(self, ppo):
            self.ended += 1

    one, ppo = End(), trainer(Constant)
    ppo.learn(32, callbacks=[one])
    assert one.ended == 1
    with pytest.raises(ConfigError, match=r"(?s)is a class, but learn calls.*callbacks="):
        ppo.learn(64, callbacks=End)


@pytest.mark.parametrize("answer", [False, np.False_])
def test_an_object_ends_training_as_a_function_does(trainer, answer):
    watcher = Watcher(answer)
    trainer(Constant).learn(10_000, callbacks=watcher)
    assert [call[0] for call in watcher.calls] == ["start", "collect", "iteration", "end"]


def test_the_end_is_told_after_an_exception_too_and_the_next_learn_forgets_the_callback(trainer):
    watcher, ppo = Watcher(), trainer(Constant)

    def fails(ppo, stats):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ppo.learn(callbacks=[watcher, fails])
    assert watcher.calls[-1][0] == "end"
    known = list(watcher.calls)
    ppo.learn(ppo.step + 1)
    assert watcher.calls == known and ppo.total == ppo.config.total_steps


class Failing:
    """Writes down its calls in `seen`; those that are in `fails` raise."""

    def __init__(self, name, seen, *fails):
        self.name, self.seen, self.fails = name, seen, fails

    def on_start(self, ppo):
        self.tell("start")

    def on_iteration(self, ppo, stats):
        self.tell("iteration")

    def on_end(self, ppo):
        self.tell("end")

    def tell(self, event):
        self.seen.append(f"{event} {self.name}")
        if event in self.fails:
            raise OSError(self.seen[-1])


@pytest.mark.parametrize("first, second, raised, ends", [
    ((), (), None, ["a", "b"]), (("end",), (), "end a", ["a", "b"]),
    (("end",), ("end",), "end a", ["a", "b"]),
    (("iteration", "end"), ("end",), "iteration a", ["a", "b"]),
    ((), ("start",), "start b", ["a"]), (("start",), (), "start a", [])], ids=str)
def test_every_callback_that_has_started_ends_and_the_first_exception_is_raised(
        trainer, caplog, first, second, raised, ends):
    ppo, seen = trainer(Constant), []
    callbacks = [Failing("a", seen, *first), Failing("b", seen, *second)]
    if raised:
        with pytest.raises(OSError, match=f"^{raised}$"):
            ppo.learn(32, callbacks=callbacks)
    else:
        ppo.learn(32, callbacks=callbacks)
    assert [call for call in seen if call.startswith("end")] == [f"end {name}" for name in ends]
    others = [f"OSError: end {name}" for name, fails in (("a", first), ("b", second))
              if "end" in fails and raised != f"end {name}"]
    assert [text.rpartition("too: ")[2] for text in caplog.messages] == others
    ppo.learn(ppo.step + 1)  # which goes on without them


def test_an_interrupt_is_raised_before_all_other_exceptions(trainer):
    class Interrupted:
        def on_end(self, ppo):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(Constant).learn(callbacks=[Failing("a", [], "iteration"), Interrupted()])


def test_a_callback_without_a_start_is_told_of_the_end_if_its_turn_has_come(trainer):
    class End:
        def on_end(self, ppo):
            seen.append("end")

    seen = []
    with pytest.raises(OSError, match="start a"):
        trainer(Constant).learn(callbacks=[End(), Failing("a", seen, "start"), End()])
    assert seen == ["start a", "end"]


@pytest.mark.parametrize("event", ["on_start", "on_collect", "on_iteration", "on_end"])
@pytest.mark.parametrize("verb", ["learn", "collect", "update"])
def test_a_callback_cannot_train(trainer, event, verb):
    ppo = trainer(Constant)
    rollout = ppo.collect()
    verbs = {"learn": lambda: ppo.learn(10_000), "collect": ppo.collect,
             "update": lambda: ppo.update(rollout)}
    callback = type("Nested", (), {event: lambda *_: verbs[verb]()})()
    with pytest.raises(Error, match=r"learn of this trainer is running(.|\n)*fix: "):
        ppo.learn(32, callbacks=callback)
    assert ppo.learn(64).step == 64


def test_a_second_thread_cannot_learn_at_the_same_time(trainer):
    ppo, told = trainer(Constant), []

    def learn():
        with pytest.raises(Error, match="no other thread") as caught:
            ppo.learn(64)
        told.append(caught)

    def beside(ppo, stats):
        thread = Thread(target=learn)
        thread.start()
        thread.join()

    assert ppo.learn(64, callbacks=beside).step == 64
    assert len(told) == 2


def test_what_on_collect_changes_in_a_rollout_is_what_the_update_sees(trainer):
    class NoReward:
        def on_collect(self, ppo, rollout):
            rollout.adv.zero_()

    ppo = trainer(Constant, norm_advantages="none", entropy_coef=0.0, value_coef=0.0, seed=1)
    before = {name: x.clone() for name, x in ppo.policy.named_parameters()}
    ppo.learn(32, callbacks=NoReward())
    assert all(x.equal(before[name]) for name, x in ppo.policy.named_parameters())


@pytest.mark.parametrize("name", ["on_iterations", "on_step", "on_xyzzy"])
@pytest.mark.parametrize("beside", ["", "on_end", "__call__"])
def test_a_method_that_learn_never_calls_is_refused(trainer, name, beside):
    kind = type("Callback", (), dict.fromkeys({name, beside} - {""}, lambda *_: None))
    ppo = trainer(Constant)
    with pytest.raises(ConfigError, match=f"has {name}, but learn calls only on_start, on_coll"):
        ppo.learn(callbacks=[kind()])
    assert ppo.step == 0


def test_what_is_no_method_may_have_any_name(trainer):
    class Counter:
        on_time, online = 0, print

        def on_end(self, ppo):
            self.on_time += 1

    counter = Counter()
    trainer(Constant).learn(32, callbacks=counter)
    assert counter.on_time == 1


@pytest.mark.parametrize("callback, event", [
    (lambda stats: None, "on_iteration"), (lambda: None, "on_iteration")])
def test_a_callback_of_other_parameters_is_refused_before_training(trainer, callback, event):
    ppo = trainer(Constant)
    with pytest.raises(ConfigError, match=rf"{event} of the callback .* does not take 2 arg"):
        ppo.learn(callbacks=[callback])
    assert ppo.step == 0


def test_a_method_of_other_parameters_is_refused_before_training(trainer):
    class Wrong:
        def on_collect(self, rollout):
            pass

    with pytest.raises(ConfigError, match="on_collect of the callback .* does not take 2 arg"):
        trainer(Constant).learn(callbacks=Wrong())


def test_a_method_for_videos_of_other_parameters_is_refused_too(trainer):
    class Wrong:
        def on_video(self, ppo, path, step):
            pass

    with pytest.raises(ConfigError, match="on_video of the callback .* does not take 2 arg"):
        trainer(Constant).learn(callbacks=Wrong())


@pytest.mark.parametrize("argument", ["total_timesteps", "callback", "xyz"])
def test_an_argument_that_learn_does_not_have_is_pythons_error(trainer, argument):
    with pytest.raises(TypeError, match=rf"learn\(\) got an unexpected .* '{argument}'"):
        trainer(Constant).learn(**{argument: 10})
