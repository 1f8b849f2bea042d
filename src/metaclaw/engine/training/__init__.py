"""Teaching the embedded model: LoRA, losses, rollouts, and the trainer process."""
