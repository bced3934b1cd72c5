"""Which call of one run belongs to which of the other, without a mapping file."""
