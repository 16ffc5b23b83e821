"""Neural networks with the interface of linear models. All modules of this package require torch.

A model is one flat vector. Each call runs a ``torch.nn.Module`` on views into this vector in place of the module's own
parameters, so the gradient is one flat vector as well.

Models, samples and results are NumPy arrays. With the device ``cuda``, each call copies the model and the batch to the
GPU, and the gradient back.
"""
