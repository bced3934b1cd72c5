"""Tensor files made to do harm, each with the message that it must end in; grouped by the layer that they attack."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

STORAGE_ID = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" + b"0X\x03\0\0\0cpuK\x06tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
HOOKS = b"\x89ccollections\nOrderedDict\n)R"
TENSOR = b"\x80\x02" + REBUILD + b"(" + STORAGE_ID + b"K\0K\x03K\x02\x86K\x02K\x01\x86" + HOOKS + b"tR."
ELEMENTS = np.arange(6, dtype="<f4").tobytes()


def tensor_pickle(shape: bytes = b"K\x06\x85", strides: bytes = b"K\x01\x85", offset: bytes = b"K\0") -> bytes:
    return b"\x80\x02" + REBUILD + b"(" + STORAGE_ID + offset + shape + strides + HOOKS + b"tR."


def number(value: int) -> bytes:
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a\x09" + raw


def container(pickled: bytes = TENSOR, elements: bytes = ELEMENTS, method: int = 0, **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as zipped:
        zipped.writestr("t/data.pkl", pickled)
        zipped.writestr("t/data/0", elements)
        for name, content in more.items():
            zipped.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def central_records(raw: bytes) -> list[int]:
    start = struct.unpack_from("<I", raw, raw.rindex(b"PK\5\6") + 16)[0]
    places = []
    while raw[start : start + 4] == b"PK\1\2":
        places.append(start)
        name, extra, comment = struct.unpack_from("<3H", raw, start + 28)
        start += 46 + name + extra + comment
    return places


def patched(raw: bytes, at: int, form: str, *values: int) -> bytes:
    changed = bytearray(raw)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


def patched_elements(offset: int, form: str, *values: int, **options: object) -> bytes:
    raw = container(**options)
    return patched(raw, central_records(raw)[1] + offset, form, *values)


def renamed(old: bytes, new: bytes) -> bytes:
    return container(t__xxxx=b"1").replace(old, new)


def quoted() -> bytes:
    """Two records of the directory that share one local header: the trick of overlapping zip bombs."""
    raw = container()
    first, second = central_records(raw)
    return patched(raw, second + 42, "<I", struct.unpack_from("<I", raw, first + 42)[0])


def nested_in_the_elements() -> bytes:
    """A member that begins within the bytes of another."""
    inner = b"PK\3\4" + struct.pack("<5H3I2H", 20, 0, 0, 0, 0, 0, 4, 4, 8, 0) + b"t/data/1" + b"abcd"
    raw = container(elements=ELEMENTS + inner, t__data__1=b"abcd")
    return patched(raw, central_records(raw)[2] + 42, "<I", raw.index(inner))


def doubled() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("t/data.pkl", TENSOR)
        zipped.writestr("t/data/0", ELEMENTS)
        zipped.writestr("t/data/1", ELEMENTS[::-1])
    return buffer.getvalue().replace(b"t/data/1", b"t/data/0")


def lying_deflate(declared: int) -> bytes:
    raw = container(tensor_pickle(b"K\x05\x85").replace(b"K\x06tQ", b"K\x05tQ"), bytes(24), zipfile.ZIP_DEFLATED)
    return patched(raw, central_records(raw)[1] + 24, "<I", declared)


def bomb() -> bytes:
    return container(tensor_pickle().replace(b"K\x06tQ", number(1 << 25) + b"tQ"), bytes(1 << 27), zipfile.ZIP_DEFLATED)


def many_members(count: int) -> bytes:
    record = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0)
    local = b"PK\3\4" + bytes(26)
    table = b"".join(record + i.to_bytes(4, "little") for i in range(count))
    return local + table + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(table), 30, 0)


def calls(module: str, name: str, argument: bytes = b"X\x01\0\0\0x\x85") -> bytes:
    return container(b"\x80\x02c" + f"{module}\n{name}\n".encode() + argument + b"R.")


def doubling(count: int) -> bytes:
    """A tuple of two of the tuple before, again and again: small in memory, endless for whoever walks it."""
    steps = b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(count))
    return b"\x80\x02)q\0" + steps


def npy(header: str, body: bytes = bytes(96), length: int | None = None, version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin-1")
    width = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + (length or len(text)).to_bytes(width, "little") + text + body


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(3, 2)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


PICKLES: dict[str, tuple[Callable[[], bytes], str]] = {
    "os.system": (lambda: calls("os", "system"), r"'os\.system'.*not run"),
    "posix.system": (lambda: calls("posix", "system"), r"'posix\.system'"),
    "eval": (lambda: calls("builtins", "eval"), r"'builtins\.eval'"),
    "import by getattr": (lambda: calls("builtins", "getattr"), r"'builtins\.getattr'"),
    "torch.load again": (lambda: calls("torch.storage", "_load_from_bytes"), r"'torch\.storage\._load_from_bytes'"),
    "a harmless looking torch function": (lambda: calls("torch.hub", "load"), r"'torch\.hub\.load'"),
    "a dotted name under an allowed module": (lambda: calls("torch", "serialization.os.system"), "not run"),
    "stack global": (lambda: container(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R."), r"'os\.system'"),
    "INST opcode": (lambda: container(b"(X\x01\0\0\0xios\nsystem\n."), "opcode INST"),
    "OBJ opcode": (lambda: container(b"(cos\nsystem\no."), r"'os\.system'"),
    "NEWOBJ of an allowed class": (lambda: container(b"ctorch\nTensor\n)\x81."), "opcode NEWOBJ"),
    "extension registry": (lambda: container(b"\x82\x01."), "opcode EXT1"),
    "text persistent id": (lambda: container(b"P../../etc/passwd\n."), "opcode PERSID"),
    "calling a dtype": (lambda: calls("torch", "float32"), "not a function"),
    "calling a string": (lambda: container(b"X\x01\0\0\0x)R."), "cannot be called"),
    "attributes on a tensor": (lambda: container(TENSOR[:-1] + b"}b."), "sets attributes"),
    "escape codes in a name": (lambda: calls("os\x1b[2J", "sys\x07tem"), r"os\\x1b\[2J\.sys\\x07tem"),
    "a very long name": (lambda: calls("a" * 100_000, "b"), "'aaaa"),
    "BINBYTES8 bomb": (lambda: container(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".."), "claims 1099511627776"),
    "BINUNICODE8 bomb": (lambda: container(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".."), "claims"),
    "BINBYTES bomb": (lambda: container(b"\x80\x03B\xff\xff\xff\xff."), "claims 4294967295 bytes"),
    "LONG_BINPUT bomb": (lambda: container(b"\x80\x02Nr\xff\xff\xff\x7f."), "no bare tensor"),
    "LONG_BINGET of nothing": (lambda: container(b"\x80\x02j\xff\xff\xff\x7f."), "never stored"),
    "LONG4 bomb": (lambda: container(b"\x80\x02\x8b\xff\xff\xff\x7f."), "opcode LONG4"),
    "LONG1 of 255 bytes": (lambda: container(b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b"."), "number of 255 bytes"),
    "decimal number of many digits": (lambda: container(b"L" + b"9" * 100_000 + b"L\n."), "opcode LONG"),
    "BYTEARRAY8 bomb": (lambda: container(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"."), "opcode BYTEARRAY8"),
    "frame that lies": (
        lambda: container(b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N."),
        "frame of 1099511627776",
    ),
    "unknown protocol": (lambda: container(b"\x80\xff."), "protocol 255"),
    "no stop": (lambda: container(b"\x80\x02N"), "cut off"),
    "stop with nothing": (lambda: container(b"\x80\x02."), "takes more from its stack"),
    "tuple without a mark": (lambda: container(b"\x80\x02t."), "takes more from its stack"),
    "taking from below a mark": (lambda: container(b"\x80\x02NN(\x86."), "takes more from its stack"),
    "marks without end": (lambda: container(b"(" * 200_000), "cut off"),
    "lists without end": (lambda: container(b"]" * 200_000), "cut off"),
    "tuples 200,000 deep": (lambda: container(b")" + b"\x85" * 200_000 + b"."), "no bare tensor but: tuple"),
    "a list within itself": (lambda: container(b"\x80\x02]q\0h\0a."), "no bare tensor but: list"),
    "doubling tuples": (lambda: container(doubling(200) + b"."), "no bare tensor but: tuple"),
    "doubling tuples as a key": (lambda: container(doubling(200) + b"}h\xc8Ns."), "neither text nor a number"),
    "items for a tuple": (lambda: container(b")K\x01Ns."), "fills something that is not a dictionary"),
    "an unhashable key": (lambda: container(b"}]Ns."), "neither text nor a number"),
    "pickle of megabytes": (lambda: container(b"N" * (3 << 20) + b"."), "too many for one tensor"),
    "pickle of compressed megabytes": (lambda: container(b"N" * (64 << 20), method=8), "too many for one tensor"),
    "text that is not UTF-8": (lambda: container(b"X\x02\0\0\0\xff\xfe."), "not UTF-8"),
    "sub-byte dtype": (lambda: container(b"ctorch\nuint4\n."), r"unsupported dtype 'torch\.uint4'"),
}

TENSORS: dict[str, tuple[Callable[[], bytes], str]] = {
    "one element as a terabyte": (
        lambda: container(tensor_pickle(number(1 << 40) + b"\x85", b"K\0\x85")),
        "out of proportion",
    ),
    "shape beyond 64 bits": (
        lambda: container(tensor_pickle(number(1 << 63) + b"\x85", b"K\0\x85")),
        "impossible shape",
    ),
    "shape whose product wraps": (
        lambda: container(tensor_pickle((number(1 << 32) + number(1 << 32)) + b"\x86", b"K\0K\0\x86")),
        "out of proportion",
    ),
    "negative shape": (lambda: container(tensor_pickle(number(-6) + b"\x85")), "impossible shape"),
    "negative stride": (lambda: container(tensor_pickle(strides=number(-1) + b"\x85")), "impossible stride"),
    "negative offset": (lambda: container(tensor_pickle(offset=number(-1))), "impossible offset"),
    "offset beyond the elements": (lambda: container(tensor_pickle(offset=b"K\x01")), "reaches beyond"),
    "offset that wraps": (lambda: container(tensor_pickle(offset=number((1 << 63) - 1))), "reaches beyond"),
    "stride beyond the elements": (lambda: container(tensor_pickle(strides=b"K\x02\x85")), "reaches beyond"),
    "shape of floats": (lambda: container(tensor_pickle(b"G" + struct.pack(">d", 6.0) + b"\x85")), "impossible shape"),
    "shape of truth": (lambda: container(tensor_pickle(b"\x88\x85")), "impossible shape"),
    "shape of text": (lambda: container(tensor_pickle(b"X\x01\0\0\x006")), "impossible shape"),
    "more strides than dimensions": (lambda: container(tensor_pickle(strides=b"K\x01K\x01\x86")), "1 dimensions but 2"),
    "a thousand dimensions": (
        lambda: container(tensor_pickle(b"(" + b"K\x01" * 1000 + b"t", b"(" + b"K\x01" * 1000 + b"t")),
        "impossible shape",
    ),
    "40 dimensions of stride 0": (
        lambda: container(tensor_pickle(b"(" + b"K\x02" * 40 + b"t", b"(" + b"K\0" * 40 + b"t")),
        "out of proportion",
    ),
    "storage that claims more": (
        lambda: container(TENSOR.replace(b"K\x06tQ", number(1 << 50) + b"tQ")),
        "claims 45035",
    ),
    "storage key out of the file": (
        lambda: container(TENSOR.replace(b"X\x01\0\0\x000", b"X\x0b\0\0\x00../../../xx")),
        "lacks the zip member",
    ),
    "storage of an unknown kind": (lambda: container(TENSOR.replace(b"FloatStorage", b"Tensor")), "unknown way"),
    "metadata that is a list": (lambda: container(TENSOR[:-3] + b"]tR."), "metadata of an unknown kind"),
    "unknown metadata": (lambda: container(TENSOR[:-3] + b"}X\x04\0\0\0npufK\x1dstR."), "metadata 'npuf'"),
    "unknown byte order": (lambda: container(t__byteorder=b"middle"), "unknown byte order"),
}

ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip bomb of a thousand times its size": (bomb, "out of proportion"),
    "member that unpacks to more than it says": (lambda: lying_deflate(20), "unpacks to more"),
    "member that unpacks to less than it says": (lambda: lying_deflate(28), "unpacks to less"),
    "compressed bytes that are noise": (
        lambda: container(elements=ELEMENTS, method=8).replace(
            zlib.compress(ELEMENTS)[2:-4], b"\xff" * len(zlib.compress(ELEMENTS)[2:-4])
        ),
        "do not unpack|unpacks to",
    ),
    "two members in one place": (quoted, "two ways that differ"),
    "a member inside another": (nested_in_the_elements, "overlaps another"),
    "two members of one name": (doubled, "two zip members named"),
    "two pickles": (lambda: container(u__data__pkl=b"").replace(b"u/data/pkl", b"u/data.pkl"), "needs one data.pkl"),
    "no pickle": (lambda: container().replace(b"data.pkl", b"data.pkx"), "needs one data.pkl"),
    "name that climbs": (lambda: renamed(b"t/xxxx", b"../xxx"), "forbidden name"),
    "absolute name": (lambda: renamed(b"t/xxxx", b"/t/xxx"), "forbidden name"),
    "name that climbs with backslashes": (lambda: renamed(b"t/xxxx", b"t\\..\\x"), "forbidden name"),
    "name with NUL": (lambda: renamed(b"t/xxxx", b"t/x\0xx"), "forbidden name"),
    "NUL that hides the end of data.pkl": (
        lambda: container(**{"t/data.pkl\1x": b""}).replace(b"t/data.pkl\1x", b"t/data.pkl\0x"),
        "forbidden name",
    ),
    "name of invalid UTF-8": (
        lambda: patched(
            renamed(b"t/xxxx", b"t/\xff\xfe\xfdx"),
            central_records(renamed(b"t/xxxx", b"t/\xff\xfe\xfdx"))[2] + 8,
            "<H",
            0x800,
        ),
        "damaged or missing directory",
    ),
    "local name that differs": (lambda: container().replace(b"t/data/0", b"t/data/1", 1), "in two ways that differ"),
    "size beyond the file": (lambda: patched_elements(20, "<2I", 1 << 30, 1 << 30), "more bytes than the file has"),
    "place beyond the file": (lambda: patched_elements(42, "<I", 0x7FFFFFFF), "outside of the file"),
    "place before the file": (lambda: patched(container(), len(container()) - 6, "<I", 0x7FFFFFFF), "director|outside"),
    "zip64 sizes without their record": (
        lambda: patched_elements(20, "<2I", 0xFFFFFFFF, 0xFFFFFFFF),
        "director|more bytes",
    ),
    "stored, yet packed": (lambda: patched_elements(20, "<I", 12), "packed in an unknown way"),
    "encrypted": (lambda: patched_elements(8, "<H", 1), "encrypted"),
    "bzip2": (lambda: container(method=zipfile.ZIP_BZIP2), "packed in an unknown way"),
    "lzma": (lambda: container(method=zipfile.ZIP_LZMA), "packed in an unknown way"),
    "unknown zip version": (lambda: patched_elements(6, "<H", 99), "director"),
    "2,000 members": (lambda: many_members(2000), "2000 members, too many"),
    "60,000 members": (lambda: many_members(60_000), "zip directory of .* too long"),
    "directory that lies about its size": (
        lambda: patched(container(), len(container()) - 10, "<I", 1 << 30),
        "director",
    ),
    "comment as long as the file allows": (lambda: container()[:-2] + b"\xff\xff" + b"PK\5\6" * 10, "director"),
    "only the end": (lambda: container()[-22:], "not a torch.save file"),
    "only the magic": (lambda: b"PK\3\4", "director"),
    "cut in the middle": (lambda: container()[: len(container()) // 2], "director"),
    "a bare pickle": (lambda: b"\x80\x04cos\nsystem\nX\x01\0\0\0x\x85R.", "bare pickle"),
    "something else": (lambda: b"<html>", "not a torch.save file"),
    "nothing": (lambda: b"", "is empty"),
}

HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a terabyte": (lambda: npy(described(shape="(1099511627776,)")), "claims 4398046511104 bytes"),
    "product that wraps": (lambda: npy(described(shape="(4294967296, 4294967296)")), "claims 7378"),
    "beyond 64 bits": (lambda: npy(described(shape="(99999999999999999999, 0)")), "impossible shape"),
    "number of many digits": (lambda: npy(described(shape=f"({'1' * 30_000},)")), "damaged npy header"),
    "digits without an end": (lambda: npy(described(shape=f"({'1, ' * 15_000}")), "damaged npy header"),
    "negative": (lambda: npy(described(shape="(-3, -2)")), "impossible shape"),
    "a thousand dimensions": (lambda: npy(described(shape=f"({'1, ' * 1000})")), "impossible shape"),
    "shape that is a number": (lambda: npy(described(shape="6")), "damaged npy header"),
    "shape in brackets only": (lambda: npy(described(shape="(6)")), "impossible shape"),
    "shape that is text": (lambda: npy(described(shape="'6'")), "damaged npy header"),
    "shape that computes": (lambda: npy(described(shape="(9**9**9,)")), "damaged npy header"),
    "shape that calls": (lambda: npy(described(shape="(__import__('os').getpid(),)")), "damaged npy header"),
    "deep parentheses": (lambda: npy(described(shape="(" * 30_000)), "damaged npy header"),
    "many minus signs": (lambda: npy(described(shape="-" * 30_000 + "1")), "damaged npy header"),
    "objects": (lambda: npy(described("'|O'"), b"\x80\x04cos\nsystem\nX\x01\0\0\0x\x85R."), "Python objects"),
    "objects in a structure": (lambda: npy(described("[('a', '|O')]")), "structured dtype"),
    "elements of a gigabyte each": (lambda: npy(described("'|V1073741824'")), "not supported"),
    "text": (lambda: npy(described("'<U1000000000'")), "holds text"),
    "dtype with two orders": (lambda: npy(described("'<>f4'")), "not supported"),
    "dtype that is no text": (lambda: npy(described("True")), "not supported"),
    "order that is text": (lambda: npy(described(order="'no'")), "damaged npy header"),
    "a key twice": (lambda: npy("{'shape': (1,), 'shape': (2,), 'descr': '<f4', 'fortran_order': False}"), "damaged"),
    "a key too many": (lambda: npy(described()[:-1] + "'x': True}"), "damaged npy header"),
    "a key missing": (lambda: npy("{'shape': (1,), 'descr': '<f4'}"), "are needed"),
    "no commas": (lambda: npy("{'descr': '<f4' 'fortran_order': False 'shape': (3, 2)}"), "damaged npy header"),
    "spaces without end": (lambda: npy("{" + " " * 60_000 + "x}"), "damaged npy header"),
    "header longer than the file": (lambda: npy(described(), length=60_000), "claims a header of 60000"),
    "header of four gigabytes": (lambda: npy(described(), length=0xFFFFFFFF, version=b"\2\0"), "claims a header"),
    "unknown version": (lambda: npy(described(), version=b"\x09\0"), "version 9.0"),
    "no elements": (lambda: npy(described(), b""), "only 0 are there"),
    "one byte short": (lambda: npy(described(), bytes(23)), "claims 24 bytes .* only 23"),
    "only the magic": (lambda: b"\x93NUMPY", "cut off"),
    "a pickle": (lambda: b"\x80\x04cos\nsystem\nX\x01\0\0\0x\x85R.", "no npy file"),
}
