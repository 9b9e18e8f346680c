"""Every choice of a run: one frozen, flat, validated dataclass, which is also the command line.

`None` (or "auto") means: resolved once when the trainer is built, and visible in `ppo.config`.
Where a default has a source it stands at the end of the field's text in brackets; the table of all
of them is docs/config.md.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_origin

from fastppo.errors import ConfigError
from fastppo.settings.aliases import nearest_setting
from fastppo.settings.fixes import flag
from fastppo.settings.presets import preset_of
from fastppo.settings.schedules import EXAMPLES, Scheduled, is_finite_number, is_schedule
from fastppo.settings.spelling import MODELS, flag_meant


@dataclass(frozen=True)
class Config:
    """The settings of a run; unknown or impossible ones raise ConfigError at birth."""

    env_name: str = "LunarLander-v3"
    """Environment: a Gymnasium id, `package:Id-v0`, or `module:callable`; the default is the
    command's alone, PPO must be given one [the first life's default]"""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments for the environment; JSON on the command line"""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; none: the environment's own limit"""
    frame_stack: int = 1
    """Observations that are seen together, this one and those before it [4 for Atari: Mnih 2015]"""
    preprocessing: Literal["none", "atari"] = "none"
    """What is done to observations first: atari: up to 30 no-ops at a reset, actions held for 4
    frames, the maximum of the last two in grey at 84x84, FIRE at a reset; sticky actions stay as
    the id has them, in v5 a quarter [Mnih 2015, Machado 2018]"""
    end_on_life_loss: bool = False
    """The end of a life ends an episode while training; evaluation plays whole games; for
    preprocessing=atari [baselines: on]"""
    preset: str = "auto"
    """Settings for a family of environments: auto (looked up by env_name), none, or a name from
    fastppo.presets; whatever is given beside it wins"""
    seed: int | None = None
    """Seed of everything random, 0 to 2**63 - 1; none: drawn, printed and stored"""
    total_steps: int = 1_000_000
    """Environment steps (after frame skip) at which training ends
    [CleanRL ppo_continuous_action]"""

    model: Any = "auto"
    """Network: auto (cnn for images, else mlp), mlp, cnn [Mnih 2015], impala [Espeholt 2018],
    impoola (impala with pooling [Trumpp 2025]), or a class of your own as `module:Class`, in Python
    also itself, which is called with (observation space, action space)"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer; behind an image that is all there is to see there are none
    [Schulman 2017, section 6.1]"""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu", "leaky_relu"] = "tanh"
    """Nonlinearity of the hidden layers; the last three are torch's alone
    [Schulman 2017, section 6.1]"""
    layer_norm: bool = False
    """Normalise what hidden layers give before their nonlinearity [Ba 2016]"""
    shared_critic: bool | None = None
    """Actor and critic share all but their last layers; none: where there are convolutions
    [CleanRL ppo.py, ppo_atari.py]"""
    actor_keys: tuple[str, ...] | None = None
    """Parts of a Dict observation that the actor sees; none: all"""
    critic_keys: tuple[str, ...] | None = None
    """Parts of a Dict observation that the critic sees, which may be more than the actor has;
    none: all"""
    rnn: Literal["none", "gru", "lstm"] = "none"
    """Memory behind the body: a cell of this kind, whose state goes with every environment [37
    details, numbers 32 to 36]"""
    rnn_size: int = 128
    """Features of that cell [37 details]"""
    distribution: Literal["gaussian", "state_gaussian", "squashed", "beta"] = "gaussian"
    """Distribution of Box actions: gaussian (a std free of the state), state_gaussian (a std that
    the network gives), squashed (tanh of a gaussian), beta (between the bounds)
    [Schulman 2017, section 6.1]"""
    log_std_init: float = 0.0
    """Initial log standard deviation of Box actions that are normally distributed
    [CleanRL ppo_continuous_action]"""
    std: float | str | None = None
    """Fixed standard deviation of Box actions: a number, or 10% of the action's range; none: it is
    learnt"""
    min_std: float = 0.0
    """What state_gaussian adds to its standard deviation"""
    std_scale: float = 1.0
    """What state_gaussian multiplies its softplus by; where it begins stays log_std_init's"""
    action_scaling: bool = False
    """Box actions are chosen in [-1, 1] and mapped to their bounds; else clipped to them"""
    final_tanh: bool = False
    """The means of Box actions end in a tanh; for --action_scaling"""
    sde: bool = False
    """Generalised state-dependent exploration of Box actions [Raffin 2021]"""
    sde_sample_freq: int | None = None
    """Steps for which gSDE keeps its noise; none: a whole rollout [SB3]"""

    num_envs: int = 8
    """Environments stepped side by side, E; auto: the preset's, else the default
    [rl-zoo ppo.yml, CartPole; docs/decisions/0009]"""
    num_steps: int = 256
    """Steps of each environment per iteration, T; auto: the preset's, else the default
    [docs/decisions/0009]"""
    num_workers: int | Literal["auto"] | None = None
    """Processes that step environments; 0: the main process; none: one a usable core; auto: that or
    0, whichever a short measurement says is faster, for the results are the same"""
    vec: Literal["auto", "workers", "native", "envpool"] = "auto"
    """Who steps: our workers, or one vector environment in the main process: the id's own (native:
    its `vector_entry_point`) or EnvPool's; auto: workers, except where a VectorEnv is handed in"""
    acting: Literal["auto", "local", "central"] = "auto"
    """Who chooses actions: every process for itself (local), or the main process for all (central);
    auto: local where the compiled kernel serves the network"""
    step_timeout: float = 300.0
    """Seconds one environment step may take before its worker is killed; 0: any time"""
    reset_timeout: float = 600.0
    """Seconds starting or resetting environments may take before the worker is killed; 0: any
    time"""

    gamma: float = 0.99
    """Discount per step, 0 to 1 [Schulman 2017, table 3]"""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation, 0 to 1 [Schulman 2017, table 3]"""
    reward_scale: float = 1.0
    """Factor on every reward before anything else"""
    clip_rewards: bool = False
    """Train on the sign of rewards [on for Atari: Mnih 2015]"""
    norm_rewards: bool | None = None
    """Divide rewards by the running std of the discounted return; none: where reward_scale is 1 and
    clip_rewards is off [baselines VecNormalize]"""
    reward_limit: float = 10.0
    """Largest magnitude of a reward after normalisation; used with norm_rewards [baselines]"""
    norm_obs: bool = True
    """Normalise observations by their running moments [baselines VecNormalize]"""
    obs_limit: float = 10.0
    """Largest magnitude of an observation after normalisation; used with norm_obs [baselines]"""
    norm_advantages: Literal["minibatch", "rollout", "none"] = "minibatch"
    """Where advantages are brought to mean 0 and std 1 [37 details, number 7]"""

    epochs: int = 10
    """Passes over each rollout [Schulman 2017, table 3]"""
    num_minibatches: int = 32
    """Minibatches per pass [SB3: 64 rows each of 2,048]"""
    num_microbatches: int = 1
    """Parts of a minibatch whose gradients are added before a step: less memory, the same result"""
    lr: Scheduled = 3e-4
    """Learning rate at the first iteration [Schulman 2017, table 3]"""
    critic_lr: Scheduled | None = None
    """Learning rate of what is the critic's alone: parameters named critic, value or vf; none: the
    same"""
    anneal_lr: bool = True
    """A learning rate that is a plain number falls linearly to zero over total_steps; not lr under
    adaptive_kl [37 details, number 4]"""
    adaptive_kl: float | None = None
    """KL that lr is kept near, epoch by epoch: divided by 1.5 above twice this, multiplied by 1.5
    below half of it, between 1e-6 and 1e-2; none: never [rl_games, rsl_rl]"""
    optimizer: Any = "adam"
    """Who takes the steps, at the rate lr: adam; in Python also a class of torch.optim, or any
    callable that is given the parameters and returns an optimizer"""
    adam_eps: float = 1e-5
    """Epsilon of Adam [37 details, number 3]"""
    loss: Any = "ppo"
    """What is minimised: ppo; in Python also a function (fresh, batch, coefficients) -> (loss,
    statistics), or a subclass of fastppo.learner.Learner"""
    clip_range: Scheduled = 0.2
    """Clipping of the probability ratio, above 0 [Schulman 2017, table 3]"""
    clip_range_vf: Scheduled | None = None
    """Clipping of the value's change; none: off [Engstrom 2020, Andrychowicz 2021: no gain]"""
    dual_clip: float | None = None
    """Largest factor on a negative advantage, above 1, such as 3; none: off [Ye 2020]"""
    rpo_alpha: float = 0.0
    """Uniform noise, plus or minus this, on the mean of Box actions while updating; 0: off
    [Rahman 2022: 0.5 where on]"""
    entropy_coef: Scheduled = 0.0
    """Weight of the entropy bonus [Schulman 2017, table 3]"""
    value_coef: float = 0.5
    """Weight of the value loss [baselines ppo2]"""
    norm_values: bool = False
    """The critic learns returns normalised by their running moments [van Hasselt 2016]"""
    recompute_advantages: bool = False
    """Advantages and returns anew before every epoch but the first, of the critic as it is then
    [Andrychowicz 2021]"""
    max_grad_norm: float = 0.5
    """Largest Euclidean norm of the gradient [baselines ppo2]"""
    grad_clipping: Literal["global", "network"] = "global"
    """What max_grad_norm limits: the whole gradient, or actor's and critic's each on its own
    [37 details, number 11]"""
    target_kl: float | None = None
    """Skip the remaining epochs when one's mean KL exceeds 1.5 times this; none: never [SB3]"""

    device: str = "cpu"
    """Device of the learner: cpu, cuda, cuda:1, ..., or auto (cuda where there is one)"""
    learner: Literal["auto", "kernel", "torch"] = "auto"
    """Who computes the update: the compiled kernel or torch; auto: the kernel where it serves,
    which is a built-in MLP on the CPU [bench/LOG.md]"""
    torch_threads: int | None = None
    """Torch's threads while acting and updating; none: 1, networks this small gain from no more"""

    eval_episodes: int = 100
    """Deterministic episodes of one evaluation: while training, and by the command when it has
    ended; 0: none"""
    eval_interval: int | None = None
    """Environment steps between evaluations while training, the last one at total_steps; the best
    model so far is kept as best.safetensors in the run's folder; none: never"""
    eval_env: Any | None = None
    """Environment to evaluate in: a Gymnasium id or `module:callable`, in Python also a callable;
    takes no env_kwargs, but max_episode_steps; none: the one that is trained on"""
    logger: Literal["none", "wandb"] = "none"
    """Where metrics go beside the CSV file of the command"""
    wandb_project: str = "fastppo"
    """Project name for wandb"""
    progress: Literal["auto", "lines", "none"] = "auto"
    """What is printed while training; auto: lines from the command, nothing when embedded"""
    run_dir: str | None = None
    """Folder for the run's files; none: a new one under runs/ for the command, no files when
    embedded"""

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, plain_value(getattr(self, field.name)))
        beneath = {"progress": "lines"} | preset_of(str(self.env_name), str(self.preset))
        for field, holds, wanted in _RULES:
            value = getattr(self, field)
            if (value is not None or default_of(field) is not None) and not holds(value):
                raise ConfigError(f"{field} is {value!r}, but must be {wanted}", flag_meant(
                    field, value, wanted, beneath.get(field, default_of(field))))
        if self.num_minibatches > self.num_envs * self.num_steps:
            rows = self.num_envs * self.num_steps
            raise ConfigError(
                f"num_minibatches {self.num_minibatches} is more than the {rows} rows of a rollout"
                f" (num_envs {self.num_envs} x num_steps {self.num_steps})",
                flag("num_minibatches", min(rows, beneath.get("num_minibatches", 32))))

    def replace(self, **changes) -> "Config":
        """This Config with some fields changed; an unknown name raises ConfigError."""
        check_names(changes)
        return replace(self, **changes)


def check_names(names) -> None:
    """Raise ConfigError for the first name that is no field of Config, with the nearest one."""
    known = [field.name for field in fields(Config)]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}", nearest_setting(name, known))


def plain_value(value: Any) -> Any:
    """`value` with numbers of numpy as Python's own, and a list as a tuple."""
    if isinstance(value, (list, tuple)):
        return tuple(map(plain_value, value))
    return value.item() if hasattr(value, "item") and getattr(value, "shape", 0) == () else value


def default_of(name: str) -> Any:
    """The default of a field."""
    return next(field.default for field in fields(Config) if field.name == name)


def _share(value) -> Any:
    """The number of a text like 10%; else `value`."""
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", value) if isinstance(value, str) else None
    return float(share[1]) if share else value


def _whole(low: int):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def _among(*names):
    return lambda value: value in names, "one of " + ", ".join(map(str, names))


_RULES = [(name, *rule) for names, rule in (
    ("num_envs num_steps epochs num_minibatches num_microbatches total_steps torch_threads "
     "max_episode_steps eval_interval sde_sample_freq frame_stack rnn_size",
     (_whole(1), "whole, above 0")),
    ("eval_episodes", (_whole(0), "a whole number, 0 or more")),
    ("num_workers", (lambda x: x == "auto" or _whole(0)(x), "a whole number, 0 or more, or auto")),
    ("seed", (lambda x: _whole(0)(x) and x < 2**63, "a whole number from 0 to 2**63 - 1")),
    ("lr critic_lr clip_range clip_range_vf", (is_schedule, f"a finite number above 0, or {EXAMPLES}")),
    ("entropy_coef", (lambda x: is_schedule(x, False), f"a finite number, 0 or more, or {EXAMPLES}")),
    ("adam_eps max_grad_norm target_kl adaptive_kl reward_limit obs_limit std_scale",
     (lambda x: is_finite_number(x) and x > 0, "a finite number above 0")),
    ("value_coef rpo_alpha step_timeout reset_timeout min_std",
     (lambda x: is_finite_number(x) and x >= 0, "a finite number, 0 or more")),
    ("dual_clip", (lambda x: is_finite_number(x) and x > 1, "a finite number above 1, such as 3")),
    ("gamma gae_lambda", (lambda x: is_finite_number(x) and 0 <= x <= 1, "a number from 0 to 1")),
    ("reward_scale log_std_init", (is_finite_number, "a finite number")),
    ("std", (lambda x: is_finite_number(_share(x)) and _share(x) > 0, "a number above 0, or such as 10%")),
    (" ".join(x.name for x in fields(Config) if x.type in (bool, bool|None)), _among(True, False)),
    *((x.name, _among(*x.type.__args__)) for x in fields(Config) if get_origin(x.type) is Literal),
    ("env_name device wandb_project", (lambda x: isinstance(x, str), "a string")),
    ("run_dir", (lambda x: isinstance(x, str) or hasattr(x, "__fspath__"), "a folder's path")),
    ("env_kwargs", (lambda x: isinstance(x, dict) and {*map(type, x)} <= {str}, "a dict by name")),
    ("model", (lambda x: callable(x) or ":" in str(x) or x in MODELS, _among(*MODELS)[1])),
    ("optimizer", (lambda x: callable(x) or x == "adam", "adam, or in Python torch.optim.SGD")),
    ("loss", (lambda x: callable(x) or x == "ppo", "ppo, or in Python a function")),
    ("hidden_sizes", (lambda x: isinstance(x, tuple) and all(map(_whole(1), x)),
                      "whole numbers, 1 or more, such as --hidden_sizes=64,64")),
) for name in names.split()]
