"""Games of several agents: each agent is a row of the rollout.

A chapter: imported for environments that are games of PettingZoo (envs/games.py).
"""
