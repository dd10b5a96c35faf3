"""Load-test results as benchmarks, and profiles learned from them by simulating the same tests."""
