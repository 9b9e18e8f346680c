"""Search for settings with Optuna, on all cores; trials that learn slowly are stopped early.

Install Optuna first: pip install optuna
"""

import tempfile
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

from fastppo import PPO
from fastppo.machine.limits import usable_cores

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
except ImportError:
    raise SystemExit("this example needs Optuna: pip install optuna") from None

TRIALS = 20


def score(trial: optuna.Trial) -> float:
    """Mean return of the evaluations while training (five per seed, two seeds)."""
    settings = {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "num_steps": trial.suggest_categorical("num_steps", [32, 128, 512]),
        "epochs": trial.suggest_int("epochs", 3, 20),
        "gae_lambda": trial.suggest_float("gae_lambda", 0.8, 1.0),
        "entropy_coef": trial.suggest_float("entropy_coef", 1e-5, 0.03, log=True),
    }
    returns = []

    def report(ppo, stats):
        """Report every evaluation as a step of the trial; returning False ends training."""
        if "eval/return_mean" in stats:
            returns.append(stats["eval/return_mean"])
            trial.report(mean(returns), len(returns))
            return not trial.should_prune()

    for seed in (1, 2):  # one process: trials side by side use the cores better than its workers
        with PPO("CartPole-v1", preset="none", seed=seed, num_envs=16, num_workers=0,
                 update_threads=1, total_steps=30_000, eval_interval=6_000, eval_episodes=10,
                 **settings) as ppo:
            ppo.learn(callbacks=report)
        if trial.should_prune():
            raise optuna.TrialPruned
    return mean(returns)


def study_in(file: Path, seed: int = 0) -> optuna.Study:
    """The study that all processes share; each draws its trials with a seed of its own."""
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(file))),
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        study_name="search", direction="maximize", load_if_exists=True)


def search(file: Path, seed: int, trials: int) -> None:
    """Run some of the trials."""
    study_in(file, seed).optimize(score, n_trials=trials)


if __name__ == "__main__":
    cores = usable_cores()
    shares = [TRIALS * (i + 1) // cores - TRIALS * i // cores for i in range(cores)]
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(cores) as pool:
        study = study_in(file := Path(folder, "journal"))
        pool.starmap(search, [(file, i, share) for i, share in enumerate(shares) if share])
        pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
        print(f"{study.best_value:.1f} with {study.best_params}; {len(pruned)} of {TRIALS} trials"
              " were stopped early")
