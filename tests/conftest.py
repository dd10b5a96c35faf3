"""Settings for all tests."""

from hypothesis import settings

# Shared machines stall now and then: how long an example takes says nothing about the code.
settings.register_profile("kvcast", deadline=None)
settings.load_profile("kvcast")
