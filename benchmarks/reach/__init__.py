"""Does what people say arrive? The running program on sentences in eight languages, with a scripted
model.
"""
