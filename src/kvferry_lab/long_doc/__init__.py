"""`kvferry lab long-doc-qa`: many long prompts, each asked again and again."""
