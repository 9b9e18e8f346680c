"""Names that scripts for other libraries use in Python: our form of each, as data."""

from typing import Any, Iterable, Mapping, Sequence

from fastppo.settings.aliases import NEAR, in_one, unknown_setting
from fastppo.settings.fixes import Fix, Set
from fastppo.settings.spelling import closest

FOLDER, EVENTS_IN = {"run_dir": "runs/first"}, Set(logger="tensorboard", run_dir="runs/first")
TO_LEARN, VIDEOS = "ppo.learn(callbacks=...)", Set(video_interval=100_000, **FOLDER)
TOTAL_STEPS, EVALUATE = "ppo.learn(total_steps=...)", "ppo.evaluate(episodes=...)"
LOGGED = f"PPO(env, {EVENTS_IN.text(shell=False)})"

# Keyword arguments of PPO: those of learn and the command, and those with another answer here.
SETTINGS: dict[str, Fix] = {
    **dict.fromkeys(("callback", "callbacks"), TO_LEARN),
    **dict.fromkeys(("name", "exp_name", "run_name"), Set(**FOLDER)),
    "video": VIDEOS, "capture_video": VIDEOS, "tensorboard_log": EVENTS_IN,
    "resume": 'PPO.resume("runs/latest")', "save_model": 'ppo.save("model.safetensors")',
    "seeds": "make a PPO for each seed",
}

# Arguments of our functions: those that there are, and the answers to others.
ARGUMENTS: dict[str, tuple[str, dict[str, str]]] = {
    "learn": ("total_steps callbacks", {
        "total_timesteps": TOTAL_STEPS, "timesteps": TOTAL_STEPS, "callback": TO_LEARN,
        "progress_bar": 'PPO(env, progress="live")', "log_interval": 'PPO(env, progress="lines")',
        "tb_log_name": LOGGED,
        "reset_num_timesteps": "leave it out: learn goes on, and a new PPO begins at step 0"}),
    "evaluate": ("", {  # a trainer's and a policy's have other arguments
        **dict.fromkeys(("n_eval_episodes", "n_episodes", "num_episodes"), "episodes=..."),
        "return_episode_rewards": "leave it out: the result has returns and lengths"}),
    "load": ("path device model", {
        **dict.fromkeys(("env", "custom_objects"), 'load(path).evaluate(env="CartPole-v1"), or to'
                        ' train on PPO(env, init_from="model.safetensors")')}),
    "predict": ("obs deterministic state action_mask", {
        "action_masks": "policy.predict(obs, action_mask=...)",
        "episode_start": f"leave it out; in place of evaluate_policy: {EVALUATE}"}),
}

OWN_ENVS = "PPO(env, num_envs=8) makes its environments; without a trainer: make_vec(env, 8)"
NEW_TRAINER = 'make a new trainer with its weights: PPO(env, init_from="model.safetensors")'

# Attributes of a trainer, and names to import.
ATTRIBUTES = {
    "load": 'fastppo.load("model.safetensors") for a policy; PPO.resume("runs/latest") to train on',
    "set_env": NEW_TRAINER, "set_parameters": NEW_TRAINER, "env": OWN_ENVS, "get_env": OWN_ENVS,
    "get_vec_normalize_env": "ppo.policy.observer", "get_parameters": "ppo.policy.state_dict()",
    "num_timesteps": "ppo.step", "device": "ppo.config.device", "logger": LOGGED,
    "set_logger": LOGGED, "observation_space": "ppo.policy.obs_space",
    "action_space": "ppo.policy.act_space", "train": "ppo.update(ppo.collect())",
    "n_envs": "ppo.config.num_envs", "learning_rate": "ppo.lr", "rollout_buffer": "ppo.rollout",
    "set_random_seed": "PPO(env, seed=1)", "fit": f"train with {TOTAL_STEPS}",
    "run": f"train with {TOTAL_STEPS}",
}
# Attributes of a policy from a file.
POLICY_ATTRIBUTES = {
    "save": "copy the file that it is from; fastppo.export(policy, path) writes other formats",
    "learn": 'PPO(env, init_from="model.safetensors") trains on with its weights;'
             ' PPO.resume("runs/latest") continues the run',
}
PUBLIC_NAMES = {"make_vec_env": OWN_ENVS, "SubprocVecEnv": OWN_ENVS, "DummyVecEnv": OWN_ENVS,
                "evaluate_policy": EVALUATE, "VecNormalize": "PPO(env, norm_obs=True)"}


def unknown_settings(given: Mapping[str, Any], known: Sequence[str]) -> tuple[str, Fix]:
    """(what is wrong with keyword arguments that are no settings, the fix), for all at once."""
    found = [(name, *unknown_setting(name, name, value, not value, known))
             for name, value in given.items()]
    if isinstance(network := given.get("policy_kwargs"), dict):
        found = [(name, what, fix if name != "policy_kwargs" else network_settings(network))
                 for name, what, fix in found]
    return in_one([(what, SETTINGS.get(name, fix)) for name, what, fix in found],
                  "names are no settings of fastppo")


def network_settings(policy_kwargs: Mapping[str, Any]) -> Set:
    """The settings that `policy_kwargs` of Stable-Baselines3 stand for."""
    sizes, activation = policy_kwargs.get("net_arch"), policy_kwargs.get("activation_fn")
    return Set(hidden_sizes=_widths(sizes), activation=getattr(
        activation, "__name__", "tanh").lower())


def _widths(net_arch: Any) -> tuple[int, ...]:
    """The hidden layers of a `net_arch`: the policy's, after those that it shares."""
    if isinstance(net_arch, Mapping):
        return _widths(net_arch.get("pi"))
    if isinstance(net_arch, (list, tuple)):
        return tuple(width for part in net_arch for width in _widths(part))
    return (net_arch,) if isinstance(net_arch, int) else (64, 64)


def unknown_arguments(function: str, given: Iterable[str], own: str = "") -> tuple[str, Fix]:
    """(what is wrong with arguments that one of ARGUMENTS lacks, the fix), for all at once.

    `own` are those that it has, if they are not in the table.
    """
    known, answers = ARGUMENTS[function]
    own = own or known
    near = {name: closest(name, own.split(), NEAR) for name in given}
    return in_one([(f"{function} has no argument {name!r}", answers.get(name) or (
        f"call it {our}" if our else f"it takes {own.replace(' ', ', ')}"))
        for name, our in near.items()], f"arguments are unknown to {function}")
