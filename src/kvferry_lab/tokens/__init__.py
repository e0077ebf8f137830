"""`kvferry lab tokens`: llmperf's token benchmark."""
