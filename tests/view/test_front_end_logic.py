"""Layout, state, labels and colours of the front end, run in Chromium against the plainest possible account."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_tools import serving


@pytest.fixture(scope="module")
def run(window: Any, reference: Path) -> Iterator[Callable[..., Any]]:
    """Run a function in a page that all tests share; ``load`` imports a module of the front end."""
    with serving(reference / "graph" / "results") as url:
        page = window.new_page()
        page.goto(f"{url}static/icon.svg")
        load = "const load = (name) => import(`${location.origin}/static/${name}.js`);"
        yield lambda code, argument=None: page.evaluate(f"async (given) => {{ {load} {code} }}", argument)
        page.close()


BUILD = """
  const { Tree } = await load('tree');
  const layout = await load('layout');
  const tree = new Tree({ name: 'r', order: 0, type: '0', kids: given.tree.length });
  const grow = (name, kids) => {
    const nodes = kids.map((kid, i) => ({ name: `${name}.${i}`, order: 0, type: '0', kids: kid.length }));
    tree.add({ parent: name, total: kids.length, offset: 0, nodes });
    kids.forEach((kid, i) => kid.length && grow(`${name}.${i}`, kid));
  };
  grow('r', given.tree);
  for (const name of given.closed) { const item = tree.get(name); if (item) tree.setOpen(item, false); }
"""


def plain_layout(
    tree: list[Any], closed: set[str], row: int, gap: int, top: int, bottom: int
) -> dict[str, tuple[int, int]]:
    """The same layout, by walking over everything."""
    places: dict[str, tuple[int, int]] = {}

    def visit(name: str, kids: list[Any], at: int) -> int:
        height = row
        if kids and name not in closed:
            inner = at + row + top
            for number, kid in enumerate(kids):
                inner += visit(f"{name}.{number}", kid, inner) + gap
            height = inner - gap + bottom - at
        places[name] = (at, height)
        return height

    visit("r", tree, 0)
    return places


def some_tree(rng: random.Random, depth: int) -> list[Any]:
    return [some_tree(rng, depth - 1) if depth and rng.random() < 0.5 else [] for _ in range(rng.randint(1, 6))]


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_where_a_walk_over_all_of_them_puts_them(run: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    tree = some_tree(rng, 4)
    names = list(plain_layout(tree, set(), 1, 0, 0, 0))
    closed = set(rng.sample(names[1:], k=min(len(names) - 1, 5)))
    got = run(BUILD + """
      const { row, gap, padTop, padBottom } = layout;
      const all = layout.visible(tree.root, -1e9, 1e9).map((p) => [p.item.node.name, p.top, p.height]);
      const tops = all.map(([name]) => layout.topOf(tree.get(name)));
      const walk = []; for (let at = tree.root; at; at = layout.below(at)) walk.push(at.node.name);
      const back = []; for (let at = tree.get(walk.at(-1)); at; at = layout.above(at)) back.push(at.node.name);
      const from = given.cut, to = given.cut + 100;
      const part = layout.visible(tree.root, from, to).map((p) => p.item.node.name);
      return { row, gap, padTop, padBottom, all, tops, walk, back, part, cut: from };
    """, {"tree": tree, "closed": sorted(closed), "cut": rng.randint(0, 400)})  # fmt: skip
    expected = plain_layout(tree, closed, got["row"], got["gap"], got["padTop"], got["padBottom"])
    shown = {name: (top, height) for name, top, height in got["all"]}
    assert shown == {name: expected[name] for name in shown}
    assert got["tops"] == [top for _, top, _ in got["all"]]
    assert set(shown) == {name for name in expected if not any(name.startswith(f"{c}.") for c in closed)}
    assert got["walk"] == [name for name, _, _ in got["all"]] == got["back"][::-1]
    cut = got["cut"]
    assert set(got["part"]) == {
        name for name, (top, height) in shown.items() if top + height >= cut and top <= cut + 100
    } | {"r"}


def test_what_crosses_a_window_is_found_and_little_else(run: Callable[..., Any]) -> None:
    tree = [[] for _ in range(5000)]
    tree[2500] = [[] for _ in range(50)]
    got = run(BUILD + """
      const p = layout.visible(tree.root, 60000, 61000);
      return { names: p.length, outside: p.filter((x) => x.top > 61000 || x.top + x.height < 60000).length };
    """, {"tree": tree, "closed": []})  # fmt: skip
    assert got["outside"] == 0
    assert 20 < got["names"] < 30


def test_children_that_are_not_loaded_have_their_place(run: Callable[..., Any]) -> None:
    got = run("""
      const { Tree } = await load('tree'); const layout = await load('layout');
      const tree = new Tree({ name: 'r', order: 0, type: '0', kids: 1000 });
      const one = (order) => ({ name: `n${order}`, order, type: '1' });
      const nodes = (from, n) => [...Array(n).keys()].map((i) => one(from + i));
      tree.add({ parent: 'r', total: 1000, offset: 0, nodes: nodes(0, 200) });
      const before = layout.height(tree.root);
      const holes = layout.visible(tree.root, 30000, 30100).filter((p) => !p.item).map((p) => p.index);
      tree.add({ parent: 'r', total: 1000, offset: 600, nodes: nodes(600, 200) });
      const there = layout.visible(tree.root, 30000, 30100).filter((p) => p.item && p.item !== tree.root);
      const now = there.map((p) => p.item.node.name);
      return { same: before === layout.height(tree.root), holes, now };
    """)
    assert got["same"]
    assert [f"n{index}" for index in got["holes"]] == got["now"] != []


def test_the_state_survives_the_address(run: Callable[..., Any]) -> None:
    state = {
        "file": "a/b ü&=#.vis.db", "step": 3, "rank": 0, "micro": 2, "node": "Module.<x>.Y.forward.0", "side": "golden",
        "openTarget": [5, 900, 901], "openGolden": [0], "zoom": 0.75, "scroll": [1, 2, 3, 4], "color": "Max diff",
        "above": 1e-7, "tab": "matched", "listSide": "golden", "levels": [0, 2], "overflow": ["high"], "what": "apis",
        "q": "x y&z", "panel": False, "details": False, "tall": 300, "wide": 400, "injected": True,
        "inside": "input.0", "growth": True,
        "lang": "zh", "theme": "dark",
    }  # fmt: skip
    got = run(
        "const s = await load('state'); return [s.fromAddress('#' + s.toAddress(given)),"
        " s.toAddress(s.initialState()), s.fromAddress('#junk&zoom=999&side=up&openTarget=!!&step=-1')];",
        state,
    )
    assert got[0] == state
    assert got[1] == ""
    assert (got[2]["zoom"], got[2]["side"], got[2]["openTarget"], got[2]["step"]) == (3, "target", [], None)


@pytest.mark.parametrize(
    ("name", "parent", "text"),
    [
        ("Module.module.Float16Module.forward.0", "DefaultModel", "module.forward.Float16Module.0"),
        (
            "Module.module.module.language_model.embedding.Embedding.forward.0",
            "Module.module.module.language_model.TransformerLanguageModel.forward.0",
            "embedding.forward.Embedding.0",
        ),
        ("Module.a.layers.0.Layer.backward.1", "Module.a.T.backward.0", "layers.0.backward.Layer.1"),
        ("Cell.network.Net.forward.0", "", "network.forward.Net.0"),
        ("Functional.linear.3.backward", "Module.a.A.backward.0", "Functional.linear.backward.3"),
        ("Module.a.fc.Linear.parameters_grad.0", "Module.a.fc.Linear.backward.0", "fc.parameters_grad.Linear.0"),
        ("DefaultModel", "", "DefaultModel"),
        ("Apis_Between_Modules.0", "DefaultModel", "Apis_Between_Modules.0"),
    ],
)
def test_labels_follow_the_convention(run: Callable[..., Any], name: str, parent: str, text: str) -> None:
    label = run("return (await load('labels')).label(given[0], given[1])", [name, parent])
    assert label["text"] == text
    parts = text.split(".")
    if "." in label["own"] or label["direction"]:
        assert text.startswith(label["own"])
    assert parts[-1] == name.rsplit(".", maxsplit=1)[-1] or label["direction"]


def test_names_are_taken_apart_as_the_rest_of_the_project_does(run: Callable[..., Any], reference: Path) -> None:
    import sqlite3

    from twinprobe._runs.names import parse_op

    file = next((reference / "graph" / "results" / "ranks_cmp").glob("*.vis.db"))
    names = [
        row[0]
        for row in sqlite3.connect(f"file:{file}?immutable=1", uri=True).execute(
            "SELECT DISTINCT node_name FROM tb_nodes"
        )
    ]
    got = run("const { parse } = await load('labels'); return given.map(parse)", names)
    for name, parts in zip(names, got, strict=True):
        op = parse_op(name)
        assert (parts["prefix"], parts["body"], parts["cls"], parts["direction"]) == (
            op.prefix,
            op.body,
            op.cls,
            op.direction,
        ), name
        assert parts["call"] == ("" if op.call < 0 else str(op.call))


def test_more_error_is_never_lighter_and_grey_means_unmatched(run: Callable[..., Any]) -> None:
    got = run("""
      const { painter } = await load('colors');
      const bands = [[0, .3], [.3, .6], [.6, 1]].map(([low, high]) => ({ low, high, color: '', label: '' }));
      const parts = (c) => c.startsWith('#') ? [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)) : c.match(/\\d+/g);
      const light = ({ fill }) => parts(fill).reduce((sum, n, i) => sum + n * [0.299, 0.587, 0.114][i], 0);
      const by = (color) => painter({ bands, compared: true, color, above: 0.001, dark: false });
      const levels = [0, 1, 2].map((level) => by('levels')({ match: 'x', level }));
      const metric = [0, .0009, .0011, .005, .02, .1, .5, 1e30].map((value) => by('M')({ match: 'x', value }));
      const marks = levels.map((p) => p.mark);
      const looks = metric.map((p) => p.look);
      return { levels: levels.map(light), marks, metric: metric.map(light), looks, grey: by('levels')({}).look };
    """)
    assert got["levels"] == sorted(got["levels"], reverse=True)
    assert got["metric"] == sorted(got["metric"], reverse=True)
    assert len(set(got["marks"])) == 3
    assert got["looks"][:2] == ["pass", "pass"]
    assert got["looks"][-1] == "error"
    assert got["grey"] == "unmatched"


def test_every_word_is_there_in_both_languages(run: Callable[..., Any]) -> None:
    got = run("""
      const { t, setLanguage } = await load('i18n');
      const words = ['first', 'stripHint', 'injected', 'legend', 'matchedBy'];
      const values = { from: 1, to: 2, of: 3, value: 'x', by: 'name' };
      const say = (lang) => { setLanguage(lang); return words.map((w) => t(w, values)); };
      return [say('en'), say('zh')];
    """)
    assert all(en != zh for en, zh in zip(*got, strict=True))
    assert "{" not in "".join(got[0] + got[1])


@pytest.mark.parametrize(
    ("name", "most", "text"),
    [
        ("layers.3.mlp.down", 40, "layers.3.mlp.down"),
        ("model.layers.13.attention.key_norm.LayerNorm.0", 34, "model.layers.13…key_norm.LayerNorm.0"[:34]),
        ("model.decoder.blocks.13.attention.query_norm.backward", 20, "…13…y_norm.backward"),
        ("very_long_word_without_any_number_in_it", 20, "very_l…_number_in_it"),
    ],
)
def test_a_shortened_name_keeps_its_layer_and_its_end(run: Callable[..., Any], name: str, most: int, text: str) -> None:
    found = run("return (await load('names')).shorten(given[0], given[1])", [name, most])
    assert len(found) <= most
    assert found.endswith(name[-8:])
    assert "13" not in name or "13" in found
