"""From settings to a run: rules, policy, memory, environments, learner, metrics, callbacks."""
