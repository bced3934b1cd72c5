"""twinprobe view: open the graphs of a folder in the browser, or export them as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from twinprobe._cli.common import path, say
from twinprobe.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("place", type=path, nargs="?", default=".", metavar="OUT",
        help="folder with .vis or .vis.db files, or one such file (default: the current folder)")  # fmt: skip
    add("--port", type=_port, metavar="N", help="port to listen on (default: the first free one from 6060 on)")
    add("--host", default="127.0.0.1", metavar="NAME",
        help="address to listen on (default: 127.0.0.1); addresses that others can reach require a token")  # fmt: skip
    add("--no-browser", action="store_true", help="do not open a browser")
    add("--export", type=path, metavar="PAGE.html", help="write one self-contained page instead of starting a server")
    add("--step", type=int, metavar="N", help="with --export: the step to start with")
    add("--rank", type=int, metavar="N", help="with --export: the rank to start with")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, or export."""
    from twinprobe._graph.read.open import graphs_here

    shown = args.place
    with graphs_here(shown) as args.place:
        _check(args.place)
        return _export(args) if args.export else _serve(args, shown)


def _serve(args: argparse.Namespace, shown: Path) -> int:
    from twinprobe._view.app import make

    server = make(args.place, host=args.host, port=args.port)
    say(f"TwinProbe shows {shown} at {server.url} (Ctrl+C ends it)")
    sys.stdout.flush()
    if not args.no_browser:
        import webbrowser

        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return 0


def _export(args: argparse.Namespace) -> int:
    from twinprobe._view.export import export_page

    done = export_page(args.place, args.export, step=args.step, rank=args.rank)
    left = f"; {done.left_out} nodes far from any finding were left out" if done.left_out else ""
    say(f"{args.export}: {done.file} with {done.nodes} nodes, {done.size / 1e6:.1f} MB{left}")
    return 0


def _check(place: Path) -> None:
    from twinprobe._graph.read.open import has_graphs

    if not place.exists():
        raise BadInput("does not exist", where=place, hint="name the folder that twinprobe graph wrote to")
    if place.is_file() and not place.name.endswith((".vis", ".vis.db")):
        raise BadInput("is not a .vis or .vis.db file", where=place)
    if not has_graphs(place):
        raise BadInput(
            "holds no .vis or .vis.db file", where=place, hint="make one with twinprobe graph_visualize -tp DUMP -o DIR"
        )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; choose one from 0 to 65535")
    return int(text)
