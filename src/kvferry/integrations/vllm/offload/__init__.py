"""What the tier of vLLM's OffloadingConnector is made of, without anything of vLLM."""
