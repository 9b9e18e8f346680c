"""The same in worker processes; without torch."""
