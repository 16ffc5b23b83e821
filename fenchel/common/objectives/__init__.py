"""What a client can compute on its shard: values, gradients, constants, metrics."""
