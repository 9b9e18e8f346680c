"""Config: every setting of a run in one flat, frozen, validated dataclass.

Its fields are the keyword arguments of PPO and the flags of the command. `None` (or "auto") is
resolved when the trainer is built; `ppo.config` has the result. A field's text may end with the
source of its default in brackets. docs/config.md has all of them in a table.

A field knows all that other modules must know about it, see `setting`; they ask by `having`.
"""

import copy
import functools
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Iterable, Literal

from fastppo.errors import ConfigError, Set
from fastppo.settings import values as rules
from fastppo.settings.known_names import unknown_names
from fastppo.settings.presets import preset_of
from fastppo.settings.values import LOGGERS, Scheduled, plain_value

IMAGE_MODELS = {"cnn": 36, "impala": 8, "impoola": 8}  # the smallest side of an image for each
MODELS = "auto", "mlp", *IMAGE_MODELS  # networks that the setting `model` can name


def setting(default: Any, facts: str = "", **more: Any) -> Any:
    """A field of Config with its default, and what is unusual about it: words, and named facts.

        basic           it is on the first page of --help
        by_preset       its "auto" is the value of the preset, else the default
        wrapper         it puts wrappers around the environment
        resumable       a resumed run may change it: nothing that is learnt, or how long
        not_learnt      it changes nothing that is learnt, and a resumed run keeps it
        not_stored      no file decides it
        not_in_policy   a policy's file is read without it: it may have been a function
        of_network      the network of a policy has the form that it says
        of_machine      its automatic value depends on the machine, and not on the environment
        of_rank         it may differ between the processes of a run
        of_run          a preset's file does not decide it
        in_loss         it is a coefficient of the loss that may be another in the next iteration
        one_process     several processes know its default alone

        rule            the Rule of its values, if its type has another one or none
        needs           (setting, values ...): it has no effect without one of them
        needs_torch     compiled kernels know its default alone: in the network, acting or learner
        bounded         its values that map actions to their bounds
        excludes        settings that must have their defaults, by its values
        alias           another name for it
        form            the form of a text that may stand for a number
        section         it is the first one of a section of docs/config.md
    """
    return field(default=default, metadata={**dict.fromkeys(facts.split(), True), **more})


@dataclass(frozen=True)
class Config:
    """The settings of a run; the constructor raises ConfigError for invalid values."""

    env_name: str = setting(
        "LunarLander-v3", "basic not_learnt", section="environment", alias="env")
    """Environment: a Gymnasium id, `package:Id-v0` or `module:callable`; the default is for the
    command only, PPO must be given one [this project's first version]"""
    env_kwargs: dict[str, Any] | None = setting(None, rule=rules.OBJECT)
    """Keyword arguments for the environment; JSON on the command line"""
    reset_options: dict[str, Any] | tuple | Callable | None = setting(
        None, "resumable of_rank not_in_policy", rule=rules.OPTIONS)
    """Options of the resets in training, `reset(options=...)`: JSON on the command line; in Python
    a dict, a list of one for each environment, or a function that returns one of these for the
    progress, from 0 to 1; none: no options, as in evaluations"""
    agents: int = setting(1, rule=rules.whole(1, 1_000))
    """Agents of a game, each of which is a row of the rollout; the environment decides it"""
    agent_index: bool = True
    """An agent's observation has the number of the agent in its game"""
    past: float = setting(0.0, rule=rules.between(0, 1))
    """Share of the games in which all agents but one act by an earlier policy of the run"""
    past_interval: int = setting(10, rule=rules.whole(1, 1_000_000))
    """Iterations after which the policy becomes one of the eight that are kept for `past`"""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; none: the environment's own limit"""
    frame_stack: int = setting(1, "wrapper")
    """Consecutive observations given to the network at once, the current one included
    [4 for Atari: Mnih 2015]"""
    frame_skip: int | None = setting(None, "wrapper", rule=rules.whole(1, 1_024))
    """Frames that an action is repeated for, fewer at the end of an episode; their rewards are
    added up, and the last one is seen; none: 1, with preprocessing=atari 4; total_steps and
    max_episode_steps count actions, a limit of the environment itself counts frames"""
    grayscale: bool = setting(False, "wrapper")
    """Make images with three channels grey, as Gymnasium's GrayscaleObservation does"""
    resize: int | str | None = setting(None, "wrapper", rule=rules.IMAGE_SIZE, form="HxW")
    """Size of images: pixels of a side, or HEIGHTxWIDTH such as 64x96; each new pixel is the mean
    over its area; none: as they are, with preprocessing=atari 84"""
    preprocessing: Literal["none", "atari"] = setting("none", "wrapper")
    """Preprocessing of observations; atari: noop_max, each action repeated for frame_skip frames,
    maximum of the last two, grayscale, resize, fire_on_reset; sticky actions as the id defines them
    (probability 0.25 in v5), or by env_kwargs [Mnih 2015, Machado 2018]"""
    noop_max: int = setting(30, "wrapper", rule=rules.whole(0, 1_000))
    """Most no-ops at a reset, drawn from 1 on, in games that have this action; for
    preprocessing=atari; 0: none [Mnih 2015]"""
    fire_on_reset: bool = setting(True, "wrapper")
    """Press FIRE after a reset in games that have this action; for preprocessing=atari
    [baselines]"""
    end_on_life_loss: bool = setting(False, "wrapper")
    """Losing a life ends the episode in training; returns and evaluation are of whole games; for
    preprocessing=atari [baselines: on]"""
    preset: str = setting("auto", "not_learnt of_run", rule=rules.ANYTHING)
    """Defaults for a family of environments: auto (looked up by env_name, general for all others),
    none, the name of a preset, or a file of settings of your own, .toml or .json; settings that you
    give take precedence"""
    seed: int | None = setting(None, "basic not_learnt of_rank", rule=rules.whole(0, 2**63 - 1))
    """Seed of all random numbers, 0 to 2**63 - 1; none: drawn at random, printed and saved"""
    total_steps: int = setting(1_000_000, "basic resumable")
    """Environment steps (after frame skip) at which training ends
    [CleanRL ppo_continuous_action]"""

    model: Any = setting("auto", "basic of_network", section="network", rule=rules.code_or(MODELS))
    """Network: auto (cnn for images, else mlp), mlp, cnn [Mnih 2015], impala [Espeholt 2018],
    impoola (impala with average pooling [Trumpp 2025]), or your own class as `module:Class` (in
    Python also the class itself), called with (observation space, action space)"""
    hidden_sizes: tuple[int, ...] = setting((64, 64), "of_network", rule=rules.numbers_from(1))
    """Units of each hidden layer; unused where an image is the only observation
    [Schulman 2017, section 6.1]"""
    critic_hidden_sizes: tuple[int, ...] | None = setting(
        None, "of_network", rule=rules.numbers_from(1))
    """Units of each hidden layer of the critic; none: as hidden_sizes"""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu", "leaky_relu"] = setting(
        "tanh", "of_network")
    """Activation of the hidden layers; the compiled kernels have tanh, relu and elu, the others run
    in torch [Schulman 2017, section 6.1]"""
    layer_norm: bool = setting(False, "of_network", needs_torch="network")
    """Layer normalisation before the activation of each hidden layer [Ba 2016]"""
    shared_critic: bool | None = setting(None, "of_network")
    """Actor and critic share all layers but the last; none: True for convolutional networks whose
    actor and critic have the same keys [CleanRL ppo.py, ppo_atari.py]"""
    actor_keys: tuple[str, ...] | None = setting(
        None, "of_network", needs_torch="network", rule=rules.names())
    """Keys of a Dict observation that the actor sees; none: all"""
    critic_keys: tuple[str, ...] | None = setting(
        None, "of_network", needs_torch="network", rule=rules.names())
    """Keys of a Dict observation that the critic sees, also keys that the actor does not see; none:
    all"""
    rnn: Literal["none", "gru", "lstm", "mingru"] = setting("none", "of_network one_process")
    """Recurrent layer after the encoder, with one state per environment; mingru is the one that
    compiled kernels have [37 details, numbers 32 to 36; Feng 2024, arXiv:2410.01201]"""
    rnn_size: int = setting(128, "of_network", needs=("rnn", "mingru", "gru", "lstm"))
    """Features of the recurrent layer [37 details]"""
    distribution: Literal["gaussian", "state_gaussian", "squashed", "beta"] = setting(
        "gaussian", "of_network", bounded=("squashed", "beta"), excludes={
            "state_gaussian": "std rpo_alpha", "squashed": "action_scaling final_tanh rpo_alpha",
            "beta": "std action_scaling final_tanh rpo_alpha"})
    """Distribution of Box actions: gaussian (state-independent standard deviation), state_gaussian
    (the network returns the standard deviation too), squashed (tanh of a gaussian), beta (between
    the bounds) [Schulman 2017, section 6.1]"""
    log_std_init: float | Literal["auto"] = setting(
        0.0, form="auto", rule=rules.or_auto(rules.between(-40, 40)))
    """Initial log standard deviation of normally distributed Box actions; auto: that of half an
    action's range, of 1 where it has no bounds; of n > 3 actions, sqrt(2 / n) times as much
    [CleanRL ppo_continuous_action]"""
    std: float | str | None = setting(
        None, "of_network", rule=rules.STD, form="FLOAT%", needs_torch="acting")
    """Fixed standard deviation of Box actions: a number, or a percentage of the action's range such
    as 10%; none: the standard deviation is learned"""
    min_std: float = setting(0.0, needs=("distribution", "state_gaussian"))
    """Added to the standard deviation of state_gaussian"""
    std_scale: float = setting(
        1.0, rule=rules.between(1e-3, 1e3), needs=("distribution", "state_gaussian"))
    """Factor on the softplus that gives the standard deviation of state_gaussian; log_std_init
    still sets the initial value"""
    action_scaling: bool = False
    """Choose Box actions in [-1, 1] and scale them to the bounds, instead of clipping them to the
    bounds"""
    final_tanh: bool = setting(False, "of_network", needs_torch="acting")
    """Apply a tanh to the means of Box actions; for use with action_scaling"""
    sde: bool = setting(False, "of_network")
    """Generalised state-dependent exploration (gSDE) of Box actions [Raffin 2021]"""
    sde_sample_freq: int | None = setting(None, needs=("sde", True))
    """Steps after which gSDE draws new noise; none: once per rollout [SB3]"""

    num_envs: int = setting(8, "basic by_preset", section="rollout", form="auto",
                            rule=rules.whole(1, 1_000_000))
    """Environments stepped in parallel, E; auto: the preset's value, else the default
    [rl-zoo ppo.yml, CartPole; docs/decisions/0009]"""
    num_steps: int = setting(256, "by_preset", form="auto")
    """Steps of each environment per iteration, T; auto: the preset's value, else the default
    [docs/decisions/0009]"""
    num_workers: int | Literal["auto"] | None = setting(
        None, "basic resumable of_machine of_rank", rule=rules.or_auto(rules.FROM_0), form="auto")
    """Worker processes that step the environments; 0: the main process steps them; none: one per
    usable core; auto: one per usable core or 0, whichever a short measurement finds faster (the
    results are the same); a number is limited to one per environment and 16 per core"""
    vec: Literal["auto", "workers", "native", "envpool"] = setting("auto", "not_learnt")
    """Vectorisation: workers (worker processes, each with some of the environments), native (the
    vector environment of the id's `vector_entry_point`, in the main process) or envpool (EnvPool's,
    in the main process); auto: workers, unless PPO is given a VectorEnv"""
    acting: Literal["auto", "local", "central"] = setting("auto", "resumable of_machine")
    """Process that computes actions: local (each process for its own environments) or central (the
    main process for all of them); auto: local where the compiled kernel supports the network"""
    step_timeout: float = setting(300.0, "resumable")
    """Seconds that one environment step may take before its worker is killed; 0: no limit"""
    reset_timeout: float = setting(600.0, "resumable")
    """Seconds that starting or resetting environments may take before the worker is killed; 0: no
    limit"""
    on_worker_failure: Literal["raise", "restart"] = setting("raise", "resumable one_process")
    """When a worker process raises, dies or hangs: raise (end the run with an error) or restart
    (start the workers again and replay the running episodes, three times in ten minutes at most; an
    episode that fails twice at the same step is truncated before it)"""
    nan_policy: Literal["raise", "reset_env"] = setting("raise", "resumable one_process")
    """When a reward or an observation is not finite: raise (a fault of the environment) or
    reset_env (discard the step and truncate the episode before it)"""
    replay_limit: int = setting(100_000, "resumable")
    """Steps of a running episode that can be replayed when a run is resumed or a worker is started
    again; a longer one ends there"""
    replay_timeout: float = setting(120.0, "resumable")
    """Seconds that the replay of one episode may take; one that takes longer ends there"""
    worker_env: tuple[str, ...] | str | None = setting(
        None, "resumable not_stored", rule=rules.names())
    """Environment variables that workers get although their names look like credentials; none:
    none of them"""

    gamma: float | Literal["auto"] = setting(
        0.99, "basic", section="returns", form="auto", rule=rules.or_auto(rules.between(0, 1)))
    """Discount per step, 0 to 1; auto: 1 - 5 / limit for environments with a limit of steps, from
    0.97 to 0.999, else 0.99 [Schulman 2017, table 3]"""
    gae_lambda: float = setting(0.95, rule=rules.between(0, 1), alias="lam")
    """Lambda of generalised advantage estimation, 0 to 1 [Schulman 2017, table 3]"""
    reward_scale: float = setting(1.0, rule=rules.NUMBER)
    """Factor on every reward, applied before clipping and normalisation"""
    clip_rewards: bool = False
    """Train on the sign of rewards [on for Atari: Mnih 2015]"""
    norm_rewards: bool | None = None
    """Divide rewards by the running standard deviation of the discounted return; none: True where
    reward_scale is 1 and clip_rewards is off [baselines VecNormalize]"""
    reward_limit: float = setting(10.0, rule=rules.ABOVE_0, needs=("norm_rewards", True))
    """Largest magnitude of a reward after normalisation; used with norm_rewards [baselines]"""
    center_rewards: bool = False
    """Subtract from rewards what makes values begin near 0; policies are ranked as before
    [Naik 2024; with terminations, Ng 1999]"""
    norm_obs: bool = setting(True, "of_network")
    """Normalise observations by their running mean and standard deviation
    [baselines VecNormalize]"""
    obs_limit: float = setting(10.0, rule=rules.ABOVE_0, needs=("norm_obs", True))
    """Largest magnitude of an observation after normalisation; used with norm_obs [baselines]"""
    norm_advantages: Literal["minibatch", "rollout", "none"] = "minibatch"
    """Samples over which advantages are normalised to mean 0 and standard deviation 1
    [37 details, number 7]"""

    epochs: int = setting(10, section="update", alias="ppo_epochs")
    """Passes over each rollout [Schulman 2017, table 3]"""
    num_minibatches: int = setting(32, alias="num_batches")
    """Minibatches per epoch; a network with memory has num_envs at most, for its minibatches are
    whole environments [SB3: 64 rows each of 2,048]"""
    num_microbatches: int = 1
    """Parts of a minibatch whose gradients are added up before a step: less memory, the same
    result"""
    lr: Scheduled | Literal["auto"] = setting(
        3e-4, "basic not_in_policy", form="auto", rule=rules.or_auto(rules.SCHEDULE))
    """Learning rate at the first iteration; auto: 5e-4 where total_steps is below a million, else
    3e-4 [Schulman 2017, table 3]"""
    critic_lr: Scheduled | None = setting(None, "not_in_policy", needs_torch="learner")
    """Learning rate of the parameters that only the critic has, those named critic, value or vf;
    none: lr"""
    anneal_lr: bool = True
    """Decrease a learning rate that is a plain number linearly to zero over total_steps; not lr
    under adaptive_kl [37 details, number 4]"""
    lr_warmup: int = setting(0, rule=rules.whole(0))
    """Environment steps in which the learning rates rise linearly from a hundredth; Adam's first
    steps have the same size for every weight, which can end the units of a ReLU network"""
    adaptive_kl: float | None = setting(None, rule=rules.ABOVE_0)
    """Target of the KL divergence that lr is adapted to after each epoch: divided by 1.5 where the
    KL is above twice the target, multiplied by 1.5 where it is below half of it, from 1e-6 to 1e-2;
    none: off [rl_games, rsl_rl]"""
    optimizer: Any = setting("adam", "not_in_policy", rule=rules.OPTIMIZER, needs_torch="learner")
    """Optimizer, with lr as its learning rate: adam; in Python also a class of torch.optim, or any
    callable that takes the parameters and returns a torch.optim.Optimizer"""
    adam_eps: float = setting(1e-5, rule=rules.ABOVE_0, needs=("optimizer", "adam"))
    """Epsilon of Adam [37 details, number 3]"""
    loss: Any = setting("ppo", "not_in_policy", rule=rules.LOSS, needs_torch="learner")
    """Loss to minimise: ppo; in Python also a function (output, batch, coefficients) -> (loss,
    statistics), or a subclass of fastppo.learner.Learner"""
    clip_range: Scheduled = setting(0.2, "not_in_policy in_loss", alias="epsilon")
    """Clipping of the probability ratio, above 0 [Schulman 2017, table 3]"""
    clip_range_vf: Scheduled | None = setting(None, "not_in_policy in_loss")
    """Clipping of the change of the value; none: off [Engstrom 2020, Andrychowicz 2021: no gain]"""
    dual_clip: float | None = setting(None, rule=rules.ABOVE_1)
    """Largest factor on a negative advantage, above 1, such as 3; none: off [Ye 2020]"""
    rpo_alpha: float = setting(0.0, "one_process")
    """Half the width of the uniform noise added to the mean of Box actions in the update; 0: off
    [Rahman 2022: 0.5 where on]"""
    entropy_coef: Scheduled = setting(0.0, "not_in_policy in_loss", rule=rules.WEIGHT)
    """Weight of the entropy bonus [Schulman 2017, table 3]"""
    value_coef: float = setting(0.5, alias="value_loss_coef")
    """Weight of the value loss [baselines ppo2]"""
    norm_values: bool = setting(False, "of_network", needs_torch="acting")
    """PopArt: train the critic on returns normalised by their running mean and standard deviation
    [van Hasselt 2016]"""
    recompute_advantages: bool = setting(False, "one_process")
    """Compute advantages and returns again with the current critic before every epoch but the first
    [Andrychowicz 2021]"""
    max_grad_norm: float = setting(0.5, rule=rules.ABOVE_0)
    """Largest Euclidean norm of the gradient [baselines ppo2]"""
    grad_clipping: Literal["global", "network"] = setting("global", needs_torch="learner")
    """Gradient that max_grad_norm limits: global (the whole one) or network (the actor's and the
    critic's separately) [37 details, number 11]"""
    target_kl: float | None = setting(None, rule=rules.ABOVE_0)
    """Skip the remaining epochs of an iteration when the mean KL of one exceeds 1.5 times this;
    none: off [SB3]"""

    device: str = setting(
        "cpu", "basic resumable of_rank of_run", section="machine", rule=rules.DEVICE)
    """Device of the learner: cpu, cuda, cuda:1, ..., or auto: cuda if there is a GPU and the
    network has convolutions or a layer of 256 units, else cpu; with device_ids cuda if there is
    one"""
    device_ids: tuple[int, ...] | None = setting(
        None, "not_learnt of_rank", rule=rules.numbers_from(0))
    """GPUs of the processes of one machine that torchrun starts, such as 0,1, or 0,0 to share one;
    for device=cuda; none: process 0 has GPU 0, and so on"""
    backend: Literal["auto", "gloo", "nccl"] = setting("auto", "not_learnt")
    """Library of torch.distributed that adds up gradients under torchrun; auto: nccl on GPUs, else
    gloo"""
    learner: Literal["auto", "kernel", "graph", "torch"] = setting("auto", "resumable of_machine")
    """Implementation of the update: kernel (compiled), torch, or graph (torch's minibatch as one
    CUDA graph); auto: on the CPU the kernel and on a GPU the graph, where they support the settings
    and the model [bench/LOG.md]"""
    torch_threads: int | None = setting(
        None, "resumable of_machine of_rank", rule=rules.whole(1, 1_024))
    """Threads of torch; none: 1, which is fastest for small networks"""
    update_threads: int | None = setting(
        None, "resumable of_machine of_rank", rule=rules.whole(1, 1_024))
    """Threads of torch in the update; none: torch_threads if it is given, else all usable cores
    where torch trains on images on the CPU with convolutions or a model of your own, else 1"""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = setting("auto", "not_learnt of_machine")
    """Precision in which torch computes convolutions and the dense layers behind them, of your own
    model all layers: fp32; tf32 (on a GPU all products of fp32 numbers, rounded to 10 bits); bf16
    (weights, heads and losses stay fp32); auto: for a built-in convolutional network tf32 on a GPU
    and bf16 on a CPU with AMX, else fp32"""
    compile: bool = setting(False, "not_learnt", needs_torch="acting")
    """Compile the network with torch.compile, where torch computes it: the first steps take up to a
    minute longer, and results differ in their last bits"""

    eval_episodes: int = setting(100, "resumable", section="output", rule=rules.whole(0))
    """Deterministic episodes of each evaluation: those during training, and the command's at the
    end of training; 0: none"""
    eval_interval: int | None = setting(None, "basic resumable")
    """Environment steps between evaluations during training, the last one at total_steps; the best
    model so far is saved as best.safetensors in the run's folder; none: no evaluations"""
    eval_env: Any | None = setting(None, "resumable")
    """Environment to evaluate in: an id (EnvPool's with vec=envpool, else Gymnasium's) or
    `module:callable`, in Python also a callable; it gets max_episode_steps, but not env_kwargs;
    none: the environment of training"""
    video_interval: int | None = setting(None, "resumable")
    """Environment steps between videos of an episode during training, of at most 1,000 frames, in
    the folder videos/ of the run; none: no videos"""
    logger: tuple[Literal[*LOGGERS], ...] | str | None = setting(  # pyright: ignore
        None, "basic resumable of_rank", rule=rules.names((*LOGGERS,)))
    """Programs that metrics are sent to, one or several, beside the CSV file of the command;
    tensorboard needs run_dir, which the command always has"""
    wandb_project: str = setting("fastppo", "resumable")
    """Project name for wandb and trackio"""
    wandb_entity: str | None = setting(None, "resumable")
    """User or team that owns wandb's run; none: the account's default"""
    wandb_group: str | None = setting(None, "resumable")
    """Group of runs that wandb or trackio show together; none: no group"""
    wandb_tags: tuple[str, ...] | str | None = setting(None, "resumable", rule=rules.names())
    """Tags of wandb's run"""
    progress: Literal["auto", "live", "lines", "none"] = setting("auto", "basic resumable of_rank")
    """Output of a run: live, lines, or none (with the command the result, notes and errors alone);
    live is redrawn in place, and lines where there is no terminal; lines come every ten seconds;
    auto: live with the command, none in Python"""
    checkpoint_interval: float = setting(60.0, "resumable")
    """Seconds between checkpoints in the run's folder, the last one at the end of training; 0: only
    that one"""
    run_dir: str | None = setting(
        None, "basic resumable not_stored of_rank of_run", rule=rules.PATH)
    """Folder for the run's files; none: a new one under runs/ with the command, no files in
    Python"""

    def __post_init__(self):
        self._set(vars(self))

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """Units of each hidden layer of the critic."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    @property
    def rows(self) -> int:
        """Rows of a step of the rollout: environments, of games their agents."""
        return self.num_envs * self.agents

    def replace(self, **changes: Any) -> "Config":
        """A Config with some fields changed; what is not changed has been checked."""
        check_names(changes)
        other = copy.copy(self)
        other._set(changes)
        return other

    def _set(self, values: dict[str, Any]) -> None:
        """Sets fields; ConfigError for a value that the rule of its field does not allow."""
        for name, value in values.items():
            if value is not default_of(name):
                value, (is_valid, wanted) = plain_value(value, TYPES[name]), RULES[name]
                if not (value is default_of(name) or is_valid(value)):
                    raise ConfigError(f"{name} is {value!r}, but must be {wanted}",
                                      Set(**{name: self.usual(name)}))
            object.__setattr__(self, name, value)

    def usual(self, name: str) -> Any:
        """The value of the preset, or else the default."""
        usual = {"progress": "lines"} | preset_of(str(self.env_name), str(self.preset))
        return usual.get(name, default_of(name))

    def __new__(cls, *_, **given):
        check_names(given)
        return super().__new__(cls)


def check_names(given: Iterable[str]) -> None:
    """Raises ConfigError for all names that are no settings."""
    if wrong := [name for name in given if name not in Config.__match_args__]:
        raise ConfigError(*unknown_names("there is no setting", wrong, Config.__match_args__, ""))


def default_of(name: str) -> Any:
    """The default of a field."""
    return getattr(Config, name)


@functools.cache
def having(fact: str) -> dict[str, Any]:
    """The settings that have a fact, see `setting`, in order, and its value."""
    return {one.name: one.metadata[fact] for one in fields(Config) if fact in one.metadata}


RULES = {one.name: rules.rule_of(one) for one in fields(Config)}
TYPES = {one.name: one.type for one in fields(Config)}
