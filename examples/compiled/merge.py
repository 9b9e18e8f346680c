"""The game 2048: slide all tiles of a board, so that equal neighbours merge to their sum.

The observation's action_mask says which slides change the board: the policy tries no other.
"""

import numba
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete

from fastppo import PPO, compiled_env

# Of up, down, left and right: the first cell of a line of four, the ways to the next and along it.
FIRST, NEXT, ALONG = np.array([[0, 12, 0, 3], [1, 1, 4, 4], [4, -4, 1, -1]])
CELL = 40  # pixels of a cell's side
FONT = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717".split()  # 0 to 9: rows of bits


@numba.njit
def is_legal(board, action):
    """True if a tile has a free cell or an equal tile before it."""
    for i in range(12):
        cell = FIRST[action] + i // 3 * NEXT[action] + i % 3 * ALONG[action]
        tile = board[cell + ALONG[action]]
        if tile and (board[cell] == 0 or board[cell] == tile):
            return True
    return False


@compiled_env
class Merge:
    """A cell is 0, or k for a tile of 2**k; the end is a full board without equal neighbours."""

    observation_space = Dict(board=MultiDiscrete(np.full(16, 18)), action_mask=MultiBinary(4))
    action_space = Discrete(4)
    state = [("board", "i8", (16,))]

    def reset(state, rng, options):
        first = rng.integers(0, 16)
        state.board[first] = state.board[(first + rng.integers(1, 16)) % 16] = 1

    def step(state, action, rng):
        board, score = state.board, 0.0
        for line in range(4):
            to = FIRST[action] + line * NEXT[action]
            for cell in range(to, to + 4 * ALONG[action], ALONG[action]):
                tile, board[cell] = board[cell], 0
                if tile and tile == board[to]:
                    board[to] += 1
                    score, to = score + 2.0 ** board[to], to + ALONG[action]  # it merges once
                elif tile:
                    to += ALONG[action] if board[to] else 0
                    board[to] = tile
        free = np.flatnonzero(board == 0)
        if len(free):  # always after a legal action
            board[free[rng.integers(0, len(free))]] = 1 if rng.random() < 0.9 else 2
        return score, len(free) < 2 and not (is_legal(board, 0) or is_legal(board, 2))

    def observe(state, obs):
        obs.board[:] = state.board
        for action in range(4):
            obs.action_mask[action] = is_legal(state.board, action)

    def render(state):
        share = state.board.reshape(4, 4, 1).repeat(CELL, 0).repeat(CELL, 1) / 11
        picture = (235 - share * [20, 150, 215]).clip(0).astype(np.uint8)  # from grey to red
        picture[::CELL] = picture[:, ::CELL] = 120
        for cell in np.flatnonzero(state.board):
            glyphs = [FONT[int(digit)] for digit in str(2 ** state.board[cell])]
            rows = [list("0".join(f"{int(glyph[i]):03b}" for glyph in glyphs)) for i in range(5)]
            y, x = cell // 4 * CELL + 15, cell % 4 * CELL + CELL // 2 - len(rows[0])
            place = picture[y:y + 10, x:x + 2 * len(rows[0])]
            place[(np.array(rows) == "1").repeat(2, 0).repeat(2, 1)] = 30
        return picture


if __name__ == "__main__":
    with PPO(Merge, seed=1, num_envs=32, num_steps=128, total_steps=700_000, lr=1e-3,
             epochs=4, num_minibatches=8, hidden_sizes=(128, 128), progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
