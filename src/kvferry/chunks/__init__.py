"""Chunks: what they are called, their shape, and the prompts that they are parts of.

identity     what makes their bytes comparable
generation   what a clear renews
keys         their names in stores
prompt       one hash for each full chunk of a prompt
layout       the shape of a chunk and the types of its elements
pool         pages for chunks of an engine's own, `PagePool`
"""
