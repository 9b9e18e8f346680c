"""Warnings of MuJoCo are logged once, and the handler of the host is put back."""

import sys
import types

import gymnasium as gym
import pytest

from fastppo import make_vec
from fastppo.envs.make import mujoco_warnings_once


class FakeMujoco(types.ModuleType):
    """The part of mujoco that handles its warnings."""

    def __init__(self):
        super().__init__("mujoco")
        self.handler = print

    def get_mju_user_warning(self):
        return self.handler

    def set_mju_user_warning(self, handler):
        self.handler = handler


def test_a_warning_is_logged_once_in_a_process_and_the_handler_is_put_back(monkeypatch, caplog):
    fake = FakeMujoco()
    monkeypatch.setitem(sys.modules, "mujoco", fake)
    for _ in range(3):
        with pytest.raises(KeyError), mujoco_warnings_once(False):
            fake.handler("masses are light")
            raise KeyError
        assert fake.handler is print
    assert caplog.messages == ["MuJoCo: masses are light"]


def test_without_mujoco_nothing_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    with mujoco_warnings_once(False):
        assert "mujoco" not in sys.modules


def test_environments_of_gymnasium_with_mujoco_print_nothing_themselves(capfd, tmp_path,
                                                                       monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # its log would be written here
    from fastppo.envs.make import make_envs, make_factory
    assert "HalfCheetah-v5" in gym.registry
    for env in make_envs([make_factory("HalfCheetah-v5")] * 2):
        env.close()
    assert "settotalmass" not in capfd.readouterr().out and not list(tmp_path.iterdir())


def test_workers_do_not_repeat_what_the_main_process_has_logged(capfd):
    pytest.importorskip("mujoco")
    with make_vec("HalfCheetah-v5", num_envs=2, num_workers=2) as envs:
        envs.reset(seed=1)
    assert "settotalmass" not in capfd.readouterr().err
