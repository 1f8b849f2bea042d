"""The slow loop: trains weights on recorded turns, proves new versions, serves them and rolls them
back.
"""
