#include "bench/onednn_peak.h"

#include <chrono>
#include <cstring>
#include <dnnl.hpp>
#include <thread>

#include "kestrel/base/clock.h"
#include "kestrel/base/float_types.h"
#include "kestrel/base/rng.h"

namespace kestrel::bench {
namespace {

void FillRandom(const dnnl::memory& memory) {
  auto* p = static_cast<bf16*>(memory.get_data_handle());
  Rng rng(1);
  for (size_t i = 0; i < memory.get_desc().get_size() / 2; ++i) p[i] = ToBf16(static_cast<float>(rng.Uniform() - .5));
}

}  // namespace

struct OneDnnMatMul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::memory x, w, y;
  dnnl::matmul matmul;
};

OneDnnMatMul::OneDnnMatMul(int64_t rows, int64_t inputs, int64_t outputs) try : impl_(std::make_unique<Impl>()) {
  using Memory = dnnl::memory;
  const Memory::desc x({rows, inputs}, Memory::data_type::bf16, Memory::format_tag::ab);
  const Memory::desc w({inputs, outputs}, Memory::data_type::bf16, Memory::format_tag::any);
  const Memory::desc y({rows, outputs}, Memory::data_type::f32, Memory::format_tag::ab);
  const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(x, w, y), impl_->engine);
  impl_->x = Memory(x, impl_->engine);
  impl_->w = Memory(primitive.weights_desc(), impl_->engine);
  impl_->y = Memory(y, impl_->engine);
  impl_->matmul = dnnl::matmul(primitive);
  FillRandom(impl_->x);
  FillRandom(impl_->w);
} catch (const dnnl::error&) {
  impl_.reset();  // a CPU without bfloat16 support, say
}

OneDnnMatMul::~OneDnnMatMul() = default;

bool OneDnnMatMul::available() const { return impl_ != nullptr; }

double OneDnnMatMul::Seconds() {
  const double start = NowSeconds();
  impl_->matmul.execute(impl_->stream,
                        {{DNNL_ARG_SRC, impl_->x}, {DNNL_ARG_WEIGHTS, impl_->w}, {DNNL_ARG_DST, impl_->y}});
  impl_->stream.wait();
  const double seconds = NowSeconds() - start;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // OpenMP threads spin for a few ms
  return seconds;
}

}  // namespace kestrel::bench
