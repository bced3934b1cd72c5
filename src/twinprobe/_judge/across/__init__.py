"""Across many ranks and many steps: where did the difference begin?"""
