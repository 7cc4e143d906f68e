"""The node agent: owns the stores of one node and leases what they hold."""
