"""Presets: settings for families of environments, where they differ from Config's defaults.

A preset is looked up by the environment's id without its version, else it is `general`; settings
that are given take precedence. A family is a name or a pattern of names. Sources: our own
measurements (bench/LOG.md), starting from the values of rl-zoo3's ppo.yml; a comment says where
others' values are not measured.
"""

from fnmatch import fnmatchcase
from typing import Any

GAMES = frozenset("""
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon
    BankHeist BasicMath BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout
    Carnival Casino Centipede ChopperCommand CrazyClimber Crossbow Darkchambers Defender
    DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro Entombed Et
    FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman
    HauntedHouse Hero HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo
    KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates LostLuggage MarioBros
    MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman Phoenix Pitfall
    Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
    Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris
    TicTacToe3D TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers
    VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
""".split())
# Chosen on thirteen tasks (bench/study.md, bench/LOG.md).
GENERAL = dict(lr="auto", gamma="auto", log_std_init="auto")
PRESETS: dict[str, dict[str, Any]] = {
    "general": GENERAL,  # of every other environment
    **{name: GENERAL | dict(total_steps=steps) for name, steps in dict(
        cartpole=100_000, pendulum=100_000, mountaincar=500_000, mountaincarcontinuous=50_000,
        lunarlander=400_000, bipedalwalker=500_000, invertedpendulum=100_000,
        reacher=500_000).items()},
    "acrobot": dict(num_envs=16, num_steps=100, num_minibatches=10, lr=1e-3, entropy_coef=0.01,
                    total_steps=80_000),
    "lunarlandercontinuous": dict(num_envs=32, num_steps=128, num_minibatches=16, lr=1e-3,
                                  gamma=0.995, gae_lambda=0.97, log_std_init=-0.5,
                                  reward_scale=0.1, norm_obs=False, total_steps=249_856),
    "halfcheetah": dict(lr=1e-3, gamma=0.98, gae_lambda=0.92, log_std_init=-1.0,
                        total_steps=499_712),
    "walker2d": dict(log_std_init=-1.0, total_steps=999_424),
    # rl-zoo3's of CarRacing-v2, without gSDE, GELU and hidden layers of 256, which the compiled
    # kernels lack; so actions explore with the default's deviation of 1. No whole run was measured.
    "carracing": dict(grayscale=True, resize=64, frame_skip=2, frame_stack=2, num_steps=512,
                      lr=1e-4, norm_obs=False, norm_rewards=True, total_steps=4_000_000,
                      eval_episodes=10),
    # Sizes and clip_range as CleanRL's ppo_atari_envpool has them for Pong [pull request 100]. The
    # rate is twice that of ppo_atari and rl-zoo3; without the warm-up it ends half of the units of
    # the first layer in the first 60,000 steps (bench/LOG.md).
    "atari": dict(preprocessing="atari", end_on_life_loss=True, frame_stack=4, num_envs=16,
                  num_steps=128, epochs=3, num_minibatches=8, lr=5e-4, lr_warmup=100_000,
                  entropy_coef=0.01, clip_rewards=True, norm_obs=False, total_steps=10_000_000,
                  eval_episodes=10),
    # Sizes and rates of "atari": CleanRL's ppo_pettingzoo_ma_atari has 4 epochs, 4 minibatches and
    # 2.5e-4, with which the network lost the image in Pong (bench/LOG.md). One game is enough: no
    # two games of the likeliest actions differ.
    "atari_players": dict(frame_skip=4, resize=84, frame_stack=4, num_steps=128, epochs=3,
                          num_minibatches=8, lr=5e-4, lr_warmup=100_000, entropy_coef=0.01,
                          norm_obs=False, clip_rewards=True, total_steps=20_000_000,
                          eval_episodes=1),
    # Chosen on simple_spread, multiwalker, pursuit and knights_archers_zombies (bench/LOG.md).
    "games": dict(num_steps=64, num_minibatches=16, lr=1e-3, norm_obs=False, center_rewards=True,
                  eval_episodes=10),
    # Chosen on Connect Four (bench/LOG.md).
    "boards": dict(past=0.5, num_envs=64, num_steps=128, epochs=4, num_minibatches=8, lr=1e-3,
                   hidden_sizes=(256, 256), activation="relu", entropy_coef=0.06,
                   norm_obs=False, total_steps=6_000_000, eval_episodes=10),
    # Those of CleanRL's ppo_procgen, which has them from [Cobbe 2020, arXiv:1912.01588] with a
    # quarter of the environments. No whole run was measured.
    "procgen": dict(vec="envpool", model="impala", num_envs=64, epochs=3, num_minibatches=8,
                    lr=5e-4, anneal_lr=False, gamma=0.999, clip_range_vf=0.2,
                    entropy_coef=0.01, norm_obs=False, norm_rewards=True, total_steps=25_000_000),
}
PROCGEN = ("Bigfish Bossfight Caveflyer Chaser Climber Coinrun Dodgeball Fruitbot Heist Jumper"
           " Leaper Maze Miner Ninja Plunder Starpilot").split()
FAMILIES: dict[str, str] = {
    **{name: name.lower() for name in """CartPole Acrobot Pendulum MountainCar
        MountainCarContinuous LunarLander LunarLanderContinuous BipedalWalker CarRacing
        InvertedPendulum Reacher HalfCheetah Walker2d""".split()},
    "ALE/*": "atari", "*NoFrameskip": "atari",
    "atari/*": "atari_players", "classic/*": "boards", "mpe2/*": "games", "sisl/*": "games",
    "butterfly/knights*": "games",
    **{f"{game}{mode}": "procgen" for game in PROCGEN for mode in ("Easy", "Hard")},
}


def full_game_id(env_name: str) -> str:
    """`ALE/Pong-v5` for `Pong-v5`; every other name as it is."""
    name, _, version = env_name.partition("-")
    return f"ALE/{env_name}" if name in GAMES and version == "v5" else env_name


def preset_of(env_name: str, preset: str = "auto") -> dict[str, Any]:
    """The settings of a preset; "auto" is that of the environment's family, else `general`.

    "none", and an unknown name, have none.
    """
    return dict(PRESETS.get(preset_name(env_name) if preset == "auto" else preset, {}))


def preset_name(env_name: str) -> str:
    """The preset of an environment's family; without one `general`."""
    name = full_game_id(env_name.rpartition(":")[2]).rpartition("-v")[0]
    return next((x for family, x in FAMILIES.items() if fnmatchcase(name, family)), "general")


def is_preset_file(preset: Any) -> bool:
    """True if the value of the setting `preset` is the name of a file."""
    return str(preset).endswith((".toml", ".json"))
