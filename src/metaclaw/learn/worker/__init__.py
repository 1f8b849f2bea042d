"""The learner process: its channel to the serving process, store calls, supervision of its loops, and work that crashed it."""
