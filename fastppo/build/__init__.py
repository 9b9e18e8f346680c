"""From a Config to a run: settings, policy, memory, environments, learner.

May import: learners, arguments and what these may import.
"""
