"""Does it learn, for real? Tasks that need a house rule, the embedded model, and four conditions
side by side.
"""
