// Copies windows of bytes from distant places, such as windows of a genome.
//
// A window of a kilobyte ends before the processor's own prefetching starts, so a plain copy waits for memory at each window.
// Here the cache lines of later windows are prefetched while earlier ones are copied.
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t DISTANCE = 8192, LINE = 64;  // bytes

void prefetch(const uint8_t* from, int64_t length) {
  for (int64_t k = 0; k < length; k += LINE) __builtin_prefetch(from + k);
  __builtin_prefetch(from + length - 1);
}

}  // namespace

extern "C" {
// to (count, length) = the windows from[place : place + length]. Returns -1, or the index of the first window that is not inside `from`
// (total bytes); then nothing is copied.
int64_t dnadiff_gather(const uint8_t* from, const int64_t* place, uint8_t* to, int64_t total, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; i++)
    if (place[i] < 0 || place[i] > total - length) return i;
  const int64_t ahead = (DISTANCE + length - 1) / length;
  for (int64_t i = 0; i < ahead && i < count; i++) prefetch(from + place[i], length);
  for (int64_t i = 0; i < count; i++) {
    if (i + ahead < count) prefetch(from + place[i + ahead], length);
    memcpy(to + i * length, from + place[i], length);
  }
  return -1;
}
}
