"""The parts of vecenv.py: actors, rollout buffers, episodes, vector environments; without torch.

May import: envs and what that may import.
"""
