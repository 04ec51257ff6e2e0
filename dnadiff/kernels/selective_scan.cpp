// The selective scan of Mamba (arXiv 2312.00752, Algorithm 2) with softplus and skip in the same pass, forward and backward.
//
//   step = softplus(delta + bias);  h_l = exp(step_l A) h_{l-1} + step_l B_l u_l;  y_l = sum_n C_l[n] h_l[n] + D u_l
//
// A task is one sequence and one group of channels. It processes the sequence in chunks of T positions; within a chunk the
// channels in vectors of W, and the N states of a vector in tiles that fit the registers. Only the states before each chunk
// are stored; the backward pass recomputes the others chunk by chunk, so no array of size B L E N exists.
//
// Chunks begin where blocks begin, which are the whole sequence unless states before blocks are read or returned: then they
// are those of the blocks' first chunks. Blocks and chunks count in the order of the walk; of a reverse walk the first block
// may be the shorter one.
//
// Arrays are channels last: u, delta, y (B, L, E), B, C (B, L, N), A (E, N), states (B, chunks or blocks, N, E).
#include "simd.h"

namespace dnadiff {

constexpr int T = 32;
constexpr int BACK = W == 8 ? M / 2 : M;  // states that the backward pass keeps in registers: it has twice as many values for each

struct Shape {
  ptrdiff_t L, block, missing;  // missing: positions by which the first block is shorter than the others
  int E, N, vectors, blocks, per_block, chunks;
  Shape(ptrdiff_t L, int E, int N, ptrdiff_t block, bool reverse)
      : L(L), block(block), E(E), N(N), vectors((E + W - 1) / W), blocks((int)((L + block - 1) / block)), per_block((int)((block + T - 1) / T)) {
    missing = reverse ? blocks * block - L : 0, chunks = blocks * per_block;
  }
  int lanes(int k) const { return E - k * W < W ? E - k * W : W; }
  ptrdiff_t start(int c) const { return c < per_block ? (ptrdiff_t)c * T : c / per_block * block - missing + c % per_block * T; }
  int length(int c) const {
    const ptrdiff_t begin = start(c), next = (c / per_block + 1) * block - missing, end = next < L ? next : L;
    return end - begin < T ? end < begin ? 0 : (int)(end - begin) : T;
  }
};

// A (E, N) -> (vectors, N, W) for vectors k0 <= k < k1, in units of log 2: the decay is 2^(step a).
static void pack_rates(const float* A, vec* a, const Shape& s, int k0, int k1) {
  float* out = (float*)a;
  for (int k = k0; k < k1; k++)
    for (int n = 0; n < s.N; n++)
      for (int j = 0; j < W; j++) *out++ = k * W + j < s.E ? A[(ptrdiff_t)(k * W + j) * s.N + n] * LOG2E : 0.f;
}

static void clear(vec* x, size_t count) { std::memset(static_cast<void*>(x), 0, count * sizeof(vec)); }

// The states (N, W) of one vector of channels, from and to an array (N, E) that may be null: zero.
static inline void load_states(const float* from, vec* h, const Shape& s, int lanes) {
  for (int n = 0; n < s.N; n++) h[n] = from ? load(from + (ptrdiff_t)n * s.E, lanes) : vec{};
}

static inline void store_states(float* to, const vec* h, const Shape& s, int lanes) {
  for (int n = 0; n < s.N; n++) store(to + (ptrdiff_t)n * s.E, h[n], lanes);
}

// B and C at the positions of one chunk.
struct Inputs {
  const float *B[T], *C[T];
};

// One position of one vector of channels; dx = step * u.
struct ForwardAt {
  vec step, dx, y;
};

template <int m>
static inline void advance(ForwardAt* __restrict at, int count, const Inputs& in, int n0, const vec* a, vec* h) {
  vec s[m], r[m];
  UNROLL for (int j = 0; j < m; j++) s[j] = h[n0 + j], r[j] = a[n0 + j];
  for (int i = 0; i < count; i++) {
    const float *b = in.B[i] + n0, *c = in.C[i] + n0;
    const vec step = at[i].step, dx = at[i].dx;
    vec y = at[i].y;
    UNROLL for (int j = 0; j < m; j++) {
      s[j] = exp2(step * r[j]) * s[j] + dx * b[j];
      y += s[j] * c[j];
    }
    at[i].y = y;
  }
  UNROLL for (int j = 0; j < m; j++) h[n0 + j] = s[j];
}

struct BackwardAt {
  vec u, dy, step, slope, dx, ddx, dstep;
};

template <int m>
struct Past {
  vec h[m], decay[m];  // the states before a position, and their decays
};

// With g_l = dy_l C_l + exp(step_{l+1} A) g_{l+1}, the gradient with respect to h_l, from the last position to the first:
//   dC_l += dy_l h_l;   dB_l += g_l step_l u_l;   d(step_l u_l) = sum_n g_l B_l;   d(step_l A) = g_l exp(step_l A) h_{l-1}
// `sums` (T, N, 2) holds dB and dC lane by lane.
template <int m>
static inline void retreat(BackwardAt* __restrict at, int count, const Inputs& in, int N, int n0, const vec* a, const vec* h, vec* g, vec* da,
                           vec* __restrict sums, Past<m>* __restrict past) {
  vec s[m], r[m];
  UNROLL for (int j = 0; j < m; j++) s[j] = h[n0 + j], r[j] = a[n0 + j];
  for (int i = 0; i < count; i++) {
    const float* b = in.B[i] + n0;
    vec* sum = sums + 2 * (i * N + n0);
    const vec step = at[i].step, dx = at[i].dx, dy = at[i].dy;
    UNROLL for (int j = 0; j < m; j++) {
      const vec decay = exp2(step * r[j]);
      past[i].h[j] = s[j];
      past[i].decay[j] = decay;
      s[j] = decay * s[j] + dx * b[j];
      sum[2 * j + 1] += dy * s[j];
    }
  }

  UNROLL for (int j = 0; j < m; j++) s[j] = g[n0 + j];
  vec rate[m] = {};
  for (int i = count - 1; i >= 0; i--) {
    const float *b = in.B[i] + n0, *c = in.C[i] + n0;
    vec* sum = sums + 2 * (i * N + n0);
    const Past<m>* now = past + i;
    const vec step = at[i].step, dx = at[i].dx, dy = at[i].dy;
    vec ddx = at[i].ddx, dstep = at[i].dstep;
    UNROLL for (int j = 0; j < m; j++) {
      const vec grad = s[j] + dy * c[j];
      sum[2 * j] += dx * grad;
      ddx += grad * b[j];
      s[j] = grad * now->decay[j];
      const vec to_exponent = s[j] * now->h[j];
      dstep += to_exponent * r[j];
      rate[j] += to_exponent * step;
    }
    at[i].ddx = ddx, at[i].dstep = dstep;
  }
  UNROLL for (int j = 0; j < m; j++) g[n0 + j] = s[j], da[n0 + j] += rate[j];
}

struct Arrays {
  const float *dy, *u, *delta, *A, *B, *C, *D, *bias;
  float *y, *du, *ddelta, *dA, *dB, *dC, *dD, *dbias;
  float *kept, *last, *dinitial;  // the states before all chunks, the last one, and the gradient of `initial`: one state, or one for each block
  const float *initial, *dkept, *dlast;
  ptrdiff_t dy_row, u_row, delta_row, B_row, C_row;  // distances between positions, in floats
};

// One sequence and the vectors k0 <= k < k1 of its channels.
struct Walk {
  const Arrays& p;
  const Shape& s;
  ptrdiff_t b;
  int k0, k1, groups, group;
  bool reverse, restart;  // restart: every block starts from a state of its own

  Walk(const Arrays& p, const Shape& s, ptrdiff_t task, int groups, bool reverse, bool restart)
      : p(p), s(s), b(task / groups), groups(groups), group((int)(task % groups)), reverse(reverse), restart(restart) {
    k0 = (int)((ptrdiff_t)s.vectors * group / groups), k1 = (int)((ptrdiff_t)s.vectors * (group + 1) / groups);
  }

  template <class Float>
  Rows<Float> rows(Float* x, ptrdiff_t row) const {
    return {x, b, s.L, row, reverse};
  }

  // The i-th of `count` states of this sequence; null if there are none.
  template <class Float>
  Float* states(Float* array, int count, int i, int k) const {
    return array ? array + (b * count + i) * s.N * s.E + k * W : nullptr;
  }

  bool starts(int c) const { return c == 0 || (restart && c % s.per_block == 0); }

  template <class Float>
  Float* initial(Float* array, int c, int k) const {
    return restart ? states(array, s.blocks, c / s.per_block, k) : states(array, 1, 0, k);
  }

  void read(Inputs& in, int c) const {
    const auto B = rows(p.B, p.B_row), C = rows(p.C, p.C_row);
    const ptrdiff_t i0 = s.start(c);
    for (int i = 0; i < s.length(c); i++) in.B[i] = B[i0 + i], in.C[i] = C[i0 + i];
  }

  void forward(vec* a, vec* h) const {
    const auto us = rows(p.u, p.u_row), deltas = rows(p.delta, p.delta_row);
    const auto ys = rows(p.y, s.E);
    ForwardAt at[T];
    Inputs in;
    pack_rates(p.A, a, s, k0, k1);
    for (int c = 0; c < s.chunks; c++) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      read(in, c);
      for (int k = k0; k < k1; k++) {
        const int lanes = s.lanes(k), e = k * W;
        const vec skip = load(p.D + e, lanes), bias = p.bias ? load(p.bias + e, lanes) : vec{};
        const vec* rates = a + (k - k0) * s.N;
        vec* state = h + (k - k0) * s.N;
        if (starts(c)) load_states(initial(p.initial, c, k), state, s, lanes);
        if (p.kept) store_states(states(p.kept, s.chunks, c, k), state, s, lanes);
        for (int i = 0; i < count; i++) {
          vec slope, u = load(us[i0 + i] + e, lanes);
          at[i].step = softplus(load(deltas[i0 + i] + e, lanes) + bias, slope);
          at[i].dx = at[i].step * u;
          at[i].y = skip * u;
        }
        over_tiles<M>(s.N, [&](auto tile, int n) { advance<tile.size>(at, count, in, n, rates, state); });
        for (int i = 0; i < count; i++) store(ys[i0 + i] + e, at[i].y, lanes);
      }
    }
    for (int k = k0; p.last && k < k1; k++) store_states(states(p.last, 1, 0, k), h + (k - k0) * s.N, s, s.lanes(k));
  }

  // Scratch memory of the backward pass: per vector of channels (carried from chunk to chunk), and for one chunk.
  struct Memory {
    Scratch rates, g, da, dD, dbias, start, sums, past;
    Memory(size_t vectors, size_t N)
        : rates(vectors * N), g(vectors * N), da(vectors * N), dD(vectors), dbias(vectors), start(N), sums(2 * T * N), past(2 * T * M) {}
  };

  void chunk(const Memory& memory, const Inputs& in, int c, int k) const {
    const auto us = rows(p.u, p.u_row), deltas = rows(p.delta, p.delta_row), dys = rows(p.dy, p.dy_row);
    const auto dus = rows(p.du, s.E), ddeltas = rows(p.ddelta, s.E);
    const ptrdiff_t i0 = s.start(c);
    const int count = s.length(c), lanes = s.lanes(k), e = k * W, first = (k - k0) * s.N;
    const vec skip = load(p.D + e, lanes), bias = p.bias ? load(p.bias + e, lanes) : vec{};
    BackwardAt at[T];
    for (int i = 0; i < count; i++) {
      at[i].u = load(us[i0 + i] + e, lanes);
      at[i].dy = load(dys[i0 + i] + e, lanes);
      at[i].step = softplus(load(deltas[i0 + i] + e, lanes) + bias, at[i].slope);
      at[i].dx = at[i].step * at[i].u;
      at[i].ddx = at[i].dstep = vec{};
    }
    load_states(states(p.kept, s.chunks, c, k), memory.start.at, s, lanes);
    over_tiles<BACK>(s.N, [&](auto tile, int n) {
      constexpr int m = tile.size;
      retreat<m>(at, count, in, s.N, n, memory.rates.at + first, memory.start.at, memory.g.at + first, memory.da.at + first, memory.sums.at,
                 (Past<m>*)memory.past.at);
    });
    vec dD = memory.dD.at[k - k0], dbias = memory.dbias.at[k - k0];
    for (int i = 0; i < count; i++) {
      const vec ddelta = (at[i].ddx * at[i].u + at[i].dstep * LN2) * at[i].slope;
      dD += at[i].dy * at[i].u;
      dbias += ddelta;
      store(dus[i0 + i] + e, at[i].ddx * at[i].step + at[i].dy * skip, lanes);
      store(ddeltas[i0 + i] + e, ddelta, lanes);
    }
    memory.dD.at[k - k0] = dD, memory.dbias.at[k - k0] = dbias;
  }

  // The gradient of the state before a chunk: what it received from later positions, and from its own use as a result.
  void leave(vec* g, int c, int k) const {
    const int lanes = s.lanes(k);
    if (p.dkept) {
      const float* more = states(p.dkept, s.chunks, c, k);
      for (int n = 0; n < s.N; n++) g[n] += load(more + (ptrdiff_t)n * s.E, lanes);
    }
    if (!starts(c)) return;
    if (p.dinitial) store_states(initial(p.dinitial, c, k), g, s, lanes);
    clear(g, s.N);
  }

  void backward(const Memory& memory, ptrdiff_t batch) const {
    const ptrdiff_t part = group * batch * s.L * s.N;  // every group of channels has its own sums
    const auto dBs = rows(p.dB + part, s.N), dCs = rows(p.dC + part, s.N);
    Inputs in;
    pack_rates(p.A, memory.rates.at, s, k0, k1);
    for (int k = k0; k < k1; k++) load_states(states(p.dlast, 1, 0, k), memory.g.at + (k - k0) * s.N, s, s.lanes(k));
    clear(memory.da.at, (size_t)(k1 - k0) * s.N), clear(memory.dD.at, k1 - k0), clear(memory.dbias.at, k1 - k0);
    for (int c = s.chunks - 1; c >= 0; c--) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      read(in, c);
      clear(memory.sums.at, (size_t)2 * count * s.N);
      for (int k = k0; k < k1; k++) chunk(memory, in, c, k), leave(memory.g.at + (k - k0) * s.N, c, k);
      for (int i = 0; i < count; i++) {
        float *dB = dBs[i0 + i], *dC = dCs[i0 + i];
        const vec* lanes = memory.sums.at + 2 * i * s.N;
        for (int n = 0; n < s.N; n++) dB[n] = sum(lanes + 2 * n), dC[n] = sum(lanes + 2 * n + 1);
      }
    }
    for (int k = k0; k < k1; k++) {
      const int lanes = s.lanes(k), e = k * W;
      for (int n = 0; n < s.N; n++) store(p.dA + (b * s.N + n) * s.E + e, memory.da.at[(k - k0) * s.N + n], lanes);
      store(p.dD + b * s.E + e, memory.dD.at[k - k0], lanes);
      store(p.dbias + b * s.E + e, memory.dbias.at[k - k0], lanes);
    }
  }
};

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

const char* dnadiff_vectors() { return NAME; }

// The compiler with its version, and a hash of the flags.
#ifdef __clang__
const char* dnadiff_compiler() { return __VERSION__ ", flags " DNADIFF_FLAGS; }
#else
const char* dnadiff_compiler() { return "g++ " __VERSION__ ", flags " DNADIFF_FLAGS; }
#endif

// May be null: `initial`, which is (batch, N, E), or (batch, blocks, N, E) if blocks restart; `kept`, then nothing is saved for a
// backward pass; and `last` (batch, N, E).
void dnadiff_scan_forward(const float* u, const float* delta, const float* A, const float* B, const float* C, const float* D,
                          const float* bias, const float* initial, float* y, float* kept, float* last, int64_t batch, int64_t L, int64_t E,
                          int64_t N, int64_t block, int64_t u_row, int64_t delta_row, int64_t B_row, int64_t C_row, int reverse, int restart,
                          int groups, int threads) {
  const Shape s(L, (int)E, (int)N, block, reverse);
  Arrays p = {};
  p.u = u, p.delta = delta, p.A = A, p.B = B, p.C = C, p.D = D, p.bias = bias, p.initial = initial;
  p.y = y, p.kept = kept, p.last = last;
  p.u_row = u_row, p.delta_row = delta_row, p.B_row = B_row, p.C_row = C_row;
  parallel(batch * groups, threads, [&](ptrdiff_t begin, ptrdiff_t end, int) {
    const size_t most = (s.vectors + groups - 1) / groups;
    Scratch rates(most * N), h(most * N);
    for (ptrdiff_t task = begin; task < end; task++) Walk(p, s, task, groups, reverse, restart).forward(rates.at, h.at);
  });
}

// dA (batch, N, E), dD and dbias (batch, E) and dB, dC (groups, batch, L, N) are partial sums: the caller adds over their first axis.
// May be null: `kept`, if the states before all chunks are zero, dkept, dlast and dinitial.
void dnadiff_scan_backward(const float* dy, const float* u, const float* delta, const float* A, const float* B, const float* C,
                           const float* D, const float* bias, float* kept, const float* dkept, const float* dlast, float* du, float* ddelta,
                           float* dA, float* dB, float* dC, float* dD, float* dbias, float* dinitial, int64_t batch, int64_t L, int64_t E,
                           int64_t N, int64_t block, int64_t dy_row, int64_t u_row, int64_t delta_row, int64_t B_row, int64_t C_row,
                           int reverse, int restart, int groups, int threads) {
  const Shape s(L, (int)E, (int)N, block, reverse);
  const Arrays p = {dy, u,     delta, A,    B,       C,        D,       bias,  nullptr, du,     ddelta, dA,        dB,    dC,
                    dD, dbias, kept,  nullptr, dinitial, nullptr, dkept, dlast, dy_row,  u_row,  delta_row, B_row, C_row};
  parallel(batch * groups, threads, [&](ptrdiff_t begin, ptrdiff_t end, int) {
    const Walk::Memory memory((s.vectors + groups - 1) / groups, N);
    for (ptrdiff_t task = begin; task < end; task++) Walk(p, s, task, groups, reverse, restart).backward(memory, batch);
  });
}
}
