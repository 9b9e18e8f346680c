"""Search for settings with Optuna; trials that learn slowly are stopped early.

Install Optuna first: pip install optuna
"""

from statistics import mean

from fastppo import PPO

try:
    import optuna
except ImportError:
    raise SystemExit("this example needs Optuna: pip install optuna") from None


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

    for seed in (1, 2):
        with PPO("CartPole-v1", preset="none", seed=seed, num_envs=16, num_workers=0,
                 total_steps=30_000, eval_interval=6_000, eval_episodes=10, **settings) as ppo:
            ppo.learn(callbacks=report)
        if trial.should_prune():
            raise optuna.TrialPruned
    return mean(returns)


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0),
                            pruner=optuna.pruners.MedianPruner(n_startup_trials=5))
study.optimize(score, n_trials=20)
print(f"{study.best_value:.1f} with {study.best_params}")
