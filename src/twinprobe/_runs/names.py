"""The grammar of recorded names: which call of what, in which direction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

FORWARD = "forward"
BACKWARD = "backward"
GRADIENTS = "parameters_grad"
# One of the last two parts of every recorded call's name.
DIRECTIONS = frozenset({FORWARD, BACKWARD, GRADIENTS})
CONTAINERS = frozenset({"Module", "Cell"})
# Calls that exchange data between ranks: collectives; all such calls, also functional ones and of sharded parameters.
COLLECTIVE_PREFIXES = frozenset({"Distributed", "MintDistributed"})
COMMUNICATION = r"^(Mint)?(Distributed|_c10d_functional|fsdp)\."
# In optimizer.json: the name of a parameter follows, or the norm of all gradients of a step.
OPTIMIZER = "Optimizer."
TOTAL_NORM = f"{OPTIMIZER}total_norm."
IN_OPTIMIZER = "optimizer"  # what stands around an optimizer's calls, in construct.json
LISTS = "_foreach_"  # functions of PyTorch that do to each element of lists what their namesakes do to a tensor
LAYERS = "layers"  # among the settings of a dump: what its layers were built with
QUANTIZED = "quantized"  # of these, and torch's functions for them: products of integers of 8 bits
# The same grammar for columns of names, in the regular expressions of polars: what follows the name of a function or
# class in a forward call; the name of the function or class in a row's; the module that a row's parameter belongs to.
FORWARD_CALL = r"\.(?:\d+\.forward|forward\.\d+)"
FUNCTION_OF_ROW = r"^\w+\.(?:.*\.)?_*(\w+?)_*\.(?:\d+\.(?:forward|backward)|(?:forward|backward)\.\d+)\."
MODULE_OF_ROW = rf"^(.*?)\.(?:{FORWARD}|{GRADIENTS})\."
# What modules are given on the way back, and the path of a module in any row of its way back; where ids are looked up.
GIVEN_BACK = r"^(Module|Cell)\..*\.backward\.\d+\.input\."
MODULE_BACK = rf"^Module\.(.+)\.\w+\.{BACKWARD}\."
LOOKED_UP = r"(?i)embed[^.]*\.(\d+\.)?forward"
# Rows of optimizer.json: the gradient that a step is given, the parameter before it; its settings, all of them and
# those that a step is made of; how it computes, which changes no step.
GIVEN_GRADIENT = r"^Optimizer\..*\.input\.0$"
GIVEN_OR_NORM = r"^Optimizer\.(total_norm\.|.+\.input\.0$)"
BEFORE = "parameters.before"
READ_BY_OPTIMIZER = r"^Optimizer\..*\.(input\.0|parameters\.before)$"
ANY_SETTING = r"^Optimizer\..*\.input\.([a-z]\w*(?:\.\d)?)$"
STEP_SETTING = r"^Optimizer\..*\.input\.(lr|weight_decay|betas\.\d|momentum)$"
IMPLEMENTATION_SETTINGS = ("fused", "foreach", "capturable", "differentiable")
KERNEL_SETTING = rf"^Optimizer\..*\.({'|'.join(IMPLEMENTATION_SETTINGS)})$"
RATE_SETTING = r"\.input\.(lr|alpha)$"
ADAM_EPS = r"^Optimizer\..*\.input\.eps$"
# Optimizers that divide by a gradient's size, or take its sign: they make a whole step of a gradient that is noise.
ADAPTIVE = r"[^.]*(ada|rmsprop|lamb|novograd|lion|signsgd)[^.]*"
ADAPTIVE_LR = rf"(?i)^Optimizer\..*\.{ADAPTIVE}\.\d+\.forward\.input\.lr$"
# Rows of a batch norm: the running statistics that it writes to, the momentum that it writes them with, and whether it
# does: what is false is that they are read alone.
RUNNING_MEAN = (
    r"(batch_norm\.\d+\.forward\.(input|kwargs)\.(1|running_mean)|(BatchNorm\.\d+\.forward\.input\.3)|moving_mean)$"
)
RUNNING_VARIANCE = r"batch_norm\.\d+\.forward\.(input|kwargs)\.(2|running_var)$"
RUNNING_MOMENTUM = r"(batch_norm|instance_norm)\.\d+\.forward\.(input\.6|input\.momentum|kwargs\.momentum)$"
NAMED_MOMENTUM = r"batch_norm\.\d+\.forward\.(input|kwargs)\.momentum$"
IN_TRAINING = r"(batch_norm|instance_norm)\.\d+\.forward\.(input|kwargs)\.(5|training|use_input_stats)$"
# Outputs of matrix products, as functions and as modules; rows of their factors, or of the factors' gradients.
PRODUCT_OUTPUT = rf"(?i)(linear|mm|matmul|matmul__|einsum|conv\w*|dense|lstm|gru|rnn|attention){FORWARD_CALL}\.output"
MATMUL_FACTOR = r"(?i)\.(__matmul__|matmul|batchmatmul|bmm|mm)\.\d+\.(forward\.input|backward\.output)\.\w+$"
# Sums that read nothing of their first input where the factor before it is zero: it may be memory nobody has written.
SUMMED_ONTO = r"\.(?:addmm|addbmm|baddbmm|addmv|addr|sspaddmm)_?\.\d+\.forward\.input\.0$"
# What calls give that only move values.
MOVED_VALUES = (
    r"\.(?:chunk|split|tensor_split|unbind|narrow|cat|concat|stack|transpose|permute|reshape|view|flatten|squeeze"
    r"|unsqueeze|swapaxes|expand|broadcast_to|tile|roll|flip|gather|index_select)\.\d+\.forward\.output"
)
# Calls that scale a number, and the one bias of queries, keys and values.
SCALES = re.compile(r"^(__)?[ir]?(true_?)?(div|divide|mul|multiply)(__)?_?$")
FUSED_BIAS = re.compile(r"(qkv|query_key_value|c_attn|in_proj|w_?pack)[._]bias$", re.IGNORECASE)
# What a built-in attention takes and gives, on the way there and back; and in MindSpore, what optimizers do not decay.
OF_ATTENTION = r"\.(scaled_dot_product_attention|flash_attention)\.\d+\.(forward|backward)\.(in|out)put\.\w+$"
UNDECAYED = r"\.(gamma|beta)\."
# No recorder writes longer names.
LONGEST_NAME = 1 << 16
# No recorder counts further, and Python converts no endless row of digits.
_MOST_DIGITS = 18


class OpName(msgspec.Struct, frozen=True, gc=False):  # a dataclass takes ten times as long to make
    """A recorded call, taken apart.

    ``Module.layers.0.mlp.MLP.forward.1`` has prefix ``Module``, body ``layers.0.mlp``, cls ``MLP``;
    ``Torch.matmul.3.backward`` has prefix ``Torch``, body ``matmul``, no cls. ``call`` is -1 where none is written.
    """

    text: str
    prefix: str
    body: str
    cls: str
    direction: str
    call: int
    is_module: bool = False  # a call of a module (Cell, Layer) and not of an API

    @property
    def without_call(self) -> str:
        """The name with its call number left out: equal for all calls of one thing in one direction."""
        parts = [self.prefix, self.body, self.cls, self.direction]
        return ".".join(part for part in parts if part)

    def renumbered(self, call: int) -> str:
        """The same name with another call number."""
        return self._spelled(self.direction, call)

    def turned(self, direction: str) -> str:
        """The forward or backward call that a call or a gradient of a parameter belongs to."""
        return self._spelled(direction, max(self.call, 0))

    def _spelled(self, direction: str, call: int) -> str:
        head = ".".join(part for part in (self.prefix, self.body, self.cls) if part)
        if self.is_module or self.direction == GRADIENTS:
            return f"{head}.{direction}.{call}"
        return f"{head}.{call}.{direction}"


def updated_parameter(name: str) -> str:
    """The parameter of a call in optimizer.json, or of a row of it: ``Optimizer.head.weight.SGD.0.forward`` and
    ``Optimizer.head.weight.SGD.0.forward.input.0`` are of head.weight."""
    return name.removeprefix(OPTIMIZER).rpartition(f".{FORWARD}")[0].rsplit(".", 2)[0]


def optimizer_class(op: str) -> str:
    """The optimizer's class in the name of a call in optimizer.json."""
    return parse_op(op).body.rpartition(".")[2]


def is_module(name: str) -> bool:
    """Whether a name is that of a module's call."""
    return name.partition(".")[0] in CONTAINERS


NAMES_KEPT = 8192


@lru_cache(maxsize=NAMES_KEPT)
def parse_op(name: str) -> OpName:
    """Take a recorded call's name apart; a name outside the grammar is all body."""
    parts = name.split(".")
    call = -1
    if parts[-1] in DIRECTIONS:
        direction = parts.pop()
        if direction != GRADIENTS and len(parts) > 2 and is_number(parts[-1]):
            call = int(parts.pop())
    elif len(parts) > 2 and parts[-2] in DIRECTIONS and is_number(parts[-1]):
        call = int(parts.pop())
        direction = parts.pop()
    else:
        return OpName(name, "", name, "", "", -1)
    prefix = parts.pop(0) if parts else ""
    has_class = prefix in CONTAINERS or direction == GRADIENTS or (prefix == "Primitive" and len(parts) > 1)
    cls = parts.pop() if has_class and parts else ""
    return OpName(name, prefix, ".".join(parts), cls, direction, call, prefix in CONTAINERS)


def is_number(text: str) -> bool:
    """Whether a part of a name is the number of a call or a layer."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
