"""Which call of one run belongs to which of the other, without a mapping file."""

from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.alignment import Alignment, Alone, Relation, read_alignment
from twinprobe._align.auto.row_links import aligned_pairs, link_alignment

__all__ = ["Alignment", "Alone", "Relation", "align_runs", "aligned_pairs", "link_alignment", "read_alignment"]
