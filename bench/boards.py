"""How strong a policy is in a board game: games against random, perfect and searching players.

    python bench/boards.py runs/latest [--games=400]

The policy takes its likeliest actions, and has each side in half of the games; no code of fastppo
plays but its `predict`. Tic-tac-toe has a perfect player, who draws among the best moves; Connect
Four OpenSpiel's tree search (MCTS, uct_c 2, 50 simulations, random rollouts), if it is installed.
"""

import argparse
import functools
import pkgutil
from pathlib import Path

import numpy as np

import fastppo
from fastppo.runs.folder import policy_at


def play(policy, env, seat, choose, seed):
    """The return of the policy in the place `seat` of a game, in which `choose` acts for the other.

    `choose` is called with the observation of PettingZoo and the actions before.
    """
    env.reset(seed=seed)
    taken, total = [], 0.0
    for agent in env.agent_iter():
        obs, rew, term, trunc, _ = env.last()
        own = env.possible_agents.index(agent) == seat
        total += rew * own
        if term or trunc:
            env.step(None)
            continue
        action = int(policy.predict({**obs, "agent": seat}) if own else choose(obs, taken))
        taken.append(action)
        env.step(action)
    return total


def random_player(rng):
    """Chooses a legal action at random."""
    return lambda obs, taken: rng.choice(np.flatnonzero(obs["action_mask"]))


LINES = [*(range(k, k + 3) for k in (0, 3, 6)), *(range(k, 9, 3) for k in range(3)), (0, 4, 8),
         (2, 4, 6)]


@functools.cache
def worth(board):
    """(result, best actions) for whoever is to act in tic-tac-toe: `board` has 1 own, -1 other."""
    if any(sum(board[k] for k in line) == -3 for line in LINES):
        return -1, ()
    empty = [k for k in range(9) if not board[k]]
    if not empty:
        return 0, ()
    results = {k: -worth(tuple(-x for x in (*board[:k], 1, *board[k + 1:])))[0] for k in empty}
    best = max(results.values())
    return best, tuple(k for k in empty if results[k] == best)


def perfect_player(rng):
    """Never loses tic-tac-toe."""
    def choose(obs, taken):
        planes = obs["observation"].astype(int)
        return rng.choice(worth(tuple((planes[..., 0] - planes[..., 1]).ravel().tolist()))[1])
    return choose


def searching_player(rng):
    """OpenSpiel's MCTS with 50 simulations of Connect Four."""
    import pyspiel
    from open_spiel.python.algorithms import mcts
    game = pyspiel.load_game("connect_four")
    bot = mcts.MCTSBot(game, 2.0, 50, mcts.RandomRolloutEvaluator(1, rng), random_state=rng)

    def choose(obs, taken):
        state = game.new_initial_state()
        for action in taken:
            state.apply_action(action)
        return bot.step(state)
    return choose


PLAYERS = {"classic/tictactoe-v3": (random_player, perfect_player),
           "classic/connect_four-v3": (random_player, searching_player)}


def main():
    """Prints a line for each opponent and side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--games", type=int, default=400)
    options = parser.parse_args()
    policy = fastppo.load(policy_at(Path(options.model)))
    name = policy.config.env_name
    module = name.replace("-", "_").replace("/", ".")
    env = pkgutil.resolve_name(f"pettingzoo.{module}:env")()
    for make in PLAYERS[name]:
        rng = np.random.RandomState(0)
        choose = make(rng)
        for seat in (0, 1):
            found = np.array([play(policy, env, seat, choose, seed)
                              for seed in range(options.games // 2)])
            won, drawn, lost = ((np.sign(found) == x).sum() for x in (1, 0, -1))
            print(f"{make.__name__:17} policy {('first', 'second')[seat]:6}: {won} won, {drawn}"
                  f" drawn, {lost} lost", flush=True)


if __name__ == "__main__":
    main()
