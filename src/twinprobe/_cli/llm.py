"""twinprobe llm: record and compare the dumps of inference engines."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from twinprobe._cli.common import FORMATS, add_engine_arguments, engine_options, formats, local_path, path
from twinprobe._cli.main import add_allow_missing, exit_code

if TYPE_CHECKING:
    from twinprobe._compare.llm.token import LlmRequest

LEVELS = ("layer", "module", "api", "logits", "token")
LOG_LEVELS = ("debug", "info", "warning", "error", "fatal", "critical")
_COMPARE = "compare two dumps of an inference run: torch and torch, ATB and ATB, or torch and ATB"
_LOGPROBS = "compare the log-probabilities of the same tokens from two engines: training against rollout"
_DUMP = "run a program on the ATB acceleration library and dump its tensors and model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands below this one."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, short, text, declare, function in (
        ("compare", "cc", _COMPARE, _compare_arguments, _compare),
        ("dump", "dd", _DUMP, _dump_arguments, _dump),
        ("logprobs", "lp", _LOGPROBS, _logprobs_arguments, _logprobs),
    ):
        command = commands.add_parser(
            name, aliases=[short], help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False,
            formatter_class=parser.formatter_class,
        )  # fmt: skip
        declare(command)
        command.set_defaults(llm_run=function)


def run(args: argparse.Namespace) -> int:
    """Carry out the chosen command."""
    logging.getLogger("twinprobe").setLevel(getattr(logging, args.log_level.upper()))
    return int(args.llm_run(args))


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-gp", "--golden-path", type=path, required=True, metavar="PATH",
        help="reference dump: the folder of one token or device, the whole dump, or one tensor file")  # fmt: skip
    add("-mp", "--my-path", type=path, required=True, metavar="PATH", help="dump under test, in any of the same forms")
    add("-cl", "--cmp-level", choices=LEVELS, metavar="LEVEL",
        help="what to compare: layer, module, api (everything) or logits (default: everything)")  # fmt: skip
    add("-o", "--output", type=path, default="./", metavar="DIR", help="folder for the report (default: here)")
    add("-mf", "--op-mapping-file", type=path, metavar="PATH",
        help="op_mapping_file.json, or its folder: maps operators to modules")  # fmt: skip
    add("-alg", "--custom-algorithms", nargs="+", default=[], metavar="FILE.py:FUNCTION",
        help="custom metrics: functions of (golden, my) that return a value and a message")  # fmt: skip
    add("-st", "--stats", action="store_true", help="compare recorded statistics instead of tensors")
    add("-w", "--weight", action="store_true", help="compare the weights of two torch dumps")
    add("-r", "--rank", help=argparse.SUPPRESS)
    add("-l", "--log-level", choices=LOG_LEVELS, default="info", help="verbosity (default: info)")
    add("--format", type=formats, default=("csv",), metavar="LIST",
        help=f"report formats: any of {','.join(FORMATS)} (default: csv)")  # fmt: skip
    add("--rounding", type=float, default=64.0, metavar="N",
        help="treat errors below N machine epsilons of the coarser dtype as rounding (default: 64)")  # fmt: skip
    add("--fail-on", nargs="?", const="error", choices=("divergence", "error", "warning"),
        help="exit with code 1 if any row has this verdict or worse (default: error)")  # fmt: skip
    add_allow_missing(parser)
    add("--timeout", type=float, default=60.0, metavar="SECONDS",
        help="time limit of a custom metric for one pair (default: 60)")  # fmt: skip
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    add_engine_arguments(parser)
    parser.set_defaults(results="output")


def _compare(args: argparse.Namespace) -> int:
    from twinprobe._cli.common import Progress, print_json, say
    from twinprobe._compare.llm.job import REPORT, STATISTICS, compare_manual, utc_timestamp, write_llm_reports
    from twinprobe._compare.llm.modes import compare_files, compare_weights, is_pair_of_files
    from twinprobe._runs.llm.dump import find_manual
    from twinprobe.errors import BadInput

    if args.rank is not None:
        raise BadInput("--rank belongs to the comparison of GE graphs, which is not part of TwinProbe")
    request = _request(args)
    by_hand = find_manual(request.golden)
    if by_hand is None and is_pair_of_files(request):
        values = compare_files(request)
        if args.json:
            print_json(values)
        else:
            say(*(f"{name}: {value}" for name, value in values.items()))
        return 0
    from twinprobe._compare.llm.job import Notes, compare_dumps

    notes = Notes(request, args.output, utc_timestamp(), resume=args.resume)
    with notes, Progress(enabled=not (args.quiet or args.json)) as progress:
        if args.weight:
            result = compare_weights(request)
        elif by_hand is not None and not args.stats:
            result = compare_manual(request, by_hand, progress.advance)
        else:
            result = compare_dumps(request, progress.advance, notes)
        stem = STATISTICS if args.stats and not args.weight else REPORT
        summary = write_llm_reports(result, args.output, args.format, stem=stem, timestamp=notes.timestamp)
        notes.end()
    if args.json and not args.quiet:
        print_json(summary.to_dict())
    elif not args.quiet:
        from rich.console import Console

        from twinprobe._report.console import print_summary

        print_summary(summary, Console(highlight=False))
    return exit_code(args, [summary], result.lost)


def _request(args: argparse.Namespace) -> LlmRequest:
    from twinprobe._compare.llm.token import LlmRequest
    from twinprobe._judge.rules import Thresholds

    return LlmRequest(
        target=args.my_path,
        golden=args.golden_path,
        level="logits" if args.cmp_level == "token" else args.cmp_level,
        mapping=args.op_mapping_file,
        statistics=args.stats,
        algorithms=tuple(args.custom_algorithms),
        thresholds=Thresholds(rounding=args.rounding),
        engine=engine_options(args),
        timeout=args.timeout,
    )


def _dump_arguments(parser: argparse.ArgumentParser) -> None:
    from twinprobe._record.llm.atb import DUMP_TYPES

    add = parser.add_argument
    add("--exec", required=True, metavar="COMMAND", help='command that starts the program, e.g. "bash run.sh model.py"')
    add("--type", nargs="+", choices=DUMP_TYPES, default=["tensor", "model"], metavar="TYPE",
        help=f"what to dump: any of {', '.join(DUMP_TYPES)} (default: tensor model)")  # fmt: skip
    add("-sd", "--only-save-desc", action="store_true", help="save descriptions of tensors without their elements")
    add("-ids", "--save-operation-ids", default="", metavar="LIST", help="operators to save, e.g. 2,3_1 (default: all)")
    add("-er", "--execute-range", default="0,0", metavar="LIST", help="rounds to save: first,last pairs (default: 0,0)")
    add("-child", "--save-operation-child", type=_flag, default=True, metavar="BOOL",
        help="also save the operators inside the chosen ones (default: True)")  # fmt: skip
    add("-time", "--save-time", type=int, choices=range(4), default=3,
        help="0 before, 1 after, 2 both, 3 inputs before and outputs after (default: 3)")  # fmt: skip
    add("-opname", "--operation-name", metavar="NAME", help="only operators whose type starts with NAME")
    add("-tiling", "--save-tiling", action="store_true", help="also save tiling data")
    add("-stp", "--save-tensor-part", type=int, choices=range(3), default=2,
        help="0 inputs, 1 outputs, 2 both (default: 2)")  # fmt: skip
    add("-o", "--output", type=local_path, default="./", metavar="DIR",
        help="folder in which ait_dump is created (default: here)")  # fmt: skip
    add("-device", "--device-id", type=int, metavar="N", help="only this device")
    add("-seed", nargs="?", type=int, const=2024, metavar="N", help="deterministic run (without N: 2024)")
    add("-symlink", "--enable-symlink", action="store_true", help="save equal tensors once and link to them")
    add("-config", "--config-path", type=local_path, metavar="FILE",
        help="JSON file that the program re-reads while it runs")  # fmt: skip
    add("-l", "--log-level", choices=LOG_LEVELS, default="info", help="verbosity of the dumping library")
    add("--layout", choices=("ait", "msit"), default="ait", help="ait_dump or msit_dump_{time} (default: ait)")


def _flag(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")


def _dump(args: argparse.Namespace) -> int:
    from twinprobe._record.llm.atb import DumpOptions, dump

    sys.stdout.writelines(f"{line}\n" for line in dump(DumpOptions.of(args)))
    return 0


def _logprobs_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", type=path, metavar="TARGET",
        help="engine under test: Parquet, npz or JSON lines with input_ids and logprobs, or a recording")  # fmt: skip
    add("golden", type=path, metavar="GOLDEN", help="reference engine, in the same form")
    add("-o", "--output", type=path, default="./output", metavar="DIR",
        help="folder for the results (default: ./output)")  # fmt: skip
    add("--limit", type=float, default=0.1, metavar="X", help="a difference that counts (default: 0.1)")
    add("--recordings", type=path, nargs=2, metavar=("TARGET", "GOLDEN"),
        help="recordings of both engines: name the layer where the worst sequence begins to differ")  # fmt: skip
    add("--fail-on", type=float, nargs="?", const=0.0, metavar="SHARE",
        help="exit with code 1 if more than this share of the tokens is beyond the limit (default: 0)")  # fmt: skip
    add_allow_missing(parser)
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    parser.set_defaults(log_level="info", results="output")


def _logprobs(args: argparse.Namespace) -> int:
    from twinprobe._cli.common import print_json, say, warn
    from twinprobe._compare.logprobs import compare_logprobs
    from twinprobe._report.files import own_timestamp, prepare_folder, timestamp_now

    recordings = None if args.recordings is None else tuple(args.recordings)
    scored = compare_logprobs(args.target, args.golden, limit=args.limit, recordings=recordings)
    prepare_folder(args.output)
    with own_timestamp(args.output, timestamp_now()) as stamp:
        files = scored.save(args.output, f"logprobs_{stamp}")
    if args.json:
        total = scored.table.row(-1, named=True)
        worst, steps = scored.sequences.row(0, named=True), scored.table.to_dicts()[:-1]
        named = {"limit": scored.limit, "origin": scored.origin, "steps": steps, "worst": worst, "lost": scored.lost}
        print_json({**total, **named, "files": list(map(str, files))})
    else:
        say(*scored.lines, "", "written to", *(f"  {file}" for file in files))
    warn(scored.lost)
    if args.fail_on is not None and scored.share > args.fail_on:
        return 1
    args.fail_on = None
    return exit_code(args, [], scored.lost)
