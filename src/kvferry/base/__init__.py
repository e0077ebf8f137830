"""What every room needs: errors, secrets, threads, the host, and values that others sent."""
