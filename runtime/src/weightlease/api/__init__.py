"""Pydantic models of the custom resources; the CRDs in `crds/` are generated from them."""
