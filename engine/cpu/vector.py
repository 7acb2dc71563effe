"""Vector code for numba, written as LLVM instructions: what the kernels of this folder are made of.

numba compiles Python loops well, but it can't be told to keep sixteen sums in registers or to use a CPU's dot
product of bytes. An `Emitter` wraps the builder that numba hands to an intrinsic and names the few operations
that the kernels need; addresses are plain 64-bit integers throughout. No instruction here depends on a particular
CPU: where there is an own instruction for four byte products and their sum, LLVM is given it by name, else the same
sum is spelled out. Nothing is reordered: what a lane computes depends on its own inputs only.
"""

from __future__ import annotations

from llvmlite import ir
from numba import config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LANES = 16  # numbers of a vector: 64 bytes of float32, one cache line

i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()
Value = ir.Value


def vector(kind: ir.Type, lanes: int = LANES) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


def features(text: str) -> dict[str, bool]:
    """LLVM's list of what a processor has, "+avx2,-avx512f"."""
    return {name[1:]: name[0] == "+" for name in text.split(",") if name}


# What numba compiles for: this processor's, or less where NUMBA_CPU_FEATURES says so. An instruction that LLVM doesn't
# know of there ends the process.
HOST = features(get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES)
# four products of an unsigned and a signed byte, added to an int32: x86's VNNI, 64 or 32 bytes at once
DOT_512 = HOST.get("avx512vnni", False)
DOT_256 = HOST.get("avxvnni", False) or (DOT_512 and HOST.get("avx512vl", False))


class Emitter:
    """Emits instructions at the place where `builder` stands."""

    def __init__(self, builder: ir.IRBuilder):
        self.b = builder

    # --- numbers and addresses ---

    def whole(self, number: int) -> Value:
        return ir.Constant(i64, number)

    def at(self, base: Value, offset: Value | int, unit: int = 1) -> Value:
        """base + offset · unit, bytes."""
        if isinstance(offset, int):
            return self.b.add(base, self.whole(offset * unit)) if offset else base
        return self.b.add(base, self.b.mul(offset, self.whole(unit)) if unit != 1 else offset)

    def constant(self, number: float, kind: ir.Type, lanes: int = LANES) -> Value:
        return ir.Constant(vector(kind, lanes), [number] * lanes)

    def load(self, address: Value, kind: ir.Type, align: int = 1) -> Value:
        return self.b.load(self.b.inttoptr(address, kind.as_pointer()), align=align)

    def store(self, value: Value, address: Value, align: int = 1) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=align)

    def prefetch(self, address: Value) -> None:
        """Have the line of the address brought into the second cache."""
        pointer = self.b.inttoptr(address, i8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = self.b.module.globals.get("llvm.prefetch.p0") or ir.Function(self.b.module, kind, "llvm.prefetch.p0")
        self.b.call(function, [pointer, ir.Constant(i32, 0), ir.Constant(i32, 2), ir.Constant(i32, 1)])

    def splat(self, value: Value, lanes: int = LANES) -> Value:
        kind = vector(value.type, lanes)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(i32, 0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(vector(i32, lanes), [0] * lanes))

    def load_splat(self, address: Value, kind: ir.Type, lanes: int = LANES) -> Value:
        return self.splat(self.load(address, kind, align=1), lanes)

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """An LLVM intrinsic by its full name."""
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.b.call(function, arguments)

    # --- float32 vectors ---

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a · b + c, rounded once."""
        return self.call(f"llvm.fma.{_suffix(a.type)}", a.type, a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.maxnum.{_suffix(a.type)}", a.type, a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.minnum.{_suffix(a.type)}", a.type, a, b)

    def absolute(self, a: Value) -> Value:
        return self.call(f"llvm.fabs.{_suffix(a.type)}", a.type, a)

    def nearest(self, a: Value) -> Value:
        """Rounded to a whole number, halves to even; still a float."""
        return self.call(f"llvm.rint.{_suffix(a.type)}", a.type, a)

    def sum(self, a: Value) -> Value:
        """Of all lanes, in halves: lane i with lane i + n/2, until one is left."""
        return self._halve(a, self.b.add if isinstance(a.type.element, ir.IntType) else self.b.fadd)

    def largest(self, a: Value) -> Value:
        return self._halve(a, self.maximum)

    def _halve(self, a: Value, combine) -> Value:
        while (count := a.type.count // 2) >= 1:
            undefined = ir.Constant(a.type, ir.Undefined)
            low, high = (
                self.b.shuffle_vector(a, undefined, ir.Constant(vector(i32, count), list(range(s, s + count))))
                for s in (0, count)
            )
            a = combine(low, high)
        return self.b.extract_element(a, ir.Constant(i32, 0))

    def exp(self, x: Value) -> Value:
        """e^x for x ≤ 88; 0 below −87. Largest error 0.9 units in the last place (tested over the whole range).

        x = n·ln 2 + r with |r| ≤ ln 2 / 2 (ln 2 taken off in two parts, so that r is exact), a polynomial of
        degree 6 for e^r (the one whose largest error is least, 4e-9; Taylor's own errs 2 units), and n put into the
        exponent.
        """
        lanes = x.type.count
        number = lambda value: self.constant(value, f32, lanes)  # noqa: E731
        low = self.b.fcmp_ordered("<", x, number(-87.0))
        x = self.maximum(x, number(-87.0))
        n = self.nearest(self.b.fmul(x, number(1.4426950408889634)))
        r = self.fma(n, number(-0.693145751953125), x)
        r = self.fma(n, number(-1.428606765330187e-06), r)
        p = number(0.001381459878757596)
        for factor in (0.008368716575205326, 0.04166838899254799, 0.1666652113199234, 0.4999999403953552, 1.0, 1.0):
            p = self.fma(p, r, number(factor))
        bits = self.b.shl(
            self.b.add(self.b.fptosi(n, vector(i32, lanes)), self.constant(127, i32, lanes)),
            self.constant(23, i32, lanes),
        )
        value = self.b.fmul(p, self.b.bitcast(bits, x.type))
        return self.b.select(low, number(0.0), value)

    # --- halves and bytes ---

    def load_halves(self, address: Value, lanes: int = LANES) -> Value:
        """`lanes` float16 at the address, as float32."""
        return self.b.fpext(self.load(address, vector(f16, lanes), align=2), vector(f32, lanes))

    def load_upper_halves(self, address: Value, lanes: int = LANES) -> Value:
        """`lanes` bfloat16 at the address, as float32: they are its upper halves."""
        bits = self.b.zext(self.load(address, vector(i16, lanes), align=2), vector(i32, lanes))
        return self.b.bitcast(self.b.shl(bits, self.constant(16, i32, lanes)), vector(f32, lanes))

    def to_half(self, value: Value) -> Value:
        """float32 vector → float16, held within ±65504, so that no infinity is ever stored. NaN stays NaN."""
        lanes = value.type.count
        least, most = self.constant(-65504.0, f32, lanes), self.constant(65504.0, f32, lanes)
        held = self.minimum(self.maximum(value, least), most)
        held = self.b.select(self.b.fcmp_unordered("uno", value, value), value, held)
        return self.b.fptrunc(held, vector(f16, lanes))

    def dot_bytes(self, total: Value, unsigned: Value, signed: Value) -> Value:
        """total (16 int32) + the sums of four products each: unsigned (64 uint8) with signed (64 int8)."""
        if DOT_512:
            return self.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, unsigned, signed)
        if DOT_256:
            return self._join(
                *(
                    self.call("llvm.x86.avx512.vpdpbusd.256", vector(i32, 8), *parts)
                    for parts in zip(self._split(total), self._split(unsigned), self._split(signed), strict=True)
                )
            )
        return self._dot_spelled_out(total, unsigned, signed)

    def _dot_spelled_out(self, total: Value, unsigned: Value, signed: Value) -> Value:
        undefined = ir.Constant(unsigned.type, ir.Undefined)
        for part in range(4):
            lanes = ir.Constant(vector(i32), list(range(part, 64, 4)))
            a = self.b.zext(self.b.shuffle_vector(unsigned, undefined, lanes), total.type)
            b = self.b.sext(self.b.shuffle_vector(signed, undefined, lanes), total.type)
            total = self.b.add(total, self.b.mul(a, b))
        return total

    def _split(self, value: Value) -> list[Value]:
        half = value.type.count // 2
        undefined = ir.Constant(value.type, ir.Undefined)
        return [
            self.b.shuffle_vector(value, undefined, ir.Constant(vector(i32, half), list(range(s, s + half))))
            for s in (0, half)
        ]

    def _join(self, low: Value, high: Value) -> Value:
        lanes = 2 * low.type.count
        return self.b.shuffle_vector(low, high, ir.Constant(vector(i32, lanes), list(range(lanes))))

    # --- loops ---

    def loop(self, count: Value, carried: list[Value], body) -> list[Value]:
        """`body(index, carried) → carried` for index 0 … count − 1, carried values in registers; at least once."""
        entry = self.b.block
        head = self.b.append_basic_block("loop")
        after = self.b.append_basic_block("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(i64)
        index.add_incoming(self.whole(0), entry)
        inside = [self.b.phi(value.type) for value in carried]
        for phi, value in zip(inside, carried, strict=True):
            phi.add_incoming(value, entry)
        results = body(index, inside)
        following = self.b.add(index, self.whole(1))
        last = self.b.block  # the body may hold loops of its own
        self.b.cbranch(self.b.icmp_signed("<", following, count), head, after)
        index.add_incoming(following, last)
        for phi, value in zip(inside, results, strict=True):
            phi.add_incoming(value, last)
        self.b.position_at_end(after)
        return results


def _suffix(kind: ir.VectorType) -> str:
    element = {str(f32): "f32", str(f16): "f16"}[str(kind.element)]
    return f"v{kind.count}{element}"


def literal(kind: types.Type) -> int:
    """The value of an intrinsic's argument that must be known when it is compiled."""
    return kind.literal_value


@intrinsic
def address(context, array):
    """Where an array's first element lies."""

    def generate(context, builder, signature, arguments):
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, i64)

    return types.intp(array), generate


@intrinsic
def number_at(context, address):
    """The int64 at an address."""

    def generate(context, builder, signature, arguments):
        return Emitter(builder).load(arguments[0], i64, 8)

    return types.int64(types.int64), generate


@intrinsic
def set_number(context, address, number):
    def generate(context, builder, signature, arguments):
        Emitter(builder).store(arguments[1], arguments[0], 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def add_row(context, columns, source, target):
    """target += source, `columns` float32 (a multiple of 16)."""

    def generate(context, builder, signature, arguments):
        columns, source, target = arguments
        e = Emitter(builder)

        def body(index, _):
            at = e.at(target, index, 4 * LANES)
            added = builder.fadd(e.load(at, vector(f32), 4), e.load(e.at(source, index, 4 * LANES), vector(f32), 4))
            e.store(added, at, 4)
            return []

        e.loop(builder.sdiv(columns, e.whole(LANES)), [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
