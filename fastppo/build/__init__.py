"""From a Config to a run: resolved settings, policy, memory, environments, learner.

May import: learners and what that may import.
"""
