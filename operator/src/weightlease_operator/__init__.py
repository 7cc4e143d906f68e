"""The operator: observes the cluster, plans purely, applies the plan."""
