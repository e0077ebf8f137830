"""What this project promises of itself, measured: `make bench`. Not a part of the package."""
