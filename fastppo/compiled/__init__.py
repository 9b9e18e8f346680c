"""The compiled learner: what it supports, its update, and minibatches shared with workers."""
