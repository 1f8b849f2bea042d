"""Working days through the running program: a person marks answers, an evolver writes skills,
weights are trained at night.
"""
