"""The kernel of selective_scan_gradient: a program has 16 channels of a sequence, whose state of N numbers is vectors of 16."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops.recurrent.gradient.parts import SCAN_STEPS

WIDTH, CHANNELS = 16, 16
Place = tuple[int, int | None]


@dataclass(frozen=True)
class Channels:
    """The inputs, the program's channels from `first` on, and its scratch: the state h, its gradient g, that of a, and the states
    that a chunk held. `places` are the columns of a state's vectors, with how many there are of a partial one."""

    k: Tracer
    x: Array
    dt: Array
    a: Array
    b: Array
    c: Array
    dy: Array
    first: Value
    places: list[Place]
    h: Array
    g: Array
    sums: Array
    held: Array

    def load(self, array: Array, row: Value, place: Place) -> Value:
        """Columns of a row."""
        return self.k.load_vector(array, row, place[0], width=WIDTH, count=place[1])

    def own(self, array: Array, row: Value, place: Place) -> Value:
        """Columns of a row of scratch."""
        return self.k.load_vector(array, row, place[0], width=WIDTH)

    def zeros(self) -> Variable:
        return self.k.var(self.k.splat(0.0, WIDTH))

    def advance(self, own: Value, token: Value) -> None:
        """h = exp(dt a) h + dt x B of one channel."""
        k, channel = self.k, self.first + own
        step = self.dt[token, channel]
        into = k.splat(step * self.x[token, channel], WIDTH)
        for place in self.places:
            old = self.own(self.h, own, place)
            new = k.fma(self.load(self.b, token, place), into, k.exp(self.load(self.a, channel, place) * step) * old)
            k.store_vector(self.h, new, own, place[0])

    def start(self, state: Array, dstate: Array, row: Value, n_own: Value) -> None:
        """Loads h and g from the row of the first channel on, and starts the sums."""
        k = self.k
        for own in k.range(n_own):
            for place in self.places:
                k.store_vector(self.h, self.load(state, row + own, place), own, place[0])
                k.store_vector(self.g, self.load(dstate, row + own, place), own, place[0])
                k.store_vector(self.sums, k.splat(0.0, WIDTH), own, place[0])

    def copy(self, source: Array, first: Value, to: Array, place: Value, n_own: Value) -> None:
        """Copies states of scratch from row `first` of one array on to row `place` of another."""
        for own in self.k.range(n_own):
            for at in self.places:
                self.k.store_vector(to, self.own(source, first + own, at), place + own, at[0])

    def backward(
        self, own: Value, token: Value, held: Value, of_b: list[Variable], of_c: list[Variable], dx: Array, ddt: Array
    ) -> None:
        """One channel's gradients of a token; adds to those of B and C."""
        k, channel = self.k, self.first + own
        step, value, change = self.dt[token, channel], self.x[token, channel], self.dy[token, channel]
        into, of_step, of_into = step * value, self.zeros(), self.zeros()
        for place, total_b, total_c in zip(self.places, of_b, of_c, strict=True):
            of_a, of_input, seen = (
                self.load(*at, place) for at in ((self.a, channel), (self.b, token), (self.c, token))
            )
            old = self.own(self.held, held, place)
            decay = k.exp(of_a * step)
            kept_part = decay * old
            new = k.fma(of_input, k.splat(into, WIDTH), kept_part)
            of_h = k.fma(seen, k.splat(change, WIDTH), self.own(self.g, own, place))
            total_c.set(k.fma(new, k.splat(change, WIDTH), total_c.value))
            total_b.set(k.fma(of_h, k.splat(into, WIDTH), total_b.value))
            of_decay = of_h * kept_part
            of_step.set(k.fma(of_decay, of_a, of_step.value))
            of_into.set(k.fma(of_h, of_input, of_into.value))
            so_far = self.own(self.sums, own, place)
            k.store_vector(self.sums, k.fma(of_decay, k.splat(step, WIDTH), so_far), own, place[0])
            k.store_vector(self.g, of_h * decay, own, place[0])
        total = k.vector_sum(of_into.value)
        dx[token, channel] = total * step
        ddt[token, channel] = k.fma(total, value, k.vector_sum(of_step.value))

    def hold(self, begin: Value, count: Value, n_own: Value) -> None:
        """Computes a chunk's states once more, from the token `begin` on, and holds that before each."""
        k = self.k
        for j in k.range(count):
            for own in k.range(n_own):
                for place in self.places:
                    k.store_vector(self.held, self.own(self.h, own, place), j * CHANNELS + own, place[0])
                self.advance(own, begin + j)


@kernel
def channels_backward(
    k: Tracer, x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array, dy: Array, dstate: Array,
    dx: Array, ddt: Array, da: Array, db: Array, dc: Array, dfirst: Array, starts: Array,
    *, tokens: int, channels: int, size: int, blocks: int,
) -> None:  # fmt: skip
    # db and dc have the program's part of the sums over channels
    sequence, block = k.program(0), k.program(1)
    first = block * CHANNELS
    n_own, n_chunks = k.minimum(channels - first, CHANNELS), -(-tokens // SCAN_STEPS)
    places = [(at, None if at + WIDTH <= size else size - at) for at in range(0, size, WIDTH)]
    wide = len(places) * WIDTH
    h, g, sums, held = (k.scratch(f32, rows * CHANNELS, wide) for rows in (1, 1, 1, SCAN_STEPS))
    s, zero = Channels(k, x, dt, a, b, c, dy, first, places, h, g, sums, held), k.number(0, i64)
    row = sequence * channels + first
    s.start(state, dstate, row, n_own)
    for chunk in k.range(n_chunks):
        s.copy(h, zero, starts, (sequence * n_chunks + chunk) * channels + first, n_own)
        for t in k.range(chunk * SCAN_STEPS, k.minimum((chunk + 1) * SCAN_STEPS, tokens)):
            for own in k.range(n_own):
                s.advance(own, sequence * tokens + t)
    for back in k.range(n_chunks):
        chunk = n_chunks - 1 - back
        begin = chunk * SCAN_STEPS
        count = k.minimum(tokens - begin, SCAN_STEPS)
        s.copy(starts, (sequence * n_chunks + chunk) * channels + first, h, zero, n_own)
        s.hold(sequence * tokens + begin, count, n_own)
        for later in k.range(count):
            j = count - 1 - later
            of_b, of_c = ([s.zeros() for _ in places] for _ in range(2))
            for own in k.range(n_own):
                s.backward(own, sequence * tokens + begin + j, j * CHANNELS + own, of_b, of_c, dx, ddt)
            part = (sequence * blocks + block) * tokens + begin + j
            for place, total_b, total_c in zip(places, of_b, of_c, strict=True):
                k.store_vector(db, total_b.value, part, place[0], count=place[1])
                k.store_vector(dc, total_c.value, part, place[0], count=place[1])
    for own in k.range(n_own):
        for place in places:
            k.store_vector(da, s.own(sums, own, place), row + own, place[0], count=place[1])
            k.store_vector(dfirst, s.own(g, own, place), row + own, place[0], count=place[1])
