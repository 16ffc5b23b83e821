"""Neural networks behind the same interface as linear models; all of these modules need torch.

A network is a ``torch.nn.Module`` that is never given values of its own: each call runs it on views into
the flat model vector, so a gradient comes back as one flat vector.

Models, samples and results are NumPy arrays. With the device ``cuda`` each call moves the model and its batch
there, and the gradient back.
"""
