"""Where the pieces of distributed tensors lie, and how the ranks are arranged: layout.json beside dump.json.

A DTensor's entry in dump.json has the global shape and the statistics of this rank's piece, as readers have always met
it. layout.json says so: for each such value the mesh, the placements, the global and the local shape.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import PathFinder
from typing import Any

import torch

from twinprobe._record.entries import Entry, Note, notes_of


class Placed(dict[str, Any]):
    """The extra fields of a DTensor's entry, and beside them what only layout.json says."""

    local: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()  # how the values of ranks add up, for each dimension of the mesh


def placement_of(tensor: Any) -> Placed:
    """The mesh and the placements of a DTensor."""
    placements: list[dict[str, Any]] = []
    for placement in tensor.placements:
        if placement.is_replicate():
            placements.append({"Replicate": {}})
        elif placement.is_partial():
            placements.append({"Partial": {"reduce_op": str(getattr(placement, "reduce_op", "sum"))}})
        else:  # a strided one too, for which is_shard() says no
            placements.append({"Shard": {"dim": placement.dim}})
    mesh = tensor.device_mesh
    placed = Placed(device_mesh=mesh.mesh.tolist(), placements=placements)
    placed.local = tuple(int(size) for size in tensor._local_tensor.shape)
    placed.names = tuple(mesh.mesh_dim_names or ())
    placed.sums = tuple(_sum_of(placement) for placement in tensor.placements)
    strided = [getattr(placement, "split_factor", None) for placement in tensor.placements]
    if any(strided):
        placed["split_factors"] = strided
    return placed


def _sum_of(placement: Any) -> str:
    """How the values of ranks add up: torch has kinds of partial values that are no plain sums."""
    if not placement.is_partial():
        return ""
    kind = type(placement).__name__
    if "Norm" in kind:
        return "norm" if getattr(placement, "norm_type", 2) == 2 else "unknown"
    if "Mask" in kind:
        return "unknown"  # what lies under the mask means nothing
    return str(getattr(placement, "reduce_op", "sum"))


FLAT = "_flat_param"  # FSDP1 without use_orig_params: all parameters of a module one behind the other


def stretches_of(parameter: Any) -> list[tuple[str, slice]]:
    """What this rank's shard of a flat parameter has of each parameter in it, by their names; empty for any other."""
    infos = getattr(parameter, "_shard_param_infos", None) or ()
    # A weight of two modules has its last name, as without FSDP.
    last = {
        f"{one.prim_module_name}.{one.prim_param_name}".lstrip("."): f"{one.module_name}.{one.param_name}".lstrip(".")
        for one in getattr(parameter, "_shared_param_infos", ())
    }
    return [
        (last.get(name, name), slice(info.offset_in_shard, info.offset_in_shard + info.numel_in_shard))
        for name, info in zip(getattr(parameter, "_fqns", ()), infos, strict=False)
        if info.in_shard
    ]


def flattened(models: list[torch.nn.Module]) -> dict[int, list[str]]:
    """The parameters that modules have only as views of a flat parameter while they run, by the modules' ids."""
    found: dict[int, list[str]] = {}
    for module in (module for model in models for module in model.modules()):
        flat = module._parameters.get(FLAT)
        for name, owner, *_ in (*getattr(flat, "_param_infos", ()), *getattr(flat, "_shared_param_infos", ())):
            found.setdefault(id(owner), []).append(name)
    return found


_STAGES = "torch.distributed.pipelining.stage"


class Placements:
    """What layout.json of a step says; asked on the writer thread."""

    def __init__(self, pipeline: dict[str, Any], reduced: set[str]) -> None:
        self._pipeline = pipeline
        self._reduced = reduced

    def add(self, entry: Entry, placed: dict[str, Any]) -> None:
        """Add the placements of an entry's tensors, by the names that these have."""
        for note, name in notes_of(entry):
            if type(note.extra) is Placed:
                head = f"{entry.name}.kwargs."
                own = f"{entry.name}.input.{name.removeprefix(head)}" if name.startswith(head) else name
                placed[own] = _described(note, note.extra)

    def document(self, placed: dict[str, Any]) -> dict[str, Any]:
        """The content of layout.json; empty where there is one process."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return {}
        meshes = {str(value["mesh"]): value.pop("names") for value in placed.values()}
        head = {"rank": distributed.get_rank(), "world_size": distributed.get_world_size(), "sizes": _megatron_sizes()}
        head |= {"pipeline": dict(self._pipeline), "meshes": meshes}
        if self._reduced:
            head["reduced_in"] = sorted(self._reduced)
        return head | {"values": placed}


def _described(note: Note, placed: Placed) -> dict[str, Any]:
    described: dict[str, Any] = {
        "mesh": placed["device_mesh"], "names": list(placed.names), "placements": placed["placements"],
        "statistics": "local", "global_shape": list(note.shape), "local_shape": list(placed.local),
    }  # fmt: skip
    if any(placed.sums):
        described["reduce_ops"] = list(placed.sums)
    return described | ({"split_factors": placed["split_factors"]} if "split_factors" in placed else {})


def _megatron_sizes() -> dict[str, int]:
    """The model-parallel sizes that Megatron knows, where it is loaded and set up; nothing is imported for that."""
    state = sys.modules.get("megatron.core.parallel_state")
    sizes = {}
    questions = {"tp": "tensor_model_parallel", "pp": "pipeline_model_parallel", "cp": "context_parallel",
                 "ep": "expert_model_parallel", "dp": "data_parallel"}  # fmt: skip
    for key, words in questions.items():
        ask = getattr(state, f"get_{words}_world_size", None)
        try:
            size = ask() if callable(ask) else None
        except Exception:  # not set up: whatever it raises is its own
            size = None
        if isinstance(size, int):
            sizes[key] = size
    return sizes


class PipelineStages:
    """Knows the stage and the micro batches of torch's pipeline schedules.

    Before its first micro batch a stage may run its part of the model on memory that nobody has filled, to learn the
    shapes: that is no call of the training, and is not recorded. From then on, a module's call number within a step is
    the number of the micro batch.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._wrapped: list[tuple[Any, str, Any]] = []
        self.known: dict[str, Any] = {}

    def attach(self) -> None:
        """Watch the stages, if the program uses any: now, or once it imports them."""
        stages = sys.modules.get(_STAGES)
        if stages is None and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for home in (getattr(stages, name, None) for name in ("_PipelineStageBase", "_PipelineStage", "PipelineStage")):
            for name, make in (("_prepare_forward_infra", self._unseen), ("_prepare_backward_infra", self._unseen),
                               ("forward_one_chunk", self._counted)):  # fmt: skip
                original = vars(home).get(name) if home is not None else None
                if original is not None:
                    self._wrapped.append((home, name, original))
                    setattr(home, name, make(original))

    def detach(self) -> None:
        """Put the originals back."""
        for home, name, original in self._wrapped:
            setattr(home, name, original)
        self._wrapped.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The stages' module as Python finds it, watched as soon as it is loaded; nothing of any other module."""
        spec = PathFinder.find_spec(name, path, target) if name == _STAGES else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: Any) -> None:
            load(module)
            if self in sys.meta_path:  # else the recorder has stopped meanwhile
                sys.meta_path.remove(self)
                self.attach()

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec

    def _unseen(self, original: Any) -> Any:
        @functools.wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            self._recorder.muted += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._recorder.muted -= 1

        return prepare

    def _counted(self, original: Any) -> Any:
        @functools.wraps(original)
        def forward(stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
            micro = max(self.known.get("micro_batches", 0), chunk + 1) if isinstance(chunk, int) else 1
            own = int(stage.stage_index)
            held = sorted({own, *self.known.get("held", ())})
            self.known.update(stage=own, stages=int(stage.num_stages), micro_batches=micro)
            self.known["held"] = held  # several in an interleaved schedule
            return original(stage, chunk, *args, **kwargs)

        return forward
