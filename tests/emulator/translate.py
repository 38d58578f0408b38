"""Turning a CUDA source into C++ that the emulator runs: inline PTX becomes calls of the functions in `device.h`.

The source has gone through the preprocessor. Each `asm` statement is parsed, and every instruction of it looked up in
`INSTRUCTIONS`; one that is not there is an error that names it. Everything else stays as it is, but for the array of
dynamic shared memory, which becomes a pointer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
MARKER = re.compile(r"^#.*\n", re.MULTILINE)
REGISTERS = {
    "b16": "unsigned short", "u16": "unsigned short", "b32": "unsigned", "u32": "unsigned", "s32": "int",
    "b64": "unsigned long long", "u64": "unsigned long long", "s64": "long long", "f32": "float", "pred": "bool",
}  # fmt: skip
INPUTS = {
    "r": "(unsigned)({})", "l": "(unsigned long long)({})", "f": "(float)({})", "h": "(unsigned short)({})",
    "n": "(long long)({})",
}  # fmt: skip
HERE = "{__LINE__, emulator::here()}"


class UnknownInstruction(Exception):
    """PTX that the emulator does not know."""


def translate(source: str) -> str:
    """C++ for a preprocessed CUDA source, with an entry point for each kernel."""
    kernels = kernels_of(source)
    source = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;",
        r"\1* \2 = (\1*)emulator::shared_memory();",
        source,
    )
    if "__shared__" in source:
        raise UnknownInstruction("shared memory that is not `extern`: static arrays are not emulated")
    made, at = [], 0
    for match in re.finditer(r"\basm\b\s*(?:volatile\b\s*)?\(", source):
        end = _closing(source, match.end())
        made += [source[at : match.start()], _statement(source[match.end() : end])]
        at = end + 1
    made.append(source[at:])
    for name in kernels:
        made += [
            f'\nextern "C" void emulator_run_{name}(void** given) {{ emulator::call(&{name}, given); }}',
            f'\nextern "C" int emulator_sizes_{name}(unsigned long long* to) ',
            f"{{ return emulator::sizes(&{name}, to); }}\n",
        ]
    return "".join(made)


def kernels_of(source: str) -> list[str]:
    """Names of the kernels."""
    found = []
    for match in re.finditer(r"__global__\s+void\b\s*", source):
        at = match.end()
        bounds = re.compile(r"__launch_bounds__\s*\(").match(source, at)
        if bounds:
            at = _closing(source, bounds.end()) + 1
        name = re.compile(r"\s*(\w+)\s*\(").match(source, at)
        if name:
            found.append(name[1])
    return found


def _closing(text: str, at: int) -> int:
    """Where the parenthesis closes that is open at `at`."""
    depth = 1
    while depth:
        string = STRING.match(text, at)
        if string:
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _split(text: str, separator: str) -> list[str]:
    """Parts between separators that stand in no string and no bracket."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        string = STRING.match(text, at)
        if string:
            at = string.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _statement(inside: str) -> str:
    """C++ for what stands in the parentheses of one `asm`."""
    template, outputs, inputs, *_ = [*_split(MARKER.sub("", inside), ":"), "", ""]
    text = "".join(STRING.findall(template)).encode().decode("unicode_escape")
    lines, names = [], []
    for kind, operands in (("out", outputs), ("in", inputs)):
        for operand in (part.strip() for part in _split(operands, ",")):
            if not operand:
                continue
            constraint = STRING.match(operand)
            if constraint is None:
                raise UnknownInstruction(f"an operand of asm: {operand}")
            name, value = f"emulator_{len(names)}", operand[constraint.end() :].strip()
            names.append(name)
            if kind == "out":
                lines.append(f"auto& {name} = {value};")
            elif constraint[1] in INPUTS:
                lines.append(f"const auto {name} = {INPUTS[constraint[1]].format(value)};")
            else:
                raise UnknownInstruction(f'the constraint "{constraint[1]}" of asm')
    lines += [_instruction(one, names) for one in _instructions(text)]
    newlines = "\n" * inside.count("\n")
    return "do { " + " ".join(lines) + " } while (0)" + newlines if lines else "(void)0" + newlines


def _instructions(text: str) -> list[str]:
    text = re.sub(r"//[^\n]*", "", text)
    found = []
    for one in text.split(";"):
        one = one.strip()
        while one.startswith(("{", "}")):
            one = one[1:].strip()
        if one:
            found.append(" ".join(one.split()))
    return found


class Operands:
    """The operands of one instruction as C++ expressions."""

    def __init__(self, text: str, names: list[str]) -> None:
        self.names, self.parts = names, [part.strip() for part in _split(text, ",")] if text else []

    def __len__(self) -> int:
        return len(self.parts)

    def value(self, index: int) -> str:
        return self._value(self.parts[index])

    def list(self, index: int) -> list[str]:
        part = self.parts[index]
        if part.startswith("{"):
            return [self._value(each.strip()) for each in part[1:-1].split(",")]
        return [self._value(part)]

    def is_list(self, index: int) -> bool:
        return self.parts[index].startswith("{")

    def address(self, index: int) -> str:
        return self._address(self._inside(index)[0])

    def coordinates(self, index: int) -> list[str]:
        """Return the coordinates in the address of a tensor map, [map, {columns, rows, ...}]."""
        return [self._value(each.strip()) for each in self._inside(index)[1].strip()[1:-1].split(",")]

    def _inside(self, index: int) -> list[str]:
        part = self.parts[index]
        if not part.startswith("["):
            raise UnknownInstruction(f"an address is expected, and there is {part}")
        return _split(part[1:-1], ",")

    def _address(self, text: str) -> str:
        base, *more = text.split("+")
        return " + ".join([self._value(base.strip()), *(each.strip() for each in more)])

    def _value(self, text: str) -> str:
        if text.startswith("%"):
            return self.names[int(text[1:])]
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)", text):
            return text
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return f"__uint_as_float(0x{text[2:]}u)"
        if re.fullmatch(r"\w+", text):
            return f"register_{text}"
        raise UnknownInstruction(f"the operand {text}")


def _instruction(text: str, names: list[str]) -> str:
    """C++ for one instruction of PTX."""
    declared = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.+)", text)
    if declared and declared[1] in REGISTERS:
        registers = ", ".join(f"register_{each.strip()}" for each in declared[2].split(","))
        return f"{REGISTERS[declared[1]]} {registers};"
    guard = re.match(r"@(!?)(?:%(\d+)|(\w+))\s+", text)
    if guard:
        value = names[int(guard[2])] if guard[2] else f"register_{guard[3]}"
        return f"if ({guard[1]}{value}) {{ {_instruction(text[guard.end() :], names)} }}"
    opcode, _, rest = text.partition(" ")
    for pattern, emit in INSTRUCTIONS.items():
        match = re.fullmatch(pattern, opcode)
        if match:
            return emit(match, Operands(rest.strip(), names))
    raise UnknownInstruction(f"the emulator does not know the PTX instruction `{text}`")


def _pointers(name: str, kind: str, values: list[str]) -> str:
    return f"{kind}* const {name}[] = {{{', '.join('&' + value for value in values)}}};"


def _wgmma(match: re.Match[str], of: Operands) -> str:
    # d, a, b, scale-d, then signs of a and b, and which operands of shared memory have columns side by side
    columns = int(match["n"])
    values = of.list(0)
    if len(values) != columns // 2:
        raise UnknownInstruction(f"{match[0]} with {len(values)} accumulators")
    flags = [of.value(index) for index in range(3, len(of))]
    bf16 = str(match["type"] == "bf16").lower()
    lines = _pointers("emulator_d", "float", values)
    if of.is_list(1):
        adds, a_sign, b_sign, b_columns = flags
        a = f"const unsigned emulator_a[4] = {{{', '.join(of.list(1))}}};"
        call = (
            f"emulator::multiply({columns}, {bf16}, emulator_d, emulator_a, {of.value(2)}, {adds}, {a_sign}, {b_sign}, "
        )
        return f"{lines} {a} {call}{b_columns}, {HERE});"
    adds, a_sign, b_sign, a_columns, b_columns = flags
    call = (
        f"emulator::multiply({columns}, {bf16}, emulator_d, {of.value(1)}, {of.value(2)}, {adds}, {a_sign}, {b_sign}, "
    )
    return f"{lines} {call}{a_columns}, {b_columns}, {HERE});"


def _mma(match: re.Match[str], of: Operands) -> str:
    bf16 = str(match["type"] == "bf16").lower()
    return (
        f"{_pointers('emulator_d', 'float', of.list(0))} const unsigned emulator_a[4] = {{{', '.join(of.list(1))}}}, "
        f"emulator_b[2] = {{{', '.join(of.list(2))}}}; const float emulator_c[4] = {{{', '.join(of.list(3))}}}; "
        f"emulator::multiply_sync({bf16}, emulator_d, emulator_a, emulator_b, emulator_c, {HERE});"
    )


def _ldmatrix(match: re.Match[str], of: Operands) -> str:
    transposed = str(match["trans"] is not None).lower()
    return (
        f"{_pointers('emulator_to', 'unsigned', of.list(0))} "
        f"emulator::load_matrices(emulator_to, {match['count']}, {of.address(1)}, {transposed}, {HERE});"
    )


def _stmatrix(match: re.Match[str], of: Operands) -> str:
    transposed = str(match["trans"] is not None).lower()
    return (
        f"const unsigned emulator_from[] = {{{', '.join(of.list(1))}}}; "
        f"emulator::store_matrices({of.address(0)}, emulator_from, {match['count']}, {transposed}, {HERE});"
    )


def _mov(match: re.Match[str], of: Operands) -> str:
    half = int(match["bits"]) // 2
    if of.is_list(0):
        low, high = of.list(0)
        return f"{low} = ({of.value(1)}) & {(1 << half) - 1}u; {high} = ({of.value(1)}) >> {half};"
    if of.is_list(1):
        low, high = of.list(1)
        wide = "unsigned long long" if half == 32 else "unsigned"
        return f"{of.value(0)} = ({wide})({high}) << {half} | ({wide})({low});"
    return f"{of.value(0)} = {of.value(1)};"


def _coordinates(of: Operands, index: int) -> tuple[str, int]:
    values = of.coordinates(index)
    return f"const int emulator_at[] = {{{', '.join(f'(int)({value})' for value in values)}}};", len(values)


def _tensor_fetch(match: re.Match[str], of: Operands) -> str:
    at, rank = _coordinates(of, 1)
    return (
        f"{at} emulator::tensor_fetch({of.address(0)}, {of.address(1)}, emulator_at, {rank}, {of.address(2)}, {HERE});"
    )


def _tensor_store(match: re.Match[str], of: Operands) -> str:
    at, rank = _coordinates(of, 0)
    return f"{at} emulator::tensor_store({of.address(0)}, emulator_at, {rank}, {of.address(1)}, false, {HERE});"


def _add(match: re.Match[str], of: Operands) -> str:
    kind = REGISTERS[match["type"]]
    size = 8 if match["type"].endswith("64") else 4
    values = of.list(1)
    return " ".join(
        f"emulator::add_in_memory<{kind}>({of.address(0)} + {size * i}, {value});" for i, value in enumerate(values)
    )


def _copy(match: re.Match[str], of: Operands) -> str:
    size = of.value(2)
    bytes_read = of.value(3) if len(of) > 3 else size
    return f"emulator::copy_async({of.address(0)}, {of.address(1)}, {size}, {bytes_read}, {HERE});"


def _calls(form: str) -> Callable[[re.Match[str], Operands], str]:
    """A call whose arguments are filled in: {0} a value, {a0} an address, {name} a group of the pattern."""

    def emit(match: re.Match[str], of: Operands) -> str:
        filled = re.sub(r"\{a(\d)\}", lambda found: of.address(int(found[1])), form)
        filled = re.sub(r"\{(\d)\}", lambda found: of.value(int(found[1])), filled)
        filled = filled.replace("HERE", HERE)
        for name, value in match.groupdict().items():
            filled = filled.replace(f"{{{name}}}", value or "")
        return filled + ";"

    return emit


CTA = r"(?:\.shared(?:::cta)?)"
CLUSTER = r"\.shared::(?:cluster|cta)"
INSTRUCTIONS: dict[str, Callable[[re.Match[str], Operands], str]] = {
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<type>bf16|f16)\.(?P=type)": _wgmma,
    r"wgmma\.fence\.sync\.aligned": _calls("emulator::products_fence(HERE)"),
    r"wgmma\.commit_group\.sync\.aligned": _calls("emulator::products_commit(HERE)"),
    r"wgmma\.wait_group\.sync\.aligned": _calls("emulator::products_wait({0}, HERE)"),
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(?P<type>bf16|f16)\.(?P=type)\.f32": _mma,
    r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?" + CTA + r"\.b16": _ldmatrix,
    r"stmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?" + CTA + r"\.b16": _stmatrix,
    r"mov\.[bu](?P<bits>32|64)": _mov,
    r"cvt\.rn\.f16x2\.f32": _calls("{0} = emulator::pack_half({1}, {2})"),
    r"cvt\.rn\.bf16x2\.f32": _calls("{0} = emulator::pack_bfloat16({1}, {2})"),
    r"cvt\.f32\.f16": _calls("{0} = emulator::from_half({1})"),
    r"cvt\.rn\.f16\.f32": _calls("{0} = emulator::to_half({1})"),
    r"cvt\.rn\.bf16\.f32": _calls("{0} = emulator::to_bfloat16({1})"),
    r"ex2\.approx\.ftz\.f32": _calls("{0} = emulator::exp2_approximate({1})"),
    r"selp\.[bus]32": _calls("{0} = {3} ? {1} : {2}"),
    r"lop3\.b32": _calls("{0} = emulator::three_bits({1}, {2}, {3}, {4})"),
    r"mbarrier\.init" + CTA + r"\.b64": _calls("emulator::barrier_init({a0}, {1}, HERE)"),
    r"mbarrier\.arrive(?:\.release\.cta)?" + CTA + r"\.b64": lambda match, of: (
        f"emulator::barrier_arrive({of.address(1)}, {of.value(2) if len(of) > 2 else 1}, 0, {HERE});"
    ),
    r"mbarrier\.arrive\.expect_tx(?:\.release\.cta)?" + CTA + r"\.b64": _calls(
        "emulator::barrier_arrive({a1}, 1, {2}, HERE)"
    ),
    r"mbarrier\.expect_tx(?:\.relaxed\.cta)?" + CTA + r"\.b64": _calls("emulator::barrier_expect({a0}, {1}, HERE)"),
    r"mbarrier\.(?:try|test)_wait\.parity(?:\.acquire\.cta)?" + CTA + r"\.b64": _calls(
        "{0} = emulator::barrier_passed({a1}, {2}, HERE)"
    ),
    r"fence\.proxy\.async(?:" + CTA + ")?": _calls("emulator::fence_async()"),
    r"fence\.proxy\.async\.global": _calls("(void)0"),  # global memory has one view
    r"fence\.mbarrier_init\.release\.cluster": _calls("(void)0"),
    r"prefetch\.tensormap": _calls("emulator::check_map({a0}, HERE)"),
    r"cp\.async\.c[ag]" + CTA + r"\.global(?:\.L2::\w+)?": _copy,
    r"cp\.async\.commit_group": _calls("emulator::copies_commit()"),
    r"cp\.async\.wait_group": _calls("emulator::copies_wait({0})"),
    r"cp\.async\.wait_all": _calls("emulator::copies_wait_all()"),
    r"cp\.async\.mbarrier\.arrive\.noinc" + CTA + r"\.b64": _calls("emulator::arrive_after_copies({a0}, HERE)"),
    r"cp\.async\.bulk\.tensor\.[1-5]d" + CLUSTER + r"\.global(?:\.tile)?\.mbarrier::complete_tx::bytes": _tensor_fetch,
    r"cp\.async\.bulk\.tensor\.[1-5]d\.global\.shared::cta(?:\.tile)?\.bulk_group": _tensor_store,
    r"cp\.async\.bulk" + CLUSTER + r"\.global\.mbarrier::complete_tx::bytes": _calls(
        "emulator::bulk_fetch({a0}, {a1}, {2}, {a3}, HERE)"
    ),
    r"cp\.async\.bulk\.global\.shared::cta\.bulk_group": _calls("emulator::bulk_store({a0}, {a1}, {2}, false, HERE)"),
    r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.add\.f32": _calls(
        "emulator::bulk_store({a0}, {a1}, {2}, true, HERE)"
    ),
    r"cp\.async\.bulk\.commit_group": _calls("emulator::bulk_commit()"),
    r"cp\.async\.bulk\.wait_group": _calls("emulator::bulk_wait({0}, false)"),
    r"cp\.async\.bulk\.wait_group\.read": _calls("emulator::bulk_wait({0}, true)"),
    r"red(?:\.release|\.relaxed)?(?:\.gpu)?\.global\.add(?:\.v[24])?\.(?P<type>u32|s32|u64|f32)": _add,
    r"ld\.acquire\.gpu\.global\.[bu]32": _calls("{0} = emulator::load_polled((const void*)({a1}), HERE)"),
    r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32": _calls("emulator::set_registers({0}, HERE)"),
    r"bar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?": _calls("emulator::named_barrier({0}, {1}, true, HERE)"),
    r"bar(?:rier)?(?:\.cta)?\.arrive(?:\.aligned)?": _calls("emulator::named_barrier({0}, {1}, false, HERE)"),
}
