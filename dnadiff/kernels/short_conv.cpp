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

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

void dnadiff_conv_forward(const float* x, const float* weight, const float* bias, float* y, int64_t batch, int64_t L, int64_t E, int64_t K,
                          int64_t x_row, int reverse, int threads) {
  const Conv p{L, (int)E, (int)K, weight, bias, nullptr, nullptr};
  over_positions(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int) {
    const Rows<const float> xs(x, b, L, x_row, reverse);
    const Rows<float> ys(y, b, L, E, reverse);
    (K <= 4 ? conv_forward<4, false> : conv_forward<8, false>)(p, xs, ys, ys, i0, i1);
  });
}

// sums (threads, K + 1, E), dweight and dbias, must be zeros on entry.
void dnadiff_conv_backward(const float* dy, const float* x, const float* weight, const float* bias, float* dx, float* sums, int64_t batch,
                           int64_t L, int64_t E, int64_t K, int64_t dy_row, int64_t x_row, int reverse, int threads) {
  const Conv p{L, (int)E, (int)K, weight, bias, nullptr, nullptr};
  over_positions(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int thread) {
    const Rows<const float> xs(x, b, L, x_row, reverse), dys(dy, b, L, dy_row, reverse);
    const Rows<float> dxs(dx, b, L, E, reverse);
    (K <= 4 ? conv_backward<4, false> : conv_backward<8, false>)(p, xs, dys, dys, dxs[i0], dxs.stride, sums + thread * (K + 1) * E, i0, i1);
  });
}
}
