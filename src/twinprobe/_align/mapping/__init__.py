"""Mapping files and the rules that they stand for."""
