"""The parts of vecenv.py: actors, rollout buffers, episodes, vector environments, simulators.

Without torch, which workers do not import, but for simulators.

May import: envs and what that may import.
"""
