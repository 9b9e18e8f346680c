"""From a Config to a run: settings, policy, memory, environments, learner.

May import: learners and what that may import.
"""
