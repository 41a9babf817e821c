"""Plumbing no user meets: arrays, blocks, draws, quantiles, storage, validation."""
