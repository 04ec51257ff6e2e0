// Depthwise causal convolution followed by SiLU, channels last, forward and backward.
//
//   a_l = bias + sum_k weight[:, k] x_{l-K+1+k};   y_l = a_l logistic(a_l)
//
// A task is one chunk of positions of one sequence. It also reads (backward: recomputes) the K - 1 positions around it, so that
// tasks are independent. Inputs and gradients of the last K positions are in registers.
#include "simd.h"

namespace dnadiff {

constexpr int ROWS = 64;

struct Conv {
  const float *x, *weight, *bias, *dy;  // weight (E, K), K <= taps; dy null in the forward pass
  float *y, *dx, *sums;                 // sums (threads, K + 1, E): dweight and dbias, which the caller adds
  ptrdiff_t batch, L, x_row, dy_row;
  int E, K;
  bool reverse;
};

// The weights of one block of channels, aligned to the end: missing early taps are 0.
template <int taps>
static inline void load_weights(const Conv& p, int k, int lanes, vec* w) {
  float* out = (float*)w;
  for (int t = 0; t < taps; t++)
    for (int j = 0; j < W; j++) *out++ = j < lanes && t >= taps - p.K ? p.weight[(ptrdiff_t)(k * W + j) * p.K + t - (taps - p.K)] : 0.f;
}

template <int taps>
static void forward(const Conv& p, ptrdiff_t task, ptrdiff_t chunks, int) {
  const ptrdiff_t b = task / chunks, i0 = task % chunks * ROWS, i1 = i0 + ROWS < p.L ? i0 + ROWS : p.L;
  const Rows<const float> xs(p.x, b, p.L, p.x_row, p.reverse);
  const Rows<float> ys(p.y, b, p.L, p.E, p.reverse);
  for (int k = 0; k * W < p.E; k++) {
    const int lanes = p.E - k * W < W ? p.E - k * W : W;
    vec w[taps], seen[taps];
    load_weights<taps>(p, k, lanes, w);
    const vec bias = load(p.bias + k * W, lanes);
    UNROLL for (int t = 1; t < taps; t++) seen[t] = i0 - taps + t >= 0 ? load(xs[i0 - taps + t] + k * W, lanes) : vec{};
    for (ptrdiff_t i = i0; i < i1; i++) {
      UNROLL for (int t = 1; t < taps; t++) seen[t - 1] = seen[t];
      seen[taps - 1] = load(xs[i] + k * W, lanes);
      vec a = bias;
      UNROLL for (int t = 0; t < taps; t++) a += w[t] * seen[t];
      store(ys[i] + k * W, a * logistic(a), lanes);
    }
  }
}

template <int taps>
static void backward(const Conv& p, ptrdiff_t task, ptrdiff_t chunks, int thread) {
  const ptrdiff_t b = task / chunks, i0 = task % chunks * ROWS, i1 = i0 + ROWS < p.L ? i0 + ROWS : p.L;
  const Rows<const float> xs(p.x, b, p.L, p.x_row, p.reverse), dys(p.dy, b, p.L, p.dy_row, p.reverse);
  const Rows<float> dxs(p.dx, b, p.L, p.E, p.reverse);
  for (int k = 0; k * W < p.E; k++) {
    const int lanes = p.E - k * W < W ? p.E - k * W : W;
    vec w[taps], seen[taps], due[taps], dw[taps], dbias = {};  // due[t]: partial gradient of the input in seen[t]
    load_weights<taps>(p, k, lanes, w);
    const vec bias = load(p.bias + k * W, lanes);
    UNROLL for (int t = 0; t < taps; t++) dw[t] = due[t] = vec{};
    UNROLL for (int t = 1; t < taps; t++) seen[t] = i0 - taps + t >= 0 ? load(xs[i0 - taps + t] + k * W, lanes) : vec{};
    for (ptrdiff_t i = i0; i < i1 + taps - 1; i++) {
      UNROLL for (int t = 1; t < taps; t++) seen[t - 1] = seen[t], due[t - 1] = due[t];
      due[taps - 1] = vec{};
      if (i < p.L) {
        seen[taps - 1] = load(xs[i] + k * W, lanes);
        vec a = bias;
        UNROLL for (int t = 0; t < taps; t++) a += w[t] * seen[t];
        const vec gate = logistic(a);
        const vec da = load(dys[i] + k * W, lanes) * gate * (1.f + a * (1.f - gate));
        UNROLL for (int t = 0; t < taps; t++) due[t] += da * w[t];
        if (i < i1) {  // later positions belong to the next task
          dbias += da;
          UNROLL for (int t = 0; t < taps; t++) dw[t] += da * seen[t];
        }
      }
      const ptrdiff_t done = i - taps + 1;
      if (done >= i0) store(dxs[done] + k * W, due[0], lanes);
    }
    float* sums = p.sums + (ptrdiff_t)thread * (p.K + 1) * p.E + k * W;
    for (int t = 0; t <= p.K; t++) {
      const vec more = t < p.K ? dw[taps - p.K + t] : dbias;
      store(sums + (ptrdiff_t)t * p.E, load(sums + (ptrdiff_t)t * p.E, lanes) + more, lanes);
    }
  }
}

typedef void (*Task)(const Conv&, ptrdiff_t, ptrdiff_t, int);

static void run(const Conv& p, int threads, Task short_task, Task long_task) {
  const ptrdiff_t chunks = (p.L + ROWS - 1) / ROWS;
  const Task f = p.K <= 4 ? short_task : long_task;
  parallel(p.batch * chunks, threads, [&](ptrdiff_t begin, ptrdiff_t end, int thread) {
    for (ptrdiff_t task = begin; task < end; task++) f(p, task, chunks, thread);
  });
}

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

void dnadiff_conv_forward(const float* x, const float* weight, const float* bias, float* y, int64_t batch, int64_t L, int64_t E, int64_t K,
                          int64_t x_row, int reverse, int threads) {
  run(Conv{x, weight, bias, nullptr, y, nullptr, nullptr, batch, L, x_row, 0, (int)E, (int)K, reverse != 0}, threads, forward<4>,
      forward<8>);
}

// sums (threads, K + 1, E) must be zeros on entry.
void dnadiff_conv_backward(const float* dy, const float* x, const float* weight, const float* bias, float* dx, float* sums, int64_t batch,
                           int64_t L, int64_t E, int64_t K, int64_t dy_row, int64_t x_row, int reverse, int threads) {
  run(Conv{x, weight, bias, dy, nullptr, dx, sums, batch, L, x_row, dy_row, (int)E, (int)K, reverse != 0}, threads, backward<4>,
      backward<8>);
}
}
