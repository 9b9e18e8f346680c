"""A Collector of a vector environment, or of a simulator on a device."""

from gymnasium.vector import VectorEnv

from fastppo.collect import Collector
from fastppo.stepping.actors import Actor, CentralActor
from fastppo.stepping.device_vector import DeviceVector
from fastppo.stepping.native_vector import NativeVector
from fastppo.stepping.simulator import Simulator


def attach_vector(collector: Collector, env: VectorEnv, actor: Actor) -> None:
    """Makes `collector` step `env`; a simulator's observations and actions stay on the device."""
    arena, policy, seed = collector.arena, collector.policy, collector.config.seed
    if isinstance(env, Simulator):
        collector.vec = vec = DeviceVector(env, arena, policy, seed)
        collector.rollout = collector.rollout._replace(
            obs=policy.observer.layout.structure(vec.columns.obs), act=vec.columns.act)
        return
    collector.vec = NativeVector(env, arena, actor, seed)
    if isinstance(actor, CentralActor):
        actor.attach(collector)
