"""A Collector of a simulator on a device."""

from gymnasium.vector import VectorEnv

from fastppo.collect import Collector
from fastppo.stepping.device_vector import DeviceVector
from fastppo.stepping.simulator import Simulator


def attached_simulator(collector: Collector, env: VectorEnv) -> bool:
    """Makes `collector` step `env` if that is a simulator, whose rollout stays on the device."""
    if not isinstance(env, Simulator):
        return False
    policy, seed = collector.policy, collector.config.seed
    collector.vec = vec = DeviceVector(env, collector.arena, policy, seed)
    collector.rollout = collector.rollout._replace(
        obs=policy.observer.layout.structure(vec.columns.obs), act=vec.columns.act)
    return True
