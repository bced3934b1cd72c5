"""Published implementations of the same models, weights converted, for ``python bench align_published``."""
