"""The main job on a real cluster: install, warm a public checkpoint, serve, show what is shared."""
