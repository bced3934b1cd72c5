"""config.json and its keyword twins: every key known by name, every value checked before anything is recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._runs.whole_files import whole_file
from twinprobe.errors import BadInput, did_you_mean

TASKS = ("statistics", "tensor", "structure")
LEVELS = ("L0", "L1", "mix", "debug", "watch")
RISKS = ("FOCUS", "CORE", "ALL")
SUMMARIES = ("statistics", "md5", "xor")
DATA_MODES = ("all", "forward", "backward", "input", "output")
_SECTION_KEYS = {
    "statistics": ("scope", "list", "tensor_list", "data_mode", "summary_mode"),
    "tensor": ("scope", "list", "data_mode", "summary_mode", "bench_path", "diff_nums"),
    "structure": (),
}
_WATCH_KEYS = ("keep", "every", "sinks")
_FLAGS = ("async_dump", "extra_info", "dump_enable", "sketch", "summaries", "optimizer")
_COMMON_KEYS = (
    "task", "dump_path", "rank", "step", "level", "async_dump", "extra_info", "precision", "risk_level", "dump_enable",
    "sketch", "summaries", "perturb", "perturb_seed", "optimizer", *_WATCH_KEYS,
)  # fmt: skip


@dataclass(frozen=True)
class RecordConfig:
    """What to record, fully checked. ``steps`` and ``ranks`` are None when every one is wanted."""

    dump_path: Path
    task: str = "statistics"
    level: str = "L1"
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    async_dump: bool = False
    extra_info: bool = True
    precision: str = "low"
    risk_level: str = "FOCUS"
    dump_enable: bool = True
    sketch: bool = True
    summaries: bool = False
    scope: tuple[str, str] | None = None
    names: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()
    data_mode: frozenset[str] = field(default_factory=lambda: frozenset({"all"}))
    summary_mode: str = "statistics"
    bench_path: Path | None = None
    diff_nums: int = 1
    perturb: int | None = None  # the seed
    source: Path | None = None
    optimizer: bool = True
    # Of level watch: how many steps the stream holds, every how many one is written, who else hears of them.
    keep: int = 10_000
    every: int = 1
    sinks: tuple[Any, ...] = ()

    def wants(self, side: str) -> bool:
        """Whether data_mode asks for this side: forward, backward, input or output."""
        if "all" in self.data_mode or side in self.data_mode:
            return True
        pair = {"forward", "backward"} if side in {"forward", "backward"} else {"input", "output"}
        return not (self.data_mode & pair)

    @property
    def digest(self) -> str | None:
        """The checksum to take of every tensor."""
        return self.summary_mode if self.summary_mode in {"md5", "xor"} and self.task != "structure" else None

    @property
    def measures(self) -> bool:
        """Whether statistics are taken. Live comparisons keep the tensors and take none (summary_mode "none")."""
        return self.summary_mode not in {"xor", "none"} and self.task != "structure"

    @property
    def sketches(self) -> bool:
        """Whether sketches are taken of every tensor: where its statistics are all that is asked for."""
        return self.sketch and self.summary_mode == "statistics" and self.task != "structure"

    def enabled_now(self) -> bool:
        """Read dump_enable again, so that a running job can be switched on and off from outside."""
        if self.source is None:
            return self.dump_enable
        try:
            document = json.loads(whole_file(self.source))
            return bool(_flag(document, "dump_enable", True, str(self.source)))
        except (OSError, ValueError, BadInput):
            return self.dump_enable  # being rewritten at this very moment


def load_config(config_path: str | Path | None = None, **overrides: Any) -> RecordConfig:
    """Read config.json if there is one, lay the keyword arguments over it, and check the whole."""
    document: dict[str, Any] = {}
    where = "keyword arguments"
    source = Path(config_path) if config_path is not None else None
    if source is not None:
        where = str(source)
        document = _read(source)
    common = {key: value for key, value in document.items() if key not in _SECTION_KEYS}
    _refuse_unknown(common, (*_COMMON_KEYS, *_SECTION_KEYS), where)
    for section, keys in _SECTION_KEYS.items():
        if section in document:
            if not isinstance(document[section], Mapping):
                raise BadInput(f"key '{section}' must be an object", where=where)
            _refuse_unknown(document[section], keys, f"{where}: {section}")
    given = {key: value for key, value in overrides.items() if value is not None}
    section_keys = {key for keys in _SECTION_KEYS.values() for key in keys}
    _refuse_unknown(given, (*_COMMON_KEYS, *sorted(section_keys)), "keyword arguments")
    common.update({key: value for key, value in given.items() if key in _COMMON_KEYS})
    task = _choice(common, "task", TASKS, "statistics", where)
    options = dict(document.get(task, {}))
    options.update({key: value for key, value in given.items() if key in section_keys})
    _refuse_unknown(options, _SECTION_KEYS[task], f"{where}: task {task}")
    return _build(task, common, options, where, source)


def _build(
    task: str, common: Mapping[str, Any], section: Mapping[str, Any], where: str, source: Path | None
) -> RecordConfig:
    path = common.get("dump_path")
    if not isinstance(path, str | Path) or not str(path):
        raise BadInput("key 'dump_path' is missing: set it to the folder for the dump", where=where)
    bench_path, diff_nums = _bench(section, where)
    level = _choice(common, "level", LEVELS, "L1", where)
    flags: dict[str, Any] = {name: _flag(common, name, getattr(RecordConfig, name), where) for name in _FLAGS}
    if flags["summaries"] and (task == "structure" or level == "watch" or section.get("tensor_list")):
        choice = "tensor_list" if section.get("tensor_list") else "level watch" if level == "watch" else f"task {task}"
        raise BadInput(f"summaries and {choice} cannot be used together", where=where, hint="keep one of them")
    return RecordConfig(
        dump_path=Path(path),
        task=task,
        level=level,
        steps=_numbers(common, "step", where),
        ranks=_numbers(common, "rank", where),
        precision=_choice(common, "precision", ("low", "high"), "low", where),
        risk_level=_choice(common, "risk_level", RISKS, "FOCUS", where),
        names=_names(section, "list", where),
        tensor_names=_names(section, "tensor_list", where),
        data_mode=_modes(section, where),
        summary_mode=_choice(section, "summary_mode", SUMMARIES, "statistics", where),
        scope=_scope(section, where),
        bench_path=bench_path,
        diff_nums=diff_nums,
        perturb=_perturb(common, task, level, where),
        source=source,
        **flags,
        **_watch(common, level, where),
    )


def _watch(common: Mapping[str, Any], level: str, where: str) -> dict[str, Any]:
    given = {key: common[key] for key in _WATCH_KEYS if common.get(key) is not None}
    if given and level != "watch":
        raise BadInput(f"key '{next(iter(given))}' belongs to level watch, not {level}", where=where)
    for key in ("keep", "every"):
        value = given.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(f"key '{key}' is {value!r}", where=where, hint="a number of steps, at least 1")
    sinks = given.get("sinks", ())
    return given | {"sinks": tuple(sinks) if isinstance(sinks, list | tuple) else (sinks,)}


def _perturb(common: Mapping[str, Any], task: str, level: str, where: str) -> int | None:
    """The seed of the perturbation; None where none is asked for."""
    wanted, seed = common.get("perturb", 0), common.get("perturb_seed", 0)
    if wanted not in (0, 1):
        raise BadInput(f"key 'perturb' is {wanted!r}", where=where, hint="1: every result is changed; 0: none is")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise BadInput(f"key 'perturb_seed' is {seed!r}", where=where, hint="a number from 0 up")
    if wanted and (level == "debug" or task == "structure"):
        raise BadInput(
            f"{'level debug' if level == 'debug' else 'task structure'} records no calls that perturb could change",
            where=where, hint="set level to L0, L1 or mix and task to statistics or tensor",
        )  # fmt: skip
    return seed if wanted else None


def _bench(section: Mapping[str, Any], where: str) -> tuple[Path | None, int]:
    if section.get("bench_path") is None:
        return None, 1
    bench = Path(section["bench_path"])
    if section.get("summary_mode") != "md5":
        raise BadInput("bench_path compares checksums: set summary_mode to 'md5'", where=where)
    if not bench.is_dir():
        raise BadInput(f"bench_path {bench} is not a folder", where=where)
    count = section.get("diff_nums", 1)
    if not isinstance(count, int) or isinstance(count, bool) or (count < 1 and count != -1):
        raise BadInput(f"diff_nums must be a positive number, or -1 for all, not {count!r}", where=where)
    return bench, count


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(whole_file(path))
    except OSError as error:
        raise BadInput(f"cannot read the configuration: {error.strerror}", where=path) from error
    except ValueError as error:
        raise BadInput(f"not valid JSON: {error}", where=path) from error
    if not isinstance(document, dict):
        raise BadInput("the configuration must be a JSON object", where=path)
    return document


def _refuse_unknown(given: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in allowed:
            hint = f"{did_you_mean(key, allowed)}allowed: {', '.join(allowed) or 'none'}"
            raise BadInput(f"unknown key '{key}'", where=where, hint=hint)


def _choice(given: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str, where: str) -> str:
    value = given.get(key, default)
    if value in (None, ""):
        return default
    if value not in allowed:
        raise BadInput(f"key '{key}' is {value!r}", where=where, hint=f"allowed: {', '.join(allowed)}")
    return str(value)


def _flag(given: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise BadInput(f"key '{key}' is {value!r}", where=where, hint="allowed: true, false")
    return value


def _numbers(given: Mapping[str, Any], key: str, where: str) -> frozenset[int] | None:
    value = given.get(key)
    if value is None or value == []:
        return None
    if not isinstance(value, list | tuple):
        raise BadInput(f"key '{key}' must be a list, not {value!r}", where=where, hint='for example [0, "4-6"]')
    return frozenset(number for item in value for number in _number_or_range(item, key, where))


def _number_or_range(item: object, key: str, where: str) -> range:
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return range(item, item + 1)
    if isinstance(item, str):
        first, dash, last = item.strip().partition("-")
        last = last if dash else first
        if first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= int(first) + 10_000_000:
            return range(int(first), int(last) + 1)
    hint = 'numbers from 0 up, numeric strings or ranges such as "4-6"'
    raise BadInput(f"key '{key}' holds {item!r}", where=where, hint=hint)


def _names(given: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = given.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise BadInput(f"key '{key}' must be a list of names, not {value!r}", where=where)
    return tuple(value)


def _scope(given: Mapping[str, Any], where: str) -> tuple[str, str] | None:
    names = _names(given, "scope", where)
    if not names:
        return None
    if len(names) != 2:
        raise BadInput(f"scope holds {len(names)} names", where=where, hint="exactly two: the first and the last call")
    if given.get("list"):
        raise BadInput("scope and list cannot be used together", where=where, hint="keep one of them")
    return names[0], names[1]


def _modes(given: Mapping[str, Any], where: str) -> frozenset[str]:
    modes = _names(given, "data_mode", where) or ("all",)
    for mode in modes:
        if mode not in DATA_MODES:
            raise BadInput(f"data_mode holds {mode!r}", where=where, hint=f"allowed: {', '.join(DATA_MODES)}")
    return frozenset(modes)
