"""The main job on a real cluster: install, warm a public checkpoint, serve it, show what is shared."""
