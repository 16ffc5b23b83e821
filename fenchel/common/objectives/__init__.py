"""Objectives of clients on their shards: values, gradients, constants, metrics."""
