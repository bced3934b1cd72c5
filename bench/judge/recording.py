"""Records the runs that the cases need, many in one process, and keeps them for the next time.

A recording is kept under a name that hashes what it records: the source of the case, of its family and of the programs'
base, the options, and the versions of the framework. Beside it lies a list of TwinProbe's files that took part, with
their checksums: when one of them has changed, the recording is made again; when only the judge has changed, it is not.
Equal tensor files are kept once, in the folder tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a worker, by another interpreter perhaps
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from judge import cases

BENCH = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Job:
    """One recording: a side of a case in one dtype, level and task."""

    case: str
    side: str  # golden or target
    dtype: str
    level: str
    task: str
    framework: str
    python: str
    folder: str


def job_of(case: cases.Case, side: str, dtype: str, level: str, task: str, *, python: str, root: Path) -> Job:
    """The job, with the folder that its recording is kept in."""
    what = [case.family, case.options, _source(case.base), dtype, level, task, case.framework]
    what.append(_family_source(case.framework, case.family))
    if side == "target":
        what += [case.name, _source(case.change), python]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]
    made_of = [*(f"{key}={value}" for key, value in case.options.items()), getattr(case.base, "__name__", "")]
    name = case.name if side == "target" else "-".join([f"{case.family}.golden", *filter(None, made_of)])
    folder = root / name / f"{dtype}-{level}-{task}-{digest}"
    return Job(case.name, side, dtype, level, task, case.framework, python, str(folder))


@cache
def _family_source(framework: str, family: str) -> str:
    if framework in ("torch", "ranks"):
        from judge import models

        made = models.FAMILIES[family]
        if made.__module__ != models.__name__:
            return _source(sys.modules[made.__module__]) + _versions("torch")
        shared = [models.Program, models.build, models.to_dtype, models.tokens, models.picture, made]
        own = {"decoder": (models.Decoder, models.Block, models.FeedForward, models.Attention, models.Rotary),
               "unet": (models.UNet, models.DoubleConv), "lstm": (models.Tagger,)}  # fmt: skip
        source = "".join(_source(one) for one in (*shared, *own.get(family, ())))
        return source + _versions("torch", "transformers")
    from judge import cases_frameworks

    return inspect.getsource(cases_frameworks.FAMILIES[framework])


def _source(one: Any) -> str:
    return inspect.getsource(one) if one is not None else ""


def _versions(*packages: str) -> str:
    found = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package}={importlib.metadata.version(package)}")
    return " ".join(found)


def is_kept(job: Job, package: Path) -> bool:
    """Whether the recording is there and was made by the recorder as it is now."""
    try:
        meta = json.loads(Path(job.folder, "meta.json").read_text())
    except (OSError, ValueError):
        return False
    return "error" not in meta and all(_checksum(package / name) == found for name, found in meta["recorder"].items())


@cache
def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def record_all(jobs: Iterable[Job], *, package: Path, workers: int, scratch: Path) -> None:
    """Record what is not kept, each interpreter and framework in processes of its own."""
    # Cases of one family share their golden run.
    waiting = [job for job in {job.folder: job for job in jobs}.values() if not is_kept(job, package)]
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in waiting:
        groups.setdefault((job.python, job.framework), []).append(job)
    pieces = []
    for (python, framework), group in groups.items():
        # Jobs of one case stay together, so that a worker loads its model once.
        share = workers if framework == "torch" and python == sys.executable else 1
        cut = -(-len(group) // share)
        pieces += [(python, framework, group[at : at + cut]) for at in range(0, len(group), cut)]
    if waiting:
        for tensor in Path(waiting[0].folder).parents[1].glob("tensors/*"):
            if tensor.stat().st_nlink == 1:  # of recordings that are gone
                tensor.unlink()
        print(f"recording {len(waiting)} runs ...", file=sys.stderr, flush=True)
    running: list[tuple[subprocess.Popen[bytes], str]] = []
    for number, (python, framework, piece) in enumerate(pieces):
        while len([one for one, _ in running if one.poll() is None]) >= workers:
            time.sleep(0.2)
        listed = scratch / f"jobs-{number}.json"
        listed.write_text(json.dumps([asdict(job) for job in piece]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package.parent)}
        if framework == "mindspore":
            environment["GLOG_v"] = "3"  # no warnings there; in Paddle it would show every call
        command = [python, str(Path(__file__)), str(listed)]
        running.append((subprocess.Popen(command, env=environment), f"{framework} ({python})"))
    for process, what in running:
        if process.wait():
            print(f"the worker of {what} ended with exit code {process.returncode}", file=sys.stderr)


def main() -> None:
    """A worker: record the jobs of a list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", type=Path)
    jobs = [Job(**one) for one in json.loads(parser.parse_args().jobs.read_text())]
    warnings.filterwarnings("ignore")
    framework = jobs[0].framework
    if framework == "ranks":
        import torch.multiprocessing

        torch.multiprocessing.spawn(_record_rank, args=(jobs,), nprocs=2)
    else:
        record_jobs(jobs, framework)


def _record_rank(rank: int, jobs: list[Job]) -> None:
    import torch.distributed

    meeting = Path(jobs[0].folder).parents[1] / f"meeting-{os.getppid()}"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    record_jobs(jobs, "ranks", rank=rank)
    torch.distributed.destroy_process_group()
    meeting.unlink(missing_ok=True)
    os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down


def record_jobs(jobs: list[Job], framework: str, *, rank: int = 0) -> None:
    """Record job after job; one that fails leaves its error in place of a recording."""
    known = cases.load(framework)
    if framework in ("torch", "ranks"):
        import torch

        torch.set_num_threads(1)
        with contextlib.suppress(ImportError):
            import transformers

            transformers.logging.set_verbosity_error()
    for job in jobs:
        folder = Path(job.folder)
        making = folder.with_name(folder.name + ".making")
        if rank == 0:
            for old in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):  # of an earlier source or recorder
                shutil.rmtree(old, ignore_errors=True)
            making.mkdir(parents=True)
        _meet(framework)
        meta: dict[str, Any] = {}
        try:
            meta["ends"] = _record(known[job.case], job, making / "run", rank)
        except Exception:
            meta["error"] = traceback.format_exc(limit=-4)
        _meet(framework)
        if rank == 0:
            share_equal_files(making, folder.parents[1] / "tensors")
            meta["recorder"] = recorder_files()
            (making / "meta.json").write_text(json.dumps(meta))
            making.rename(folder)


def share_equal_files(folder: Path, pool: Path) -> None:
    """Keep tensors that several runs have in common once: what lies before the planted bug, and all other weights."""
    pool.mkdir(exist_ok=True)
    for path in (one for one in folder.rglob("dump_tensor_data/*") if one.suffix in (".pt", ".npy")):
        kept = pool / hashlib.sha256(path.read_bytes()).hexdigest()[:24]
        try:
            os.link(path, kept)
        except FileExistsError:
            path.unlink()
            os.link(kept, path)


def _meet(framework: str) -> None:
    if framework == "ranks":
        import torch.distributed

        torch.distributed.barrier()


def _record(case: cases.Case, job: Job, folder: Path, rank: int) -> dict[str, Any]:
    if case.framework in ("mindspore", "paddle"):
        from judge import cases_frameworks

        with _quiet():
            return cases_frameworks.record_case(case, job.side, job.dtype, job.level, job.task, folder)
    import torch

    from judge import models
    from twinprobe.torch import record

    program = models.build(case.family, job.dtype, **case.options)
    for change in (case.base, case.change if job.side == "target" else None):
        if change is not None:
            program = change(program) or program
    torch.manual_seed(100 + rank)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        for one in program.around:
            stack.enter_context(one)
        with record(program.watched or program.model, folder, level=job.level, task=job.task):
            loss = program.step()
    return _ends(program, loss)


def _ends(program: Any, loss: Any) -> dict[str, Any]:
    """Loss, and checksums of gradients and new parameters: did the change change anything?"""
    digest = hashlib.sha256(str(float(loss)).encode())
    for one in (*program.model.parameters(), *program.model.buffers()):
        for tensor in (one, one.grad):
            if tensor is not None:
                plain = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
                digest.update(plain.double().contiguous().numpy().tobytes())
    return {"loss": float(loss), "digest": digest.hexdigest()[:16]}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the recorder's lines on standard error."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def recorder_files() -> dict[str, str]:
    """TwinProbe's files that this process has loaded, by their path in the package."""
    import twinprobe

    package = Path(twinprobe.__file__).parent
    files = {Path(one.__file__) for one in list(sys.modules.values()) if getattr(one, "__file__", None)}
    return {str(path.relative_to(package)): _checksum(path) for path in sorted(files) if path.is_relative_to(package)}


if __name__ == "__main__":
    main()
