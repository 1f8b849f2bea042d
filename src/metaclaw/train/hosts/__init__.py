"""Servers of trained weights beside the embedded engine: vLLM, SGLang, and the sampler of a
training service.
"""
