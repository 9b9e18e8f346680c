"""The learner with compiled minibatches, equal to torch's within 1e-5."""

from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Iterator

import numpy as np
import torch
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.learner import Learner
from fastppo.machine import kernels
from fastppo.networks.encoders import network_plan
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.policy import Policy
from fastppo.spaces.leaves import tree_map
from fastppo.stepping.actors import PolicyPlan
from fastppo.update.batches import Batch
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.optimizers import Adam
from fastppo.update.schedules import Coefficients
from fastppo.update.statistics import LOSSES, Statistics


def policy_plan(policy: Policy, flat: FlatParameters) -> PolicyPlan:
    """The layers of a built-in network for the compiled policy (see compiled/support.py)."""
    log_std, encoding = getattr(policy.head, "log_std", None), policy.observer.encoding
    image = encoding.leaves[0] if encoding.images else None
    at = None if log_std is None else flat.offsets[id(log_std)]
    return PolicyPlan(network_plan(policy.net, flat.offsets, image), at, policy.observer.limit)


def update_coefficients(config: Config, coefs: Coefficients) -> kernels.UpdateCoefficients:
    """The coefficients of the loss and of Adam, as the compiled update takes them."""
    return kernels.UpdateCoefficients(
        coefs.clip_range, coefs.clip_range_vf, coefs.entropy_coef, coefs.value_coef,
        coefs.dual_clip, config.max_grad_norm, config.norm_advantages == "minibatch", Adam.BETAS,
        config.adam_eps)


class CompiledLearner(Learner):
    """A Learner whose minibatches are compiled, on the same vectors: equal to it within 1e-5.

    With `shared`, see compiled/shared_minibatches.py, idle workers help where that was faster: to
    pass weights and gradients to and fro takes as long as tens of rows, by chip and network, and
    much longer beside another program. The bits are the same either way, so the clock may decide.
    """

    shared: Any = None

    def __init__(self, policy: Policy, config: Config, flat: FlatParameters):
        super().__init__(policy, config, flat)
        self.plan, self.helped = policy_plan(policy, flat), False
        self.took = {True: 1e9, False: 1e9}  # seconds of an update, shared and alone
        # A scan's row says how long a sequence can be (csrc/network/forward.h).
        self.plan.plan[self.plan.plan[:, 7] == kernels.SCAN, 9] = config.num_steps
        self.buffers = kernels.update_memory(
            *self.plan[:2], flat.values.numpy(), self.optimizer.mean.numpy(),
            self.optimizer.square.numpy())

    def helpers(self, rollout: Rollout, coefs: Coefficients) -> AbstractContextManager[bool]:
        """Idle workers; they read all rows of the rollout buffer, and cannot help with others."""
        able = self.shared is not None and not self.transforms \
            and rollout is self.shared.rollout and rollout.valid.all()
        # One update of fifty goes the way that was slower, to be timed.
        shared = (self.took[True] <= self.took[False]) != (self.last_iteration % 50 == 2)
        return self._timed(shared, coefs) if able else nullcontext(False)

    @contextmanager
    def _timed(self, shared: bool, coefs: Coefficients) -> Iterator[bool]:
        """The helpers, or none, and what that took; one slow update counts little."""
        begin = perf_counter()
        with self.shared.session(coefs) if shared else nullcontext(False) as helped:
            yield helped
        self.took[shared] = min(perf_counter() - begin, 1.25 * self.took[shared])

    def _epoch(self, batch: Batch, order: Tensor, coefs: Coefficients) -> Statistics:
        """One pass over the shuffled samples; returns the mean statistics of its minibatches."""
        order, samples = batch.placed(order), self._samples(batch)
        placed = batch._replace(sequences=tree_map(lambda x: x[order], batch.sequences))
        parts = placed.parts(self.config.num_minibatches)
        update = kernels.MinibatchUpdate(*self.plan, self.buffers, samples, order.numpy(),
                                         update_coefficients(self.config, coefs))
        minibatch = self.shared.minibatches(update, order.numpy(), samples.first) if self.helped \
            else update.minibatch
        stats = np.empty((len(parts), len(LOSSES)), np.float32)
        for part, row in zip(parts, stats):
            self.optimizer.steps += 1
            minibatch(*part, self.optimizer.steps, self.optimizer.rates[0], row)
        return dict(zip(LOSSES, torch.from_numpy(stats).mean(0)))

    def _samples(self, batch: Batch) -> kernels.UpdateSamples:
        """The samples as the kernel reads them, without a copy where they are float32 already."""
        observer, rest = self.policy.observer, (x.numpy() for x in batch[1:-1])
        moments = (observer.shift.numpy(), observer.scale.numpy()) if observer.norm else ()
        memory = dict(zip(("state", "first"), (x.numpy() for x in batch.sequences)))
        if isinstance(batch.obs, FrameStacks):
            frames = batch.obs.frames.flatten(1).numpy()
            return kernels.UpdateSamples(frames, *rest, stacks=batch.obs.stacks.numpy(), **memory)
        obs = observer.encoding.encode(observer.layout.split(batch.obs))
        legal = observer.mask(batch.obs)
        legal = None if legal is None else legal.contiguous().numpy()
        return kernels.UpdateSamples(obs, *rest, *moments, legal=legal, **memory)
