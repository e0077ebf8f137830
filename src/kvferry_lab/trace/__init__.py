"""`kvferry trace`: request traces, replayed through the index and against stores."""
