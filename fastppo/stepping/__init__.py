"""One process steps its environments: actors, rollout buffers, episodes, replay; without torch."""
