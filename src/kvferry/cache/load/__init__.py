"""One retrieve: look in memory, ask the stores, choose, load into pages."""
