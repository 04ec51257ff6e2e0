// The short convolution of one direction as an operator of its own. A task is one chunk of positions of one sequence.
#include "short_conv.h"

namespace dnadiff {

constexpr int ROWS = 64;

// f(b, i0, i1, thread) over the chunks of all sequences.
template <class F>
static void over_positions(ptrdiff_t batch, ptrdiff_t L, int threads, F f) {
  const ptrdiff_t chunks = (L + ROWS - 1) / ROWS;
  parallel(batch * chunks, threads, [&](ptrdiff_t begin, ptrdiff_t end, int thread) {
    for (ptrdiff_t task = begin; task < end; task++) {
      const ptrdiff_t i0 = task % chunks * ROWS;
      f(task / chunks, i0, i0 + ROWS < L ? i0 + ROWS : L, thread);
    }
  });
}

static Conv one_direction(const float* weight, const float* bias, ptrdiff_t L, ptrdiff_t E, ptrdiff_t K, ptrdiff_t block, bool reverse) {
  return {L, (int)E, (int)K, weight, bias, nullptr, nullptr, block, reverse && block ? (block - L % block) % block : 0};
}

// The K - 1 inputs before each block of sequence b.
template <class Float>
static Float* near_of(Float* near, ptrdiff_t b, const Conv& p) {
  return near ? near + b * (p.index(p.L - 1) + 1) * (p.K - 1) * p.E : nullptr;
}

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

// `near` (batch, blocks, K - 1, E) may be null: zero. Blocks have `block` positions; 0 is the whole sequence.
void dnadiff_conv_forward(const float* x, const float* weight, const float* bias, const float* near, float* y, int64_t batch, int64_t L,
                          int64_t E, int64_t K, int64_t block, int64_t x_row, int reverse, int threads) {
  const Conv p = one_direction(weight, bias, L, E, K, block, reverse);
  over_positions(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int) {
    const Rows<const float> xs(x, b, L, x_row, reverse);
    const Rows<float> ys(y, b, L, E, reverse);
    (K <= 4 ? conv_forward<4, false> : conv_forward<8, false>)(p, xs, Near{near_of(near, b, p), nullptr, nullptr}, ys, ys, i0, i1);
  });
}

// sums (threads, K + 1, E), dweight and dbias, must be zeros on entry. dnear is null if near is.
void dnadiff_conv_backward(const float* dy, const float* x, const float* weight, const float* bias, const float* near, float* dx, float* dnear,
                           float* sums, int64_t batch, int64_t L, int64_t E, int64_t K, int64_t block, int64_t dy_row, int64_t x_row,
                           int reverse, int threads) {
  const Conv p = one_direction(weight, bias, L, E, K, block, reverse);
  over_positions(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int thread) {
    const Rows<const float> xs(x, b, L, x_row, reverse), dys(dy, b, L, dy_row, reverse);
    const Rows<float> dxs(dx, b, L, E, reverse);
    const Near nears{near_of(near, b, p), near_of(dnear, b, p), nullptr};
    float* to = sums + thread * (K + 1) * E;
    (K <= 4 ? conv_backward<4, false> : conv_backward<8, false>)(p, xs, nears, dys, dys, dxs[i0], dxs.stride, to, i0, i1);
  });
}
}
