"""The slow loop's rules: advantages, data, distillation, drift, the gate for weights; and training services behind a network."""
