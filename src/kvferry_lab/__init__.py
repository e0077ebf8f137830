"""What measures and shows: the demo and the benchmarks. Every number is of verified bytes."""
