"""Training: the request, the plan, the loop, optimizers and schedules, fine-tuning, and the result."""
