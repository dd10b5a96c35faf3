"""Settings for all tests."""

import signal

from hypothesis import settings

# A shell that starts the tests in the background has them ignore interrupts, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines stall now and then: how long an example takes says nothing about the code.
settings.register_profile("kvcast", deadline=None)
settings.load_profile("kvcast")
