// Test-only: arithmetic of the stand-in <metal_stdlib>, part of that header.
#pragma once

namespace metal {

#define STAND_IN_UNARY(name, builtin) \
    inline float name(float x) { return __builtin_##builtin##f(x); }

namespace precise {
STAND_IN_UNARY(exp, exp)
STAND_IN_UNARY(exp2, exp2)
STAND_IN_UNARY(log, log)
STAND_IN_UNARY(log2, log2)
STAND_IN_UNARY(tanh, tanh)
STAND_IN_UNARY(sqrt, sqrt)
STAND_IN_UNARY(sin, sin)
STAND_IN_UNARY(cos, cos)
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float divide(float x, float y) { return x / y; }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
}  // namespace precise

STAND_IN_UNARY(floor, floor)
STAND_IN_UNARY(ceil, ceil)
STAND_IN_UNARY(trunc, trunc)
STAND_IN_UNARY(rint, rint)
STAND_IN_UNARY(fabs, fabs)
using precise::cos;
using precise::exp;
using precise::exp2;
using precise::log;
using precise::log2;
using precise::pow;
using precise::rsqrt;
using precise::sin;
using precise::sqrt;
using precise::tanh;
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }

// One type for both, as in Metal, where mixed operands are an ambiguous call.
template <typename T> inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> inline T max(T a, T b) { return a < b ? b : a; }
template <typename T> inline T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <typename T> inline T abs(T x) { return x < T(0) ? -x : x; }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline float abs(float x) { return __builtin_fabsf(x); }
template <typename T> inline T select(T a, T b, bool second) { return second ? b : a; }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint mulhi(uint a, uint b) { return uint((uint64_t(a) * b) >> 32); }
inline uint extract_bits(uint x, uint offset, uint bits) { return (x >> offset) & ((1u << bits) - 1u); }
inline int extract_bits(int x, uint offset, uint bits) { return int(uint(x) << (32u - bits - offset)) >> (32u - bits); }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

// Fibers do not interrupt each other, so plain arithmetic is atomic.
template <typename T> inline T atomic_load_explicit(const volatile atomic<T>* at, memory_order) { return at->value; }
template <typename T, typename V> inline void atomic_store_explicit(volatile atomic<T>* at, V value, memory_order) {
    at->value = T(value);
}
#define STAND_IN_ATOMIC(name, formula)                                                                   \
    template <typename T, typename V>                                                                    \
    inline T atomic_##name##_explicit(volatile atomic<T>* at, V given, memory_order) {                   \
        T old = at->value, value = T(given);                                                             \
        at->value = formula;                                                                             \
        return old;                                                                                      \
    }
STAND_IN_ATOMIC(exchange, value)
STAND_IN_ATOMIC(fetch_add, T(old + value))
STAND_IN_ATOMIC(fetch_sub, T(old - value))
STAND_IN_ATOMIC(fetch_min, (value < old ? value : old))
STAND_IN_ATOMIC(fetch_max, (old < value ? value : old))
STAND_IN_ATOMIC(fetch_and, T(old & value))
STAND_IN_ATOMIC(fetch_or, T(old | value))
STAND_IN_ATOMIC(fetch_xor, T(old ^ value))
template <typename T, typename V>
inline bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* at, T* expected, V wanted, memory_order, memory_order) {
    T old = at->value;
    bool same = memcmp(&old, expected, sizeof old) == 0;
    if (same) at->value = T(wanted);
    else *expected = old;
    return same;
}

}  // namespace metal
