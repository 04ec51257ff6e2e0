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
#include "scan_tiles.h"

namespace dnadiff {

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

  void forward(vec* a, vec* h) const {
    const auto us = rows(p.u, p.u_row), deltas = rows(p.delta, p.delta_row);
    const auto ys = rows(p.y, s.E);
    ForwardAt at[T];
    Inputs in;
    pack_rates(p.A, a, s, k0, k1);
    for (int c = 0; c < s.chunks; c++) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      in.read(rows(p.B, p.B_row), rows(p.C, p.C_row), i0, count);
      for (int k = k0; k < k1; k++) {
        const Channels channels(p.D, p.bias, k, s.lanes(k));
        const vec* rates = a + (k - k0) * s.N;
        vec* state = h + (k - k0) * s.N;
        if (starts(c)) load_states(initial(p.initial, c, k), state, s, channels.lanes, restart);
        if (p.kept) store_states(states(p.kept, s.chunks, c, k), state, s, channels.lanes);
        for (int i = 0; i < count; i++) at[i].read(channels, us[i0 + i], deltas[i0 + i]);
        over_tiles<M>(s.N, [&](auto tile, int n) { advance<tile.size>(at, count, in, n, rates, state); });
        for (int i = 0; i < count; i++) store(ys[i0 + i] + channels.e, at[i].y, channels.lanes);
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
    const int count = s.length(c), first = (k - k0) * s.N;
    const Channels channels(p.D, p.bias, k, s.lanes(k));
    BackwardAt at[T];
    for (int i = 0; i < count; i++) at[i].read(channels, us[i0 + i], deltas[i0 + i], dys[i0 + i]);
    load_states(states(p.kept, s.chunks, c, k), memory.start.at, s, channels.lanes, -1);
    over_tiles<BACK>(s.N, [&](auto tile, int n) {
      constexpr int m = tile.size;
      const vec* rates = memory.rates.at + first;
      Past<m>* past = (Past<m>*)memory.past.at;
      replay<m>(at, count, in, s.N, n, rates, memory.start.at, memory.sums.at, past);
      retreat<m>(at, count, in, s.N, n, rates, memory.g.at + first, memory.da.at + first, memory.sums.at, past);
    });
    for (int i = 0; i < count; i++) at[i].write(channels, dus[i0 + i], ddeltas[i0 + i], memory.dD.at[k - k0], memory.dbias.at[k - k0]);
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
    for (int k = k0; k < k1; k++) load_states(states(p.dlast, 1, 0, k), memory.g.at + (k - k0) * s.N, s, s.lanes(k), 0);
    clear(memory.da.at, (size_t)(k1 - k0) * s.N), clear(memory.dD.at, k1 - k0), clear(memory.dbias.at, k1 - k0);
    for (int c = s.chunks - 1; c >= 0; c--) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      in.read(rows(p.B, p.B_row), rows(p.C, p.C_row), i0, count);
      clear(memory.sums.at, (size_t)2 * count * s.N);
      for (int k = k0; k < k1; k++) chunk(memory, in, c, k), leave(memory.g.at + (k - k0) * s.N, c, k);
      store_sums(memory.sums.at, count, s.N, dBs, dCs, i0);
    }
    store_totals(memory.da.at, memory.dD.at, memory.dbias.at, p.dA, p.dD, p.dbias, s, b, k0, k1);
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

// The number of groups of channels of each sequence, so that there is work for all threads. Each group has its own sums of dB and dC, so
// there are no more groups than load balance needs.
int64_t dnadiff_channel_groups(int64_t batch, int64_t E, int threads) {
  constexpr int64_t WIDEST = 16;  // channels of the widest vector, the unit in which work is divided
  const int64_t blocks = (E + WIDEST - 1) / WIDEST;
  // the work of the busiest thread, relative to perfect balance
  const auto load = [&](int64_t groups) {
    const double largest = (double)((blocks + groups - 1) / groups) / (double)blocks;
    return (double)((batch * groups + threads - 1) / threads) * largest * threads / (double)batch;
  };
  double least = load(1);
  for (int64_t groups = 2; groups <= blocks; groups++) least = load(groups) < least ? load(groups) : least;
  int64_t groups = 1;
  while (load(groups) > 1.1 * least) groups++;
  return groups;
}

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
