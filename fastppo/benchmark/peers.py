"""Measures another system once, at the same sizes, in the Python that has it installed.

    path/to/python fastppo/benchmark/peers.py sb3 '{"env_name": "CartPole-v1", ...}'

Run as a file, it imports nothing of fastppo and prints one line of JSON: `rate` in steps per second
after the first iteration, `version`, and `env_name` where the system has another version of the
environment; or `failed`, the reason in one line.
Every system gets the same environment, sizes, network, epochs and coefficients, the same device
(only Stable-Baselines3 can have a GPU here), and one torch thread per process (all cores for the
convolutions of Stable-Baselines3, which has one process, and its own preprocessing of Atari games);
and the same normalisation if it has one (rl_games, Sample Factory and RLtools do not normalise
rewards).
None of them supports action masks.
"""

import functools
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import time
import traceback
import types
from typing import NamedTuple


class Peer(NamedTuple):
    """A system that fastppo can be compared with."""

    title: str
    takes: dict  # supported values of the settings that a session checks; None: any


PEERS = {
    "sb3": Peer("Stable-Baselines3", {
        "frame_stack": None, "clip_rewards": None, "model": ["cnn"], "activation": None,
        "target_kl": None, "device": None}),
    "rl_games": Peer("rl_games on EnvPool", {"activation": ["relu", "elu", "silu", "gelu"]}),
    "sample_factory": Peer("Sample Factory", {"clip_rewards": None, "activation": ["relu", "elu"]}),
    "rltools": Peer("RLtools", {"activation": ["tanh", "relu", "gelu"]}),
}
# The same of all systems for Atari games.
ATARI_TAKES = {"preprocessing": ["atari"], "frame_stack": None, "end_on_life_loss": None,
               "clip_rewards": None, "model": ["cnn"]}


class Laps:
    """Steps per second after the first call: `over(steps)` once an iteration, True at the end."""

    def __init__(self, sizes):
        self.sizes, self.laps = sizes, []

    def over(self, steps):
        """Records `steps` since the beginning; returns True after enough iterations or seconds."""
        self.laps.append((time.perf_counter(), steps))
        spent, laps = self.laps[-1][0] - self.laps[0][0], len(self.laps) - 1
        return laps >= (self.sizes["iterations"] or 1) and (
            bool(self.sizes["iterations"]) or spent >= self.sizes["seconds"])

    def rate(self):
        """Steps per second from the end of the first iteration to that of the last."""
        (start, first), (end, last) = self.laps[0], self.laps[-1]
        return (last - first) / (end - start)


def environment(sizes):
    """One environment from an id, `package:Id-v0` or `module:callable`, as fastppo makes it."""
    import gymnasium as gym
    name, kwargs, limit = sizes["env_name"], sizes["env_kwargs"], sizes["max_episode_steps"]
    if name.partition(":")[2].replace(".", "").isidentifier():  # `module:callable`
        env = pkgutil.resolve_name(name)(**kwargs)
        env = gym.wrappers.TimeLimit(env, limit) if limit else env
    else:
        if name.startswith("ALE/") or "NoFrameskip" in name:
            importlib.import_module("ale_py")  # registers Atari environments
        env = gym.make(name, max_episode_steps=limit, **kwargs)
    if sizes["frame_stack"] > 1:
        env = gym.wrappers.FrameStackObservation(env, sizes["frame_stack"])
    scale = sizes["reward_scale"]
    if sizes["clip_rewards"]:
        env = gym.wrappers.TransformReward(env, lambda rew: float(rew > 0) - float(rew < 0))
    return env if scale == 1 else gym.wrappers.TransformReward(env, lambda rew: scale * rew)


def sb3(sizes):
    """Stable-Baselines3's PPO on DummyVecEnv, which is faster here than SubprocVecEnv."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(len(os.sched_getaffinity(0)) if sizes["model"] == "cnn" else 1)
    laps = Laps(sizes)

    class Stamp(BaseCallback):
        """Records the end of every iteration."""

        ended = False

        def _on_rollout_start(self):
            self.ended = self.num_timesteps > 0 and laps.over(self.num_timesteps)

        def _on_step(self):
            return not self.ended

    env = sb3_environments(sizes)
    kind, network = sb3_policy(sizes, env.observation_space)
    model = stable_baselines3.PPO(
        kind, sb3_normalised(env, sizes), device=sizes["device"], seed=1,
        n_steps=sizes["num_steps"], batch_size=sizes["minibatch"], n_epochs=sizes["epochs"],
        learning_rate=sizes["lr"], gamma=sizes["gamma"], gae_lambda=sizes["gae_lambda"],
        ent_coef=sizes["entropy_coef"], target_kl=sizes["target_kl"], policy_kwargs=network)
    model.learn(10**12, callback=Stamp())
    return {"rate": laps.rate(), "version": stable_baselines3.__version__}


def sb3_environments(sizes):
    """The environments of Stable-Baselines3, for Atari games with its own preprocessing."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack
    if sizes["preprocessing"] != "atari":
        return make_vec_env(functools.partial(environment, sizes), sizes["num_envs"], seed=1)
    importlib.import_module("ale_py")  # registers Atari environments
    games = make_atari_env(sizes["env_name"], sizes["num_envs"], seed=1, wrapper_kwargs={
        "terminal_on_life_loss": sizes["end_on_life_loss"], "clip_reward": sizes["clip_rewards"]})
    return VecFrameStack(games, sizes["frame_stack"])


def sb3_policy(sizes, space):
    """The name and keyword arguments of the policy with the same network as fastppo's."""
    from gymnasium.spaces import Dict
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
    from torch import nn

    act = getattr(nn, {"tanh": "Tanh", "relu": "ReLU", "elu": "ELU", "silu": "SiLU",
                       "gelu": "GELU", "leaky_relu": "LeakyReLU"}[sizes["activation"]])
    parts, shared = isinstance(space, Dict), sizes["shared_critic"]
    network = {"net_arch": sizes["hidden_sizes"], "activation_fn": act}
    if sizes["model"] == "cnn" and not parts:  # no hidden layers behind an image alone
        return "CnnPolicy", {**network, "net_arch": [], "share_features_extractor": shared}
    if shared:
        body = sb3_body(CombinedExtractor if parts else FlattenExtractor, sizes["hidden_sizes"],
                        act)
        network = {**network, "net_arch": [], "features_extractor_class": body}
    return ("MultiInputPolicy", {**network, "share_features_extractor": shared}) if parts else \
        ("MlpPolicy", network)


def sb3_body(base, widths, act):
    """`base`, a features extractor, with hidden layers behind it that actor and critic share."""
    from torch import nn

    class Body(base):
        """Shared hidden layers: Stable-Baselines3 has no setting for them since version 1.8."""

        def __init__(self, space):
            super().__init__(space)
            layers = []
            for wide, out in zip([self.features_dim, *widths], widths):
                layers += [nn.Linear(wide, out), act()]
                self._features_dim = out
            self.layers = nn.Sequential(*layers)

        def forward(self, obs):
            return self.layers(super().forward(obs))
    return Body


def sb3_normalised(env, sizes):
    """`env` with normalisation of rewards and of the observations that are not bytes or choices."""
    from gymnasium.spaces import Box, Dict
    from stable_baselines3.common.vec_env import VecNormalize

    space = env.observation_space
    parts = space.spaces if isinstance(space, Dict) else {"": space}
    names = [name for name, part in parts.items() if isinstance(part, Box) and part.dtype != "u1"]
    norm_obs = bool(sizes["norm_obs"] and names)
    if not norm_obs and not sizes["norm_rewards"]:
        return env
    return VecNormalize(env, norm_obs=norm_obs, norm_reward=sizes["norm_rewards"],
                        gamma=sizes["gamma"],
                        norm_obs_keys=names if isinstance(space, Dict) else None)


def rl_games(sizes):
    """rl_games' PPO on EnvPool, with as many EnvPool threads as there are cores."""
    from importlib.metadata import version

    import torch
    from rl_games.common import env_configurations, vecenv
    from rl_games.envs.envpool import Envpool
    from rl_games.torch_runner import Runner

    vecenv.register("ENVPOOL", lambda name, count, **kwargs: Envpool(name, count, **kwargs))
    env_configurations.register("envpool", {"vecenv_type": "ENVPOOL", "env_creator": None})
    name, runner = envpool_id(sizes["env_name"]), Runner()
    params = rl_games_params(sizes, name)
    torch.set_num_threads(params["torch_threads"])
    runner.load({"params": params})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.init_tensors()
    agent.obs, laps, steps, over = agent.env_reset(), Laps(sizes), 0, False
    while not over:
        agent.update_epoch()
        agent.train_epoch()
        agent.dataset.update_values_dict(None)
        steps += agent.curr_frames
        over = laps.over(steps)
    return {"rate": laps.rate(), "version": version("rl_games"), "env_name": name}


def rl_games_params(sizes, name):
    """The settings for these sizes that rl_games usually reads from a YAML file."""
    import envpool as pool
    discrete = hasattr(pool.make_spec(name).action_space, "n")
    act = {"silu": "swish"}.get(sizes["activation"], sizes["activation"])
    weights = {"initializer": {"name": "default"}, "regularizer": {"name": "None"}}
    box = {"mu_activation": "None", "sigma_activation": "None", "fixed_sigma": True,
           "mu_init": {"name": "default"}, "sigma_init": {"name": "const_initializer", "val": 0}}
    hidden, cnn = sizes["hidden_sizes"], {}
    if sizes["model"] == "cnn":
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        hidden, cnn = [512], {"cnn": {
            "type": "conv2d", "activation": "relu", "permute_input": False, **weights,
            "convs": [{"filters": filters, "kernel_size": size, "strides": stride, "padding": 0}
                      for filters, size, stride in layers]}}
    return {
        "seed": 1, "torch_threads": sizes["cores"] if cnn else 1,
        "algo": {"name": "a2c_discrete" if discrete else "a2c_continuous"},
        "model": {"name": "discrete_a2c" if discrete else "continuous_a2c_logstd"},
        "network": {
            "name": "actor_critic", "separate": not sizes["shared_critic"],
            "space": {"discrete": None} if discrete else {"continuous": box},
            **cnn, "mlp": {"units": hidden, "activation": "relu" if cnn else act, **weights}},
        "config": {
            "name": "bench", "env_name": "envpool", "device": "cpu", "device_name": "cpu",
            "train_dir": tempfile.mkdtemp(), "score_to_win": 1e9, "max_epochs": 10**9,
            "env_config": {"env_name": name, **envpool_options(sizes)},
            "num_actors": sizes["num_envs"], "horizon_length": sizes["num_steps"],
            "minibatch_size": sizes["minibatch"], "mini_epochs": sizes["epochs"],
            "gamma": sizes["gamma"], "tau": sizes["gae_lambda"], "learning_rate": sizes["lr"],
            "lr_schedule": None, "e_clip": 0.2, "clip_value": False, "ppo": True,
            "entropy_coef": sizes["entropy_coef"], "critic_coef": 1, "grad_norm": 0.5,
            "truncate_grads": True, "normalize_advantage": True, "bounds_loss_coef": 0.0,
            "normalize_input": sizes["norm_obs"], "normalize_value": False, "kl_threshold": 0.008,
            "use_diagnostics": False, "save_best_after": 10**9, "save_frequency": 0,
            "value_bootstrap": True, "reward_shaper": {"scale_value": sizes["reward_scale"]}}}


def sample_factory(sizes):
    """Sample Factory's APPO, synchronous, with as many workers as there are cores."""
    from importlib.metadata import version

    import gymnasium as gym
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    names = [sizes["env_name"], sizes["env_name"].replace("-v3", "-v2").replace("-v5", "-v4")]
    name = next((one for one in names if one in gym.registry), sizes["env_name"])
    register_env(name, functools.partial(sample_factory_env, sizes))
    argv = sample_factory_argv(sizes, name)
    runner = make_runner(parse_full_cfg(parse_sf_args(argv=argv)[0], argv))[1]
    laps = Laps(sizes)

    class Stamp(AlgoObserver):
        """Records the end of every iteration; ends the process after the last one."""

        def on_training_step(self, runner, training_iteration_since_resume):
            if laps.over(training_iteration_since_resume * sizes["rows"]):
                print_and_exit({"rate": laps.rate(), "version": version("sample_factory"),
                                "env_name": name})

    runner.register_observer(Stamp())
    runner.init()
    runner.run()
    raise RuntimeError("Sample Factory ended before it was measured")


def sample_factory_env(sizes, name, cfg=None, env_config=None, render_mode=None):
    """One environment, for a process of Sample Factory.

    Of a game it is Sample Factory's own, whose episodes end with a life and whose rewards are
    clipped.
    """
    if sizes["preprocessing"] != "atari":
        return environment({**sizes, "env_name": name})
    from sf_examples.atari.atari_utils import ATARI_ENVS, make_atari_env
    importlib.import_module("ale_py")  # registers Atari environments
    game = next(spec.name for spec in ATARI_ENVS if spec.env_id == name)
    frames = types.SimpleNamespace(env_frameskip=4, env_framestack=sizes["frame_stack"])
    return make_atari_env(game, frames, env_config, render_mode)


def sample_factory_argv(sizes, name):
    """Sample Factory's flags for these sizes."""
    workers = max(w for w in range(1, sizes["cores"] + 1) if sizes["num_envs"] % w == 0)
    flags = {
        "algo": "APPO", "env": name, "experiment": "bench", "train_dir": tempfile.mkdtemp(),
        "device": "cpu", "seed": 1, "async_rl": False, "serial_mode": False,
        "num_workers": workers, "num_envs_per_worker": sizes["num_envs"] // workers,
        "worker_num_splits": 2 if sizes["num_envs"] // workers % 2 == 0 else 1,
        "rollout": sizes["num_steps"], "batch_size": sizes["minibatch"],
        "num_batches_per_epoch": sizes["rows"] // sizes["minibatch"],
        "num_epochs": sizes["epochs"], "nonlinearity": sizes["activation"],
        "use_rnn": False, "recurrence": 1, "with_vtrace": False,
        "actor_critic_share_weights": sizes["shared_critic"],
        "normalize_input": sizes["norm_obs"], "normalize_returns": False,
        "gamma": sizes["gamma"], "gae_lambda": sizes["gae_lambda"], "learning_rate": sizes["lr"],
        "train_for_env_steps": 10**12, "train_for_seconds": 10**9, "save_every_sec": 10**6,
        "decorrelate_envs_on_one_worker": False, "decorrelate_experience_max_seconds": 0}
    widths = [str(width) for width in sizes["hidden_sizes"]]
    if sizes["preprocessing"] == "atari":
        flags |= {"encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0,
                  "encoder_conv_mlp_layers": 512}
    return [f"--{key}={value}" for key, value in flags.items()] + ["--encoder_mlp_layers", *widths]


def rltools(sizes):
    """RLtools' PPO in one process, which a C++ compiler makes for these sizes, on Gymnasium's."""
    from importlib.metadata import version

    import rltools as system
    from gymnasium.wrappers import RescaleAction
    width, *others = {*sizes["hidden_sizes"]}
    if others or sizes["shared_critic"]:
        raise ValueError("RLtools has layers of one width, and none that are shared")
    layers = {f"{part}_{name}": value for part in ("ACTOR", "CRITIC") for name, value in {
        "HIDDEN_DIM": width, "NUM_LAYERS": len(sizes["hidden_sizes"]) + 1,
        "ACTIVATION_FUNCTION": sizes["activation"].upper()}.items()}
    ppo = system.PPO(
        lambda: RescaleAction(environment(sizes), -1.0, 1.0),  # the only bounds that it takes
        interface_name="fastppo_bench", **layers, enable_evaluation=False,
        TOTAL_STEP_LIMIT=10**9, N_ENVIRONMENTS=sizes["num_envs"],
        ON_POLICY_RUNNER_STEPS_PER_ENV=sizes["num_steps"], BATCH_SIZE=sizes["minibatch"],
        N_EPOCHS=sizes["epochs"], NORMALIZE_OBSERVATIONS=sizes["norm_obs"], GAMMA=sizes["gamma"],
        LAMBDA=sizes["gae_lambda"], ACTION_ENTROPY_COEFFICIENT=sizes["entropy_coef"],
        OPTIMIZER_ALPHA=sizes["lr"]).State(1)
    laps, steps, over = Laps(sizes), 0, False
    while not over:
        ppo.step()
        steps += sizes["rows"]
        over = laps.over(steps)
    return {"rate": laps.rate(), "version": version("rltools")}


def envpool_id(name):
    """EnvPool's id of a Gymnasium environment: the same id, else another version of it."""
    import envpool as pool
    name = name.removeprefix("ALE/")
    names, base = pool.list_all_envs(), name.rpartition("-v")[0].removesuffix("NoFrameskip")
    near = sorted((one for one in names if one.rpartition("-v")[0] == base), reverse=True)
    if name not in names and not near:
        raise LookupError("EnvPool has no " + name)
    return name if name in names else near[0]


def envpool_options(sizes):
    """EnvPool's options beside the id and the number of environments."""
    limit, name = sizes["max_episode_steps"], sizes["env_name"]
    game = {"stack_num": sizes["frame_stack"], "episodic_life": sizes["end_on_life_loss"],
            "reward_clip": sizes["clip_rewards"],
            "repeat_action_probability": 0.0 if "NoFrameskip" in name else 0.25}
    return {"num_threads": sizes["cores"], "seed": 1, **sizes["env_kwargs"],
            **(game if sizes["preprocessing"] == "atari" else {}),
            **({"max_episode_steps": limit} if limit else {})}


def print_and_exit(found):
    """Prints the result and ends the process, without waiting for the system's own processes."""
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)


def main():
    """Measures one system."""
    name, text = sys.argv[1:]
    sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv
    try:
        found = globals()[name](json.loads(text))
    except Exception as error:  # the system or the environment may raise anything
        traceback.print_exc()
        found = {"failed": traceback.format_exception_only(error)[-1].splitlines()[0]}
    print_and_exit(found)


if __name__ == "__main__":
    del sys.path[0]  # other packages must not import this folder's files
    main()
