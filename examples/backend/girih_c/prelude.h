/* What statements of kernels need besides C's own operators. */
#include <stdint.h>
typedef __int128 int128_t;
typedef unsigned __int128 u128;
static inline float f32(uint32_t b) { union { uint32_t b; float f; } u = {b}; return u.f; }
static inline double f64(uint64_t b) { union { uint64_t b; double f; } u = {b}; return u.f; }
static inline void copy(char *to, const char *from, uint64_t n, uint8_t v)
{ for (uint64_t i = 0; i < n; i++) to[i] = from[i]; }
static inline void fill(char *to, uint8_t byte, uint64_t n, uint8_t v)
{ for (uint64_t i = 0; i < n; i++) to[i] = byte; }
static inline int ones(uint64_t x) { int n = 0; for (; x; x &= x - 1) n++; return n; }
#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#define CLOCK() __builtin_ia32_rdtsc()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#define CLOCK() ({ uint64_t t; __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t)); t; })
#endif
/* Whole numbers of floats: the nearest one that there is, 0 for NaN. */
#define SATURATED(T, S, x, least, most, low, high) \
  ((x) != (x) ? 0 : (x) <= (least) ? (T)(low) : (x) >= (most) ? (T)(high) : (T)(S)(x))
/* The bits of a float, joined with those of another by an operator: -0 is less than 0. */
#define JOINED(F, U, a, operator, b) \
  ({ union { F f; U u; } p, q; p.f = (a); q.f = (b); p.u operator q.u; p.f; })
#define LEAST(F, U, a, b) \
  ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) < (b) ? (a) : (b) < (a) ? (b) : JOINED(F, U, a, |=, b))
#define MOST(F, U, a, b) \
  ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) > (b) ? (a) : (b) > (a) ? (b) : JOINED(F, U, a, &=, b))
/* The upper bits of a pair that is moved to the left by n. */
#define SHIFTED(T, bits, a, b, n) \
  ((T)(((a) << ((n) % bits)) | ((b) >> 1 >> (bits - 1 - (n) % bits))))
