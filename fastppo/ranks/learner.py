"""The update of a run on several ranks: each has the observations of its own environments.

    every rank: the same permutation -> its own samples of the minibatch -> their part of the
    gradient -> the sum over all ranks -> the same step of the optimizer

Advantages are those of all ranks, so a minibatch normalises them as one process would. The weights
are those of one process but for the order in which gradients are added.
"""

from functools import partial
from typing import Any, Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.compiled.learner import CompiledLearner, update_coefficients
from fastppo.config import Config
from fastppo.errors import ModelError
from fastppo.learner import Learner
from fastppo.machine import kernels
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.policy import Policy
from fastppo.ranks.processes import Ranks
from fastppo.spaces.leaves import tree_map
from fastppo.update.batches import Batch, flatten_rollout, normalise_advantages
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.schedules import Coefficients
from fastppo.update.statistics import LOSSES, Statistics, average


class OwnSamples(NamedTuple):
    """A minibatch of which this rank has some samples."""

    own: Batch  # those that it has
    adv: Tensor  # [m] of all
    places: Tensor  # i64 [k] the places of its own in the minibatch

    def split(self, count: int) -> Iterator[Batch]:
        """The own samples in `count` parts, which have the advantages of the minibatch."""
        return self.own._replace(adv=self.adv[self.places]).split(count)


class RankedLearner(Learner):
    """A Learner of the rollouts of a rank, which are those of environments [first, last).

    Its batch has adv and ret of all samples, and the other fields of its own ones.
    """

    ranks: Ranks

    def attach(self, ranks: Ranks) -> None:
        """Makes the steps of this rank those of all."""
        self.ranks, envs = ranks, self.config.num_envs
        own = ranks.own(envs)
        self.flatten = partial(_flatten_own, ranks, envs)
        rows = np.full((self.config.num_steps, envs), -1)
        rows[:, own] = np.arange(rows[:, own].size).reshape(rows[:, own].shape)
        self.row_of = torch.from_numpy(rows.reshape(-1))  # of an own sample in the batch; else -1
        self.policy.observer.learn_from = partial(_learn_together, self.policy.observer, ranks)
        clip = self.clip_gradient

        def clip_sum() -> Tensor:
            ranks.add(self.flat.grad)
            return clip()
        self.clip_gradient = clip_sum

    def _epoch(self, batch: Batch, order: Tensor, coefs: Coefficients) -> Statistics:
        """One pass over the shuffled samples of all ranks; the means of the whole minibatches."""
        row_of = self.row_of.to(order.device)
        return self._sum([
            self._rank_minibatch(own_samples(batch, order[first:last], row_of), coefs)
            for first, last in batch.parts(self.config.num_minibatches)])

    def _rank_minibatch(self, part: OwnSamples, coefs: Coefficients) -> Statistics:
        """The step of a minibatch; a rank without a sample of it adds nothing to the gradient."""
        if len(part.places):
            return self._minibatch(part, coefs)
        self.flat.grad.zero_()
        stats = dict.fromkeys(LOSSES, torch.zeros((), device=self.flat.grad.device))
        stats["grad_norm"] = self.clip_gradient()
        self.optimizer.step()
        return stats

    def _sum(self, minibatches: list[Statistics]) -> Statistics:
        """The mean statistics of minibatches, each the sum over all ranks but for grad_norm."""
        means = average(minibatches)
        shares = torch.stack([x for name, x in means.items() if name != "grad_norm"])
        self.ranks.add(shares)
        names = (name for name in means if name != "grad_norm")
        return dict(zip(names, shares)) | {"grad_norm": means["grad_norm"]}


class RankedCompiledLearner(RankedLearner, CompiledLearner):
    """A RankedLearner whose gradients are compiled."""

    def _epoch(self, batch: Batch, order: Tensor, coefs: Coefficients) -> Statistics:
        """As RankedLearner's, with the shards of the compiled update."""
        orders = [order[a:b] for a, b in batch.parts(self.config.num_minibatches)]
        parts = [own_samples(batch, samples, self.row_of) for samples in orders]
        rows = [self.row_of[samples][part.places] for samples, part in zip(orders, parts)]
        own_order, adv = torch.cat(rows), batch.adv.new_zeros(len(batch.logp))
        ret = batch.ret[self.row_of >= 0]
        for part, places in zip(parts, rows):
            whole = normalise_advantages(part.adv) if self.config.norm_advantages == "minibatch" \
                else part.adv
            adv[places] = whole[part.places]
        terms = update_coefficients(self.config, coefs)._replace(norm_advantages=False)
        update = kernels.MinibatchUpdate(*self.plan, self.buffers, self._samples(
            batch._replace(adv=adv, ret=ret)), own_order.numpy(), terms)
        ends = np.cumsum([0, *map(len, rows)])
        stats = np.stack([self._compiled_step(update, first, last, len(part.adv))
                          for first, last, part in zip(ends, ends[1:], parts)])
        return self._sum([dict(zip(LOSSES, row)) for row in torch.from_numpy(stats)])

    def _compiled_step(self, update: kernels.MinibatchUpdate, first: int, last: int, rows: int
                       ) -> np.ndarray:
        """One step on the own samples [first, last) of a minibatch of `rows`; the LOSSES."""
        grad, sums = self.buffers.grads[0, :len(self.flat.grad)], self.buffers.sums[0]
        if last > first:
            for shard in range(update.begin(first, last)):
                update.shard(shard)
            update.add_up((last - first) / rows)
        else:
            grad.fill(0.0)
            sums.fill(0.0)
        self.ranks.add(torch.from_numpy(grad))
        self.optimizer.steps += 1
        stats = np.empty(len(LOSSES), np.float32)
        update.finish(self.optimizer.steps, self.optimizer.rates[0], stats, True)
        stats[:-1] = sums / rows
        return stats


def ranked_learner(kind: type[Learner], policy: Policy, config: Config, flat: FlatParameters,
                   ranks: Ranks) -> RankedLearner:
    """A learner of a `kind` whose steps are those of all ranks; ModelError for a memory."""
    if policy.memory:
        raise ModelError("the model has a memory, and such a run has one process",
                         "run it without torchrun")
    base = RankedCompiledLearner if kind is CompiledLearner else type(
        f"Ranked{kind.__name__}", (RankedLearner, kind), {})
    learner = base(policy, config, flat)
    learner.attach(ranks)
    return learner


def own_samples(batch: Batch, samples: Tensor, row_of: Tensor) -> OwnSamples:
    """The minibatch of `samples` i64 [m], of which a rank has those with a row in its batch."""
    rows = row_of[samples]
    places = (rows >= 0).nonzero()[:, 0]
    own = rows[places]
    rest = batch._replace(adv=batch.logp, ret=batch.logp).rows(own)  # which have as many rows
    return OwnSamples(rest._replace(ret=batch.ret[samples[places]]), batch.adv[samples], places)


def own_environments(rollout: Rollout, ranks: Ranks) -> Rollout:
    """The part of a rollout that is of this rank's environments, whose observations are here."""
    count, obs = rollout.rew.shape[1], rollout.obs
    own = slice(ranks.own(count).start, ranks.own(count).stop)
    return Rollout(FrameStacks(obs.frames, obs.stacks[:, own]) if isinstance(obs, FrameStacks)
                   else tree_map(lambda x: x[:, own], obs), *(x[:, own] for x in rollout[1:]))


def _flatten_own(ranks: Ranks, envs: int, rollout: Rollout, device: torch.device) -> Batch:
    """The samples of a rank's rollout, but adv and ret of all `envs` environments."""
    if isinstance(obs := rollout.obs, FrameStacks):  # without the frames of the others
        own, each = ranks.own(envs), len(obs.frames) // envs
        first, last = each * own.start, each * own.stop
        rollout = rollout._replace(obs=FrameStacks(obs.frames[first:last], obs.stacks - first))
    else:  # a column of one environment is not contiguous
        rollout = Rollout(*(tree_map(torch.Tensor.contiguous, x) for x in rollout))
    adv, ret = (x.flatten().to(device) for x in ranks.join(rollout.adv, rollout.ret))
    return flatten_rollout(rollout, device)._replace(adv=adv, ret=ret)


def _learn_together(observer: ObservationNormaliser, ranks: Ranks, obs: Any) -> None:
    """Merges the observations [t*e ...] of all ranks, each its own ones, into the moments."""
    rows = observer.encoding.encode(observer.layout.split(obs), numbers_only=True)
    found = tuple(np.zeros_like(x.cpu().numpy()) for x in observer.state)
    kernels.merge_moments(np.ascontiguousarray(rows), *found)
    state = tuple(x.cpu().numpy() for x in observer.state)
    for part in ranks.gather(found):
        state = merged_moments(state, part)
    observer.restore([torch.from_numpy(x) for x in state])


def merged_moments(one: tuple, two: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(count, mean, m2) of the rows of both [Chan 1979]."""
    (count, mean, m2), (more, other, m2_other) = one, two
    total, away = count + more, other - mean
    return (total, mean + away * more / total, m2 + m2_other + away**2 * count * more / total)
