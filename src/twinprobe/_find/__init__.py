"""The hunt: two programs or recordings in, one page out; runs the other rooms in turn."""
