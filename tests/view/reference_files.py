"""The reference graph files: nodes of the run under test, nodes of the reference, first divergence."""

from __future__ import annotations

FILES: dict[str, tuple[int, int, str | None]] = {
    "results/build_single/build_20261115024659.vis.db": (157, 0, None),
    "results/cmp_lm2/compare_20261115025819.vis.db": (157, 155, None),
    "results/cmp_md5/compare_20261115024745.vis.db": (157, 157, "Functional.linear.6.forward"),
    "results/cmp_stat/compare_20261115024710.vis.db": (157, 157, "Functional.gelu.1.backward"),
    "results/ranks_cmp/compare_20261115025155.vis.db": (160, 160, "Functional.gelu.1.backward"),
    "results_json/1.2.2/cmp_md5/compare_20261115025818.vis": (143, 143, "Functional.linear.6.forward"),
    "results_json/8.1.2/build/build_20261115025924.vis": (143, 0, None),
    "results_json/8.1.2/cmp_lm/compare_20261115030032.vis": (143, 141, None),
    "results_json/8.1.2/cmp_stat/compare_20261115025937.vis": (143, 143, "Functional.linear.8.backward"),
    "results_json/8.1.2/ranks/compare_20261115030039.vis": (146, 146, "Functional.linear.8.backward"),
}
