"""weightlease: keep model weights warm, exact and shared on the hosts that serve them."""
