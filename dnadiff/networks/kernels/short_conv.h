// Depthwise causal convolution followed by SiLU, channels last: one chunk of positions, forward and backward, in one or both directions.
//
//   a_l = bias + sum_k weight[:, k] x_{l-K+1+k};   y_l = a_l logistic(a_l);   in the other direction x_{l+K-1-k}
//
// Both directions need the same K inputs: when x_i has been read, position i of the first and i-K+1 of the second can be computed.
// Positions may be in blocks, each convolved on its own, with K - 1 inputs before it. Blocks count in the order of the walk; of a reverse
// walk the first one may be the shorter one. In both directions together the inputs before a block are those of the first direction; the
// other one has none after it.
//
// Inputs and gradients of the last K positions are in registers. Rows further on are prefetched, because one vector of channels of
// consecutive positions is a stride of whole rows, which processors do not foresee.
#pragma once
#include "simd.h"

namespace dnadiff {

constexpr int AHEAD = 8;  // rows

struct Conv {
  ptrdiff_t L;
  int E, K;
  const float *weight, *bias, *weight_rev, *bias_rev;  // weight (E, K), K <= taps; those of the other direction may be null
  ptrdiff_t block, missing;  // positions of a block, 0 for the whole sequence, and how many fewer the first one has

  ptrdiff_t index(ptrdiff_t i) const { return block ? (i + missing) / block : 0; }
  ptrdiff_t start(ptrdiff_t index) const { return index ? index * block - missing : 0; }
  ptrdiff_t end(ptrdiff_t index) const { return block && (index + 1) * block - missing < L ? (index + 1) * block - missing : L; }
};

// The inputs before the blocks of one sequence and their gradients, (blocks, K - 1, E). Or the inputs are those of another sequence (L, E)
// before the same positions. May be null: zero.
struct Near {
  const float* inputs;
  float* gradients;
  const float* sequence;
};

// The last taps - 1 inputs before position i of a block that begins at `first`.
template <int taps>
static inline void load_seen(const Conv& p, Rows<const float> x, Near near, ptrdiff_t i, ptrdiff_t first, int e, int lanes, vec* seen) {
  UNROLL for (int t = 1; t < taps; t++) {
    const ptrdiff_t at = i - taps + t, given = at - first + p.K - 1;
    seen[t] = vec{};
    if (at >= first) seen[t] = load(x[at] + e, lanes);
    else if (near.sequence && at >= 0) seen[t] = load(near.sequence + at * p.E + e, lanes);
    else if (near.inputs && given >= 0) seen[t] = load(near.inputs + (p.index(i) * (p.K - 1) + given) * p.E + e, lanes);
  }
}

// The weights of one block of channels, aligned to the end: missing early taps are 0.
template <int taps>
static inline void load_weights(const float* weight, int K, int k, int lanes, vec* w) {
  float* out = (float*)w;
  for (int t = 0; t < taps; t++)
    for (int j = 0; j < W; j++) *out++ = j < lanes && t >= taps - K ? weight[(ptrdiff_t)(k * W + j) * K + t - (taps - K)] : 0.f;
}

template <int taps>
static inline vec filtered(const vec* w, const vec* seen, vec a, bool mirrored) {
  UNROLL for (int t = 0; t < taps; t++) a += w[t] * seen[mirrored ? taps - 1 - t : t];
  return a;
}

template <int taps>
static inline void shift(vec* x) {
  UNROLL for (int t = 1; t < taps; t++) x[t - 1] = x[t];
}

// Positions i0 <= i < i1 of y, and of y_rev if `both`.
template <int taps, bool both>
static void conv_forward(const Conv& p, Rows<const float> x, Near near, Rows<float> y, Rows<float> y_rev, ptrdiff_t i0, ptrdiff_t i1) {
  for (int k = 0; k * W < p.E; k++) {
    const int lanes = p.E - k * W < W ? p.E - k * W : W, e = k * W;
    vec w[taps], w_rev[taps], seen[taps];
    load_weights<taps>(p.weight, p.K, k, lanes, w);
    const vec bias = load(p.bias + e, lanes), bias_rev = both ? load(p.bias_rev + e, lanes) : vec{};
    if (both) load_weights<taps>(p.weight_rev, p.K, k, lanes, w_rev);
    for (ptrdiff_t j0 = i0, j1; j0 < i1; j0 = j1) {  // the parts of different blocks
      const ptrdiff_t end = p.end(p.index(j0));
      j1 = end < i1 ? end : i1;
      load_seen<taps>(p, x, near, j0, p.start(p.index(j0)), e, lanes, seen);
      for (ptrdiff_t i = j0; i < (both ? j1 + taps - 1 : j1); i++) {
        shift<taps>(seen);
        seen[taps - 1] = i < end ? load(x[i] + e, lanes) : vec{};
        __builtin_prefetch(x[i + AHEAD] + e);
        if (!both || i < j1) {
          const vec a = filtered<taps>(w, seen, bias, false);
          store(y[i] + e, a * logistic(a), lanes);
        }
        const ptrdiff_t back = i - taps + 1;
        if (both && back >= j0) {
          const vec a = filtered<taps>(w_rev, seen, bias_rev, true);
          store(y_rev[back] + e, a * logistic(a), lanes);
        }
      }
    }
  }
}

static inline vec silu_gradient(vec a, vec dy) {
  const vec gate = logistic(a);
  return dy * gate * (1.f + a * (1.f - gate));
}

// Gradients of the positions i0 <= i < i1: dx, and added to `sums` (K + 1, E) those of weight and bias, for both directions after each other.
// With a = 0 before the first and after the last position of a block. The gradients of inputs before a block are those of its first part.
template <int taps, bool both>
static void conv_backward(const Conv& p, Rows<const float> x, Near near, Rows<const float> dy, Rows<const float> dy_rev, float* dx,
                          ptrdiff_t dx_row, float* sums, ptrdiff_t i0, ptrdiff_t i1) {
  for (int k = 0; k * W < p.E; k++) {
    const int lanes = p.E - k * W < W ? p.E - k * W : W, e = k * W;
    vec w[taps], w_rev[taps], seen[taps], dw[taps] = {}, dw_rev[taps] = {}, dbias = {}, dbias_rev = {};
    load_weights<taps>(p.weight, p.K, k, lanes, w);
    const vec bias = load(p.bias + e, lanes), bias_rev = both ? load(p.bias_rev + e, lanes) : vec{};
    if (both) load_weights<taps>(p.weight_rev, p.K, k, lanes, w_rev);
    for (ptrdiff_t j0 = i0, j1; j0 < i1; j0 = j1) {
      const ptrdiff_t index = p.index(j0), first = p.start(index), end = p.end(index);
      vec da[taps] = {}, da_rev[taps] = {};
      j1 = end < i1 ? end : i1;
      load_seen<taps>(p, x, near, j0, first, e, lanes, seen);
      for (ptrdiff_t i = j0; i < j1 + taps - 1; i++) {
        shift<taps>(seen), shift<taps>(da);
        seen[taps - 1] = da[taps - 1] = vec{};
        if (i < end) {
          seen[taps - 1] = load(x[i] + e, lanes);
          da[taps - 1] = silu_gradient(filtered<taps>(w, seen, bias, false), load(dy[i] + e, lanes));
          __builtin_prefetch(x[i + AHEAD] + e), __builtin_prefetch(dy[i + AHEAD] + e);
        }
        if (i < j1) {  // later positions belong to the next chunk
          dbias += da[taps - 1];
          UNROLL for (int t = 0; t < taps; t++) dw[t] += da[taps - 1] * seen[t];
        }
        const ptrdiff_t back = i - taps + 1, given = back - first + p.K - 1;
        if constexpr (both) {
          shift<taps>(da_rev);
          da_rev[taps - 1] = vec{};
          if (back >= first) {
            da_rev[taps - 1] = silu_gradient(filtered<taps>(w_rev, seen, bias_rev, true), load(dy_rev[back] + e, lanes));
            __builtin_prefetch(dy_rev[back + AHEAD] + e);
          }
          if (back >= j0) {
            dbias_rev += da_rev[taps - 1];
            UNROLL for (int t = 0; t < taps; t++) dw_rev[t] += da_rev[taps - 1] * seen[taps - 1 - t];
          }
        }
        if (back >= j0) {
          vec sum = filtered<taps>(w, da, vec{}, true);
          if (both) sum = filtered<taps>(w_rev, da_rev, sum, false);
          store(dx + (back - i0) * dx_row + e, sum, lanes);
        } else if (near.gradients && j0 == first && given >= 0) {
          store(near.gradients + (index * (p.K - 1) + given) * p.E + e, filtered<taps>(w, da, vec{}, true), lanes);
        }
      }
    }
    for (int way = 0; way < (both ? 2 : 1); way++)
      for (int t = 0; t <= p.K; t++) {
        float* to = sums + (way * (p.K + 1) + t) * (ptrdiff_t)p.E + e;
        const vec more = t < p.K ? (way ? dw_rev : dw)[taps - p.K + t] : way ? dbias_rev : dbias;
        store(to, load(to, lanes) + more, lanes);
      }
  }
}

}  // namespace dnadiff
