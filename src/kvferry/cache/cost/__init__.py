"""What loading and computing take, and how long a request may wait for its cache."""
