"""The actions of running episodes, by which an interrupted step is made exact."""

from fastppo.errors import EnvError

REPLAY_LIMIT = 100_000  # steps of an episode that can be played again after an interrupt


class ActionLog:
    """The actions taken since the oldest episode under way began, by step: to take them again."""

    def __init__(self, envs: int):
        self.envs = envs
        self.clear()

    def clear(self) -> None:
        """Forget everything; steps count from 0 again."""
        self.rows, self.first = {}, 0

    def keep(self, step: int, group: range, actions: list) -> None:
        """Note, before it is taken, what `group` does at `step`; twice is fine."""
        self.rows.setdefault(step, [None] * self.envs)[group.start:group.stop] = actions

    def forget(self, step: int) -> None:
        """Forget what was before `step`, and what is too long ago to be played again."""
        last = max(self.rows, default=0)
        for old in range(self.first, max(step, last - REPLAY_LIMIT)):
            self.rows.pop(old, None)
        self.first = max(step, last - REPLAY_LIMIT)

    def replay(self, env, seed: int, e: int, start: int, stop: int) -> None:
        """Bring `env` to where its episode of `seed` stood before `stop`, having begun at `start`.

        Raises EnvError for an episode too long to be played again.
        """
        if stop - start > REPLAY_LIMIT:
            raise EnvError(f"an environment was interrupted in step {stop - start} of its episode:"
                           f" only {REPLAY_LIMIT} can be played again",
                           "train anew, or with workers")
        env.reset(seed=seed)
        for step in range(start, stop):
            env.step(self.rows[step][e])


class NoActionLog:
    """A Past where no interrupt can strike: in a worker."""

    def clear(self) -> None:
        """Nothing to forget."""

    def keep(self, step: int, group: range, actions: list) -> None:
        """Nothing to note."""

    def forget(self, step: int) -> None:
        """Nothing to forget."""
