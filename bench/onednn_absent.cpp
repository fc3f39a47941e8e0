// Built where oneDNN was not found (Debian: libdnnl-dev); the GEMM benches then report no roof.
#include "bench/onednn_peak.h"

namespace kestrel::bench {

struct OneDnnMatMul::Impl {};
OneDnnMatMul::OneDnnMatMul(int64_t, int64_t, int64_t) {}
OneDnnMatMul::~OneDnnMatMul() = default;
bool OneDnnMatMul::available() const { return false; }
double OneDnnMatMul::Seconds() { return 0; }

}  // namespace kestrel::bench
