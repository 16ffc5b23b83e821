"""Energy and time of a run by a model of device and channel."""
