"""A real Kubernetes cluster on one Linux host, for the demo and the end-to-end tests.

The package decides in pure functions (``settings``, ``layout``, ``components``, ``doctor``,
``configuration``, ``fingerprints``) and acts in the rest. ``python -m devcluster --help`` lists
the commands.
"""
