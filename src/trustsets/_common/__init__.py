"""Helpers behind the public modules: arrays, blocks, draws, quantiles, ranks, storage, checks."""
