// Test-only: SIMD-group matrices of the stand-in <metal_stdlib>, part of that header: what Metal's specification says of them
// and no more. Which elements a thread holds is nobody's business there, so here they lie in an order that no GPU has. All
// threads of the threadgroup must call these together, which is stricter than Metal and what the emitter promises.
#pragma once

namespace metal {

template <typename T, int Cols, int Rows> struct simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8 && sizeof(T) == 4, "the stand-in has matrices of 8 x 8 floats");
    T held[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

// The element that this thread holds as its number i: multiplying by an odd number moves all 64 about.
inline uint stand_in_element(int i) { return ((stand_in_lane() % 32 * 2 + i) * 37 + 11) % 64; }

inline void stand_in_whole_simdgroup() {
    if (stand_in_simd_width() != 32 || stand_in_width() % 32 != 0) stand_in_fault("a matrix of a SIMD-group that is not whole", 0);
}

template <typename T, int Cols, int Rows> inline simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
    return simdgroup_matrix<T, Cols, Rows>{{value, value}};
}

template <typename T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* source, ulong elements_per_row = 8, ulong2 origin = ulong2(0, 0),
                           bool transpose = false) {
    stand_in_whole_simdgroup();
    for (int i = 0; i < 2; ++i) {
        ulong row = stand_in_element(i) / 8, column = stand_in_element(i) % 8;
        if (transpose) { ulong t = row; row = column; column = t; }
        d.held[i] = source[(origin.y + row) * elements_per_row + origin.x + column];
    }
}

template <typename T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> a, T* to, ulong elements_per_row = 8, ulong2 origin = ulong2(0, 0),
                            bool transpose = false) {
    stand_in_whole_simdgroup();
    for (int i = 0; i < 2; ++i) {
        ulong row = stand_in_element(i) / 8, column = stand_in_element(i) % 8;
        if (transpose) { ulong t = row; row = column; column = t; }
        to[(origin.y + row) * elements_per_row + origin.x + column] = a.held[i];
    }
}

// All 64 elements, from the threads of this SIMD-group.
template <typename T> inline void stand_in_gather(const simdgroup_matrix<T, 8, 8>& m, T* all) {
    uint64_t* slots = stand_in_slots();
    memcpy(&slots[stand_in_lane()], m.held, sizeof m.held);
    stand_in_barrier(-3);
    uint first = stand_in_lane() / 32 * 32;
    for (uint lane = 0; lane < 32; ++lane) {
        T two[2];
        memcpy(two, &slots[first + lane], sizeof two);
        for (int i = 0; i < 2; ++i) all[((lane * 2 + i) * 37 + 11) % 64] = two[i];
    }
    stand_in_barrier(-4);
}

template <typename T>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8>& a, simdgroup_matrix<T, 8, 8>& b,
                                          simdgroup_matrix<T, 8, 8>& c) {
    stand_in_whole_simdgroup();
    T left[64], right[64];
    stand_in_gather(a, left);
    stand_in_gather(b, right);
    for (int i = 0; i < 2; ++i) {
        T total = c.held[i];
        for (int p = 0; p < 8; ++p) total += left[stand_in_element(i) / 8 * 8 + p] * right[p * 8 + stand_in_element(i) % 8];
        d.held[i] = total;
    }
}

}  // namespace metal
