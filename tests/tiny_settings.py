"""Settings of a trainer that runs an iteration in milliseconds."""

TINY = {
    "preset": "none",
    "seed": 1,
    "num_workers": 0,
    "num_envs": 4,
    "num_steps": 8,
    "epochs": 1,
    "num_minibatches": 1,
    "norm_rewards": False,  # a test's rewards are those that its environment gave
}
