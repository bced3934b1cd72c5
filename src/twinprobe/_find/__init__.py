"""The search: two programs or recordings in, one page out; runs the other packages in turn."""
