"""Which call of one run belongs to which of the other, without a mapping file."""

from twinprobe.align.auto.aligner import align_runs
from twinprobe.align.auto.alignment import Alignment, Alone, Relation
from twinprobe.align.auto.file import read_alignment
from twinprobe.align.auto.link import aligned_pairs, link_alignment

__all__ = ["Alignment", "Alone", "Relation", "align_runs", "aligned_pairs", "link_alignment", "read_alignment"]
