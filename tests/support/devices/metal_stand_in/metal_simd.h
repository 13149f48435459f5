// Test-only: SIMD-group functions of the stand-in <metal_stdlib>, part of that header. All threads of the threadgroup must
// call them together, which is stricter than Metal and what the emitter promises.
#pragma once

namespace metal {

template <typename T> inline T stand_in_exchange(T value, uint from) {
    static_assert(sizeof(T) <= 8, "a slot is a word");
    uint64_t* slots = stand_in_slots();
    memcpy(&slots[stand_in_lane()], &value, sizeof value);
    stand_in_barrier(-1);
    T result = value;  // of a lane outside the SIMD-group: its own, as good as any
    if (from < stand_in_simd_width()) {
        uint first = stand_in_lane() / stand_in_simd_width() * stand_in_simd_width();
        if (first + from < stand_in_width()) memcpy(&result, &slots[first + from], sizeof result);
    }
    stand_in_barrier(-2);
    return result;
}

inline uint stand_in_simd_lane() { return stand_in_lane() % stand_in_simd_width(); }
template <typename T> inline T simd_shuffle(T value, ushort lane) { return stand_in_exchange(value, lane); }
template <typename T> inline T simd_broadcast(T value, ushort lane) { return stand_in_exchange(value, lane); }
template <typename T> inline T simd_shuffle_xor(T value, ushort mask) {
    return stand_in_exchange(value, stand_in_simd_lane() ^ mask);
}
template <typename T> inline T simd_shuffle_down(T value, ushort delta) {
    return stand_in_exchange(value, stand_in_simd_lane() + delta);
}
template <typename T> inline T simd_shuffle_up(T value, ushort delta) {
    return stand_in_exchange(value, stand_in_simd_lane() - delta);
}

}  // namespace metal
