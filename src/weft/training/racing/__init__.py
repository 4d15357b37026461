"""The race of sizes: candidates on the user's own data, judged by held-out loss."""
