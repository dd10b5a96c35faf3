"""A stand-in for vLLM on an NPU: the few names that measuring touches, with a scheduler that counts tokens."""

__version__ = "0.23.0"
