"""Config: every setting of a run in one flat, frozen, validated dataclass.

Its fields are the keyword arguments of PPO and the flags of the command. `None` (or "auto") is
resolved when the trainer is built; `ppo.config` has the result. A field's text may end with the
source of its default in brackets. docs/config.md has all of them in a table.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Mapping, get_origin

from fastppo.errors import ConfigError
from fastppo.settings.aliases import unknown_names
from fastppo.settings.fixes import Set
from fastppo.settings.presets import preset_of
from fastppo.settings.schedules import EXAMPLES, Scheduled, is_finite_number, is_schedule
from fastppo.settings.spelling import MODELS
from fastppo.settings.values import LOGGERS, are_names, image_size, is_path, plain_value


@dataclass(frozen=True)
class Config:
    """The settings of a run; the constructor raises ConfigError for invalid values."""

    env_name: str = "LunarLander-v3"
    """Environment: a Gymnasium id, `package:Id-v0` or `module:callable`; the default is for the
    command only, PPO must be given one [this project's first version]"""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments for the environment; JSON on the command line"""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; none: the environment's own limit"""
    frame_stack: int = 1
    """Consecutive observations given to the network at once, the current one included
    [4 for Atari: Mnih 2015]"""
    frame_skip: int | None = None
    """Frames that an action is repeated for, fewer at the end of an episode; their rewards are
    added up, and the last one is seen; none: 1, with preprocessing=atari 4; total_steps and
    max_episode_steps count actions, a limit of the environment itself counts frames"""
    grayscale: bool = False
    """Make images with three channels grey, as Gymnasium's GrayscaleObservation does"""
    resize: int | str | None = None
    """Size of images: pixels of a side, or HEIGHTxWIDTH such as 64x96; each new pixel is the mean
    over its area; none: as they are, with preprocessing=atari 84"""
    preprocessing: Literal["none", "atari"] = "none"
    """Preprocessing of observations; atari: noop_max, each action repeated for frame_skip frames,
    maximum of the last two, grayscale, resize, fire_on_reset; sticky actions as the id defines them
    (probability 0.25 in v5), or by env_kwargs [Mnih 2015, Machado 2018]"""
    noop_max: int = 30
    """Most no-ops at a reset, drawn from 1 on, in games that have this action; for
    preprocessing=atari; 0: none [Mnih 2015]"""
    fire_on_reset: bool = True
    """Press FIRE after a reset in games that have this action; for preprocessing=atari
    [baselines]"""
    end_on_life_loss: bool = False
    """Losing a life ends the episode in training; returns and evaluation are of whole games; for
    preprocessing=atari [baselines: on]"""
    preset: str = "auto"
    """Defaults for a family of environments: auto (looked up by env_name), none, the name of a
    preset, or a file of settings of your own, .toml or .json; settings that you give take
    precedence"""
    seed: int | None = None
    """Seed of all random numbers, 0 to 2**63 - 1; none: drawn at random, printed and saved"""
    total_steps: int = 1_000_000
    """Environment steps (after frame skip) at which training ends
    [CleanRL ppo_continuous_action]"""

    model: Any = "auto"
    """Network: auto (cnn for images, else mlp), mlp, cnn [Mnih 2015], impala [Espeholt 2018],
    impoola (impala with average pooling [Trumpp 2025]), or your own class as `module:Class` (in
    Python also the class itself), called with (observation space, action space)"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer; unused where an image is the only observation
    [Schulman 2017, section 6.1]"""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu", "leaky_relu"] = "tanh"
    """Activation of the hidden layers; the compiled kernels have tanh, relu and elu, the others run
    in torch [Schulman 2017, section 6.1]"""
    layer_norm: bool = False
    """Layer normalisation before the activation of each hidden layer [Ba 2016]"""
    shared_critic: bool | None = None
    """Actor and critic share all layers but the last; none: True for convolutional networks whose
    actor and critic have the same keys [CleanRL ppo.py, ppo_atari.py]"""
    actor_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the actor sees; none: all"""
    critic_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the critic sees, also keys that the actor does not see; none:
    all"""
    rnn: Literal["none", "gru", "lstm"] = "none"
    """Recurrent layer after the encoder, with one state per environment [37 details, numbers 32 to
    36]"""
    rnn_size: int = 128
    """Features of the recurrent layer [37 details]"""
    distribution: Literal["gaussian", "state_gaussian", "squashed", "beta"] = "gaussian"
    """Distribution of Box actions: gaussian (state-independent standard deviation), state_gaussian
    (the network returns the standard deviation too), squashed (tanh of a gaussian), beta (between
    the bounds) [Schulman 2017, section 6.1]"""
    log_std_init: float = 0.0
    """Initial log standard deviation of normally distributed Box actions
    [CleanRL ppo_continuous_action]"""
    std: float | str | None = None
    """Fixed standard deviation of Box actions: a number, or a percentage of the action's range such
    as 10%; none: the standard deviation is learned"""
    min_std: float = 0.0
    """Added to the standard deviation of state_gaussian"""
    std_scale: float = 1.0
    """Factor on the softplus that gives the standard deviation of state_gaussian; log_std_init
    still sets the initial value"""
    action_scaling: bool = False
    """Choose Box actions in [-1, 1] and scale them to the bounds, instead of clipping them to the
    bounds"""
    final_tanh: bool = False
    """Apply a tanh to the means of Box actions; for use with action_scaling"""
    sde: bool = False
    """Generalised state-dependent exploration (gSDE) of Box actions [Raffin 2021]"""
    sde_sample_freq: int | None = None
    """Steps after which gSDE draws new noise; none: once per rollout [SB3]"""

    num_envs: int = 8
    """Environments stepped in parallel, E; auto: the preset's value, else the default
    [rl-zoo ppo.yml, CartPole; docs/decisions/0009]"""
    num_steps: int = 256
    """Steps of each environment per iteration, T; auto: the preset's value, else the default
    [docs/decisions/0009]"""
    num_workers: int | Literal["auto"] | None = None
    """Worker processes that step the environments; 0: the main process steps them; none: one per
    usable core; auto: one per usable core or 0, whichever a short measurement finds faster (the
    results are the same); a number is limited to one per environment and 16 per core"""
    vec: Literal["auto", "workers", "native", "envpool"] = "auto"
    """Vectorisation: workers (worker processes, each with some of the environments), native (the
    vector environment of the id's `vector_entry_point`, in the main process) or envpool (EnvPool's,
    in the main process); auto: workers, unless PPO is given a VectorEnv"""
    acting: Literal["auto", "local", "central"] = "auto"
    """Process that computes actions: local (each process for its own environments) or central (the
    main process for all of them); auto: local where the compiled kernel supports the network"""
    step_timeout: float = 300.0
    """Seconds that one environment step may take before its worker is killed; 0: no limit"""
    reset_timeout: float = 600.0
    """Seconds that starting or resetting environments may take before the worker is killed; 0: no
    limit"""
    on_worker_failure: Literal["raise", "restart"] = "raise"
    """When a worker process raises, dies or hangs: raise (end the run with an error) or restart
    (start the workers again and replay the running episodes, three times in ten minutes at most; an
    episode that fails twice at the same step is truncated before it)"""
    nan_policy: Literal["raise", "reset_env"] = "raise"
    """When a reward or an observation is not finite: raise (a fault of the environment) or
    reset_env (discard the step and truncate the episode before it)"""
    replay_limit: int = 100_000
    """Steps of a running episode that can be replayed when a run is resumed or a worker is started
    again; a longer one ends there"""
    replay_timeout: float = 120.0
    """Seconds that the replay of one episode may take; one that takes longer ends there"""
    worker_env: tuple[str, ...] | None = None
    """Environment variables that workers get although their names look like credentials; none:
    none of them"""

    gamma: float = 0.99
    """Discount per step, 0 to 1 [Schulman 2017, table 3]"""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation, 0 to 1 [Schulman 2017, table 3]"""
    reward_scale: float = 1.0
    """Factor on every reward, applied before clipping and normalisation"""
    clip_rewards: bool = False
    """Train on the sign of rewards [on for Atari: Mnih 2015]"""
    norm_rewards: bool | None = None
    """Divide rewards by the running standard deviation of the discounted return; none: True where
    reward_scale is 1 and clip_rewards is off [baselines VecNormalize]"""
    reward_limit: float = 10.0
    """Largest magnitude of a reward after normalisation; used with norm_rewards [baselines]"""
    norm_obs: bool = True
    """Normalise observations by their running mean and standard deviation
    [baselines VecNormalize]"""
    obs_limit: float = 10.0
    """Largest magnitude of an observation after normalisation; used with norm_obs [baselines]"""
    norm_advantages: Literal["minibatch", "rollout", "none"] = "minibatch"
    """Samples over which advantages are normalised to mean 0 and standard deviation 1
    [37 details, number 7]"""

    epochs: int = 10
    """Passes over each rollout [Schulman 2017, table 3]"""
    num_minibatches: int = 32
    """Minibatches per epoch; a network with memory has num_envs at most, for its minibatches are
    whole environments [SB3: 64 rows each of 2,048]"""
    num_microbatches: int = 1
    """Parts of a minibatch whose gradients are added up before a step: less memory, the same
    result"""
    lr: Scheduled = 3e-4
    """Learning rate at the first iteration [Schulman 2017, table 3]"""
    critic_lr: Scheduled | None = None
    """Learning rate of the parameters that only the critic has, those named critic, value or vf;
    none: lr"""
    anneal_lr: bool = True
    """Decrease a learning rate that is a plain number linearly to zero over total_steps; not lr
    under adaptive_kl [37 details, number 4]"""
    lr_warmup: int = 0
    """Environment steps in which the learning rates rise linearly from a hundredth; Adam's first
    steps have the same size for every weight, which can end the units of a ReLU network"""
    adaptive_kl: float | None = None
    """Target of the KL divergence that lr is adapted to after each epoch: divided by 1.5 where the
    KL is above twice the target, multiplied by 1.5 where it is below half of it, from 1e-6 to 1e-2;
    none: off [rl_games, rsl_rl]"""
    optimizer: Any = "adam"
    """Optimizer, with lr as its learning rate: adam; in Python also a class of torch.optim, or any
    callable that takes the parameters and returns a torch.optim.Optimizer"""
    adam_eps: float = 1e-5
    """Epsilon of Adam [37 details, number 3]"""
    loss: Any = "ppo"
    """Loss to minimise: ppo; in Python also a function (fresh, batch, coefficients) -> (loss,
    statistics), or a subclass of fastppo.learner.Learner"""
    clip_range: Scheduled = 0.2
    """Clipping of the probability ratio, above 0 [Schulman 2017, table 3]"""
    clip_range_vf: Scheduled | None = None
    """Clipping of the change of the value; none: off [Engstrom 2020, Andrychowicz 2021: no gain]"""
    dual_clip: float | None = None
    """Largest factor on a negative advantage, above 1, such as 3; none: off [Ye 2020]"""
    rpo_alpha: float = 0.0
    """Half the width of the uniform noise added to the mean of Box actions in the update; 0: off
    [Rahman 2022: 0.5 where on]"""
    entropy_coef: Scheduled = 0.0
    """Weight of the entropy bonus [Schulman 2017, table 3]"""
    value_coef: float = 0.5
    """Weight of the value loss [baselines ppo2]"""
    norm_values: bool = False
    """PopArt: train the critic on returns normalised by their running mean and standard deviation
    [van Hasselt 2016]"""
    recompute_advantages: bool = False
    """Compute advantages and returns again with the current critic before every epoch but the first
    [Andrychowicz 2021]"""
    max_grad_norm: float = 0.5
    """Largest Euclidean norm of the gradient [baselines ppo2]"""
    grad_clipping: Literal["global", "network"] = "global"
    """Gradient that max_grad_norm limits: global (the whole one) or network (the actor's and the
    critic's separately) [37 details, number 11]"""
    target_kl: float | None = None
    """Skip the remaining epochs of an iteration when the mean KL of one exceeds 1.5 times this;
    none: off [SB3]"""

    device: str = "cpu"
    """Device of the learner: cpu, cuda, cuda:1, ..., or auto: cuda if there is a GPU and the
    network has convolutions or a layer of 256 units, else cpu; with device_ids cuda if there is
    one"""
    device_ids: tuple[int, ...] | None = None
    """GPUs of the processes of one machine that torchrun starts, such as 0,1, or 0,0 to share one;
    for device=cuda; none: process 0 has GPU 0, and so on"""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Library of torch.distributed that adds up gradients under torchrun; auto: nccl on GPUs, else
    gloo"""
    learner: Literal["auto", "kernel", "graph", "torch"] = "auto"
    """Implementation of the update: kernel (compiled), torch, or graph (torch's minibatch as one
    CUDA graph); auto: on the CPU the kernel and on a GPU the graph, where they support the settings
    and the model [bench/LOG.md]"""
    torch_threads: int | None = None
    """Threads of torch; none: 1, which is fastest for small networks"""
    update_threads: int | None = None
    """Threads of torch in the update; none: torch_threads if it is given, else all usable cores
    where torch trains on images on the CPU with convolutions or a model of your own, else 1"""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Precision in which torch computes convolutions and the dense layers behind them, of your own
    model all layers: fp32; tf32 (on a GPU all products of fp32 numbers, rounded to 10 bits); bf16
    (weights, heads and losses stay fp32); auto: for a built-in convolutional network tf32 on a GPU
    and bf16 on a CPU that computes in it (AVX512-BF16, AMX), else fp32"""
    compile: bool = False
    """Compile the network with torch.compile, where torch computes it: the first steps take up to a
    minute longer, and results differ in their last bits"""

    eval_episodes: int = 100
    """Deterministic episodes of each evaluation: those during training, and the command's at the
    end of training; 0: none"""
    eval_interval: int | None = None
    """Environment steps between evaluations during training, the last one at total_steps; the best
    model so far is saved as best.safetensors in the run's folder; none: no evaluations"""
    eval_env: Any | None = None
    """Environment to evaluate in: a Gymnasium id or `module:callable`, in Python also a callable;
    it gets max_episode_steps, but not env_kwargs; none: the environment of training"""
    video_interval: int | None = None
    """Environment steps between videos of an episode during training, of at most 1,000 frames, in
    the folder videos/ of the run; none: no videos"""
    logger: tuple[Literal["tensorboard", "trackio", "wandb"], ...] | str | None = None
    """Programs that metrics are sent to, one or several, beside the CSV file of the command;
    tensorboard needs run_dir, which the command always has"""
    wandb_project: str = "fastppo"
    """Project name for wandb and trackio"""
    wandb_entity: str | None = None
    """User or team that owns wandb's run; none: the account's default"""
    wandb_group: str | None = None
    """Group of runs that wandb or trackio show together; none: no group"""
    wandb_tags: tuple[str, ...] | str | None = None
    """Tags of wandb's run"""
    progress: Literal["auto", "live", "lines", "none"] = "auto"
    """Output of a run: live, lines, or none (with the command the result, notes and errors alone);
    live is redrawn in place, and lines where there is no terminal; lines come every ten seconds;
    auto: live with the command, none in Python"""
    checkpoint_interval: float = 60.0
    """Seconds between checkpoints in the run's folder, the last one at the end of training; 0: only
    that one"""
    run_dir: str | None = None
    """Folder for the run's files; none: a new one under runs/ with the command, no files in
    Python"""

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, plain_value(getattr(self, field.name), field.type))
        defaults = {"progress": "lines"} | preset_of(str(self.env_name), str(self.preset))
        for name, is_valid, wanted in RULES:
            value, default = getattr(self, name), default_of(name)
            if not (value is default is None or is_valid(value)):
                raise ConfigError(f"{name} is {value!r}, but must be {wanted}",
                                  Set(**{name: defaults.get(name, default)}))
        if self.num_minibatches > (rows := self.num_envs * self.num_steps):
            raise ConfigError(f"num_minibatches {self.num_minibatches} is more than the {rows} rows"
                              f" of num_envs {self.num_envs} x num_steps {self.num_steps}",
                              Set(num_minibatches=min(rows, defaults.get("num_minibatches", 32))))

    def __new__(cls, *_, **given):
        check_names(given)
        return super().__new__(cls)

    replace = replace  # config.replace(**changes) is a Config with some fields changed


def check_names(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for all names that are no fields of Config, with ours for each."""
    if wrong := [name for name in given if name not in Config.__match_args__]:
        raise ConfigError(*unknown_names("there is no setting", wrong, Config.__match_args__, ""))


def default_of(name: str) -> Any:
    """The default of a field."""
    return next(field.default for field in fields(Config) if field.name == name)


def _whole(low: int, most: int = 2**63 - 1):
    return lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= most


def _one_of(choices):
    return choices.__contains__, "one of " + ", ".join(map(str, choices))


# (settings, a function that is True for a valid value, a description of valid values)
RULES = [(name, *rule) for names, *rule in (
    ("num_envs num_steps epochs num_minibatches num_microbatches total_steps frame_stack rnn_size"
     " max_episode_steps eval_interval video_interval sde_sample_freq replay_limit",
     _whole(1), "a whole number above 0"),
    ("torch_threads update_threads frame_skip", _whole(1, 1_024), "a whole number from 1 to 1024"),
    ("eval_episodes lr_warmup", _whole(0), "a whole number, 0 or more"),
    ("noop_max", _whole(0, 1_000), "a whole number from 0 to 1000"),
    ("num_workers", lambda x: x == "auto" or _whole(0)(x), "a whole number, 0 or more, or auto"),
    ("seed", _whole(0), "a whole number from 0 to 2**63 - 1"),
    ("lr critic_lr clip_range clip_range_vf", is_schedule, f"a number above 0, or {EXAMPLES}"),
    ("entropy_coef", lambda x: is_schedule(x, False), f"a number, 0 or more, or {EXAMPLES}"),
    ("adam_eps max_grad_norm target_kl adaptive_kl reward_limit obs_limit",
     lambda x: is_finite_number(x) and 0 < x < 3e38, "a number above 0, finite in float32"),
    ("value_coef rpo_alpha step_timeout reset_timeout min_std checkpoint_interval replay_timeout",
     lambda x: is_finite_number(x) and x >= 0, "a finite number, 0 or more"),
    ("dual_clip", lambda x: is_finite_number(x) and x > 1, "a finite number above 1, such as 3"),
    ("gamma gae_lambda", lambda x: is_finite_number(x) and 0 <= x <= 1, "a number from 0 to 1"),
    ("reward_scale", is_finite_number, "a finite number"),
    ("resize", image_size, "pixels of a side, from 1 to 9,999, or HEIGHTxWIDTH such as 64x96"),
    # Their squares are neither 0 nor infinite in float32.
    ("log_std_init", lambda x: is_finite_number(x) and -40 <= x <= 40, "a number from -40 to 40"),
    ("std", lambda x: re.fullmatch(r"\d+(\.\d+)?%", str(x)) or is_finite_number(x)
     and 1e-17 <= x <= 1e17, "a number from 1e-17 to 1e17, or a percentage such as 10%"),
    ("std_scale", lambda x: is_finite_number(x) and 1e-3 <= x <= 1e3, "a number from 1e-3 to 1e3"),
    (" ".join(x.name for x in fields(Config) if "bool" in str(x.type)), *_one_of((True, False))),
    *((x.name, *_one_of(x.type.__args__)) for x in fields(Config) if get_origin(x.type) is Literal),
    ("env_name wandb_project wandb_entity wandb_group",
     lambda x: isinstance(x, str) and x.isprintable(), "a string that can be printed"),
    ("device", lambda x: isinstance(x, str) and re.fullmatch(r"auto|(cpu|cuda)(:\d+)?", x),
     "one of auto, cpu, cuda, cuda:1"),
    ("run_dir", is_path, "the path of a folder"),
    ("env_kwargs", lambda x: isinstance(x, dict) and {*map(type, x)} <= {str}, "a dict by name"),
    ("model", lambda x: callable(x) or ":" in str(x) or x in MODELS, _one_of(MODELS)[1]),
    ("optimizer", lambda x: callable(x) or x == "adam", "adam, or in Python torch.optim.SGD"),
    ("loss", lambda x: callable(x) or x == "ppo", "ppo, or in Python a function"),
    ("logger", lambda x: are_names(x, LOGGERS), _one_of(LOGGERS)[1]),
    ("wandb_tags", are_names, "names, such as first,try"),
    ("hidden_sizes", lambda x: isinstance(x, tuple) and all(map(_whole(1), x)), "such as 64,64"),
) for name in names.split()]
