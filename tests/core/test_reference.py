"""The definitions against arithmetic done by hand, published tables and known answers."""

import numpy as np
import pytest

from fastppo import reference
from fastppo.reference import Purpose


def column(*xs):
    """One environment's values over time, as [t 1]."""
    return np.array(xs, dtype=np.float32)[:, None]


def flags(steps, *at):
    """A mask [steps 1] that is true at the steps `at`."""
    mask = np.zeros((steps, 1), bool)
    mask[list(at)] = True
    return mask


def test_three_steps_with_a_death_in_the_middle_are_the_sums_done_by_hand():
    adv = reference.gae(
        rew=column(1, 2, 3),
        val=column(10, 20, 30),
        nxt=column(20, np.nan, 40),
        term=flags(3, 1),
        trunc=flags(3),
        valid=True,
        gamma=0.5,
        lam=0.5,
    )
    last = 3 + 0.5 * 40 - 30  # -7
    death = 2 - 20  # -18: no bootstrap, nothing from after it
    first = 1 + 0.5 * 20 - 10 + 0.25 * death  # 1 - 4.5
    np.testing.assert_allclose(adv[:, 0], [first, death, last])


RLAX = {  # google-deepmind/rlax, multistep_test.py, TruncatedGeneralizedAdvantageEstimationTest
    1.0: [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]],
    0.7: [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]],
    0.4: [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]],
}


@pytest.mark.parametrize("lam", RLAX)
@pytest.mark.parametrize("row", [0, 1])
def test_the_advantages_of_rlax_are_reproduced(lam, row):
    rew = column(*[[0, 0, 1, 0, -0.5], [0, 0, 0, 0, 1]][row])
    value = column(*[[1, 4, -3, -2, -1, -1], [-3, -2, -1, 0, 5, -1]][row])
    term = flags(5) if row == 0 else flags(5, 3)  # its discount is 0 there
    nxt = np.where(term, np.nan, value[1:])
    adv = reference.gae(rew, value[:-1], nxt, term, flags(5), True, [0.99, 0.9][row], lam)
    np.testing.assert_allclose(adv[:, 0], RLAX[lam][row], atol=1e-3)  # as rounded there


VALUES = (0.5, 0.6, 0.7, 0.2, 0.3, 0.4)


def test_a_truncation_bootstraps_from_the_final_observation_and_cuts_the_trace():
    nxt = column(0.6, 0.7, 2.0, 0.3, 0.4, 1.5)  # V(final) = 2.0, not the reset's 0.2
    args = column(*[1] * 6), column(*VALUES), nxt, flags(6), flags(6, 2), True
    adv = reference.gae(*args, gamma=0.9, lam=0.8)[:, 0]
    np.testing.assert_allclose(adv, [2.87024, 2.542, 2.1, 2.84408, 2.464, 1.95], atol=1e-6)
    ret = [3.37024, 3.142, 2.8, 3.04408, 2.764, 2.35]
    np.testing.assert_allclose(adv + VALUES, ret, atol=1e-6)


@pytest.mark.parametrize("trunc", [flags(6), flags(6, 2, 5)], ids=["term", "term and trunc"])
def test_a_termination_has_no_bootstrap_also_where_it_is_a_truncation_too(trunc):
    nxt = column(0.6, 0.7, np.nan, 0.3, 0.4, np.nan)
    args = column(*[1] * 6), column(*VALUES), nxt, flags(6, 2, 5), trunc, True
    adv = reference.gae(*args, gamma=0.9, lam=0.8)[:, 0]
    np.testing.assert_allclose(adv, [1.93712, 1.246, 0.3, 2.14424, 1.492, 0.6], atol=1e-6)


def test_discounted_rewards_go_on_from_the_carry_and_start_anew_after_an_end():
    g, carry = reference.discounted(column(1, 2, 3, 4), flags(4, 1), True, 0.5, np.array([8.0]))
    np.testing.assert_allclose(g[:, 0], [1 + 4, 2 + 0.5 + 2, 3, 4 + 1.5])
    np.testing.assert_allclose(carry, [5.5])
    _, carry = reference.discounted(column(1, 2), flags(2, 1), True, 0.5, np.array([8.0]))
    np.testing.assert_allclose(carry, [0.0])


def test_moments_are_those_of_all_rows_together_with_the_biased_variance():
    count, mean, var = reference.moments([column(1, 2), column(6)])
    assert count == 3
    np.testing.assert_allclose(mean, [3])
    np.testing.assert_allclose(var, [(4 + 1 + 9) / 3])


KNOWN_ANSWERS = [  # Random123's kat_vectors for philox4x32-10: counter, key, output
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("at", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers_of_random123(at, key, answer):
    component, step, env, purpose = (int(w, 16) for w in at.split())
    low, high = (int(w, 16) for w in key.split())
    words = reference.philox(low + (high << 32), component, step, env, purpose)
    assert words == tuple(int(w, 16) for w in answer.split())


def test_purposes_keep_their_numbers():
    names = ["ACT", "SHUFFLE", "INIT", "ENV_SEED", "EVALUATE", "WARMUP", "RPO", "PAST",
             "ENVIRONMENT"]
    assert [(p.name, int(p)) for p in Purpose] == [(n, i) for i, n in enumerate(names)]


def test_a_step_counts_modulo_two_to_the_32_so_that_episode_minus_one_has_a_seed():
    assert reference.word(7, 0, 3, 5) == reference.word(7, 0, 3, 5 + 2**32)
    assert reference.word(7, 5, 3, -1) == reference.word(7, 5, 3, 2**32 - 1)


def test_the_first_uniform_and_normal_are_the_formula_on_a_known_answer():
    first, second = 0x6627E8, 0xE169C5  # of the known answer to zeros, without their low bytes
    u = reference.uniform(0, 0, 0, 0, (1, 1))
    z = reference.normal(0, 0, 0, 0, (1, 1))
    assert u == [[first / 2**24]]
    radius = np.sqrt(-2 * np.log((first + 1) / 2**24))
    np.testing.assert_allclose(z, [[radius * np.cos(2 * np.pi * second / 2**24)]])


def test_a_permutation_of_two_swaps_when_its_word_is_in_the_lower_half():
    swapped = 0
    for epoch in range(30):
        low = reference.word(0, Purpose.SHUFFLE, epoch, 9, component=1) < 2**31
        assert reference.permutation(0, 9, epoch, 2).tolist() == ([1, 0] if low else [0, 1])
        swapped += low
    assert 0 < swapped < 30


def test_a_categorical_takes_the_first_index_whose_cumulative_probability_exceeds_u():
    logits = np.log(np.array([[0.25, 0.25, 0.5]] * 5))
    act, logp = reference.sample_categorical(logits, np.array([0.0, 0.24, 0.26, 0.51, 0.99]))
    assert act.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_allclose(logp, np.log([0.25, 0.25, 0.25, 0.5, 0.5]))


def test_a_categorical_never_takes_an_index_of_no_probability():
    logits = np.array([[-np.inf, 0.0, -np.inf]])
    act, logp = reference.sample_categorical(logits, np.array([0.0]))
    assert act == [1]
    assert logp == [0.0]


def test_a_gaussian_of_two_components_is_the_formula_done_by_hand():
    mean, log_std, z = np.array([[1.0, 2.0]]), np.log([2.0, 0.5]), np.array([[1.0, -2.0]])
    act, logp = reference.sample_gaussian(mean, log_std, z)
    np.testing.assert_allclose(act, [[3.0, 1.0]])
    density = np.exp(-0.5) / (2 * np.sqrt(2 * np.pi)) * np.exp(-2) / (0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(logp, [np.log(density)])


def test_the_first_nonfinite_is_found_by_its_flat_index():
    x = np.zeros((2, 3))
    assert reference.first_nonfinite(x) == -1
    x[1, 1:] = np.inf, np.nan
    assert reference.first_nonfinite(x) == 4
