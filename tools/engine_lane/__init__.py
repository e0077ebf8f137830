"""Real engines for tests and benchmarks: their environments and models, under build/engines."""
