"""The paper's experiment through the running program: its table, what each loop does for the other,
whether weights learn to follow new rules, and habits.
"""
